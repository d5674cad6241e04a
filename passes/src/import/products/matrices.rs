//! Matrix products and their relatives: `MatMul` (opsets 1 to 13), `Gemm` (7 to 13), `Einsum` (12, 28), `Det` (11, 22).
//!
//! `Gemm` becomes a product, a scaling where `alpha` is not 1, and an addition of the scaled `C`.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{Binary, BinaryFunction, Determinant, Einsum, Matmul, TypeError};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Matrix products and their relatives.
pub const ROWS: &[Row] = &[
    row("MatMul", 1, matmul),
    row("MatMul", 9, matmul),
    row("MatMul", 13, matmul),
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
    require_broadcast_into_product(node, &addend, &product)?;
    let addend = scaled(node, addend, beta, "beta")?;
    node.emit(Binary { function: BinaryFunction::Add }, vec![product, addend])
}

/// `C` broadcasts to the product, never the other way round.
fn require_broadcast_into_product(
    node: &Lowering<'_, '_>,
    addend: &Operand,
    product: &Operand,
) -> Result<(), LowerError> {
    let (Some(addend), Some(product)) = (node.fact(addend), node.fact(product)) else { return Ok(()) };
    let (Some(from), Some(into)) = (addend.dims(), product.dims()) else { return Ok(()) };
    let Some(offset) = into.len().checked_sub(from.len()) else {
        return Err(TypeError::Rank { operand: 2, expected: "at most 2".to_string(), found: from.len() }.into());
    };
    match from.iter().zip(&into[offset..]).find(|(from, into)| into.as_known() == Some(1) && from.as_known() != Some(1))
    {
        None => Ok(()),
        Some((from, into)) => Err(TypeError::Dimension {
            subject: "`C` broadcast to the product".to_string(),
            left: from.to_string(),
            right: into.to_string(),
        }
        .into()),
    }
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
