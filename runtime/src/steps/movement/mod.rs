//! Moving elements, indexing.
//!
//! Elements of whole bytes are moved as words of their width; text and elements that share bytes move by their
//! references, and so does whatever a reference refuses, which then says why.

mod along;
mod arrange;
mod gather;
mod made;
mod pad;
mod scatter;
mod select;
#[cfg(test)]
mod tests;
mod unique;

use crate::steps::{Contents, Context, Kernel, KernelError, Operand, run_over_copies, run_reference};
use ipuc_formats::ops::{CenterCropPad, Flatten, Operator, Reshape, ShapeOf, SizeOf, Squeeze, Unsqueeze};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

// These give their operand's bytes back.
impl Kernel for Reshape {}
impl Kernel for Flatten {}
impl Kernel for Squeeze {}
impl Kernel for Unsqueeze {}

impl Kernel for ShapeOf {
    fn compute(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        // The extents of state are known without its contents.
        if let Some(Operand::Version(version)) = operands.first() {
            let extents: Vec<i64> = self.chosen(version.shape()).iter().map(|&extent| extent as i64).collect();
            return Ok(vec![Value::from(Tensor::vector_i64(&extents)).into()]);
        }
        run_over_copies(self, operands, context)
    }

    fn reads_pages(&self) -> bool {
        true
    }
}
impl Kernel for SizeOf {}
impl Kernel for CenterCropPad {}

/// Evaluates `$body` with `$T` bound to a word of the width of the element type; `$otherwise` for text and elements that
/// share bytes.
macro_rules! with_words {
    ($dtype:expr, $T:ident => $body:expr, otherwise $otherwise:expr) => {
        match $dtype.bits() {
            8 => {
                type $T = u8;
                $body
            }
            16 => {
                type $T = u16;
                $body
            }
            32 => {
                type $T = u32;
                $body
            }
            64 => {
                type $T = u64;
                $body
            }
            128 => {
                // Two words: complex numbers are aligned to one.
                type $T = [u64; 2];
                $body
            }
            _ => $otherwise,
        }
    };
}
use with_words;

/// The elements as words.
fn words<T: bytemuck::Pod>(tensor: &Tensor) -> &[T] {
    bytemuck::cast_slice(tensor.bytes())
}

/// The elements as words for writing.
fn words_mut<T: bytemuck::Pod>(tensor: &mut Tensor) -> &mut [T] {
    bytemuck::cast_slice_mut(tensor.bytes_mut())
}

/// Operands with weights loaded.
fn load(operands: Vec<Operand>) -> Result<Vec<Option<Value>>, KernelError> {
    operands.into_iter().map(Operand::into_value).collect()
}

/// The reference of an operator for operands that are loaded already.
fn refer<K: Operator + ?Sized>(
    operator: &K,
    inputs: Vec<Option<Value>>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value));
    run_reference(operator, operands.collect(), context)
}

/// The integers of an operand; `None` where it is absent or holds others.
fn integers(inputs: &[Option<Value>], operand: usize) -> Option<Vec<i64>> {
    ipuc_formats::fact::integers(inputs.get(operand)?.as_ref()?.as_tensor()?)
}

/// The tensor of an operand, if it is there.
fn tensor(inputs: &[Option<Value>], operand: usize) -> Option<&Tensor> {
    inputs.get(operand)?.as_ref()?.as_tensor()
}

/// The product of extents, which cannot overflow for those of a tensor that has elements.
fn count(extents: &[usize]) -> usize {
    ipuc_formats::tensor::element_count(extents).unwrap_or(0)
}

/// The position of an index that may count from the back; `None` where it is outside.
fn position(index: i64, extent: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(extent as i64)? } else { index };
    usize::try_from(index).ok().filter(|&position| position < extent)
}
