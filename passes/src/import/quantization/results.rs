//! Quantized operands and results of `com.microsoft`: `QLinearSigmoid`, `QLinearLeakyRelu`, `QLinearSoftmax`,
//! `QLinearAveragePool`, `QLinearGlobalAveragePool`, `QLinearReduceMean`, `QLinearConcat`, `QLinearWhere`, and
//! `QuantizeLinear`, `DequantizeLinear` of the domain, as ONNX Runtime 1.31 defines them.
//!
//! Each is the function between a dequantization and a quantization. ONNX Runtime sums some of them in integers, so that its
//! code may be the one beside where the value lies within a float rounding of the middle between two.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::{channels_first, channels_last, pool_of_runtime};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Activation, ActivationFunction, Concat, Dequantize, Pool, PoolFunction, Quantize, Reduce, ReduceFunction, Select,
    Softmax, SoftmaxFunction, TypeError,
};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Quantized operands and results.
pub const ROWS: &[Row] = &[
    row("DequantizeLinear", dequantize),
    row("QLinearAveragePool", average_pool),
    row("QLinearConcat", concat),
    row("QLinearGlobalAveragePool", global_average_pool),
    row("QLinearLeakyRelu", |node| {
        let alpha = Some(node.float("alpha")?.unwrap_or(0.01));
        activation(node, Activation { function: ActivationFunction::LeakyRelu, alpha, beta: None })
    }),
    row("QLinearReduceMean", reduce_mean),
    row("QLinearSigmoid", |node| {
        activation(node, Activation { function: ActivationFunction::Sigmoid, alpha: None, beta: None })
    }),
    row("QLinearSoftmax", softmax),
    row("QLinearWhere", select),
    row("QuantizeLinear", quantize),
];

/// Codes `[..]` with one scale and perhaps a zero point, as f32.
fn value(
    node: &mut Lowering<'_, '_>,
    codes: Operand,
    scale: Operand,
    zero_point: Operand,
) -> Result<Operand, LowerError> {
    let dequantize = Dequantize { to: Some(DType::F32), axis: 0, block_size: 0 };
    let operands = single(node, codes, scale, zero_point)?;
    node.emit_one(dequantize, operands)
}

/// f32 `[..]` as codes of type `to`.
fn code(
    node: &mut Lowering<'_, '_>,
    to: DType,
    value: Operand,
    scale: Operand,
    zero_point: Operand,
) -> Result<Operand, LowerError> {
    let quantize = Quantize { to, axis: 0, block_size: 0, overflow: false, precision: None };
    let operands = single(node, value, scale, zero_point)?;
    node.emit_one(quantize, operands)
}

/// Parameters of one element, as scalars behind their operand.
fn single(
    node: &mut Lowering<'_, '_>,
    operand: Operand,
    scale: Operand,
    zero_point: Operand,
) -> Result<Vec<Operand>, LowerError> {
    let scale = node.reshaped(scale, &[])?;
    let mut operands = vec![operand, scale];
    if zero_point != Operand::Absent {
        operands.push(node.reshaped(zero_point, &[])?);
    }
    Ok(operands)
}

/// Input 0 as f32, by inputs 1 and 2; and its type, which must be one of codes.
fn first_value(node: &mut Lowering<'_, '_>) -> Result<(Operand, DType), LowerError> {
    let (x, scale) = (node.required(0)?, node.required(1)?);
    let dtype = require_codes(node, 0)?;
    let zero_point = node.input(2);
    Ok((value(node, x, scale, zero_point)?, dtype))
}

fn require_codes(node: &Lowering<'_, '_>, operand: usize) -> Result<DType, LowerError> {
    match node.dtype(&node.required(operand)?)? {
        dtype @ (DType::I8 | DType::U8) => Ok(dtype),
        found => Err(TypeError::ElementType { operand, expected: "i8 or u8".to_string(), found }.into()),
    }
}

/// The result as codes of this type, by inputs 3 and 4.
fn first_code(node: &mut Lowering<'_, '_>, result: Operand, to: DType) -> Lowered {
    let (scale, zero_point) = (node.required(3)?, node.input(4));
    Ok(vec![code(node, to, result, scale, zero_point)?])
}

fn activation(node: &mut Lowering<'_, '_>, activation: Activation) -> Lowered {
    node.at_most_inputs(5)?;
    let (x, dtype) = first_value(node)?;
    let result = node.emit_one(activation, vec![x])?;
    first_code(node, result, dtype)
}

/// Until opset 12 all axes from `axis` on are one.
fn softmax(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(5)?;
    let opset = node.int("opset")?.ok_or_else(|| LowerError::MissingAttribute("opset".to_string()))?;
    let axis = node.int("axis")?.unwrap_or(-1);
    let (x, dtype) = first_value(node)?;
    let softmax = Softmax { function: SoftmaxFunction::Softmax, axis, trailing: opset < 13 };
    let result = node.emit_one(softmax, vec![x])?;
    first_code(node, result, dtype)
}

fn pooled(node: &mut Lowering<'_, '_>, pool: Pool, last: bool) -> Lowered {
    node.at_most_inputs(5)?;
    let (mut x, dtype) = first_value(node)?;
    if last {
        x = channels_first(node, x)?;
    }
    let mut result = node.emit_one(pool, vec![x])?;
    if last {
        result = channels_last(node, result)?;
    }
    first_code(node, result, dtype)
}

fn average_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let last = node.flag("channels_last", false)?;
    let count_include_pad = node.flag("count_include_pad", false)?;
    let pool = Pool { count_include_pad, ..pool_of_runtime(node, PoolFunction::Average)? };
    pooled(node, pool, last)
}

fn global_average_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let last = node.flag("channels_last", false)?;
    pooled(node, Pool::global(PoolFunction::Average), last)
}

fn reduce_mean(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(5)?;
    let axes = node.ints("axes")?.ok_or_else(|| LowerError::MissingAttribute("axes".to_string()))?;
    let keep_axes = node.flag("keepdims", true)?;
    let (x, dtype) = first_value(node)?;
    let axes = node.integers(&axes);
    let mean = Reduce { function: ReduceFunction::Mean, keep_axes, keep_without_axes: false };
    let result = node.emit_one(mean, vec![x, axes])?;
    first_code(node, result, dtype)
}

/// Scale and zero point of the result come first, then each operand with its own.
fn concat(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.ok_or_else(|| LowerError::MissingAttribute("axis".to_string()))?;
    let (scale, zero_point) = (node.required(0)?, node.required(1)?);
    let count = node.input_count();
    if count < 5 || count % 3 != 2 {
        let expected = "2, and 3 for each operand".to_string();
        return Err(TypeError::OperandCount { expected, found: count }.into());
    }
    let mut values = Vec::new();
    for first in (2..count).step_by(3) {
        require_codes(node, first)?;
        let (x, own_scale) = (node.required(first)?, node.required(first + 1)?);
        let own_zero_point = node.input(first + 2);
        values.push(value(node, x, own_scale, own_zero_point)?);
    }
    let result = node.emit_one(Concat { axis }, values)?;
    let to = require_codes(node, 1)?;
    Ok(vec![code(node, to, result, scale, zero_point)?])
}

fn select(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(9)?;
    let condition = node.required(0)?;
    let to = require_codes(node, 1)?;
    let mut values = vec![condition];
    for first in [1, 4] {
        let (x, scale) = (node.required(first)?, node.required(first + 1)?);
        let zero_point = node.input(first + 2);
        values.push(value(node, x, scale, zero_point)?);
    }
    let result = node.emit_one(Select {}, values)?;
    let (scale, zero_point) = (node.required(7)?, node.input(8));
    Ok(vec![code(node, to, result, scale, zero_point)?])
}

fn quantize(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let axis = node.int("axis")?.unwrap_or(1);
    let (x, scale, zero_point) = (node.required(0)?, node.required(1)?, node.input(2));
    let to = match zero_point {
        Operand::Absent => DType::U8,
        given => node.dtype(&given)?,
    };
    let operands = vec![x, scale, zero_point];
    node.emit(Quantize { to, axis, block_size: 0, overflow: false, precision: None }, operands)
}

fn dequantize(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let axis = node.int("axis")?.unwrap_or(1);
    let (x, scale, zero_point) = (node.required(0)?, node.required(1)?, node.input(2));
    node.emit(Dequantize { to: None, axis, block_size: 0 }, vec![x, scale, zero_point])
}
