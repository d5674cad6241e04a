//! Normalizations of ONNX Runtime: `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization` of `com.microsoft`, and
//! `SimplifiedLayerNormalization`, which it has in the default domain.
//!
//! All are computed in f32 (f64 for f64) and rounded once. They give the statistics that training needs, too.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, Expand, LayerNormalization, Reduce, ReduceFunction, ShapeOf, Unary, UnaryFunction,
};

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
    // Of the statistics.
    node.ignore("stash_type");
    let axis = node.int("axis")?.unwrap_or(-1);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let (data, scale) = (node.required(0)?, node.required(1)?);
    let (wide, result) = (node.wide_type(0)?, node.dtype(&scale)?);
    let operands = vec![node.cast(data, wide)?, node.cast(scale, wide)?];
    let operator = LayerNormalization { axis, epsilon, center: false, stash: wide };
    let rows = operands[0];
    let normalized = node.emit_one(operator, operands)?;
    let mut results = vec![node.cast(normalized, result)?];
    if node.output_used(1) {
        let axes: Vec<i64> = if axis < 0 { (axis..0).collect() } else { (axis..node.rank(&rows)? as i64).collect() };
        results.push(statistics(node, rows, &axes, (epsilon, false))?[1]);
    }
    Ok(results)
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
    let [mean, deviation] = if node.output_used(1) || node.output_used(2) {
        statistics(node, sum, &[-1], (epsilon, center))?
    } else {
        [Operand::Absent; 2]
    };
    let sum = if node.output_used(3) { node.cast(sum, result)? } else { Operand::Absent };
    Ok(vec![normalized, mean, deviation, sum])
}

/// The mean over these axes, and one by the root of the variance, in f32, the axes kept; a mean that nothing is centered by is 0.
fn statistics(
    node: &mut Lowering<'_, '_>,
    rows: Operand,
    axes: &[i64],
    (epsilon, center): (f32, bool),
) -> Result<[Operand; 2], LowerError> {
    let dtype = node.dtype(&rows)?;
    let axis = node.integers(axes);
    let average = Reduce { function: ReduceFunction::Mean, keep_axes: true, keep_without_axes: false };
    let mut mean = node.emit_one(average.clone(), vec![rows, axis])?;
    let mut centered = rows;
    if center {
        centered = node.binary(BinaryFunction::Sub, rows, mean)?;
    } else {
        let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![mean])?;
        let zero = node.scalar(dtype, 0.0)?;
        mean = node.emit_one(Expand {}, vec![zero, shape])?;
    }
    let squares = node.binary(BinaryFunction::Mul, centered, centered)?;
    let variance = node.emit_one(average, vec![squares, axis])?;
    let epsilon = node.scalar(dtype, epsilon.into())?;
    let variance = node.plus(variance, epsilon)?;
    let root = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![variance])?;
    let inverse = node.emit_one(Unary { function: UnaryFunction::Reciprocal }, vec![root])?;
    Ok([node.cast(mean, DType::F32)?, node.cast(inverse, DType::F32)?])
}
