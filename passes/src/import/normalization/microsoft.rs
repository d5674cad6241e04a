//! Normalizations of ONNX Runtime: `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization` of `com.microsoft`, and
//! `SimplifiedLayerNormalization`, which it has in the default domain.
//!
//! All are computed in f32 (f64 for f64) and rounded once. The statistics that they can give for training are refused.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::ops::LayerNormalization;

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
    node.refuse_outputs(&[(1, "mean"), (2, "inv_std_var")])?;
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
    let sum = if node.output_used(3) { node.cast(sum, result)? } else { Operand::Absent };
    Ok(vec![normalized, Operand::Absent, Operand::Absent, sum])
}
