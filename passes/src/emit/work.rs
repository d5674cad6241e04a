//! All that is known of a stream before it is written: what fills each extent, where each weight lies, and how much memory
//! filling takes.

use crate::emit::blocks::Numbering;
use crate::emit::sources::seen_once;
use crate::emit::weights::made_of;
use crate::ir::{ConstantData, ConstantId, Graph, Rounded, RoundedTo};
use crate::rounding::{Region, Scheme};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Encoding, PartRange, ReadOrder, WeightRecord};
use ipuc_formats::model::Manifest;
use std::ops::Range;

/// What packing and hashing hold besides the chunks: a block of canonical bytes, or two where they are converted.
pub(super) const BLOCK_BYTES: u64 = 512 << 10;
/// Rows of a block of canonical bytes, at least.
const BLOCK_ROWS: u64 = 16;

/// Where the bytes of one extent come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling {
    /// The constant whose elements are stored: codes where they are coded.
    pub(super) constant: ConstantId,
    /// The weight that is made of them.
    pub(super) weight: usize,
    /// Which part of the weight.
    pub(super) range: PartRange,
}

/// All that is known of a stream before it is written.
pub(super) struct Work<'a> {
    pub(super) graph: &'a Graph,
    pub(super) manifest: &'a Manifest,
    /// What fills each extent.
    pub(super) fillings: Vec<Option<Filling>>,
    /// What each weight is made of: its elements, then its planes.
    pub(super) made_of: Vec<Vec<ConstantId>>,
    /// Tensors that weights come from, in the order of first use, each once.
    pub(super) sources: Vec<ConstantId>,
    /// Extents of each chunk.
    pub(super) extents: Vec<Range<usize>>,
    /// Chunks that each weight fills, of those with the same bytes the first.
    pub(super) spans: Vec<Range<usize>>,
    /// Most that a constant takes which is computed at once though it can be computed in parts.
    whole_bytes: u64,
}

impl<'a> Work<'a> {
    pub(super) fn new(graph: &'a Graph, manifest: &'a Manifest, numbering: &Numbering, whole_bytes: u64) -> Self {
        let made_of: Vec<Vec<ConstantId>> = numbering.constants.iter().map(|&id| made_of(graph, id)).collect();
        let mut fillings: Vec<Option<Filling>> = vec![None; manifest.extents.len()];
        for (weight, record) in manifest.weights.iter().enumerate() {
            for part in &record.parts {
                // Weights with the same bytes share extents; the first of them fills.
                let constant = graph.bytes_of(made_of[weight][0]);
                let filling = Filling { constant, weight, range: part.range() };
                fillings[part.extent as usize].get_or_insert(filling);
            }
        }
        let extents = (0..manifest.chunks.len()).map(|chunk| manifest.extents_of_chunk(chunk as u32)).collect();
        let mut spans = vec![0..0; manifest.weights.len()];
        for (extent, filling) in manifest.extents.iter().zip(&fillings) {
            let (Some(filling), chunk) = (filling, extent.chunk as usize) else { continue };
            let span: &mut Range<usize> = &mut spans[filling.weight];
            *span = if span.end == 0 { chunk } else { span.start }..chunk + 1;
        }
        let sources = seen_once(graph, &made_of.concat());
        Work { graph, manifest, fillings, made_of, sources, extents, spans, whole_bytes }
    }

    pub(super) fn chunk_bytes(&self, chunk: usize) -> u64 {
        self.manifest.chunks[chunk].length
    }

    /// Bytes of consecutive chunks, which lie one after another.
    pub(super) fn bytes(&self, chunks: &Range<usize>) -> u64 {
        let (first, last) = (&self.manifest.chunks[chunks.start], &self.manifest.chunks[chunks.end - 1]);
        last.offset + last.length - first.offset
    }

    /// Memory that filling these chunks at once takes.
    pub(super) fn panels_need(&self, chunks: &Range<usize>) -> u64 {
        self.bytes(chunks) + self.block_bytes(chunks)
    }

    /// Memory that filling one chunk by itself takes.
    pub(super) fn chunk_need(&self, chunk: usize) -> u64 {
        let mut fillings: Vec<Filling> = self.fillings_of(chunk).collect();
        // One extent is rounded at a time.
        let rounding = fillings.iter().map(|filling| self.rounding_bytes(filling)).max().unwrap_or(0);
        fillings.dedup_by_key(|filling| (filling.constant, filling.weight));
        let loaded = |filling: &Filling| {
            let whole = self.loaded(filling).map_or(0, |constant| self.loaded_bytes(constant));
            whole + self.planes_bytes(filling.weight)
        };
        let loaded: u64 = fillings.iter().map(loaded).sum();
        self.chunk_bytes(chunk) + self.block_bytes(&(chunk..chunk + 1)) + loaded + rounding
    }

    /// Constants that the planes of a weight are made of; none where rounding gives them with the codes.
    pub(super) fn planes(&self, weight: usize) -> &[ConstantId] {
        if self.scheme(weight).is_some() { &[] } else { &self.made_of[weight][1..] }
    }

    /// How the elements of a weight are rounded to codes while they are packed, part by part.
    pub(super) fn scheme(&self, weight: usize) -> Option<(&'a Rounded, Scheme)> {
        let rounded = self.graph.rounded(self.made_of[weight][0])?;
        let RoundedTo::Codes(scheme, _) = rounded.to else { return None };
        let record = &self.manifest.weights[weight];
        let encoding = record.encoding.encoding();
        let matrix = encoding.matrices(record.logical())?;
        (matrix == scheme.matrix).then_some((rounded, scheme))
    }

    /// The outputs of a weight that a part of it holds.
    pub(super) fn outputs(&self, filling: &Filling, scheme: &Scheme, range: PartRange) -> Range<u64> {
        match self.manifest.weights[filling.weight].encoding.unit_outputs() {
            Some(width) => Region::outputs_of_units(scheme, range.start..range.end, width),
            None => range.start..range.end,
        }
    }

    /// Bytes that the planes of a weight take in memory, twice while they are spread.
    fn planes_bytes(&self, weight: usize) -> u64 {
        if self.planes(weight).is_empty() {
            return 0;
        }
        let record = &self.manifest.weights[weight];
        let elements: u64 = record.shape.iter().product();
        let planes = record.encoding.encoding().planes().iter();
        planes.map(|plane| 2 * elements.div_ceil(plane.block.max(16)) * (plane.dtype.bits() as u64).div_ceil(8)).sum()
    }

    pub(super) fn fillings_of(&self, chunk: usize) -> impl Iterator<Item = Filling> + '_ {
        self.extents[chunk].clone().filter_map(|extent| self.fillings[extent])
    }

    /// The constant that has to be in memory as a whole to fill this, and is not yet.
    pub(super) fn loaded(&self, filling: &Filling) -> Option<ConstantId> {
        let read = match (self.graph.rounded(filling.constant), self.scheme(filling.weight)) {
            (Some(_), Some((rounded, _))) => rounded.weight,
            (Some(Rounded { weight, to: RoundedTo::Narrow, .. }), None) => *weight,
            (Some(_) | None, _) => filling.constant,
        };
        self.is_whole(read).then_some(read)
    }

    /// Whether a constant cannot be read in parts, and is not in memory.
    fn is_whole(&self, id: ConstantId) -> bool {
        let constant = self.graph.constant(id);
        match &constant.data {
            ConstantData::Tensor(_) => false,
            // One at once is faster, and fills are as fast in parts.
            ConstantData::Recipe { .. } => {
                let fits = || self.loaded_bytes(id) <= self.whole_bytes && !self.graph.is_fill(id);
                !self.graph.is_computed_in_parts(id) || fits()
            }
            ConstantData::Rounded(_) | ConstantData::Hashed(_) => true,
            // Varints have no places of their own.
            ConstantData::Stored(stored) => !stored.tensor.is_direct() || constant.dtype == DType::String,
        }
    }

    /// Memory that rounding what fills an extent takes.
    fn rounding_bytes(&self, filling: &Filling) -> u64 {
        self.scheme(filling.weight).map_or(0, |(rounded, scheme)| {
            let outputs = self.outputs(filling, &scheme, filling.range);
            let count = outputs.end - outputs.start;
            let compensated = rounded.factor.map_or(0, |_| Region::compensating_bytes(&scheme, count));
            Region::memory_bytes(&scheme, count).saturating_add(compensated)
        })
    }

    /// Bytes that loading a constant takes, with what it is computed from.
    fn loaded_bytes(&self, id: ConstantId) -> u64 {
        let constant = self.graph.constant(id);
        match &constant.data {
            ConstantData::Tensor(_) => 0,
            ConstantData::Stored(_) if self.is_whole(id) => constant.byte_count(),
            ConstantData::Stored(_) => 0,
            ConstantData::Hashed(_) => constant.byte_count(),
            ConstantData::Rounded(rounded) => {
                // The weight, its elements as f32, and what it becomes.
                let weight = self.graph.constant(rounded.weight).byte_count();
                let elements = constant.shape.iter().product::<usize>() as u64;
                self.loaded_bytes(rounded.weight) + weight + 5 * elements + constant.byte_count()
            }
            ConstantData::Recipe { operands, .. } => {
                let operand = |id: ConstantId| match &self.graph.constant(id).data {
                    ConstantData::Stored(_) => self.graph.constant(id).byte_count(),
                    ConstantData::Tensor(_)
                    | ConstantData::Recipe { .. }
                    | ConstantData::Rounded(_)
                    | ConstantData::Hashed(_) => self.loaded_bytes(id),
                };
                constant.byte_count() + operands.iter().flatten().map(|&id| operand(id)).sum::<u64>()
            }
        }
    }

    /// Canonical bytes that packing these chunks holds at a time.
    fn block_bytes(&self, chunks: &Range<usize>) -> u64 {
        let rows = chunks.clone().flat_map(|chunk| self.fillings_of(chunk)).fold(0, |columns: u64, filling| {
            let record = &self.manifest.weights[filling.weight];
            match record.encoding.encoding().order() {
                ReadOrder::Across => {
                    let units = filling.range.end - filling.range.start;
                    let outputs = units * record.encoding.unit_outputs().unwrap_or(1);
                    columns + outputs * row_element_bytes(record)
                }
                ReadOrder::Sequential | ReadOrder::Scattered => columns,
            }
        });
        // Panels without zeros are packed with them first, inputs one by one as panels.
        let with_zeros = chunks.clone().flat_map(|chunk| self.fillings_of(chunk)).map(|filling| {
            let record = &self.manifest.weights[filling.weight];
            if record.encoding.as_input_major().is_some() {
                return record.encoding.part_bytes(record.logical(), filling.range).ok().flatten().unwrap_or(0);
            }
            let dense = record.encoding.as_sparse_panels().map(|panels| Coded::from(panels.dense()));
            let bytes = dense.and_then(|dense| dense.part_bytes(record.logical(), filling.range).ok().flatten());
            bytes.unwrap_or(0)
        });
        BLOCK_BYTES.max(rows.saturating_mul(BLOCK_ROWS)) + with_zeros.max().unwrap_or(0)
    }

    /// What fills a chunk, where that is one part of whole panels of a matrix that is read across its rows, and the number
    /// of these.
    pub(super) fn across(&self, chunk: usize) -> Option<(Filling, u64)> {
        let mut fillings = self.fillings_of(chunk);
        let (Some(filling), None) = (fillings.next(), fillings.next()) else { return None };
        let record = &self.manifest.weights[filling.weight];
        let panels = record.encoding.as_panels()?;
        let whole = (filling.range.inputs_start, filling.range.inputs_end) == (0, panels.inputs);
        let direct = self.loaded(&filling).is_none() && !panels.is_coded();
        (panels.order() == ReadOrder::Across && whole && direct).then_some((filling, panels.inputs))
    }
}

/// Bytes of one canonical element, of the stored one where it is converted, and of a code while several become a byte.
fn row_element_bytes(record: &WeightRecord) -> u64 {
    let encoding = record.encoding.encoding();
    let bytes = |bits: usize| (bits as u64).div_ceil(8);
    let (stored, logical) = (bytes(encoding.dtype().bits()), bytes(record.dtype.bits()));
    match (encoding.planes().is_empty(), stored == logical) {
        (false, _) => 3 * stored,
        (true, true) => stored,
        (true, false) => stored + logical,
    }
}
