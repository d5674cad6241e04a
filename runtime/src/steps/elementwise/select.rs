//! One of two operands by a condition.

use super::{reload, runs};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Select;
use ipuc_formats::ops::broadcast::broadcast_extents;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::choose;

impl Kernel for Select {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let condition = tensor_operand(&mut operands, 0)?;
        let (left, right) = (tensor_operand(&mut operands, 1)?, tensor_operand(&mut operands, 2)?);
        let fits = condition.dtype() == DType::Bool && left.dtype() == right.dtype();
        let result = match left.dtype().bits() {
            _ if !fits => None,
            8 => Some(chosen::<u8>(&condition, &left, &right, context)?),
            16 => Some(chosen::<u16>(&condition, &left, &right, context)?),
            32 => Some(chosen::<u32>(&condition, &left, &right, context)?),
            64 => Some(chosen::<u64>(&condition, &left, &right, context)?),
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([condition, left, right]), context),
        }
    }
}

/// Elements are moved as words of their width.
fn chosen<T: Pod + Send + Sync>(
    condition: &Tensor,
    left: &Tensor,
    right: &Tensor,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let extents = broadcast_extents(&[condition.shape(), left.shape(), right.shape()])?;
    let mut result = context.allocate(0, left.dtype(), &extents)?;
    let runs = runs(&extents, [condition.shape(), left.shape(), right.shape()]);
    let (x, y) = (bytemuck::cast_slice::<u8, T>(left.bytes()), bytemuck::cast_slice::<u8, T>(right.bytes()));
    choose(bytemuck::cast_slice_mut(result.bytes_mut()), condition.bytes(), x, y, &runs);
    Ok(result)
}
