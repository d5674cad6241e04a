//! Convolutions over blocks of channels: as convolutions, with a kernel of their own.

use super::convolution::{convolve, dtype, has_kernel};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, BlockedConvolution};
use ipuc_formats::value::Value;
use ipuc_kernels::convolution::{CHANNEL_BLOCK, blocked_convolution};
use ipuc_kernels::simd::Instructions;

const _: () = assert!(CHANNEL_BLOCK == ops::CHANNEL_BLOCK, "operators and kernels have the same blocks");

impl Kernel for BlockedConvolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let is_f32 = dtype(operands.first()) == Some(DType::F32);
        if !self.arithmetic.is_default() || !is_f32 || !has_kernel(&self.program, &operands) {
            return run_reference(self, operands, context);
        }
        let (Some(x), Some(w)) = (shape(operands.first())?, shape(operands.get(1))?) else {
            return run_reference(self, operands, context);
        };
        let resolved = self.resolve(&x, &w)?;
        if !fits([&x, &w, &resolved.1]) {
            return run_reference(self, operands, context);
        }
        let resolve = |_: &[usize], _: &[usize]| Ok(resolved);
        let result = convolve(self, &self.program, operands, context, resolve, |shape, x, weight, out, post| {
            blocked_convolution(Instructions::best(), shape, x, weight, out, post);
        })?;
        Ok(vec![result.into()])
    }
}

/// The extents of an operand that is a tensor.
fn shape(operand: Option<&Operand>) -> Result<Option<Vec<usize>>, KernelError> {
    Ok(match operand {
        Some(Operand::Weight(weight)) => Some(weight.shape()?),
        Some(Operand::Value(Value::Tensor(tensor))) => Some(tensor.shape().to_vec()),
        Some(Operand::Version(version)) => Some(version.shape().to_vec()),
        Some(Operand::Value(_) | Operand::Absent) | None => None,
    })
}

/// Whether the kernel takes inputs and weights of these shapes, and gives this result. What has no elements may have any
/// other extents, which it would multiply; and it counts the elements of a block of channels in 32 bits.
fn fits([x, w, result]: [&[usize]; 3]) -> bool {
    let is_counted = |shape: &[usize]| {
        let block = shape.iter().skip(2).fold(1usize, |count, &extent| count.saturating_mul(extent));
        block < u32::MAX as usize
    };
    !x.contains(&0) && !w.contains(&0) && is_counted(x) && is_counted(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_counted_goes_to_the_kernel() {
        let weight = &[8, 8, 3, 3];
        let most = u32::MAX as usize / 8;
        assert!(fits([&[1, 1, most, 1, 8], weight, &[1, 1, most, 1, 8]]));
        assert!(fits([&[9, 9, most, 1, 8], weight, &[9, 9, most, 1, 8]]), "blocks are counted one by one");
        assert!(!fits([&[1, 1, most + 1, 1, 8], weight, &[1, 1, 4, 1, 8]]));
        assert!(!fits([&[1, 1, 4, 1, 8], weight, &[1, 1, most + 1, 1, 8]]));
        assert!(!fits([&[1, 1, usize::MAX, 2, 8], weight, &[1, 1, 4, 1, 8]]));
        assert!(!fits([&[1, 0, 4, 4, 8], weight, &[1, 1, 4, 4, 8]]));
        assert!(!fits([&[1, 1, 4, 4, 8], &[8, 8, 0, 3], &[1, 1, 4, 4, 8]]));
        assert!(fits([&[1, 1, 4, 4, 8], weight, &[1, 1, 0, 4, 8]]), "no result, no kernel");
    }
}
