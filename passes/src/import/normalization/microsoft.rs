//! Normalizations of ONNX Runtime: `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization` of `com.microsoft`, and
//! `SimplifiedLayerNormalization`, which it has in the default domain.
//!
//! All are computed in f32 (f64 for f64) and rounded once. The statistics that they can give for training are refused.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Binary, BinaryFunction, Cast, LayerNormalization, TypeError};

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

/// The type that operands of this type are computed in.
fn wide(node: &Lowering<'_, '_>, operand: usize) -> Result<DType, LowerError> {
    match node.dtype(&node.required(operand)?)? {
        DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
        DType::F64 => Ok(DType::F64),
        found => Err(TypeError::ElementType { operand, expected: "f16, bf16, f32 or f64".to_string(), found }.into()),
    }
}

/// As another type; an absent operand stays absent.
fn cast(node: &mut Lowering<'_, '_>, operand: Operand, to: DType) -> Result<Operand, LowerError> {
    match operand {
        Operand::Absent => Ok(operand),
        operand if node.dtype(&operand)? == to => Ok(operand),
        operand => node.emit_one(Cast::to(to), vec![operand]),
    }
}

fn refuse_statistics(node: &Lowering<'_, '_>, outputs: &[(usize, &str)]) -> Result<(), LowerError> {
    match outputs.iter().find(|(output, _)| node.output_used(*output)) {
        Some((_, name)) => Err(node.refuse(format!("output `{name}`"))),
        None => Ok(()),
    }
}

fn simplified_layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    refuse_statistics(node, &[(1, "inv_std_var")])?;
    // Of the statistics.
    node.ignore("stash_type");
    let axis = node.int("axis")?.unwrap_or(-1);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let (data, scale) = (node.required(0)?, node.required(1)?);
    let (wide, result) = (wide(node, 0)?, node.dtype(&scale)?);
    let operands = vec![cast(node, data, wide)?, cast(node, scale, wide)?];
    let operator = LayerNormalization { axis, epsilon, center: false, stash: wide };
    let normalized = node.emit_one(operator, operands)?;
    Ok(vec![cast(node, normalized, result)?])
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
    refuse_statistics(node, &[(1, "mean"), (2, "inv_std_var")])?;
    let epsilon = node.float("epsilon")?.unwrap_or(1e-12);
    let [data, skip, scale] = [node.required(0)?, node.required(1)?, node.required(2)?];
    let (wide, result) = (wide(node, 0)?, node.dtype(&data)?);
    let mut sum = cast(node, data, wide)?;
    for addend in [skip, bias].into_iter().filter(|&addend| addend != Operand::Absent) {
        let addend = cast(node, addend, wide)?;
        sum = node.emit_one(Binary { function: BinaryFunction::Add }, vec![sum, addend])?;
    }
    let mut operands = vec![sum, cast(node, scale, wide)?];
    if center {
        operands.push(cast(node, shift, wide)?);
    }
    let normalized = node.emit_one(LayerNormalization { axis: -1, epsilon, center, stash: wide }, operands)?;
    let normalized = cast(node, normalized, result)?;
    let sum = if node.output_used(3) { cast(node, sum, result)? } else { Operand::Absent };
    Ok(vec![normalized, Operand::Absent, Operand::Absent, sum])
}
