//! Weights of `com.microsoft` whose codes are packed in bytes: `MatMulNBits`, `MatMulFpQ4`, `GatherBlockQuantized`, as ONNX
//! Runtime 1.31 defines them.
//!
//! Both become a `dequantize` of the codes, with parameters as the model has them, and a product or a gather of its result;
//! the pass [`quantize`](crate::quantize) stores the codes. Several codes share a byte from its low bits on.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Activations, Arithmetic, Binary, BinaryFunction, BitCast, Dequantize, Gather, Matmul, Reshape, Slice, TypeError,
};
use ipuc_formats::tensor::Tensor;

/// Quantized weights of ONNX Runtime.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "GatherBlockQuantized", since: 1, lower: gather_block_quantized },
    Row { domain: "com.microsoft", name: "MatMulFpQ4", since: 1, lower: matmul_of_blocks },
    Row { domain: "com.microsoft", name: "MatMulNBits", since: 1, lower: matmul_of_codes },
];

type Lowered = Result<Vec<Operand>, LowerError>;

/// A value of an attribute that the operator does not define.
fn wrong_value(name: &str, found: i64, expected: &str) -> LowerError {
    let subject = format!("attribute `{name}`");
    TypeError::Value { subject, found: found.to_string(), expected: expected.to_string() }.into()
}

/// An attribute that must be there and positive.
fn positive(node: &mut Lowering<'_, '_>, name: &str) -> Result<i64, LowerError> {
    match node.int(name)? {
        Some(value) if value > 0 => Ok(value),
        Some(other) => Err(wrong_value(name, other, "1 or more")),
        None => Err(LowerError::MissingAttribute(name.to_string())),
    }
}

/// The attribute `block_size`: a power of two, 16 or more.
fn block_size(node: &mut Lowering<'_, '_>, default: Option<i64>) -> Result<i64, LowerError> {
    let given = node.int("block_size")?.or(default);
    let size = given.ok_or_else(|| LowerError::MissingAttribute("block_size".to_string()))?;
    if size >= 16 && size & (size - 1) == 0 {
        Ok(size)
    } else {
        Err(wrong_value("block_size", size, "a power of two from 16 on"))
    }
}

/// The unsigned type of codes of so many bits.
fn code_type(node: &mut Lowering<'_, '_>, default: i64) -> Result<DType, LowerError> {
    match node.int("bits")?.unwrap_or(default) {
        2 => Ok(DType::U2),
        4 => Ok(DType::U4),
        8 => Ok(DType::U8),
        other => Err(wrong_value("bits", other, "2, 4 or 8")),
    }
}

/// The code in the middle, which stands for zero where no zero points are given.
fn middle(code: DType) -> Result<Tensor, LowerError> {
    Tensor::from_codes(code, &[], &[1 << (code.bits() - 1)]).map_err(|error| LowerError::Unsupported(error.to_string()))
}

fn integers(node: &mut Lowering<'_, '_>, elements: &[i64]) -> Operand {
    node.constant(Tensor::vector_i64(elements))
}

fn reshaped(node: &mut Lowering<'_, '_>, data: Operand, shape: &[i64]) -> Result<Operand, LowerError> {
    let shape = integers(node, shape);
    node.emit_one(Reshape { allow_zero: true }, vec![data, shape])
}

/// The first `length` of `packed: [rows, bytes]` as codes `[rows, length]`.
fn unpacked(
    node: &mut Lowering<'_, '_>,
    packed: Operand,
    code: DType,
    [rows, length]: [i64; 2],
) -> Result<Operand, LowerError> {
    let bits = code.bits() as i64;
    let bytes = (length * bits + 7) / 8;
    let packed = reshaped(node, packed, &[rows, bytes])?;
    let codes = if code == DType::U8 { packed } else { node.emit_one(BitCast { to: code }, vec![packed])? };
    first_columns(node, codes, [bytes * 8 / bits, length])
}

/// The first `length` of `width` columns.
fn first_columns(node: &mut Lowering<'_, '_>, data: Operand, [width, length]: [i64; 2]) -> Result<Operand, LowerError> {
    if width == length {
        return Ok(data);
    }
    let [start, end, axis] = [0, length, -1].map(|bound| integers(node, &[bound]));
    node.emit_one(Slice {}, vec![data, start, end, axis])
}

/// `MatMulNBits`: `a: [.., K]` by `b: u8[N, blocks, bytes of a block]`, with scales `[N, blocks]` and zero points of codes,
/// packed row by row, or of the type of `a`.
fn matmul_of_codes(node: &mut Lowering<'_, '_>) -> Lowered {
    let (inputs, outputs) = (positive(node, "K")?, positive(node, "N")?);
    let (code, block) = (code_type(node, 4)?, block_size(node, None)?);
    let accuracy = node.int("accuracy_level")?.unwrap_or(0);
    if !(0..=4).contains(&accuracy) {
        return Err(wrong_value("accuracy_level", accuracy, "0 to 4"));
    }
    // Other layouts are those of one processor's kernels.
    node.only_int("weight_prepacked", 0)?;
    let (a, b, scales, zero_points) = (node.required(0)?, node.required(1)?, node.required(2)?, node.input(3));
    let (group_index, bias) = (node.input(4), node.input(5));
    let dtype = node.dtype(&a)?;
    let blocks = (inputs + block - 1) / block;
    let codes = unpacked(node, b, code, [outputs, blocks * block])?;
    let codes = first_columns(node, codes, [blocks * block, inputs])?;
    let mut scales = reshaped(node, scales, &[outputs, blocks])?;
    let single = zero_points == Operand::Absent;
    let mut zero_points = match zero_points {
        Operand::Absent => node.constant(middle(code)?),
        given if node.dtype(&given)? == DType::U8 => unpacked(node, given, code, [outputs, blocks])?,
        given => reshaped(node, given, &[outputs, blocks])?,
    };
    let mut shared = block;
    if group_index != Operand::Absent {
        // Each input says which block its parameters are of.
        let gathered =
            |node: &mut Lowering<'_, '_>, of: Operand| node.emit_one(Gather { axis: 1 }, vec![of, group_index]);
        scales = gathered(node, scales)?;
        if !single {
            zero_points = gathered(node, zero_points)?;
        }
        shared = 1;
    }
    let dequantize = Dequantize { to: Some(dtype), axis: 1, block_size: shared };
    let weight = node.emit_one(dequantize, vec![codes, scales, zero_points])?;
    let activation = match accuracy {
        4 => Activations::Dynamic { dtype: DType::I8, block: u32::try_from(block).unwrap_or(0) },
        _ => Arithmetic::default().activation,
    };
    let arithmetic = Arithmetic { activation, ..Arithmetic::default() };
    let product = node.emit_one(Matmul { arithmetic, ..Matmul::new(false, true) }, vec![a, weight])?;
    match bias {
        Operand::Absent => Ok(vec![product]),
        bias => node.emit(Binary { function: BinaryFunction::Add }, vec![product, bias]),
    }
}

/// `MatMulFpQ4`: `a: [.., K]` by blocks of 32 inputs, those of an output one after another, as ONNX Runtime's kernels read them: a
/// scale (f32), a zero point where the blocks have one, and 16 bytes whose low bits are the first 16 codes.
fn matmul_of_blocks(node: &mut Lowering<'_, '_>) -> Lowered {
    const BLOCK: i64 = 32;
    node.at_most_inputs(3)?;
    let parameters = match node.int("blk_quant_type")?.unwrap_or(1) {
        0 => 4,
        1 => 5,
        // Blocks of 64, by the description, which ONNX Runtime does not read so.
        other => return Err(wrong_value("blk_quant_type", other, "0 or 1")),
    };
    let (a, blob, shape) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let shape = node.fact(&shape).and_then(|fact| fact.elements_as_integers());
    let Some([inputs, outputs]) = shape.as_deref() else { return Err(node.refuse("a computed `B_shape`")) };
    if !(1..=i64::from(i32::MAX)).contains(inputs) || !(1..=i64::from(i32::MAX)).contains(outputs) {
        return Err(node.refuse(format!("`B_shape` = [{inputs}, {outputs}]")));
    }
    let (inputs, outputs, blocks) = (*inputs, *outputs, (inputs + BLOCK - 1) / BLOCK);
    let blob = reshaped(node, blob, &[outputs, blocks, parameters + BLOCK / 2])?;
    let part = |node: &mut Lowering<'_, '_>, from: i64, to: i64| node.sliced(blob, 2, [from, to, 1]);
    let scales = part(node, 0, 4)?;
    let scales = node.emit_one(BitCast { to: DType::U32 }, vec![scales])?;
    let scales = node.emit_one(BitCast { to: DType::F32 }, vec![scales])?;
    let scales = reshaped(node, scales, &[outputs, blocks])?;
    let zero_points = match parameters {
        4 => node.constant(middle(DType::U4)?),
        _ => {
            let zeros = part(node, 4, 5)?;
            let zeros = reshaped(node, zeros, &[outputs, blocks])?;
            node.cast(zeros, DType::U4)?
        }
    };
    let codes = part(node, parameters, parameters + BLOCK / 2)?;
    let codes = node.emit_one(BitCast { to: DType::U4 }, vec![codes])?;
    let codes = reshaped(node, codes, &[outputs, blocks, BLOCK / 2, 2])?;
    let codes = node.transposed(codes, vec![0, 1, 3, 2])?;
    let codes = reshaped(node, codes, &[outputs, blocks * BLOCK])?;
    let codes = first_columns(node, codes, [blocks * BLOCK, inputs])?;
    let dequantize = Dequantize { to: Some(DType::F32), axis: 1, block_size: BLOCK };
    let weight = node.emit_one(dequantize, vec![codes, scales, zero_points])?;
    node.emit(Matmul::new(false, true), vec![a, weight])
}

/// `GatherBlockQuantized`: rows of `data: [..]` (i4, u4, or codes packed in u8 along the last axis), chosen by `indices`,
/// with a scale and a zero point for each block along an axis. Without zero points codes in u8 have the middle one,
/// others 0.
fn gather_block_quantized(node: &mut Lowering<'_, '_>) -> Lowered {
    let (gather_axis, quantize_axis) = (node.int("gather_axis")?.unwrap_or(0), node.int("quantize_axis")?.unwrap_or(1));
    let (packed_code, block) = (code_type(node, 4)?, block_size(node, Some(128))?);
    let (data, indices, scales) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let zero_points = node.input(3);
    let packed = node.dtype(&data)? == DType::U8;
    let codes_of = |node: &mut Lowering<'_, '_>, bytes: Operand| match packed_code {
        DType::U8 => Ok(bytes),
        code => node.emit_one(BitCast { to: code }, vec![bytes]),
    };
    let zero_points = match zero_points {
        Operand::Absent if packed => node.constant(middle(packed_code)?),
        Operand::Absent => Operand::Absent,
        given if packed => {
            let codes = codes_of(node, given)?;
            let last = |operand| Some(node.fact(operand)?.dims()?.last()?.as_known());
            match (last(&codes), last(&scales)) {
                (Some(Some(width)), Some(Some(length))) => first_columns(node, codes, [width, length])?,
                _ => return Err(node.refuse("`zero_points` or `scales` of unknown extents")),
            }
        }
        given => given,
    };
    let codes = if packed { codes_of(node, data)? } else { data };
    let dequantize = Dequantize { to: None, axis: quantize_axis, block_size: block };
    let values = node.emit_one(dequantize, vec![codes, scales, zero_points])?;
    node.emit(Gather { axis: gather_axis }, vec![values, indices])
}
