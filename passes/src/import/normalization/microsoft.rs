//! Normalizations of ONNX Runtime: `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization` of `com.microsoft`, and
//! `SimplifiedLayerNormalization`, which it has in the default domain.
//!
//! All are computed in f32 (f64 for f64) and rounded once. The statistics that they can give for training are those
//! of `SkipLayerNormalization`; the others are refused.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, LayerNormalization, Reduce, ReduceFunction, Unary, UnaryFunction};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Normalizations of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("SimplifiedLayerNormalization", 1, simplified_layer_normalization),
    Row { domain: "com.microsoft", name: "SkipLayerNormalization", since: 1, lower: skip_layer_normalization },
    Row {
        domain: "com.microsoft",
        name: "SkipSimplifiedLayerNormalization",
        since: 1,
        lower: skip_simplified_layer_normalization,
    },
];

fn simplified_layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    node.refuse_outputs(&[(1, "inv_std_var")])?;
    // Of the statistics.
    node.ignore("stash_type");
    let axis = node.int("axis")?.unwrap_or(-1);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let (data, scale) = (node.required(0)?, node.required(1)?);
    let (wide, result) = (node.wide_type(0)?, node.dtype(&scale)?);
    let operands = vec![node.cast(data, wide)?, node.cast(scale, wide)?];
    let operator = LayerNormalization { axis, epsilon, center: false, stash: wide };
    let normalized = node.emit_one(operator, operands)?;
    Ok(vec![node.cast(normalized, result)?])
}

fn skip_layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let (shift, bias) = (node.input(3), node.input(4));
    skipped(node, true, shift, bias)
}

fn skip_simplified_layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let bias = node.input(3);
    skipped(node, false, Operand::Absent, bias)
}

/// The sum of data, skip and bias: output 3; normalized: output 0.
fn skipped(node: &mut Lowering<'_, '_>, center: bool, shift: Operand, bias: Operand) -> Lowered {
    if !center {
        node.refuse_outputs(&[(1, "mean"), (2, "inv_std_var")])?;
    }
    let epsilon = node.float("epsilon")?.unwrap_or(1e-12);
    let [data, skip, scale] = [node.required(0)?, node.required(1)?, node.required(2)?];
    let (wide, result) = (node.wide_type(0)?, node.dtype(&data)?);
    let mut sum = node.cast(data, wide)?;
    for addend in [skip, bias].into_iter().filter(|&addend| addend != Operand::Absent) {
        let addend = node.cast(addend, wide)?;
        sum = node.plus(sum, addend)?;
    }
    let mut operands = vec![sum, node.cast(scale, wide)?];
    if center {
        operands.push(node.cast(shift, wide)?);
    }
    let normalized = node.emit_one(LayerNormalization { axis: -1, epsilon, center, stash: wide }, operands)?;
    let normalized = node.cast(normalized, result)?;
    let [mean, deviation] =
        if node.output_used(1) || node.output_used(2) { statistics(node, sum, epsilon)? } else { [Operand::Absent; 2] };
    let sum = if node.output_used(3) { node.cast(sum, result)? } else { Operand::Absent };
    Ok(vec![normalized, mean, deviation, sum])
}

/// The mean of the last axis, and one by the root of the variance, in f32: `[.., 1]`.
fn statistics(node: &mut Lowering<'_, '_>, rows: Operand, epsilon: f32) -> Result<[Operand; 2], LowerError> {
    let dtype = node.dtype(&rows)?;
    let axis = node.integers(&[-1]);
    let average = Reduce { function: ReduceFunction::Mean, keep_axes: true, keep_without_axes: false };
    let mean = node.emit_one(average.clone(), vec![rows, axis])?;
    let centered = node.binary(BinaryFunction::Sub, rows, mean)?;
    let squares = node.binary(BinaryFunction::Mul, centered, centered)?;
    let variance = node.emit_one(average, vec![squares, axis])?;
    let epsilon = node.scalar(dtype, epsilon.into())?;
    let variance = node.plus(variance, epsilon)?;
    let root = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![variance])?;
    let inverse = node.emit_one(Unary { function: UnaryFunction::Reciprocal }, vec![root])?;
    Ok([node.cast(mean, DType::F32)?, node.cast(inverse, DType::F32)?])
}
