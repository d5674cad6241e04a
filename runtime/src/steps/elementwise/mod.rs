//! Functions of elements, casts, random draws.
//!
//! Results are written over an operand that nobody reads afterwards where type and shape agree. Numbers of the usual types
//! have loops of their own here, the rest runs by its reference.

mod binary;
mod cast;
mod compare;
pub(in crate::steps) mod powers;
mod random;
mod select;
#[cfg(test)]
mod tests;
mod unary;
pub(in crate::steps) mod vectors;

use crate::steps::program::{self, Accumulators};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::ops::broadcast::{broadcast_extents, broadcast_strides};
use ipuc_formats::ops::{BitCast, Dropout, Map, Multinomial};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::Runs;

impl Kernel for BitCast {}

impl Kernel for Map {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let shapes: Vec<&[usize]> =
            inputs.iter().flatten().filter_map(Value::as_tensor).map(|tensor| tensor.shape()).collect();
        let shape = broadcast_extents(&shapes)?;
        let results = program::apply(&self.program, Accumulators::None, &shape, &inputs, context)?;
        Ok(results.into_iter().map(Value::from).collect())
    }
}

impl Kernel for Multinomial {}
impl Kernel for Dropout {}

/// Operands with weights loaded.
pub(super) fn load(operands: Vec<Operand>) -> Result<Vec<Option<Value>>, KernelError> {
    operands.into_iter().map(Operand::into_value).collect()
}

/// Operands again, for a reference.
fn reload(tensors: impl IntoIterator<Item = Tensor>) -> Vec<Operand> {
    tensors.into_iter().map(|tensor| Operand::Value(tensor.into())).collect()
}

/// How operands of these shapes are read for the elements of `extents`.
pub(super) fn runs<const N: usize>(extents: &[usize], shapes: [&[usize]; N]) -> Runs<N> {
    let is_single = |shape: &[usize]| shape.iter().all(|&extent| extent == 1);
    if shapes.iter().all(|shape| *shape == extents || is_single(shape)) {
        // An axis of one element is no axis.
        return Runs::flat(extents.iter().product(), shapes.map(|shape| !is_single(shape)));
    }
    let strides = shapes.map(|shape| broadcast_strides(shape, extents));
    Runs::new(extents, std::array::from_fn(|operand| strides[operand].as_slice()))
}
