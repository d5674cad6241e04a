//! Pools: of floats, and the largest of integers of 8 bits, in f32; indices, other integers and f64 by the reference.

use crate::steps::products::convolution::{dtype, window};
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Pool, PoolFunction, TypeError};
use ipuc_formats::tensor::{Tensor, element_count};
use ipuc_formats::value::Value;
use ipuc_kernels::pool::{PoolKind, pool};

/// Integers of 8 bits as f32.
fn bytes_as_floats(x: &Tensor) -> Result<Vec<f32>, KernelError> {
    Ok(match x.dtype() {
        DType::I8 => x.elements::<i8>()?.iter().map(|&code| code.into()).collect(),
        _ => x.elements::<u8>()?.iter().map(|&code| code.into()).collect(),
    })
}

fn narrow<T>(from: &[f32], to: &mut [T], code: impl Fn(f32) -> T) {
    to.iter_mut().zip(from).for_each(|(to, &value)| *to = code(value));
}

impl Kernel for Pool {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let bytes =
            self.function == PoolFunction::Max && matches!(dtype(operands.first()), Some(DType::I8 | DType::U8));
        if self.indices || !(bytes || dtype(operands.first()).is_some_and(computes_in_f32)) {
            return run_reference(self, operands, context);
        }
        let x = tensor_operand(&mut operands, 0)?;
        if x.rank() < 2 {
            return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found: x.rank() }.into());
        }
        let axes: Vec<_> = self.resolve(&x.shape()[2..])?.iter().map(window).collect();
        let mut shape = x.shape()[..2].to_vec();
        shape.extend(axes.iter().map(|axis| axis.output));
        let kind = match self.function {
            PoolFunction::Max => PoolKind::Max,
            PoolFunction::Average if self.count_include_pad => PoolKind::PaddedAverage,
            PoolFunction::Average => PoolKind::Average,
            PoolFunction::Norm => PoolKind::Norm(self.exponent.unwrap_or(2) as f32),
        };
        if bytes {
            let values = bytes_as_floats(&x)?;
            let mut largest = vec![0.0; element_count(&shape).unwrap_or(0)];
            let mut result = context.allocate(0, x.dtype(), &shape)?;
            pool(kind, &axes, &values, &mut largest);
            // A window wholly in the padding has the least code.
            match x.dtype() {
                DType::I8 => narrow(&largest, result.elements_mut::<i8>()?, |value| value as i8),
                _ => narrow(&largest, result.elements_mut::<u8>()?, |value| value as u8),
            }
            return Ok(vec![result.into()]);
        }
        let values = widened(&x)?;
        let result = produce(context, x.dtype(), &shape, |out| {
            pool(kind, &axes, &values, out);
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}
