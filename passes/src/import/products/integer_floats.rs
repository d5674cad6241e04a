//! Products of quantized operands whose results are floats, of `com.microsoft`: `DynamicQuantizeMatMul`,
//! `MatMulIntegerToFloat`, `MatMulBnb4`, as ONNX Runtime 1.31 defines them, and `QLinearConv` with channels behind the spatial
//! axes.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::fused_windows::{channels_first, channels_last};
use crate::import::products::quantized::is_single;
use crate::import::products::windows::quantized_convolution_of;
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, BitCast, DynamicQuantize, Gather, IntegerMatmul, Program};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Products of quantized operands.
pub const ROWS: &[Row] = &[
    row("DynamicQuantizeMatMul", dynamic_matmul),
    row("MatMulBnb4", matmul_of_table),
    row("MatMulIntegerToFloat", integer_matmul),
    row("QLinearConv", quantized_convolution),
];

/// Operands of an integer product, zero points of one element as scalars.
pub(crate) fn with_scalars(
    node: &mut Lowering<'_, '_>,
    mut operands: Vec<Operand>,
) -> Result<Vec<Operand>, LowerError> {
    for zero_point in operands.iter_mut().skip(2) {
        if *zero_point != Operand::Absent && is_single(node, zero_point) {
            *zero_point = node.reshaped(*zero_point, &[])?;
        }
    }
    Ok(operands)
}

/// `sums * a_scale * b_scale + bias` of codes less their zero points.
fn scaled(
    node: &mut Lowering<'_, '_>,
    operands: Vec<Operand>,
    [a_scale, b_scale]: [Operand; 2],
    bias: Operand,
) -> Lowered {
    let dtype = node.dtype(&b_scale)?;
    let operands = with_scalars(node, operands)?;
    let sums = node.emit_one(IntegerMatmul { program: Program::default() }, operands)?;
    let sums = node.cast(sums, DType::F32)?;
    let (a_scale, b_scale) = (node.cast(a_scale, DType::F32)?, node.cast(b_scale, DType::F32)?);
    let scale = node.binary(BinaryFunction::Mul, a_scale, b_scale)?;
    let product = node.binary(BinaryFunction::Mul, sums, scale)?;
    let bias = node.cast(bias, DType::F32)?;
    let sum = node.plus(product, bias)?;
    Ok(vec![node.cast(sum, dtype)?])
}

fn dynamic_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(5)?;
    let (a, b, b_scale) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let quantized = node.emit(DynamicQuantize {}, vec![a])?;
    let operands = vec![quantized[0], b, quantized[2], node.input(3)];
    let bias = node.input(4);
    scaled(node, operands, [quantized[1], b_scale], bias)
}

fn integer_matmul(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(7)?;
    let (a, b, a_scale, b_scale) = (node.required(0)?, node.required(1)?, node.required(2)?, node.required(3)?);
    let operands = vec![a, b, node.input(4), node.input(5)];
    let bias = node.input(6);
    scaled(node, operands, [a_scale, b_scale], bias)
}

/// Values of the codes of `quant_type` 0, a float of 4 bits of bitsandbytes, over its greatest.
const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_5,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_5,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// Values of the codes of `quant_type` 1: quantiles of the normal distribution (Dettmers et al., QLoRA, 2023).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `A: [.., K]` by weights `[N, K]` whose codes are places in a table, two a byte with the first in the high bits, times a
/// greatest magnitude for each block of the flat weights.
fn matmul_of_table(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let (inputs, outputs, block) = (node.positive("K")?, node.positive("N")?, node.positive("block_size")?);
    node.only_int("training_mode", 0)?;
    let transposed = node.flag("transB", true)?;
    let table = match node.int("quant_type")? {
        Some(0) => FP4,
        Some(1) => NF4,
        Some(other) => return Err(node.refuse(format!("attribute `quant_type` = {other}"))),
        None => return Err(LowerError::MissingAttribute("quant_type".to_string())),
    };
    let count = inputs.checked_mul(outputs).ok_or_else(|| node.refuse("a product of this size"))?;
    if count % block != 0 || count % 2 != 0 {
        return Err(node.refuse(format!("attribute `block_size` = {block} with {count} weights")));
    }
    let (a, bytes, greatest) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let dtype = node.dtype(&a)?;
    let codes = node.reshaped(bytes, &[count / 2, 1])?;
    let codes = node.emit_one(BitCast { to: DType::U4 }, vec![codes])?;
    let places = node.cast(codes, DType::I64)?;
    let swapped = node.integers(&[1, 0]);
    let places = node.emit_one(Gather { axis: 1 }, vec![places, swapped])?;
    let places = node.reshaped(places, &[count / block, block])?;
    let table = node.constant(Tensor::from_elements(&[16], &table)?);
    let values = node.emit_one(Gather { axis: 0 }, vec![table, places])?;
    let greatest = node.cast(greatest, DType::F32)?;
    let greatest = node.reshaped(greatest, &[count / block, 1])?;
    let weight = node.binary(BinaryFunction::Mul, values, greatest)?;
    let weight = node.reshaped(weight, &[outputs, inputs])?;
    if !transposed {
        // The gradient with respect to A.
        return Err(node.refuse("attribute `transB` = 0"));
    }
    let weight = node.cast(weight, dtype)?;
    Ok(vec![node.product(a, weight, true)?])
}

fn quantized_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(9)?;
    let x = node.required(0)?;
    if !node.flag("channels_last", false)? {
        return quantized_convolution_of(node, x);
    }
    let x = channels_first(node, x)?;
    let result = quantized_convolution_of(node, x)?[0];
    Ok(vec![channels_last(node, result)?])
}
