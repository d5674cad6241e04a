//! How each constant is laid out, and where its parts lie in the stream.
//!
//! A pass may have chosen the encoding of a constant. Of all others, one that only products read, all of them as the same
//! matrix, is stored in panels, every other one plainly. A widening cast of a weight (f16 to f32) is a matter of encoding:
//! the narrow bytes are stored, the logical type is the wide one. Constants with the same bytes and the same encoding share
//! their extents.

use crate::emit::blocks::Numbering;
use crate::emit::{EmitError, EmitOptions};
use crate::ir::{ChosenEncoding, Constant, ConstantData, ConstantId, Graph, Operand, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Logical, Panels, PartRecord, Strings, WeightRecord, WeightSource};
use ipuc_formats::limits;
use ipuc_formats::model::ExtentRecord;
use ipuc_formats::onnx::TensorData;
use ipuc_formats::ops::{Op, Read, WeightMatrix};
use std::collections::HashMap;

/// Bytes that one checksum covers.
const CHECKSUM_BLOCK: u32 = 2 << 20;
/// Bytes that one checksum covers where rows are read alone.
const ROW_CHECKSUM_BLOCK: u32 = 4 << 10;

/// How steps read one constant.
#[derive(Default)]
struct Uses {
    matrices: Vec<Option<WeightMatrix>>,
    rows: bool,
}

/// What makes the stored bytes of two constants equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Content {
    Bytes([u8; 32]),
    Place { source: u32, place: String },
    Constant(ConstantId),
}

/// Decide how every constant is stored that a step reads.
pub(super) fn plan(
    graph: &Graph,
    numbering: &Numbering,
    options: &EmitOptions,
) -> Result<(Vec<WeightRecord>, Vec<ExtentRecord>), EmitError> {
    let uses = uses(graph, numbering);
    let mut weights = Vec::with_capacity(numbering.constants.len());
    let mut placed: HashMap<(Vec<Content>, String), usize> = HashMap::new();
    let mut unplaced = Vec::new();
    for (number, &id) in numbering.constants.iter().enumerate() {
        let constant = graph.constant(id);
        let made_of = made_of(graph, id);
        let ChosenEncoding { encoding, reason } = match &constant.encoding {
            Some(chosen) => chosen.clone(),
            None => encoding(constant, graph.constant(made_of[0]).dtype, uses.get(&id)),
        };
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
                unplaced.push(Unplaced { weight: number, length, rows: uses.get(&id).is_some_and(|uses| uses.rows) });
            }
        }
        let parts: Vec<PartRecord> = ranges.into_iter().map(|range| range.in_extent(first as u32)).collect();
        let name = constant.name.as_deref().map(str::to_string);
        let sources = made_of.iter().enumerate().filter_map(|(index, &id)| source(graph, id, index)).collect();
        weights.push(WeightRecord { name, dtype: constant.dtype, shape, encoding, reason, parts, sources });
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

fn uses(graph: &Graph, numbering: &Numbering) -> HashMap<ConstantId, Uses> {
    let mut uses: HashMap<ConstantId, Uses> = HashMap::new();
    for &index in &numbering.blocks {
        let block = graph.block(index);
        for step in &block.steps {
            for (position, operand) in step.operands.iter().enumerate() {
                if let Operand::Constant(id) = operand {
                    note_use(graph, step, position, *id, uses.entry(*id).or_default());
                }
            }
        }
        for result in &block.results {
            if let Operand::Constant(id) = result {
                uses.entry(*id).or_default().matrices.push(None);
            }
        }
    }
    uses
}

fn note_use(graph: &Graph, step: &Step, position: usize, id: ConstantId, uses: &mut Uses) {
    let shape: Vec<u64> = graph.constant(id).shape.iter().map(|&extent| extent as u64).collect();
    uses.matrices.push(step.op.weight_matrix(position, &shape));
    uses.rows |= step.op.read(position) == Read::Rows;
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
        let planes = planes.iter().filter_map(|plane| quantized.of_role(plane.role));
        return [quantized.codes].into_iter().chain(planes).collect();
    }
    if let ConstantData::Recipe { op: Op::Cast(_), operands } = &constant.data
        && let [Some(narrow)] = operands.as_slice()
        && constant.dtype == DType::F32
        && matches!(graph.constant(*narrow).dtype, DType::F16 | DType::BF16)
        && !matches!(graph.constant(*narrow).data, ConstantData::Recipe { .. })
    {
        return vec![*narrow];
    }
    vec![id]
}

/// The encoding of a constant for which no pass has chosen one.
fn encoding(constant: &Constant, stored: DType, uses: Option<&Uses>) -> ChosenEncoding {
    let chosen = |encoding: Coded, reason: &str| ChosenEncoding { encoding, reason: reason.to_string() };
    if constant.dtype == DType::String {
        return chosen(Strings {}.into(), "it is text");
    }
    let matrices = uses.map_or(&[][..], |uses| &uses.matrices);
    let common = match matrices {
        [Some(first), rest @ ..] if rest.iter().all(|other| other.as_ref() == Some(first)) => Some(first),
        _ => None,
    };
    match common {
        Some(&matrix) if matches!(stored, DType::F32 | DType::F16 | DType::BF16) && constant.byte_count() > 0 => {
            chosen(Panels::values(stored, matrix).into(), "only products read it, as the same matrix")
        }
        // Sums of integers of 8 bits are exact, and read panels.
        Some(&matrix)
            if matches!(stored, DType::I8 | DType::U8) && stored == constant.dtype && constant.byte_count() > 0 =>
        {
            chosen(Panels::values(stored, matrix).into(), "only integer products read it, as the same matrix")
        }
        Some(_) => chosen(Coded::plain(stored), "products of this type read it as it is"),
        None if uses.is_some_and(|uses| uses.rows) => chosen(Coded::plain(stored), "single rows are read"),
        None => chosen(Coded::plain(stored), "steps read it as it is"),
    }
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
