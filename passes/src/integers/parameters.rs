//! Scales and zero points of quantized values.

use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, scalars};
use ipuc_formats::ops::{Argument, BinaryFunction, Clamp, Function, Op, Program, Quantize, UnaryFunction};
use ipuc_formats::tensor::Tensor;

/// A scale and a zero point of all elements of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Parameters {
    pub dtype: DType,
    pub scale: f32,
    pub zero: i32,
    /// The zero point as an operand.
    pub zero_point: Operand,
}

/// Codes behind a `dequantize` to f32 with one scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codes {
    pub codes: Operand,
    pub parameters: Parameters,
}

/// Codes that a product reads, behind a `dequantize` to f32 with one scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations {
    pub codes: Operand,
    pub dtype: DType,
    pub scale: Scale,
    /// One zero point, or none.
    pub zero_point: Operand,
}

/// The scale of all elements of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scale {
    Known(f32),
    /// A value of one element, which runs compute or are given.
    Computed(Operand),
}

/// Integers of 8 bits.
pub(super) fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// Integers of 16 bits.
pub(super) fn is_word(dtype: DType) -> bool {
    matches!(dtype, DType::I16 | DType::U16)
}

/// The tensor of a constant operand.
pub(super) fn constant(graph: &Graph, operand: Operand) -> Result<Option<Tensor>, PassError> {
    match operand {
        Operand::Constant(id) => Ok(Some(graph.load_constant(id)?)),
        Operand::Value(_) | Operand::Absent => Ok(None),
    }
}

/// The bounds of a `clamp` of f32, where they are constants and no NaN.
pub(super) fn clamp_bounds(graph: &Graph, step: &Step) -> Result<Option<[f32; 2]>, PassError> {
    let mut bounds = Clamp::absent_bounds(DType::F32).map(|bound| bound.to_f64() as f32);
    for (bound, &operand) in bounds.iter_mut().zip(step.operands.iter().skip(1)) {
        if operand == Operand::Absent {
            continue;
        }
        let Some(tensor) = constant(graph, operand)? else { return Ok(None) };
        match tensor.elements::<f32>() {
            Ok(&[value]) if !value.is_nan() => *bound = value,
            Ok(_) | Err(_) => return Ok(None),
        }
    }
    Ok(Some(bounds))
}

/// A scale with which codes go to f32 and back without another rounding: positive, and far from the ends of the range.
pub(super) fn is_usual(scale: f32) -> bool {
    (1e-30..1e30).contains(&scale)
}

/// The only element of a constant.
fn single(graph: &Graph, operand: Operand) -> Result<Option<(DType, Scalar)>, PassError> {
    let count = match operand {
        Operand::Constant(id) => graph.constant(id).shape.iter().product::<usize>(),
        Operand::Value(_) | Operand::Absent => return Ok(None),
    };
    if count != 1 {
        return Ok(None);
    }
    let Some(tensor) = constant(graph, operand)? else { return Ok(None) };
    // Elements that are no numbers are no parameters.
    let Ok(elements) = scalars(&tensor) else { return Ok(None) };
    Ok(elements.first().map(|&element| (tensor.dtype(), element)))
}

/// The parameters in operands 1 and 2 of a step; `dtype` is the type of the codes.
fn parameters(graph: &Graph, step: &Step, dtype: DType) -> Result<Option<Parameters>, PassError> {
    let operand = |index: usize| step.operands.get(index).copied().unwrap_or(Operand::Absent);
    let scale = match single(graph, operand(1))? {
        Some((DType::F32, Scalar::Float(scale))) if is_usual(scale as f32) => scale as f32,
        Some(_) | None => return Ok(None),
    };
    let zero_point = operand(2);
    let zero = match (zero_point, single(graph, zero_point)?) {
        (Operand::Absent, _) => 0,
        (_, Some((found, Scalar::Integer(zero)))) if found == dtype => zero as i32,
        (_, Some(_) | None) => return Ok(None),
    };
    Ok((is_byte(dtype) || is_word(dtype)).then_some(Parameters { dtype, scale, zero, zero_point }))
}

/// Whether an operand is one element of this type in every run.
fn is_single(graph: &Graph, operand: Operand, dtype: DType) -> bool {
    let fact = graph.fact(operand);
    let Some((found, shape)) = fact.as_ref().and_then(|fact| fact.kind.as_tensor()) else { return false };
    let single = shape.dims().is_some_and(|dims| dims.len() <= 1 && dims.iter().all(|dim| dim.as_known() == Some(1)));
    found == dtype && single
}

/// The codes that a `dequantize` decodes, and their type; `None` where it decodes them otherwise than with one scale to f32.
fn decoded(graph: &Graph, step: &Step) -> Option<(Operand, DType)> {
    let Op::Dequantize(dequantize) = &step.op else { return None };
    let &codes = step.operands.first()?;
    let known = graph.fact(codes).and_then(|fact| fact.kind.as_tensor().map(|(dtype, _)| dtype))?;
    let plainly = matches!(dequantize.to, None | Some(DType::F32)) && dequantize.block_size == 0;
    plainly.then_some((codes, known))
}

/// The codes that an operand dequantizes.
pub(super) fn codes(
    graph: &Graph,
    readers: &Readers,
    steps: &[Step],
    operand: Operand,
) -> Result<Option<Codes>, PassError> {
    let Some(step) = readers.producer(steps, operand) else { return Ok(None) };
    let Some((codes, dtype)) = decoded(graph, step) else { return Ok(None) };
    let parameters = parameters(graph, step, dtype)?;
    Ok(parameters.map(|parameters| Codes { codes, parameters }))
}

/// The codes that an operand dequantizes, with a scale and a zero point that may differ from run to run.
pub(super) fn activations(
    graph: &Graph,
    readers: &Readers,
    steps: &[Step],
    operand: Operand,
) -> Result<Option<Activations>, PassError> {
    if let Some(Codes { codes, parameters: Parameters { dtype, scale, zero: _, zero_point } }) =
        self::codes(graph, readers, steps, operand)?
    {
        return Ok(Some(Activations { codes, dtype, scale: Scale::Known(scale), zero_point }));
    }
    let Some(step) = readers.producer(steps, operand) else { return Ok(None) };
    let Some((codes, dtype)) = decoded(graph, step) else { return Ok(None) };
    let parameter = |index: usize| step.operands.get(index).copied().unwrap_or(Operand::Absent);
    let (scale, zero_point) = (parameter(1), parameter(2));
    let fits = (is_byte(dtype) || is_word(dtype))
        && is_single(graph, scale, DType::F32)
        && (zero_point == Operand::Absent || is_single(graph, zero_point, dtype));
    let scale = match (scale, single(graph, scale)?) {
        (Operand::Value(_), _) => Scale::Computed(scale),
        (_, Some((_, Scalar::Float(scale)))) if is_usual(scale as f32) => Scale::Known(scale as f32),
        (Operand::Constant(_) | Operand::Absent, _) => return Ok(None),
    };
    Ok(fits.then_some(Activations { codes, dtype, scale, zero_point }))
}

/// The parameters of a step that quantizes f32 to codes of 8 or 16 bits with one scale.
pub(super) fn target(graph: &Graph, step: &Step) -> Result<Option<Parameters>, PassError> {
    let Op::Quantize(Quantize { to, axis: _, block_size: 0, overflow: _, precision: None | Some(DType::F32) }) =
        &step.op
    else {
        return Ok(None);
    };
    let from = step.operands.first().and_then(|&x| graph.fact(x));
    if from.and_then(|fact| fact.kind.as_tensor().map(|(dtype, _)| dtype)) != Some(DType::F32) {
        return Ok(None);
    }
    parameters(graph, step, *to)
}

/// The code of a value in units of the scale: rounded to even, behind the zero point, saturated.
pub(super) fn rounded(program: &mut Program, value: Argument, target: &Parameters) -> Argument {
    let round = Function::Unary(UnaryFunction::Round);
    if target.zero == 0 {
        return program.push(round, vec![value], target.dtype);
    }
    let code = program.push(round, vec![value], DType::I32);
    let add = Function::Binary(BinaryFunction::Add);
    program.push(add, vec![code, Argument::i32(target.zero)], target.dtype)
}
