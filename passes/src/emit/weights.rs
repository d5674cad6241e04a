//! How each constant is laid out, and where its parts lie in the stream.
//!
//! A constant that only products read, all of them as the same matrix, is stored in panels; every other one plainly.
//! A widening cast of a weight (f16 to f32) is a matter of layout: the narrow bytes are stored, the logical type is the
//! wide one. Constants with the same bytes and the same layout share their extents.

use crate::emit::blocks::Numbering;
use crate::emit::{EmitError, EmitOptions};
use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Layout, PanelLayout, PartRecord, WeightRecord, WeightSource};
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

/// Lay out every constant that a step reads.
pub(super) fn plan(
    graph: &Graph,
    numbering: &Numbering,
    options: &EmitOptions,
) -> Result<(Vec<WeightRecord>, Vec<ExtentRecord>), EmitError> {
    let uses = uses(graph, numbering);
    let mut weights = Vec::with_capacity(numbering.constants.len());
    let mut placed: HashMap<(Content, String), usize> = HashMap::new();
    let mut unplaced = Vec::new();
    for (number, &id) in numbering.constants.iter().enumerate() {
        let constant = graph.constant(id);
        let stored = stored_constant(graph, id);
        let layout = layout(constant, graph.constant(stored).dtype, uses.get(&id));
        let shape: Vec<u64> = constant.shape.iter().map(|&extent| extent as u64).collect();
        let failure = |error| EmitError::Encoding { weight: constant.label().to_string(), error };
        let ranges = layout.split(&shape, options.chunk_bytes).map_err(failure)?;
        let key = (content(graph, stored), format!("{layout:?} {shape:?}"));
        let first = *placed.entry(key).or_insert(number);
        if first == number {
            for range in &ranges {
                let bytes = layout.part_bytes(&shape, range).map_err(failure)?;
                let bytes = bytes.unwrap_or_else(|| string_bytes(constant));
                unplaced.push(Unplaced {
                    weight: number,
                    length: bytes,
                    rows: uses.get(&id).is_some_and(|uses| uses.rows),
                });
            }
        }
        let parts: Vec<PartRecord> = ranges.into_iter().map(|range| range.in_extent(first as u32)).collect();
        let name = constant.name.as_deref().map(str::to_string);
        let source = source(graph, graph.constant(stored));
        weights.push(WeightRecord { name, dtype: constant.dtype, shape, layout, parts, source });
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
    uses.matrices.push(step.op.operator().weight_matrix(position, &shape));
    uses.rows |= step.op.operator().read(position) == Read::Rows;
}

/// The constant whose bytes are stored: what a widening cast reads, else the constant itself.
pub(super) fn stored_constant(graph: &Graph, id: ConstantId) -> ConstantId {
    let constant = graph.constant(id);
    if let ConstantData::Recipe { op: Op::Cast(_), operands } = &constant.data
        && let [Some(narrow)] = operands.as_slice()
        && constant.dtype == DType::F32
        && matches!(graph.constant(*narrow).dtype, DType::F16 | DType::BF16)
        && !matches!(graph.constant(*narrow).data, ConstantData::Recipe { .. })
    {
        return *narrow;
    }
    id
}

fn layout(constant: &Constant, stored: DType, uses: Option<&Uses>) -> Layout {
    if constant.dtype == DType::String {
        return Layout::Strings;
    }
    let matrices = uses.map_or(&[][..], |uses| &uses.matrices);
    let common = match matrices {
        [Some(first), rest @ ..] if rest.iter().all(|other| other.as_ref() == Some(first)) => Some(first),
        _ => None,
    };
    match common {
        Some(matrix) if matches!(stored, DType::F32 | DType::F16 | DType::BF16) && constant.byte_count() > 0 => {
            let mut panels = PanelLayout::matrix(stored, matrix.outputs, matrix.inputs, matrix.output_axis);
            panels.groups = matrix.groups;
            Layout::Panels(panels)
        }
        Some(_) | None => Layout::Plain { dtype: stored },
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
        ConstantData::Tensor(_) | ConstantData::Recipe { .. } => Content::Constant(id),
    }
}

/// Where the elements of a constant come from: those of a computed one from its first operand.
fn source(graph: &Graph, constant: &Constant) -> Option<WeightSource> {
    let (source, offset, length) = match &constant.data {
        ConstantData::Stored(stored) => (stored.source, stored.tensor.source_offset()?, stored.tensor.length_bytes()),
        ConstantData::Tensor(_) => constant.origin.map(|origin| (origin.source, origin.offset, origin.length))?,
        ConstantData::Recipe { operands, .. } => return source(graph, graph.constant((*operands.first()?)?)),
    };
    Some(WeightSource { file: graph.sources[source as usize].name.clone(), offset, length })
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
