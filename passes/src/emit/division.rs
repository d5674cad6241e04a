//! Divides the stream into pieces of work, in its order, and says how much memory each takes.
//!
//! A tensor whose bytes are read in their order is packed by one piece, where that takes neither too much memory nor too
//! long, and hashed meanwhile. Otherwise a chunk is a piece by itself, with two exceptions. Canonical `[inputs, outputs]`
//! matrices are read across their rows: a piece of them is as many chunks as make runs worth reading. And a tensor that has
//! to be in memory as a whole (a recipe, integers that are stored as varints) is loaded once for all chunks with a part; so
//! are the planes of codes.
//!
//! Before the chunks of a tensor that is not hashed by the way stands its hashing: the one sequential read brings it into
//! the page cache, so that reading across its rows asks nothing of the disk.

use crate::emit::sources::leaves;
use crate::emit::work::{BLOCK_BYTES, Filling, Work};
use crate::ir::{ConstantData, ConstantId};
use ipuc_formats::encodings::{PartRange, ReadOrder};
use std::collections::HashMap;
use std::ops::Range;

/// Runs of this many bytes are worth reading alone from the page cache.
const RUN_BYTES: u64 = 8 << 10;
/// Most chunks that a piece fills one by one to hash a tensor: threads are to end together.
const WHOLE_CHUNKS: usize = 64;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// Hash the source tensor of this number.
    Hash(usize),
    /// Fill and write these chunks one by one; they hold parts of the same tensors.
    Chunks(Range<usize>),
    /// Fill these chunks at once, each of which holds whole panels of the same weight, and write them.
    Panels(Range<usize>),
}

/// A piece of work.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// What to do.
    pub(super) task: Task,
    /// Memory that it takes.
    pub(super) bytes: u64,
    /// How much of it is the buffer that is written.
    pub(super) buffer_bytes: u64,
}

/// Memory of pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Most for the chunks of a matrix that is read across its rows, where that is not all of it.
    pub(super) run_bytes: u64,
    /// Most for all of a matrix that is read across its rows.
    pub(super) whole_bytes: u64,
}

/// All pieces.
pub(super) struct Division {
    /// In the order of the stream.
    pub(super) pieces: Vec<Piece>,
    /// Number of the source tensor that is hashed while a weight is packed, if one is.
    pub(super) hashed: Vec<Option<usize>>,
}

/// Divide the work.
pub(super) fn divide(work: &Work, room: Room) -> Division {
    let hashing = |number| Piece { task: Task::Hash(number), bytes: BLOCK_BYTES, buffer_bytes: 0 };
    let numbers: HashMap<ConstantId, usize> =
        work.sources.iter().enumerate().map(|(number, &id)| (id, number)).collect();
    let mut division = Division { pieces: Vec::new(), hashed: vec![None; work.manifest.weights.len()] };
    let mut is_hashed = vec![false; work.sources.len()];
    let mut next = 0;
    while next < work.extents.len() {
        let panels = panels(work, next, room);
        let at_once = panels.len() > 1;
        let chunks = if at_once { panels } else { one_by_one(work, next) };
        next = chunks.end;
        for filling in chunks.clone().flat_map(|chunk| work.fillings_of(chunk)) {
            let sources = work.made_of[filling.weight].iter().flat_map(|&id| leaves(work.graph, id));
            for source in sources {
                let number = numbers[&source];
                if std::mem::replace(&mut is_hashed[number], true) {
                    continue;
                }
                let span = &work.spans[filling.weight];
                let whole = chunks.start <= span.start && span.end <= chunks.end;
                if source == filling.constant && whole && is_read_in_order(work, filling, at_once) {
                    division.hashed[filling.weight] = Some(number);
                } else {
                    division.pieces.push(hashing(number));
                }
            }
        }
        division.pieces.push(piece(work, chunks, at_once));
    }
    // Tensors without bytes fill nothing, and are sources all the same.
    division.pieces.extend((0..work.sources.len()).filter(|&number| !is_hashed[number]).map(hashing));
    division
}

fn piece(work: &Work, chunks: Range<usize>, at_once: bool) -> Piece {
    if at_once {
        let (bytes, buffer_bytes) = (work.panels_need(&chunks), work.bytes(&chunks));
        return Piece { task: Task::Panels(chunks), bytes, buffer_bytes };
    }
    let most = |of: &dyn Fn(usize) -> u64| chunks.clone().map(of).max().unwrap_or(0);
    let (bytes, buffer_bytes) = (most(&|chunk| work.chunk_need(chunk)), most(&|chunk| work.chunk_bytes(chunk)));
    Piece { task: Task::Chunks(chunks), bytes, buffer_bytes }
}

/// Whether packing all of a weight, its panels at once or part by part, reads the bytes of its tensor in their order.
fn is_read_in_order(work: &Work, filling: Filling, at_once: bool) -> bool {
    let record = &work.manifest.weights[filling.weight];
    let in_file = matches!(work.graph.constant(filling.constant).data, ConstantData::Stored(_));
    let units = record.encoding.units(record.logical());
    let whole =
        |part: &PartRange| units.as_ref().is_ok_and(|units| part.inputs_end - part.inputs_start == units.inputs);
    let order = match record.encoding.encoding().order() {
        ReadOrder::Sequential => record.parts.iter().all(|part| whole(&part.range())),
        ReadOrder::Scattered => false,
        ReadOrder::Across => at_once || record.parts.len() == 1,
    };
    in_file && work.loaded(&filling).is_none() && order
}

/// The chunks from `first` on that are filled one by one in a piece: to the end of what is loaded for them, and of tensors
/// that begin there and are hashed meanwhile.
fn one_by_one(work: &Work, first: usize) -> Range<usize> {
    let (mut chunk, mut end) = (first, first + 1);
    while chunk < end {
        for filling in work.fillings_of(chunk) {
            let span = &work.spans[filling.weight];
            let near = first <= span.start && span.end - first <= WHOLE_CHUNKS;
            let loaded = work.loaded(&filling).is_some() || !work.planes(filling.weight).is_empty();
            if loaded || near && is_read_in_order(work, filling, false) {
                end = end.max(span.end);
            }
        }
        chunk += 1;
    }
    first..end
}

/// The chunks from `first` on that are filled at once: all of a matrix that is read across its rows, or as many as make
/// these worth reading; no more than one for anything else.
fn panels(work: &Work, first: usize, room: Room) -> Range<usize> {
    let mut run = first..first + 1;
    let Some((filling, inputs)) = work.across(first) else { return run };
    let span = &work.spans[filling.weight];
    if span.start == first && work.panels_need(span) <= room.whole_bytes && are_joined(work, span) {
        return span.clone();
    }
    let wanted = inputs.saturating_mul(RUN_BYTES).min(room.run_bytes);
    while run.end < span.end {
        let longer = first..run.end + 1;
        if work.panels_need(&longer) > wanted || !are_joined(work, &(run.end - 1..longer.end)) {
            break;
        }
        run = longer;
    }
    run
}

/// Whether these chunks hold consecutive panels of one matrix that is read across its rows, and nothing else.
fn are_joined(work: &Work, chunks: &Range<usize>) -> bool {
    let fillings: Option<Vec<Filling>> =
        chunks.clone().map(|chunk| work.across(chunk).map(|(filling, _)| filling)).collect();
    let joins = |pair: &[Filling]| pair[0].weight == pair[1].weight && pair[0].range.end == pair[1].range.start;
    fillings.is_some_and(|fillings| fillings.windows(2).all(joins))
}
