//! Functions of elements of `com.microsoft`, as ONNX Runtime 1.31 defines them: `Gelu`, `FastGelu`, `BiasGelu`, `QuickGelu`,
//! `BiasSplitGelu`, `BiasAdd`, `BiasDropout`, `GatedAdd`, `ScaledSiLU`, `SampleOp`.
//!
//! They are computed in f32 (f64 for f64) and rounded once.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::ops::{Activation, ActivationFunction, BinaryFunction, Dropout, Split};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Functions of elements of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("BiasAdd", bias_add),
    row("BiasDropout", bias_dropout),
    row("BiasGelu", |node| {
        node.required(1)?;
        biased(node, ActivationFunction::Gelu)
    }),
    row("BiasSplitGelu", bias_split_gelu),
    row("FastGelu", |node| biased(node, ActivationFunction::GeluTanh)),
    row("GatedAdd", gated_add),
    row("Gelu", |node| {
        node.at_most_inputs(1)?;
        biased(node, ActivationFunction::Gelu)
    }),
    row("QuickGelu", quick_gelu),
    row("SampleOp", |node| Ok(vec![node.required(0)?])),
    row("ScaledSiLU", scaled_silu),
];

/// The first `count` inputs in the type that they are computed in; those that are left out stay absent.
fn widened(node: &mut Lowering<'_, '_>, count: usize) -> Result<Vec<Operand>, LowerError> {
    node.at_most_inputs(count)?;
    let wide = node.wide_type(0)?;
    (0..count).map(|index| node.cast(node.input(index), wide)).collect()
}

/// In the type of the first input.
fn narrowed(node: &mut Lowering<'_, '_>, result: Operand) -> Lowered {
    let dtype = node.dtype(&node.required(0)?)?;
    Ok(vec![node.cast(result, dtype)?])
}

/// A function of the sum of the input and a bias, which may be left out.
fn biased(node: &mut Lowering<'_, '_>, function: ActivationFunction) -> Lowered {
    let operands = widened(node, 2)?;
    let sum = node.plus(operands[0], operands[1])?;
    let result = node.activated(sum, function)?;
    narrowed(node, result)
}

fn quick_gelu(node: &mut Lowering<'_, '_>) -> Lowered {
    let alpha = node.float("alpha")?.or(Some(1.702));
    let operands = widened(node, 1)?;
    let result = node.emit_one(Activation { function: ActivationFunction::Swish, alpha, beta: None }, operands)?;
    narrowed(node, result)
}

/// `x * sigmoid(x)` of `x = scale * X`, or of `x = alpha * X` where there is no scale.
fn scaled_silu(node: &mut Lowering<'_, '_>) -> Lowered {
    let alpha = node.float("alpha")?.unwrap_or(1.0);
    let operands = widened(node, 2)?;
    let scaled = match operands[1] {
        Operand::Absent => node.times(operands[0], alpha)?,
        scale => node.binary(BinaryFunction::Mul, operands[0], scale)?,
    };
    let result = node.activated(scaled, ActivationFunction::Swish)?;
    narrowed(node, result)
}

/// `X + Y * gate`.
fn gated_add(node: &mut Lowering<'_, '_>) -> Lowered {
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    let operands = widened(node, 3)?;
    let gated = node.binary(BinaryFunction::Mul, operands[1], operands[2])?;
    let result = node.plus(operands[0], gated)?;
    narrowed(node, result)
}

/// `X + bias + skip`.
fn bias_add(node: &mut Lowering<'_, '_>) -> Lowered {
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    let operands = widened(node, 3)?;
    let sum = node.plus(operands[0], operands[1])?;
    let sum = node.plus(sum, operands[2])?;
    narrowed(node, sum)
}

/// The first half of `X + bias` along the last axis, times the gelu of the second.
fn bias_split_gelu(node: &mut Lowering<'_, '_>) -> Lowered {
    (0..2).try_for_each(|index| node.required(index).map(drop))?;
    let operands = widened(node, 2)?;
    let sum = node.plus(operands[0], operands[1])?;
    let halves = node.emit(Split { axis: -1, parts: 2, even: true }, vec![sum])?;
    let gate = node.activated(halves[1], ActivationFunction::Gelu)?;
    let result = node.binary(BinaryFunction::Mul, halves[0], gate)?;
    narrowed(node, result)
}

/// `dropout(data + bias) + residual`.
fn bias_dropout(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(5)?;
    let (data, bias, residual) = (node.required(0)?, node.required(1)?, node.input(2));
    let (ratio, training) = (node.input(3), node.input(4));
    let seed = node.int("seed")?;
    let sum = node.plus(data, bias)?;
    let trains = match training {
        Operand::Absent => false,
        given => node.fact(&given).and_then(|fact| fact.elements_as_integers()).is_none_or(|elements| elements != [0]),
    };
    if !trains && !node.output_used(1) {
        return Ok(vec![node.plus(sum, residual)?]);
    }
    let dropped = node.emit(Dropout { seed }, vec![sum, ratio, training])?;
    Ok(vec![node.plus(dropped[0], residual)?, dropped[1]])
}
