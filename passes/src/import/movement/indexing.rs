//! Gathering, scattering and selecting: `Compress` (opsets 9 to 28), `EyeLike` (9, 22), `Gather` (1 to 13),
//! `GatherElements` (11, 13), `GatherND` (11 to 13), `NonZero` (9, 13), `OneHot` (9 to 28), `ReverseSequence` (10, 28),
//! `Scatter` (9), `ScatterElements`, `ScatterND` (11 to 18), `TensorScatter` (24), `TopK` (1 to 24), `Trilu` (14),
//! `Unique` (11, 28).
//!
//! Later versions of most operators only take more element types.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::import::types::element_type;
use crate::ir::Operand;
use ipuc_formats::ops::{
    CacheMode, Compress, EyeLike, Gather, GatherElements, GatherNd, NonZero, OneHot, Op, ReverseSequence,
    ScatterElements, ScatterNd, ScatterReduction, TensorScatter, TopK, Trilu, Unique,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// `"Name" versions.. => lowering;` a line becomes one row a version.
macro_rules! rows {
    ($($name:literal $($since:literal)+ => $lower:expr;)*) => { &[$($(row($name, $since, $lower),)+)*] };
}

/// Gathers, scatters and selects by index.
pub const ROWS: &[Row] = rows! {
    "Compress" 9 11 28 => compress;
    "EyeLike" 9 22 => eye_like;
    "Gather" 1 11 13 => |node| along_axis(node, |axis| Gather { axis }.into(), 2);
    "GatherElements" 11 13 => |node| along_axis(node, |axis| GatherElements { axis }.into(), 2);
    "GatherND" 11 12 13 => gather_nd;
    "NonZero" 9 13 => |node| operands(node, NonZero {}, 1);
    "OneHot" 9 11 28 => one_hot;
    "ReverseSequence" 10 28 => reverse_sequence;
    "Scatter" 9 => scatter_elements;
    "ScatterElements" 11 13 16 18 => scatter_elements;
    "ScatterND" 11 13 16 18 => scatter_nd;
    "TensorScatter" 24 => tensor_scatter;
    "TopK" 1 10 11 24 => top_k;
    "Trilu" 14 => trilu;
    "Unique" 11 28 => unique;
};

/// All operands as they are, of which the first `required` must be there.
fn operands(node: &mut Lowering<'_, '_>, op: impl Into<Op>, required: usize) -> Lowered {
    for index in 0..required {
        node.required(index)?;
    }
    let operands = node.inputs();
    node.emit(op, operands)
}

/// An operator with an axis, which is 0 by default.
fn along_axis(node: &mut Lowering<'_, '_>, op: fn(i64) -> Op, required: usize) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(0);
    operands(node, op(axis), required)
}

fn compress(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?;
    operands(node, Compress { axis }, 2)
}

fn eye_like(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let dtype = match node.int("dtype")? {
        Some(code) => element_type(Some(i32::try_from(code).unwrap_or(i32::MAX)))?,
        None => node.dtype(&data)?,
    };
    let diagonal = node.int("k")?.unwrap_or(0);
    node.emit(EyeLike { dtype, diagonal }, vec![data])
}

fn gather_nd(node: &mut Lowering<'_, '_>) -> Lowered {
    let batch_dims = if node.since() >= 12 { node.int("batch_dims")? } else { None };
    operands(node, GatherNd { batch_dims: batch_dims.unwrap_or(0) }, 2)
}

fn one_hot(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(-1);
    operands(node, OneHot { axis }, 3)
}

fn reverse_sequence(node: &mut Lowering<'_, '_>) -> Lowered {
    let batch_axis = node.int("batch_axis")?.unwrap_or(1);
    let time_axis = node.int("time_axis")?.unwrap_or(0);
    operands(node, ReverseSequence { batch_axis, time_axis }, 2)
}

fn reduction(node: &mut Lowering<'_, '_>) -> Result<ScatterReduction, LowerError> {
    let reduction = if node.since() >= 16 { node.keyword("reduction")? } else { None };
    let reduction = reduction.unwrap_or(ScatterReduction::None);
    match reduction {
        ScatterReduction::Max | ScatterReduction::Min if node.since() < 18 => {
            Err(node.refuse("attribute `reduction` of max or min before opset 18"))
        }
        ScatterReduction::None
        | ScatterReduction::Add
        | ScatterReduction::Mul
        | ScatterReduction::Max
        | ScatterReduction::Min => Ok(reduction),
    }
}

fn scatter_elements(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(0);
    let reduction = reduction(node)?;
    operands(node, ScatterElements { axis, reduction }, 3)
}

fn scatter_nd(node: &mut Lowering<'_, '_>) -> Lowered {
    let reduction = reduction(node)?;
    operands(node, ScatterNd { reduction }, 3)
}

fn tensor_scatter(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(-2);
    let mode = node.keyword("mode")?.unwrap_or(CacheMode::Linear);
    operands(node, TensorScatter { axis, mode }, 2)
}

fn top_k(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let axis = node.int("axis")?.unwrap_or(-1);
    let k = if node.since() < 10 {
        let k = node.int("k")?.ok_or_else(|| LowerError::MissingAttribute("k".to_string()))?;
        node.constant(Tensor::vector_i64(&[k]))
    } else {
        node.required(1)?
    };
    let chooses = node.since() >= 11;
    let largest = !chooses || node.flag("largest", true)?;
    let sorted = !chooses || node.flag("sorted", true)?;
    node.emit(TopK { axis, largest, sorted }, vec![data, k])
}

fn trilu(node: &mut Lowering<'_, '_>) -> Lowered {
    let upper = node.flag("upper", true)?;
    operands(node, Trilu { upper }, 1)
}

fn unique(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?;
    let sorted = node.flag("sorted", true)?;
    operands(node, Unique { axis, sorted }, 1)
}
