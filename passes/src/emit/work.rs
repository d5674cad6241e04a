//! Divides the stream into pieces of work, in its order, and says how much memory each takes.
//!
//! A chunk is a piece by itself, with two exceptions. Canonical `[inputs, outputs]` matrices are read across their rows:
//! a piece of them is as many chunks as make runs worth reading. And a tensor that has to be in memory as a whole (a
//! recipe, integers that are stored as varints) is loaded once for all chunks with a part of it.
//!
//! Before the chunks of a weight stands the hashing of the tensor that it comes from: its one sequential read brings the
//! tensor into the page cache, so that reading across its rows asks nothing of the disk.

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
    /// Hash the source tensor of this number.
    Hash(usize),
    /// Fill and write these chunks one by one; they share tensors that are loaded.
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
}

impl<'a> Work<'a> {
    pub(super) fn new(graph: &'a Graph, manifest: &'a Manifest, numbering: &Numbering) -> Self {
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
        Work { graph, manifest, fillings, sources: seen_once(graph, &stored), extents }
    }

    /// The pieces in the order of the stream; none that could be smaller takes more than `piece_bytes`.
    pub(super) fn pieces(&self, piece_bytes: u64) -> Vec<Piece> {
        let source_numbers: HashMap<ConstantId, usize> =
            self.sources.iter().enumerate().map(|(number, &id)| (id, number)).collect();
        let mut hashed = HashSet::new();
        let mut pieces = Vec::new();
        let mut next = 0;
        while next < self.extents.len() {
            let piece = self.piece_at(next, piece_bytes);
            let (Task::Chunks(chunks) | Task::Panels(chunks)) = &piece.task else { break };
            next = chunks.end;
            for constant in chunks.clone().flat_map(|chunk| self.constants(chunk)) {
                for source in leaves(self.graph, constant) {
                    if hashed.insert(source) {
                        pieces.push(Piece { task: Task::Hash(source_numbers[&source]), bytes: BLOCK_BYTES });
                    }
                }
            }
            pieces.push(piece);
        }
        // Tensors without bytes fill nothing, and are sources all the same.
        let left = (0..self.sources.len()).filter(|&number| !hashed.contains(&self.sources[number]));
        pieces.extend(left.map(|number| Piece { task: Task::Hash(number), bytes: BLOCK_BYTES }));
        pieces
    }

    fn piece_at(&self, first: usize, piece_bytes: u64) -> Piece {
        if let Some(filling) = self.across(first) {
            let panels = self.run(first, piece_bytes, filling);
            if panels.len() > 1 {
                let bytes = panels.clone().map(|chunk| self.chunk_bytes(chunk)).sum::<u64>();
                let bytes = bytes + self.block_bytes(&panels);
                return Piece { task: Task::Panels(panels), bytes };
            }
        }
        let mut end = first + 1;
        let mut bytes = self.chunk_need(first);
        while end < self.extents.len() && self.share_loaded(end - 1, end) {
            bytes = bytes.max(self.chunk_need(end));
            end += 1;
        }
        Piece { task: Task::Chunks(first..end), bytes }
    }

    fn chunk_bytes(&self, chunk: usize) -> u64 {
        self.manifest.chunks[chunk].length
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

    fn share_loaded(&self, one: usize, other: usize) -> bool {
        let loaded = |constant: &ConstantId| self.is_loaded(*constant);
        self.constants(one).filter(loaded).any(|constant| self.constants(other).any(|next| next == constant))
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

    /// The chunks from `first` on that are filled together.
    fn run(&self, first: usize, piece_bytes: u64, filling: Filling) -> Range<usize> {
        let Layout::Panels(panels) = &self.manifest.weights[filling.weight].layout else { return first..first + 1 };
        let wanted = panels.inputs.saturating_mul(RUN_BYTES).min(piece_bytes);
        let (mut end, mut bytes, mut last) = (first + 1, self.chunk_bytes(first), filling);
        while end < self.extents.len()
            && bytes + self.chunk_bytes(end) + self.block_bytes(&(first..end + 1)) <= wanted
            && let Some(next) = self.across(end)
            && next.weight == filling.weight
            && next.range.start == last.range.end
        {
            bytes += self.chunk_bytes(end);
            last = next;
            end += 1;
        }
        first..end
    }
}

/// Bytes of one canonical element, and of the stored one where it is converted.
fn row_element_bytes(record: &WeightRecord) -> u64 {
    let stored = record.layout.dtype().bits() as u64 / 8;
    let logical = record.dtype.bits() as u64 / 8;
    if stored == logical { stored } else { stored + logical }
}
