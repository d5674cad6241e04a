//! How each constant is laid out, and where its parts lie in the stream.
//!
//! A pass may have chosen the encoding of a constant. Of all others, one that products read, all of them as the same matrix,
//! and nothing else but steps that pick its outputs as rows, is stored in panels, every other one plainly. A widening cast of
//! a weight (f16 to f32) is a matter of encoding: the narrow bytes are stored, the logical type is the wide one. Constants
//! with the same bytes and the same encoding share their extents.

use crate::emit::blocks::Numbering;
use crate::emit::{EmitError, EmitOptions};
use crate::ir::{ChosenEncoding, Constant, ConstantData, ConstantId, Graph, Uses};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Logical, PartRecord, WeightRecord, WeightSource};
use ipuc_formats::limits;
use ipuc_formats::model::ExtentRecord;
use ipuc_formats::onnx::TensorData;
use std::collections::HashMap;

/// Bytes that one checksum covers.
const CHECKSUM_BLOCK: u32 = 2 << 20;
/// Bytes that one checksum covers where rows are read alone.
const ROW_CHECKSUM_BLOCK: u32 = 4 << 10;

/// What makes the stored bytes of two constants equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Content {
    Bytes([u8; 32]),
    Place {
        source: u32,
        place: String,
    },
    Constant(ConstantId),
    /// Of what is rounded, and to what.
    Rounded(Vec<Content>, String),
}

/// Decide how every constant is stored that a step reads.
pub(super) fn plan(
    graph: &Graph,
    numbering: &Numbering,
    options: &EmitOptions,
) -> Result<(Vec<WeightRecord>, Vec<ExtentRecord>), EmitError> {
    let uses = graph.uses();
    let unread = Uses::default();
    let mut weights = Vec::with_capacity(numbering.constants.len());
    let mut placed: HashMap<(Vec<Content>, String), usize> = HashMap::new();
    let mut unplaced = Vec::new();
    for (number, &id) in numbering.constants.iter().enumerate() {
        let constant = graph.constant(id);
        let made_of = made_of(graph, id);
        let used = uses.get(&id).unwrap_or(&unread);
        let chosen = constant.encoding.clone();
        let ChosenEncoding { encoding, reason, .. } = chosen.unwrap_or_else(|| graph.default_encoding(id, used));
        let shape: Vec<u64> = constant.shape.iter().map(|&extent| extent as u64).collect();
        let logical = Logical { dtype: constant.dtype, shape: &shape };
        let failure = |error| EmitError::Encoding { weight: constant.label().to_string(), error };
        let ranges = encoding.split(logical, options.chunk_bytes).map_err(failure)?;
        let contents = made_of.iter().map(|&id| content(graph, graph.bytes_of(id))).collect();
        let first = *placed.entry((contents, format!("{encoding} {logical:?}"))).or_insert(number);
        if first == number {
            for &range in &ranges {
                let bytes = encoding.part_bytes(logical, range).map_err(failure)?;
                let length = bytes.unwrap_or_else(|| string_bytes(constant));
                let apart = encoding.as_input_major().is_some_and(|runs| runs.is_read_apart());
                unplaced.push(Unplaced { weight: number, length, rows: used.rows > 0 || apart });
            }
        }
        let parts: Vec<PartRecord> = ranges.into_iter().map(|range| range.in_extent(first as u32)).collect();
        let name = constant.name.as_deref().map(str::to_string);
        let sources = made_of.iter().enumerate().filter_map(|(index, &id)| source(graph, id, index)).collect();
        let (dtype, zeros) = (constant.dtype, constant.zeros.clone());
        weights.push(WeightRecord { name, dtype, shape, encoding, reason, parts, sources, zeros, id: id.0 });
    }
    let extents = arrange(&unplaced, &mut weights);
    Ok((weights, extents))
}

/// An extent before it has a place.
struct Unplaced {
    weight: usize,
    length: u64,
    rows: bool,
}

/// What is stored of a constant: its elements, then its planes in the order of its encoding.
///
/// The elements of a coded constant are its codes, those of a widening cast what it reads.
pub(super) fn made_of(graph: &Graph, id: ConstantId) -> Vec<ConstantId> {
    let constant = graph.constant(id);
    let planes = constant.encoding.as_ref().map_or(&[][..], |chosen| chosen.encoding.encoding().planes());
    if !planes.is_empty()
        && let Some(quantized) = graph.quantized(id)
    {
        return [quantized.codes].into_iter().chain(quantized.parameters().map(|(_, id)| id)).collect();
    }
    vec![graph.stored_elements(id)]
}

fn content(graph: &Graph, id: ConstantId) -> Content {
    match &graph.constant(id).data {
        ConstantData::Tensor(tensor) if tensor.dtype() != DType::String => {
            let mut hasher = blake3::Hasher::new();
            hasher.update(tensor.dtype().name().as_bytes());
            hasher.update(tensor.bytes());
            Content::Bytes(*hasher.finalize().as_bytes())
        }
        ConstantData::Stored(stored) => match stored.tensor.data() {
            TensorData::External(external) => {
                let place = format!("{} {}", external.offset, stored.tensor.length_bytes());
                Content::Place { source: stored.source, place }
            }
            TensorData::InFile { segments, .. } => {
                Content::Place { source: stored.source, place: format!("{segments:?}") }
            }
            TensorData::Inline(_) => Content::Constant(id),
        },
        ConstantData::Rounded(rounded) => {
            let to = format!("{} {:?}", graph.constant(id).dtype, rounded.to);
            let read = [Some(rounded.weight), rounded.factor].into_iter().flatten();
            Content::Rounded(read.map(|id| content(graph, id)).collect(), to)
        }
        ConstantData::Tensor(_) | ConstantData::Recipe { .. } | ConstantData::Hashed(_) => Content::Constant(id),
    }
}

/// Where the elements of a constant come from, or of a plane of it: those of a computed one from its first operand.
fn source(graph: &Graph, id: ConstantId, index: usize) -> Option<WeightSource> {
    let constant = graph.constant(id);
    let (source, offset, length) = match &constant.data {
        ConstantData::Stored(stored) => (stored.source, stored.tensor.source_offset()?, stored.tensor.length_bytes()),
        ConstantData::Tensor(_) | ConstantData::Hashed(_) => {
            constant.origin.map(|origin| (origin.source, origin.offset, origin.length))?
        }
        // Parameters lay nowhere before.
        ConstantData::Rounded(_) if index > 0 => return None,
        ConstantData::Rounded(rounded) => return self::source(graph, rounded.weight, index),
        ConstantData::Recipe { operands, .. } => return self::source(graph, (*operands.first()?)?, index),
    };
    let plane = index.checked_sub(1).map(|plane| plane as u32);
    Some(WeightSource { plane, file: graph.sources[source as usize].name.clone(), offset, length })
}

fn string_bytes(constant: &Constant) -> u64 {
    let strings = constant.tensor().and_then(|tensor| tensor.strings().ok());
    strings
        .and_then(|strings| ipuc_formats::encodings::pack_strings(strings).ok())
        .map_or(0, |bytes| bytes.len() as u64)
}

/// Extents in the order of the stream: small ones pooled in front, then all others in the order of first use.
fn arrange(unplaced: &[Unplaced], weights: &mut [WeightRecord]) -> Vec<ExtentRecord> {
    let mut weight_bytes: HashMap<usize, u64> = HashMap::new();
    for extent in unplaced {
        *weight_bytes.entry(extent.weight).or_default() += extent.length;
    }
    let is_pooled = |extent: &&Unplaced| weight_bytes[&extent.weight] < limits::IPU_POOLED_BYTES;
    let mut extents = Vec::with_capacity(unplaced.len());
    let mut extents_of: HashMap<usize, Vec<u32>> = HashMap::new();
    for pooled in [true, false] {
        for extent in unplaced.iter().filter(|extent| is_pooled(extent) == pooled) {
            extents_of.entry(extent.weight).or_default().push(extents.len() as u32);
            let checksum_block = if extent.rows { ROW_CHECKSUM_BLOCK } else { CHECKSUM_BLOCK };
            // The writer knows where it lies and what its checksums are.
            extents.push(ExtentRecord {
                file: 0,
                offset: 0,
                length: extent.length,
                checksum_block,
                checksums: Vec::new(),
                pooled,
                chunk: 0,
            });
        }
    }
    for weight in weights {
        // Until here a part names the first weight with its bytes.
        for (index, part) in weight.parts.iter_mut().enumerate() {
            part.extent = extents_of[&(part.extent as usize)][index];
        }
    }
    extents
}
