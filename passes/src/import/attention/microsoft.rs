//! `RotaryEmbedding` of `com.microsoft`, as ONNX Runtime computes it on a processor.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{BinaryFunction, Expand, Gather, RotaryEmbedding, ShapeOf, TypeError};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Rotations of ONNX Runtime.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "RotaryEmbedding", since: 1, lower: rotary_embedding }];

/// Columns of a cache of cosines.
pub(super) fn cache_columns(node: &Lowering<'_, '_>, cache: Operand) -> Result<i64, LowerError> {
    match node.fact(&cache).as_ref().and_then(Fact::dims) {
        Some([_, columns]) => columns.as_known().ok_or_else(|| node.refuse("a rotary cache of unknown width")),
        Some(dims) => Err(node.refuse(format!("a rotary cache of {} axes", dims.len()))),
        None => Err(node.refuse("a rotary cache of unknown shape")),
    }
}

/// `RotaryEmbedding` of `com.microsoft`: positions are operand 1, and may be one offset for all.
fn rotary_embedding(node: &mut Lowering<'_, '_>) -> Lowered {
    let interleaved = node.flag("interleaved", false)?;
    let heads = node.int("num_heads")?.filter(|heads| *heads != 0);
    let rotated = node.int("rotary_embedding_dim")?.filter(|rotated| *rotated != 0);
    if rotated.is_some() && heads.is_none() {
        return Err(node.refuse("attribute `rotary_embedding_dim` without `num_heads`"));
    }
    // Texts that follow each other in one row have positions of their own, as those of a batch have.
    node.flag("is_packed_batching", false)?;
    // ONNX Runtime reads it and computes without it.
    node.float("scale")?;
    let [data, positions, cos, sin] = [node.required(0)?, node.required(1)?, node.required(2)?, node.required(3)?];
    let (heads, steps_axis) = heads_and_steps(node, data, cos, heads)?;
    let positions = match node.fact(&positions).as_ref().and_then(Fact::rank) {
        Some(2) => positions,
        Some(1) => behind_offset(node, data, positions, steps_axis)?,
        Some(found) => return Err(TypeError::Rank { operand: 1, expected: "1 or 2".to_string(), found }.into()),
        None => return Err(node.refuse("positions of unknown rank")),
    };
    node.emit(RotaryEmbedding { interleaved, rotated, heads }, vec![data, cos, sin, positions])
}

/// How many heads data has, where that must be said, and which axis its steps are: `[b, s, h*d]` or `[b, h, s, d]`.
pub(super) fn heads_and_steps(
    node: &Lowering<'_, '_>,
    data: Operand,
    cos: Operand,
    heads: Option<i64>,
) -> Result<(Option<i64>, i64), LowerError> {
    match node.fact(&data).as_ref().and_then(Fact::dims) {
        Some([_, _, hidden]) => {
            let whole = cache_columns(node, cos)?.saturating_mul(2);
            let counted = hidden.as_known().and_then(|hidden| hidden.checked_div(whole));
            Ok((Some(heads.or(counted).ok_or_else(|| node.refuse("a hidden size that is not known"))?), 1))
        }
        Some([_, _, _, _]) => Ok((heads, 2)),
        Some(dims) => {
            let expected = "3 or 4".to_string();
            Err(TypeError::Rank { operand: 0, expected, found: dims.len() }.into())
        }
        None => Err(node.refuse("an operand of unknown rank")),
    }
}

/// Positions `[b, s]` from an offset `[1]` on.
fn behind_offset(
    node: &mut Lowering<'_, '_>,
    data: Operand,
    offset: Operand,
    steps_axis: i64,
) -> Result<Operand, LowerError> {
    let axes = node.constant(Tensor::vector_i64(&[0, steps_axis]));
    let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![data])?;
    let shape = node.emit_one(Gather { axis: 0 }, vec![shape, axes])?;
    let steps = node.emit_one(ShapeOf { start: steps_axis, end: Some(steps_axis + 1) }, vec![data])?;
    let offsets = node.counted(steps)?;
    let offset = node.reshaped(offset, &[1])?;
    let positions = node.binary(BinaryFunction::Add, offset, offsets)?;
    node.emit_one(Expand {}, vec![positions, shape])
}
