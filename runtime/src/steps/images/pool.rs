//! Pools: of floats in f32; indices, integers and f64 by the reference.

use crate::kernels::pool::{PoolKind, pool};
use crate::steps::products::convolution::{dtype, window};
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::ops::{Pool, PoolFunction, TypeError};
use ipuc_formats::value::Value;

impl Kernel for Pool {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        if self.indices || !dtype(operands.first()).is_some_and(computes_in_f32) {
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
        let values = widened(&x)?;
        let result = produce(context, x.dtype(), &shape, |out| {
            pool(kind, &axes, &values, out);
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}
