//! Convolutions over blocks of channels: as convolutions, with a kernel of their own.

use super::convolution::{Resolved, convolve, dtype, has_kernel};
use super::floats::Changes;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, BlockedConvolution};
use ipuc_formats::value::Value;
use ipuc_kernels::convolution::{CHANNEL_BLOCK, InputOrder, MOST_DEPTH, blocked_convolution};
use ipuc_kernels::simd::Instructions;

const _: () = assert!(CHANNEL_BLOCK == ops::CHANNEL_BLOCK, "operators and kernels have the same blocks");

impl Kernel for BlockedConvolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let is_f32 = dtype(operands.first()) == Some(DType::F32);
        if !self.arithmetic.is_default() || !is_f32 || !has_kernel(&self.program, &operands) {
            return run_reference(self, operands, context);
        }
        let resolved = Resolved::of(&operands, context, |x, w| self.resolve(x, w))?;
        let is_counted =
            |Resolved { x, w, result, .. }: &Resolved| fits([x, w, result].map(Vec::as_slice), self.plain_inputs);
        let Some(resolved) = resolved.filter(|resolved| is_counted(resolved)) else {
            return run_reference(self, operands, context);
        };
        let order = if self.plain_inputs { InputOrder::Planes } else { InputOrder::Blocks };
        let plan = resolved.blocked(order);
        let program = (&self.program, Changes::WithinTasks);
        let result = convolve(self, program, operands, context, &resolved, |x, weight, out, post| {
            blocked_convolution(Instructions::best(), plan, x, weight, out, post);
        })?;
        Ok(vec![result.into()])
    }
}

/// Whether the kernel takes inputs and weights of these shapes, and gives this result. What has no elements may have any
/// other extents, which it would multiply; it counts the elements of a block of channels in 32 bits, and those of windows over
/// channels in plain order in less.
fn fits([x, w, result]: [&[usize]; 3], plain_inputs: bool) -> bool {
    let count = |extents: &[usize]| extents.iter().fold(1usize, |count, &extent| count.saturating_mul(extent));
    let is_counted = |shape: &[usize]| count(&shape[2..]) < u32::MAX as usize;
    let inputs_fit = match plain_inputs {
        true => count(&x[2..]) < u32::MAX as usize / CHANNEL_BLOCK && count(&w[1..]) < MOST_DEPTH,
        false => is_counted(x),
    };
    !x.contains(&0) && !w.contains(&0) && inputs_fit && is_counted(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_counted_goes_to_the_kernel() {
        let weight: &[usize] = &[8, 8, 3, 3];
        let most = u32::MAX as usize / 8;
        fn in_blocks(shapes: [&[usize]; 3]) -> bool {
            fits(shapes, false)
        }
        fn plain(shapes: [&[usize]; 3]) -> bool {
            fits(shapes, true)
        }
        assert!(in_blocks([&[1, 1, most, 1, 8], weight, &[1, 1, most, 1, 8]]));
        assert!(in_blocks([&[9, 9, most, 1, 8], weight, &[9, 9, most, 1, 8]]), "blocks are counted one by one");
        assert!(!in_blocks([&[1, 1, most + 1, 1, 8], weight, &[1, 1, 4, 1, 8]]));
        assert!(!in_blocks([&[1, 1, 4, 1, 8], weight, &[1, 1, most + 1, 1, 8]]));
        assert!(!in_blocks([&[1, 1, usize::MAX, 2, 8], weight, &[1, 1, 4, 1, 8]]));
        assert!(!in_blocks([&[1, 0, 4, 4, 8], weight, &[1, 1, 4, 4, 8]]));
        assert!(!in_blocks([&[1, 1, 4, 4, 8], &[8, 8, 0, 3], &[1, 1, 4, 4, 8]]));
        assert!(in_blocks([&[1, 1, 4, 4, 8], weight, &[1, 1, 0, 4, 8]]), "no result, no kernel");
        assert!(plain([&[1, 3, most - 1, 1], &[8, 3, 3, 3], &[1, 1, most, 1, 8]]));
        assert!(!plain([&[1, 3, most, 1], &[8, 3, 3, 3], &[1, 1, most, 1, 8]]));
        assert!(plain([&[1, 3, 4, 4], &[8, 3, MOST_DEPTH / 3, 1], &[1, 1, 4, 4, 8]]));
        assert!(!plain([&[1, 3, 4, 4], &[8, 4, MOST_DEPTH / 4, 1], &[1, 1, 4, 4, 8]]));
    }
}
