//! Divides the stream into pieces of work, in its order, and says how much memory each takes.
//!
//! A piece is, where that takes neither too much memory nor too long, all chunks with a part of a tensor: it is hashed
//! while it is read for packing. Otherwise a chunk is a piece by itself, with two exceptions. Canonical `[inputs, outputs]`
//! matrices are read across their rows: a piece of them is as many chunks as make runs worth reading. And a tensor that has
//! to be in memory as a whole (a recipe, integers that are stored as varints) is loaded once for all chunks with a part.
//!
//! Before the chunks of a tensor that no piece reads as a whole stands its hashing: the one sequential read brings it into
//! the page cache, so that reading across its rows asks nothing of the disk.

use crate::emit::blocks::Numbering;
use crate::emit::sources::{leaves, seen_once};
use crate::emit::weights::stored_constant;
use crate::ir::{ConstantData, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Layout, PartRange, WeightRecord};
use ipuc_formats::model::Manifest;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Runs of this many bytes are worth reading alone from the page cache.
const RUN_BYTES: u64 = 8 << 10;
/// What packing and hashing hold besides the chunks: a block of canonical bytes, or two where they are converted.
pub(super) const BLOCK_BYTES: u64 = 512 << 10;
/// Rows of a block of canonical bytes, at least.
const BLOCK_ROWS: u64 = 16;
/// Pieces that pack whole tensors are no longer than this, so that threads end together, ...
const WHOLE_BYTES: u64 = 128 << 20;
/// ... and so many of them fit into memory at a time.
const WHOLE_AT_A_TIME: u64 = 4;

/// Where the bytes of one extent come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling {
    /// The constant whose elements are stored.
    pub(super) constant: ConstantId,
    /// The weight that is made of them.
    pub(super) weight: usize,
    /// Which part of the weight.
    pub(super) range: PartRange,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// Nothing but hashing.
    Hash,
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
    /// Numbers of the source tensors that are hashed meanwhile, and at the end as far as they have not been read.
    pub(super) sources: Vec<usize>,
    /// Memory that it takes.
    pub(super) bytes: u64,
}

/// All that is known of a stream before it is written.
pub(super) struct Work<'a> {
    pub(super) graph: &'a Graph,
    pub(super) manifest: &'a Manifest,
    /// What fills each extent.
    pub(super) fillings: Vec<Option<Filling>>,
    /// Tensors that weights come from, in the order of first use, each once.
    pub(super) sources: Vec<ConstantId>,
    /// Extents of each chunk.
    pub(super) extents: Vec<Range<usize>>,
    /// Chunks that hold elements of each constant.
    spans: HashMap<ConstantId, Range<usize>>,
    /// What a piece takes where it may as well be smaller, at most.
    piece_bytes: u64,
    /// What a piece takes that packs whole tensors, at most.
    whole_bytes: u64,
}

impl<'a> Work<'a> {
    /// The work of so many threads with so much memory.
    pub(super) fn new(
        graph: &'a Graph,
        manifest: &'a Manifest,
        numbering: &Numbering,
        workers: usize,
        memory_bytes: u64,
    ) -> Self {
        let stored: Vec<ConstantId> = numbering.constants.iter().map(|&id| stored_constant(graph, id)).collect();
        let mut fillings: Vec<Option<Filling>> = vec![None; manifest.extents.len()];
        for (weight, record) in manifest.weights.iter().enumerate() {
            for part in &record.parts {
                // Weights with the same bytes share extents; the first of them fills.
                let filling = Filling { constant: stored[weight], weight, range: part.range() };
                fillings[part.extent as usize].get_or_insert(filling);
            }
        }
        let extents = (0..manifest.chunks.len()).map(|chunk| manifest.extents_of_chunk(chunk as u32)).collect();
        let mut spans: HashMap<ConstantId, Range<usize>> = HashMap::new();
        for (extent, filling) in manifest.extents.iter().zip(&fillings) {
            let Some(filling) = filling else { continue };
            let chunk = extent.chunk as usize;
            spans.entry(filling.constant).or_insert(chunk..chunk + 1).end = chunk + 1;
        }
        Work {
            graph,
            manifest,
            fillings,
            sources: seen_once(graph, &stored),
            extents,
            spans,
            piece_bytes: memory_bytes / workers as u64,
            whole_bytes: WHOLE_BYTES.min(memory_bytes / WHOLE_AT_A_TIME),
        }
    }

    /// The pieces in the order of the stream.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let source_numbers: HashMap<ConstantId, usize> =
            self.sources.iter().enumerate().map(|(number, &id)| (id, number)).collect();
        let mut hashed = HashSet::new();
        let mut pieces = Vec::new();
        let mut next = 0;
        while next < self.extents.len() {
            let mut piece = self.piece_at(next);
            let (Task::Chunks(chunks) | Task::Panels(chunks)) = piece.task.clone() else { break };
            next = chunks.end;
            for constant in chunks.clone().flat_map(|chunk| self.constants(chunk)) {
                for source in leaves(self.graph, constant) {
                    let number = source_numbers[&source];
                    if !hashed.insert(source) {
                        continue;
                    }
                    if source == constant && !self.is_loaded(source) && self.spans[&source].end <= chunks.end {
                        piece.sources.push(number);
                    } else {
                        pieces.push(Piece { task: Task::Hash, sources: vec![number], bytes: BLOCK_BYTES });
                    }
                }
            }
            pieces.push(piece);
        }
        // Tensors without bytes fill nothing, and are sources all the same.
        let left = (0..self.sources.len()).filter(|&number| !hashed.contains(&self.sources[number]));
        pieces.extend(left.map(|number| Piece { task: Task::Hash, sources: vec![number], bytes: BLOCK_BYTES }));
        pieces
    }

    fn piece_at(&self, first: usize) -> Piece {
        if let Some(filling) = self.across(first) {
            let panels = self.run(first, filling);
            if panels.len() > 1 {
                let bytes = self.panels_need(&panels);
                return Piece { task: Task::Panels(panels), sources: Vec::new(), bytes };
            }
        }
        let chunks = self.along(first);
        let bytes = chunks.clone().map(|chunk| self.chunk_need(chunk)).max().unwrap_or(0);
        Piece { task: Task::Chunks(chunks), sources: Vec::new(), bytes }
    }

    fn chunk_bytes(&self, chunk: usize) -> u64 {
        self.manifest.chunks[chunk].length
    }

    /// Bytes of consecutive chunks, which lie one after another.
    fn bytes(&self, chunks: &Range<usize>) -> u64 {
        let (first, last) = (&self.manifest.chunks[chunks.start], &self.manifest.chunks[chunks.end - 1]);
        last.offset + last.length - first.offset
    }

    /// Memory that filling these chunks at once takes.
    fn panels_need(&self, chunks: &Range<usize>) -> u64 {
        self.bytes(chunks) + self.block_bytes(chunks)
    }

    /// Memory that filling one chunk by itself takes.
    fn chunk_need(&self, chunk: usize) -> u64 {
        let mut constants: Vec<ConstantId> = self.constants(chunk).collect();
        constants.dedup();
        let loaded: u64 = constants.into_iter().map(|constant| self.loaded_bytes(constant)).sum();
        self.chunk_bytes(chunk) + self.block_bytes(&(chunk..chunk + 1)) + loaded
    }

    fn fillings_of(&self, chunk: usize) -> impl Iterator<Item = Filling> + '_ {
        self.extents[chunk].clone().filter_map(|extent| self.fillings[extent])
    }

    fn constants(&self, chunk: usize) -> impl Iterator<Item = ConstantId> + '_ {
        self.fillings_of(chunk).map(|filling| filling.constant)
    }

    /// Whether a constant has to be in memory as a whole, and is not yet.
    pub(super) fn is_loaded(&self, id: ConstantId) -> bool {
        let constant = self.graph.constant(id);
        match &constant.data {
            ConstantData::Tensor(_) => false,
            ConstantData::Recipe { .. } => true,
            // Varints have no places of their own.
            ConstantData::Stored(stored) => !stored.tensor.is_direct() || constant.dtype == DType::String,
        }
    }

    /// Bytes that loading a constant takes, with what it is computed from.
    fn loaded_bytes(&self, id: ConstantId) -> u64 {
        let constant = self.graph.constant(id);
        match &constant.data {
            ConstantData::Tensor(_) => 0,
            ConstantData::Stored(_) if self.is_loaded(id) => constant.byte_count(),
            ConstantData::Stored(_) => 0,
            ConstantData::Recipe { operands, .. } => {
                let operand = |id: ConstantId| match &self.graph.constant(id).data {
                    ConstantData::Stored(_) => self.graph.constant(id).byte_count(),
                    ConstantData::Tensor(_) | ConstantData::Recipe { .. } => self.loaded_bytes(id),
                };
                constant.byte_count() + operands.iter().flatten().map(|&id| operand(id)).sum::<u64>()
            }
        }
    }

    /// Canonical bytes that packing these chunks holds at a time.
    fn block_bytes(&self, chunks: &Range<usize>) -> u64 {
        let rows = chunks.clone().flat_map(|chunk| self.fillings_of(chunk)).fold(0, |columns: u64, filling| {
            let record = &self.manifest.weights[filling.weight];
            match &record.layout {
                Layout::Panels(panels) if panels.output_axis == 1 => {
                    let outputs = (filling.range.end - filling.range.start) * u64::from(panels.outputs_per_panel);
                    columns + outputs * row_element_bytes(record)
                }
                Layout::Panels(_) | Layout::Plain { .. } | Layout::Strings => columns,
            }
        });
        BLOCK_BYTES.max(rows.saturating_mul(BLOCK_ROWS))
    }

    /// What fills a chunk, where that is one part of whole panels of a matrix that is read across its rows.
    fn across(&self, chunk: usize) -> Option<Filling> {
        let mut fillings = self.fillings_of(chunk);
        let (Some(filling), None) = (fillings.next(), fillings.next()) else { return None };
        let Layout::Panels(panels) = &self.manifest.weights[filling.weight].layout else { return None };
        let whole = (filling.range.inputs_start, filling.range.inputs_end) == (0, panels.inputs);
        let direct = !self.is_loaded(filling.constant);
        (panels.output_axis == 1 && whole && direct).then_some(filling)
    }

    /// Whether these chunks hold consecutive panels of one matrix that is read across its rows, and nothing else.
    fn are_joined(&self, chunks: &Range<usize>) -> bool {
        let fillings: Option<Vec<Filling>> = chunks.clone().map(|chunk| self.across(chunk)).collect();
        let joins = |pair: &[Filling]| pair[0].weight == pair[1].weight && pair[0].range.end == pair[1].range.start;
        fillings.is_some_and(|fillings| fillings.windows(2).all(joins))
    }

    /// The chunks from `first` on that are filled one by one in a piece: to the end of what is loaded for them, and of
    /// tensors that are not read across their rows, where that is near.
    fn along(&self, first: usize) -> Range<usize> {
        let (mut chunk, mut end) = (first, first + 1);
        while chunk < end {
            for filling in self.fillings_of(chunk) {
                let span = &self.spans[&filling.constant];
                let layout = &self.manifest.weights[filling.weight].layout;
                let across = matches!(layout, Layout::Panels(panels) if panels.output_axis == 1);
                let near = self.bytes(&(first..span.end)) <= self.whole_bytes;
                if near && !across || self.is_loaded(filling.constant) {
                    end = end.max(span.end);
                }
            }
            chunk += 1;
        }
        first..end
    }

    /// The chunks from `first` on that are filled at once: all of the matrix, or as many as make its rows worth reading.
    fn run(&self, first: usize, filling: Filling) -> Range<usize> {
        let Layout::Panels(panels) = &self.manifest.weights[filling.weight].layout else { return first..first + 1 };
        let span = &self.spans[&filling.constant];
        if span.start == first && self.panels_need(span) <= self.whole_bytes && self.are_joined(span) {
            return span.clone();
        }
        let wanted = panels.inputs.saturating_mul(RUN_BYTES).min(self.piece_bytes);
        let mut run = first..first + 1;
        while run.end < span.end {
            let longer = first..run.end + 1;
            if self.panels_need(&longer) > wanted || !self.are_joined(&(run.end - 1..longer.end)) {
                break;
            }
            run = longer;
        }
        run
    }
}

/// Bytes of one canonical element, and of the stored one where it is converted.
fn row_element_bytes(record: &WeightRecord) -> u64 {
    let stored = record.layout.dtype().bits() as u64 / 8;
    let logical = record.dtype.bits() as u64 / 8;
    if stored == logical { stored } else { stored + logical }
}
