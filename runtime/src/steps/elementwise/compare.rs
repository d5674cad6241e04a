//! Relations between two operands.

use super::{reload, runs};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::broadcast::broadcast_extents;
use ipuc_formats::ops::{Compare, CompareRelation};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{ZipBlock, zip, zip_block};

impl Kernel for Compare {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let (left, right) = (tensor_operand(&mut operands, 0)?, tensor_operand(&mut operands, 1)?);
        let relation = self.relation;
        let result = match (left.dtype(), right.dtype()) {
            (left_dtype, right_dtype) if left_dtype != right_dtype => None,
            (DType::F32, _) => Some(compared::<f32>(relation, &left, &right, context)?),
            (DType::F64, _) => Some(compared::<f64>(relation, &left, &right, context)?),
            (DType::F16, _) => Some(compared::<half::f16>(relation, &left, &right, context)?),
            (DType::BF16, _) => Some(compared::<half::bf16>(relation, &left, &right, context)?),
            (DType::I64, _) => Some(compared::<i64>(relation, &left, &right, context)?),
            (DType::I32, _) => Some(compared::<i32>(relation, &left, &right, context)?),
            (DType::U8, _) => Some(compared::<u8>(relation, &left, &right, context)?),
            (DType::Bool, _) if relation == CompareRelation::Equal => {
                Some(compared::<u8>(relation, &left, &right, context)?)
            }
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([left, right]), context),
        }
    }
}

fn compared<T: Pod + PartialOrd + Send + Sync>(
    relation: CompareRelation,
    left: &Tensor,
    right: &Tensor,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let extents = broadcast_extents(&[left.shape(), right.shape()])?;
    let mut result = context.allocate(0, DType::Bool, &extents)?;
    let runs = runs(&extents, [left.shape(), right.shape()]);
    let out = result.bytes_mut();
    let (x, y) = (bytemuck::cast_slice::<u8, T>(left.bytes()), bytemuck::cast_slice::<u8, T>(right.bytes()));
    let mut fill = |function: &ZipBlock<'_, u8, T, T>| zip(out, x, y, &runs, 1, function);
    match relation {
        CompareRelation::Equal => fill(&zip_block(|x: T, y: T| u8::from(x == y))),
        CompareRelation::Less => fill(&zip_block(|x: T, y: T| u8::from(x < y))),
        CompareRelation::LessOrEqual => fill(&zip_block(|x: T, y: T| u8::from(x <= y))),
        CompareRelation::Greater => fill(&zip_block(|x: T, y: T| u8::from(x > y))),
        CompareRelation::GreaterOrEqual => fill(&zip_block(|x: T, y: T| u8::from(x >= y))),
    }
    Ok(result)
}
