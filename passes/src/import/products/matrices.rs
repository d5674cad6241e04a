//! Matrix products and their relatives: `MatMul` (opsets 1 to 13), `Gemm` (1 to 13), `Einsum` (12, 28), `Det` (11, 22).
//!
//! `Gemm` becomes a product, a scaling where `alpha` is not 1, and an addition of the scaled `C`.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{Binary, BinaryFunction, Determinant, Einsum, Matmul, Squeeze, TypeError, Unsqueeze};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Matrix products and their relatives.
pub const ROWS: &[Row] = &[
    row("MatMul", 1, matmul),
    row("MatMul", 9, matmul),
    row("MatMul", 13, matmul),
    row("Gemm", 1, first_gemm),
    row("Gemm", 6, first_gemm),
    row("Gemm", 7, gemm),
    row("Gemm", 9, gemm),
    row("Gemm", 11, gemm),
    row("Gemm", 13, gemm),
    row("Einsum", 12, einsum),
    row("Einsum", 28, einsum),
    row("Det", 11, determinant),
    row("Det", 22, determinant),
];

fn matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(Matmul::new(false, false), operands)
}

/// `C` has the shape of the product unless `broadcast` is set.
fn first_gemm(node: &mut Lowering<'_, '_>) -> Lowered {
    let rank = node.fact(&node.input(2)).and_then(|fact| fact.rank());
    if !node.flag("broadcast", false)?
        && let Some(found) = rank.filter(|&rank| rank != 2)
    {
        return Err(TypeError::Rank { operand: 2, expected: "2 without `broadcast`".to_string(), found }.into());
    }
    gemm(node)
}

pub(super) fn gemm(node: &mut Lowering<'_, '_>) -> Lowered {
    let (a, b) = (node.required(0)?, node.required(1)?);
    let alpha = node.float("alpha")?.unwrap_or(1.0);
    let beta = node.float("beta")?.unwrap_or(1.0);
    let transposed = Matmul::new(node.flag("transA", false)?, node.flag("transB", false)?);
    for (operand, input) in [&a, &b].into_iter().enumerate() {
        if let Some(found) = node.fact(input).and_then(|fact| fact.rank()).filter(|&rank| rank != 2) {
            return Err(TypeError::Rank { operand, expected: "2".to_string(), found }.into());
        }
    }
    let addend = node.input(2);
    let product = node.emit_one(transposed, vec![a, b])?;
    let product = scaled(node, product, alpha, "alpha")?;
    if matches!(addend, Operand::Absent) || beta == 0.0 {
        return Ok(vec![product]);
    }
    let addend = broadcast_into_product(node, addend, &product)?;
    let addend = scaled(node, addend, beta, "beta")?;
    node.emit(Binary { function: BinaryFunction::Add }, vec![product, addend])
}

/// `C` broadcasts to the product, never the other way round: where an axis of the product is known to be 1, that of `C` is
/// 1 too. An open one is squeezed and put back, so that a run checks it.
fn broadcast_into_product(
    node: &mut Lowering<'_, '_>,
    addend: Operand,
    product: &Operand,
) -> Result<Operand, LowerError> {
    let (Some(from), Some(into)) = (node.dims(&addend), node.dims(product)) else { return Ok(addend) };
    let Some(offset) = into.len().checked_sub(from.len()) else {
        return Err(TypeError::Rank { operand: 2, expected: "at most 2".to_string(), found: from.len() }.into());
    };
    let mut open = Vec::new();
    for (axis, (from, into)) in from.iter().zip(&into[offset..]).enumerate() {
        match (from.as_known(), into.as_known()) {
            (Some(1), _) => {}
            (None, Some(1)) => open.push(axis as i64),
            (Some(_), Some(1)) => {
                return Err(TypeError::Dimension {
                    subject: "`C` broadcast to the product".to_string(),
                    left: from.to_string(),
                    right: into.to_string(),
                }
                .into());
            }
            (_, Some(_) | None) => {}
        }
    }
    if open.is_empty() {
        return Ok(addend);
    }
    let axes = node.integers(&open);
    let squeezed = node.emit_one(Squeeze {}, vec![addend, axes])?;
    node.emit_one(Unsqueeze {}, vec![squeezed, axes])
}

/// `value * factor`, or `value` itself where the factor is 1.
fn scaled(node: &mut Lowering<'_, '_>, value: Operand, factor: f32, name: &str) -> Result<Operand, LowerError> {
    if factor == 1.0 {
        return Ok(value);
    }
    let dtype = node.dtype(&value)?;
    if dtype.is_integer() && factor.fract() != 0.0 {
        return Err(node.refuse(format!("attribute `{name}` = {factor} with elements of type {dtype}")));
    }
    let factor = constant(node, dtype, factor.into())?;
    node.emit_one(Binary { function: BinaryFunction::Mul }, vec![value, factor])
}

/// A constant of shape `[]`.
pub(crate) fn constant(node: &mut Lowering<'_, '_>, dtype: DType, value: f64) -> Result<Operand, LowerError> {
    let tensor = from_scalars(dtype, &[], &[Scalar::Float(value)]).map_err(|error| node.refuse(error.to_string()))?;
    Ok(node.constant(tensor))
}

fn einsum(node: &mut Lowering<'_, '_>) -> Lowered {
    let equation = node.text("equation")?.ok_or_else(|| LowerError::MissingAttribute("equation".to_string()))?;
    let operands = node.inputs();
    node.emit(Einsum { equation }, operands)
}

fn determinant(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    node.emit(Determinant {}, vec![x])
}
