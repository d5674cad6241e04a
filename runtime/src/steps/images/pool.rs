//! Pools: of floats, and the largest of integers of 8 bits, in f32; indices, other integers and f64 by the reference.

use crate::steps::products::convolution::{dtype, window};
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Pool, PoolFunction, TypeError};
use ipuc_formats::value::Value;
use ipuc_kernels::pool::{PoolKind, pool};
use ipuc_kernels::threads::{chunks, parts};
use ipuc_kernels::window::{self, WindowAxis};

/// The largest of windows of integers of 8 bits, plane by plane, so that their floats stay in a near cache.
fn largest<T: Copy + Send + Sync>(
    axes: &[WindowAxis],
    x: &[T],
    out: &mut [T],
    widen: impl Fn(T) -> f32 + Sync,
    narrow: impl Fn(f32) -> T + Sync,
) {
    let (inputs, outputs) = (window::inputs(axes), window::outputs(axes));
    if out.is_empty() {
        return;
    }
    let planes = out.len() / outputs;
    let planes_each = planes.div_ceil(parts(x.len().saturating_mul(PLANE_COST), planes));
    chunks(out, planes_each * outputs, |part, out| {
        let (mut values, mut largest) = (Vec::with_capacity(inputs), vec![0.0; outputs]);
        for (plane, out) in out.chunks_mut(outputs).enumerate() {
            values.clear();
            values.extend(x[(part * planes_each + plane) * inputs..][..inputs].iter().map(|&code| widen(code)));
            pool(PoolKind::Max, axes, &values, &mut largest);
            out.iter_mut().zip(&largest).for_each(|(out, &value)| *out = narrow(value));
        }
    });
}

/// About how many operations an input of a pool costs.
const PLANE_COST: usize = 4;

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
            let mut result = context.allocate(0, x.dtype(), &shape)?;
            // A window wholly in the padding has the least code.
            match x.dtype() {
                DType::I8 => {
                    largest::<i8>(&axes, x.elements()?, result.elements_mut()?, f32::from, |value| value as i8);
                }
                _ => largest::<u8>(&axes, x.elements()?, result.elements_mut()?, f32::from, |value| value as u8),
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
