//! Matrix products and their relatives: `MatMul` (opsets 1 to 13), `Gemm` (7 to 13), `MatMulInteger` (10),
//! `QLinearMatMul` (10, 21), `Einsum` (12, 28), `Det` (11, 22).
//!
//! `Gemm` becomes a product, a scaling where `alpha` is not 1, and an addition of the scaled `C`. `QLinearMatMul`
//! becomes an integer product (for floats of 8 bits a product of f32), a scaling by `a_scale * b_scale / y_scale`, and
//! a quantization by 1.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{
    Binary, BinaryFunction, Cast, Determinant, Einsum, IntegerMatmul, Matmul, Quantize, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

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
    row("MatMulInteger", 10, integer_matmul),
    row("QLinearMatMul", 10, quantized_matmul),
    row("QLinearMatMul", 21, quantized_matmul),
    row("Einsum", 12, einsum),
    row("Einsum", 28, einsum),
    row("Det", 11, determinant),
    row("Det", 22, determinant),
];

fn matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(Matmul::new(false, false), operands)
}

fn gemm(node: &mut Lowering<'_, '_>) -> Lowered {
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

fn integer_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2), node.input(3)];
    node.emit(IntegerMatmul {}, operands)
}

fn quantized_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let (a, a_scale, a_zero_point) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let (b, b_scale, b_zero_point) = (node.required(3)?, node.required(4)?, node.required(5)?);
    let y_scale = node.required(6)?;
    let floats = node.dtype(&a)?.is_narrow_float() || node.dtype(&b)?.is_narrow_float();
    let product = if floats {
        let left = centred(node, a, a_zero_point, true)?;
        let right = centred(node, b, b_zero_point, false)?;
        node.emit_one(Matmul::new(false, false), vec![left, right])?
    } else {
        let sums = node.emit_one(IntegerMatmul {}, vec![a, b, a_zero_point, b_zero_point])?;
        node.emit_one(Cast::to(DType::F32), vec![sums])?
    };
    let a_scale = per_row(node, a_scale, a)?;
    let a_scale = widened(node, a_scale)?;
    let b_scale = widened(node, b_scale)?;
    let scale = node.emit_one(Binary { function: BinaryFunction::Mul }, vec![a_scale, b_scale])?;
    requantized(node, product, scale, y_scale, 7)
}

/// `value * scale / y_scale`, quantized with the zero point in input `zero_point`.
pub(crate) fn requantized(
    node: &mut Lowering<'_, '_>,
    value: Operand,
    scale: Operand,
    y_scale: Operand,
    zero_point: usize,
) -> Lowered {
    let zero_point = node.required(zero_point)?;
    let y_scale = widened(node, y_scale)?;
    let scale = node.emit_one(Binary { function: BinaryFunction::Div }, vec![scale, y_scale])?;
    let scaled = node.emit_one(Binary { function: BinaryFunction::Mul }, vec![value, scale])?;
    let to = node.dtype(&zero_point)?;
    let one = node.constant(Tensor::scalar(1.0f32));
    node.emit(Quantize { to, axis: 0, block_size: 0, overflow: false, precision: None }, vec![scaled, one, zero_point])
}

/// A scale as f32.
pub(crate) fn widened(node: &mut Lowering<'_, '_>, scale: Operand) -> Result<Operand, LowerError> {
    if node.dtype(&scale)? == DType::F32 { Ok(scale) } else { node.emit_one(Cast::to(DType::F32), vec![scale]) }
}

/// The elements of a quantized operand less its zero point, as f32.
fn centred(
    node: &mut Lowering<'_, '_>,
    value: Operand,
    zero_point: Operand,
    rows: bool,
) -> Result<Operand, LowerError> {
    let zero_point = if rows { per_row(node, zero_point, value)? } else { zero_point };
    let value = node.emit_one(Cast::to(DType::F32), vec![value])?;
    let zero_point = node.emit_one(Cast::to(DType::F32), vec![zero_point])?;
    node.emit_one(Binary { function: BinaryFunction::Sub }, vec![value, zero_point])
}

/// A parameter of one axis has an element a row of `matrix`: put it before the columns.
fn per_row(node: &mut Lowering<'_, '_>, parameter: Operand, matrix: Operand) -> Result<Operand, LowerError> {
    let rank = |operand: &Operand| node.fact(operand).and_then(|fact| fact.rank());
    match (rank(&parameter), rank(&matrix)) {
        (Some(1), Some(2..)) => {
            let axes = node.constant(Tensor::vector_i64(&[1]));
            node.emit_one(Unsqueeze {}, vec![parameter, axes])
        }
        (Some(_), Some(_)) => Ok(parameter),
        (None, _) | (_, None) => Err(node.refuse("a quantized product of operands of unknown rank")),
    }
}
