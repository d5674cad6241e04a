//! Matrix products of quantized operands: `MatMulInteger` (10), `QLinearMatMul` (10, 21), and `QGemm` of `com.microsoft`, as
//! ONNX Runtime 1.31 defines it.
//!
//! Each becomes one integer product, whose program scales the sums by `a_scale * b_scale / y_scale`, rounds them to even, adds
//! the zero point and saturates. `QLinearMatMul` of floats of 8 bits, and with several zero points of the result, becomes
//! a product, a scaling, and a quantization by 1.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    Argument, Binary, BinaryFunction, Cast, Function, IntegerMatmul, Matmul, Program, Quantize, Transpose,
    UnaryFunction, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Matrix products of quantized operands.
pub const ROWS: &[Row] = &[
    row("MatMulInteger", 10, integer_matmul),
    row("QLinearMatMul", 10, quantized_matmul),
    row("QLinearMatMul", 21, quantized_matmul),
    Row { domain: "com.microsoft", name: "QGemm", since: 1, lower: quantized_gemm },
];

/// Steps of a program that take a sum in i32, times the f32 operand `scale`, to the nearest code of type `to` behind the
/// zero point in operand `zero_point`.
pub(crate) fn requantize(program: &mut Program, sum: Argument, scale: u16, zero_point: u16, to: DType) -> Argument {
    let scaled = scale_sum(program, sum, scale);
    let rounded = program.push(Function::Unary(UnaryFunction::Round), vec![scaled], DType::I32);
    let zero_point = program.push(Function::Cast, vec![Argument::Operand(zero_point)], DType::I32);
    program.push(Function::Binary(BinaryFunction::Add), vec![rounded, zero_point], to)
}

fn scale_sum(program: &mut Program, sum: Argument, scale: u16) -> Argument {
    let value = program.push(Function::Cast, vec![sum], DType::F32);
    program.push(Function::Binary(BinaryFunction::Mul), vec![value, Argument::Operand(scale)], DType::F32)
}

/// Where the type and the shapes of the parameters let a program requantize a result of `rank` axes: the program, with the
/// scale in operand `first` and the zero point behind it.
pub(crate) fn requantization(
    node: &Lowering<'_, '_>,
    scale: &Operand,
    zero_point: &Operand,
    rank: Option<usize>,
    first: u16,
) -> Result<Option<Program>, LowerError> {
    let to = node.dtype(zero_point)?;
    let fits = |operand: &Operand| match (node.fact(operand).and_then(|fact| fact.rank()), rank) {
        (Some(own), Some(rank)) => own <= rank,
        (None, _) | (_, None) => false,
    };
    if !matches!(to, DType::I8 | DType::U8) || !is_single(node, zero_point) || !fits(scale) || !fits(zero_point) {
        return Ok(None);
    }
    let mut program = Program::default();
    let code = requantize(&mut program, Argument::Input, first, first + 1, to);
    program.results.push(code);
    Ok(Some(program))
}

/// Whether an operand has one element.
pub(crate) fn is_single(node: &Lowering<'_, '_>, operand: &Operand) -> bool {
    let fact = node.fact(operand);
    fact.as_ref().and_then(Fact::dims).is_some_and(|dims| dims.iter().all(|dim| dim.as_known() == Some(1)))
}

fn integer_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2), node.input(3)];
    node.emit(IntegerMatmul { program: Program::default() }, operands)
}

fn quantized_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    let (a, a_scale, a_zero_point) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let (b, b_scale, b_zero_point) = (node.required(3)?, node.required(4)?, node.required(5)?);
    let (y_scale, y_zero_point) = (node.required(6)?, node.required(7)?);
    let floats = node.dtype(&a)?.is_narrow_float() || node.dtype(&b)?.is_narrow_float();
    let a_scale = per_row(node, a_scale, a)?;
    let scale = joint_scale(node, a_scale, b_scale, y_scale)?;
    let rank = |operand: &Operand| node.fact(operand).and_then(|fact| fact.rank());
    // Operands of one axis are a row or a column, whose axis the result has not.
    let rank = match (rank(&a), rank(&b)) {
        (Some(left @ 2..), Some(right @ 2..)) => Some(left.max(right)),
        (Some(_), Some(_)) | (None, _) | (_, None) => None,
    };
    if !floats && let Some(program) = requantization(node, &scale, &y_zero_point, rank, 4)? {
        return node.emit(IntegerMatmul { program }, vec![a, b, a_zero_point, b_zero_point, scale, y_zero_point]);
    }
    let product = if floats {
        let left = centred(node, a, a_zero_point, true)?;
        let right = centred(node, b, b_zero_point, false)?;
        node.emit_one(Matmul::new(false, false), vec![left, right])?
    } else {
        let operands = vec![a, b, a_zero_point, b_zero_point];
        let sums = node.emit_one(IntegerMatmul { program: Program::default() }, operands)?;
        node.emit_one(Cast::to(DType::F32), vec![sums])?
    };
    requantized(node, product, scale, y_zero_point)
}

/// `QGemm`: sums of A and B (transposed as asked), to which C is added in i32 (both wrap around), times
/// `alpha * a_scale * b_scale`; with a scale and a zero point of the result they are quantized, else given as f32.
fn quantized_gemm(node: &mut Lowering<'_, '_>) -> Lowered {
    let (a, a_scale, a_zero_point) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let (b, b_scale, b_zero_point) = (node.required(3)?, node.required(4)?, node.required(5)?);
    let (addend, y_scale, y_zero_point) = (node.input(6), node.input(7), node.input(8));
    let alpha = node.float("alpha")?.unwrap_or(1.0);
    let across = [node.flag("transA", false)?, node.flag("transB", false)?];
    for operand in [&a_scale, &a_zero_point] {
        if !is_single(node, operand) {
            return Err(node.refuse("`QGemm` with several scales or zero points of A"));
        }
    }
    let [a, b] = [(a, across[0]), (b, across[1])].map(|(matrix, across)| match across {
        true => node.emit_one(Transpose { permutation: vec![1, 0] }, vec![matrix]),
        false => Ok(matrix),
    });
    let mut scale = widened(node, a_scale)?;
    if alpha != 1.0 {
        let alpha = node.constant(Tensor::scalar(alpha));
        scale = node.emit_one(Binary { function: BinaryFunction::Mul }, vec![alpha, scale])?;
    }
    let mut operands = vec![a?, b?, a_zero_point, b_zero_point];
    let (mut program, mut sum) = (Program::default(), Argument::Input);
    if addend != Operand::Absent {
        let fits = sums_fit(node, &operands[0], &addend);
        operands.push(addend);
        sum = add_wrapping(&mut program, sum, Argument::Operand(4), fits);
    }
    let first = operands.len() as u16;
    let result = match (y_scale, y_zero_point) {
        (Operand::Absent, Operand::Absent) => {
            let b_scale = widened(node, b_scale)?;
            operands.push(node.emit_one(Binary { function: BinaryFunction::Mul }, vec![scale, b_scale])?);
            scale_sum(&mut program, sum, first)
        }
        (Operand::Absent, _) | (_, Operand::Absent) => {
            return Err(node.refuse("`QGemm` with one of scale and zero point of the result"));
        }
        (y_scale, y_zero_point) => {
            operands.extend([joint_scale(node, scale, b_scale, y_scale)?, y_zero_point]);
            requantize(&mut program, sum, first, first + 1, node.dtype(&y_zero_point)?)
        }
    };
    program.results.push(result);
    node.emit(IntegerMatmul { program }, operands)
}

/// Whether no sum over the columns of `a` reaches the end of i32 once an element of `addend` is added.
fn sums_fit(node: &Lowering<'_, '_>, a: &Operand, addend: &Operand) -> bool {
    /// The largest product of two codes less their zero points.
    const LARGEST: i64 = 255 * 255;
    let columns = node.fact(a).and_then(|fact| fact.dims()?.last()?.as_known());
    let addends = node.fact(addend).and_then(|fact| fact.elements_as_integers());
    let (Some(columns), Some(addends)) = (columns, addends) else { return false };
    let largest = addends.iter().map(|addend| addend.unsigned_abs()).max().unwrap_or(0);
    let sum = columns.checked_mul(LARGEST).and_then(|sum| sum.checked_add(i64::try_from(largest).ok()?));
    sum.is_some_and(|sum| sum <= i32::MAX.into())
}

/// A sum of two i32 that wraps around, as sums of products do; where it `fits`, one step.
fn add_wrapping(program: &mut Program, left: Argument, right: Argument, fits: bool) -> Argument {
    let add = Function::Binary(BinaryFunction::Add);
    if fits {
        return program.push(add, vec![left, right], DType::I32);
    }
    let wide = [left, right].map(|argument| program.push(Function::Cast, vec![argument], DType::I64));
    let sum = program.push(add, wide.to_vec(), DType::I64);
    program.push(Function::Cast, vec![sum], DType::I32)
}

/// `left * right / y_scale`, in f32.
pub(crate) fn joint_scale(
    node: &mut Lowering<'_, '_>,
    left: Operand,
    right: Operand,
    y_scale: Operand,
) -> Result<Operand, LowerError> {
    let (left, right) = (widened(node, left)?, widened(node, right)?);
    let scale = node.emit_one(Binary { function: BinaryFunction::Mul }, vec![left, right])?;
    let y_scale = widened(node, y_scale)?;
    node.emit_one(Binary { function: BinaryFunction::Div }, vec![scale, y_scale])
}

/// `value * scale`, quantized by 1 with a zero point.
pub(crate) fn requantized(node: &mut Lowering<'_, '_>, value: Operand, scale: Operand, zero_point: Operand) -> Lowered {
    let scaled = node.emit_one(Binary { function: BinaryFunction::Mul }, vec![value, scale])?;
    let to = node.dtype(&zero_point)?;
    let one = node.constant(Tensor::scalar(1.0f32));
    node.emit(Quantize { to, axis: 0, block_size: 0, overflow: false, precision: None }, vec![scaled, one, zero_point])
}

/// A scale as f32.
fn widened(node: &mut Lowering<'_, '_>, scale: Operand) -> Result<Operand, LowerError> {
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
        // A matrix has two axes or more where its rows have parameters of their own.
        (Some(1), Some(2..)) | (Some(1), None) if !is_single(node, &parameter) || rank(&matrix).is_some() => {
            let axes = node.constant(Tensor::vector_i64(&[1]));
            node.emit_one(Unsqueeze {}, vec![parameter, axes])
        }
        (Some(_), _) => Ok(parameter),
        (None, _) => Err(node.refuse("a quantized product with parameters of unknown rank")),
    }
}
