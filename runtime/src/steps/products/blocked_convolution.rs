//! Convolutions over blocks of channels: as convolutions, with a kernel of their own.

use super::convolution::{convolve, dtype, has_kernel};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, BlockedConvolution};
use ipuc_formats::value::Value;
use ipuc_kernels::convolution::{BlockedShape, CHANNEL_BLOCK, blocked_convolution};
use ipuc_kernels::simd::Instructions;

const _: () = assert!(CHANNEL_BLOCK == ops::CHANNEL_BLOCK, "operators and kernels have the same blocks");

impl Kernel for BlockedConvolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let is_f32 = dtype(operands.first()) == Some(DType::F32);
        if !self.arithmetic.is_default() || !is_f32 || !has_kernel(&self.program, &operands) {
            return run_reference(self, operands, context);
        }
        let resolve = |x: &[usize], w: &[usize]| self.resolve(x, w);
        let result = convolve(&self.program, operands, context, resolve, |shape, x, weight, out, post| {
            let shape = BlockedShape { convolution: shape.clone(), plain_inputs: self.plain_inputs };
            blocked_convolution(Instructions::best(), &shape, x, weight, out, post);
        })?;
        Ok(vec![result.into()])
    }
}
