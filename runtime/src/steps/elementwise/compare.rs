//! Relations between two operands.

use super::{reload, runs};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::broadcast::broadcast_extents;
use ipuc_formats::ops::{Compare, CompareRelation};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{ZipBlock, zip, zip_block};
use ipuc_kernels::narrow::relation_block;

impl Kernel for Compare {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let (left, right) = (tensor_operand(&mut operands, 0)?, tensor_operand(&mut operands, 1)?);
        let relation = self.relation;
        let result = match (left.dtype(), right.dtype()) {
            (left_dtype, right_dtype) if left_dtype != right_dtype => None,
            (DType::F32, _) => Some(compared::<f32>(relation, &left, &right, context)?),
            (DType::F64, _) => Some(compared::<f64>(relation, &left, &right, context)?),
            (DType::F16, _) => Some(compared::<f16>(relation, &left, &right, context)?),
            (DType::BF16, _) => Some(compared::<bf16>(relation, &left, &right, context)?),
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

/// A type whose elements are related by those of a type that the processor compares.
trait Related: Pod + Send + Sync {
    type Wide: PartialOrd + Copy;
    /// A relation over blocks: 1 where it holds, else 0.
    fn block(relation: impl Fn(Self::Wide, Self::Wide) -> bool + Sync) -> impl Fn(&mut [u8], &[Self], &[Self]) + Sync;
}

macro_rules! related {
    (plain: $($T:ty)*) => { $(
        impl Related for $T {
            type Wide = $T;
            fn block(relation: impl Fn($T, $T) -> bool + Sync) -> impl Fn(&mut [u8], &[$T], &[$T]) + Sync {
                zip_block(move |x: $T, y: $T| u8::from(relation(x, y)))
            }
        }
    )* };
    (narrow: $($T:ty)*) => { $(
        impl Related for $T {
            type Wide = f32;
            fn block(relation: impl Fn(f32, f32) -> bool + Sync) -> impl Fn(&mut [u8], &[$T], &[$T]) + Sync {
                relation_block(relation)
            }
        }
    )* };
}
related! { plain: f32 f64 i64 i32 u8 }
related! { narrow: f16 bf16 }

fn compared<T: Related>(
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
        CompareRelation::Equal => fill(&T::block(|x, y| x == y)),
        CompareRelation::Less => fill(&T::block(|x, y| x < y)),
        CompareRelation::LessOrEqual => fill(&T::block(|x, y| x <= y)),
        CompareRelation::Greater => fill(&T::block(|x, y| x > y)),
        CompareRelation::GreaterOrEqual => fill(&T::block(|x, y| x >= y)),
    }
    Ok(result)
}
