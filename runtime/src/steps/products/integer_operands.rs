//! Operands of products of integers.

use super::convolution::dtype;
use crate::steps::{KernelError, Operand, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Program;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::ByteType;

fn byte_type(dtype: DType) -> Option<ByteType> {
    match dtype {
        DType::I8 => Some(ByteType { signed: true }),
        DType::U8 => Some(ByteType { signed: false }),
        _ => None,
    }
}

/// The types of both operands, where they are integers of 8 bits.
pub(super) fn byte_types(operands: &[Operand]) -> Option<[ByteType; 2]> {
    Some([byte_type(dtype(operands.first())?)?, byte_type(dtype(operands.get(1))?)?])
}

/// The numbers of the elements of a zero point; `None` where the operand is absent.
pub(super) fn zero_points(operands: &mut [Operand], operand: usize) -> Result<Option<Tensor>, KernelError> {
    match operands.get(operand) {
        None | Some(Operand::Absent) => Ok(None),
        Some(_) => Ok(Some(tensor_operand(operands, operand)?)),
    }
}

/// The numbers that codes stand for.
pub(super) fn numbers(bytes: &[u8], kind: ByteType) -> Vec<i32> {
    let number = |&byte: &u8| if kind.signed { i32::from(byte as i8) } else { i32::from(byte) };
    bytes.iter().map(number).collect()
}

/// The integers of 8 or 16 bits in a tensor; `None` for another type.
fn integers(tensor: &Tensor) -> Option<Vec<i32>> {
    let words = tensor.bytes().as_chunks::<2>().0.iter();
    match tensor.dtype() {
        DType::I16 => Some(words.map(|&word| i32::from(i16::from_ne_bytes(word))).collect()),
        DType::U16 => Some(words.map(|&word| i32::from(u16::from_ne_bytes(word))).collect()),
        dtype => byte_type(dtype).map(|kind| numbers(tensor.bytes(), kind)),
    }
}

/// One zero point for each of `count` outputs, from one for all or one for each; `None` for another number.
pub(super) fn each_zero(zeros: Option<&Tensor>, count: usize) -> Option<Vec<i32>> {
    let Some(tensor) = zeros else { return Some(vec![0; count]) };
    match integers(tensor)?.as_slice() {
        &[single] => Some(vec![single; count]),
        several if several.len() == count => Some(several.to_vec()),
        _ => None,
    }
}

/// The only zero point of activations; `None` where there are several.
pub(super) fn single_zero(zeros: Option<&Tensor>) -> Option<i32> {
    let Some(tensor) = zeros else { return Some(0) };
    match integers(tensor)?.as_slice() {
        &[zero] => Some(zero),
        _ => None,
    }
}

/// Whether zero points have the types of their operands.
pub(super) fn same_types(zeros: [Option<&Tensor>; 2], dtypes: [DType; 2]) -> bool {
    zeros.iter().zip(dtypes).all(|(zero, dtype)| zero.is_none_or(|zero| zero.dtype() == dtype))
}

pub(super) fn reads_own(program: &Program, own: usize) -> bool {
    program.operands().any(|operand| operand < own)
}

/// Operands again, for a reference.
pub(super) fn reloaded(
    tensors: impl IntoIterator<Item = Option<Tensor>>,
    further: Vec<Option<Value>>,
    own: usize,
) -> Vec<Operand> {
    let own_operands =
        tensors.into_iter().map(|tensor| tensor.map_or(Operand::Absent, |tensor| Operand::Value(tensor.into())));
    let further = further.into_iter().skip(own).map(|value| value.map_or(Operand::Absent, Operand::Value));
    own_operands.chain(further).collect()
}
