//! Depthwise convolution over the past: each line of a channel behind its state. Sums are f64, in the order of the reference, which
//! is exact, so that they are the same bits whatever the instructions are.

use crate::steps::floats::{computed, computes, rounded, widened};
use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{CausalConvolution, optional_tensor, tensor};
use ipuc_formats::value::Value;
use ipuc_kernels::elementwise::gates::SelfGated;
use ipuc_kernels::elementwise::{RoundedFunction, round_each};
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::threads::{chunks, parts};

/// Sums that are held at once, unless a line is longer.
const SUMS: usize = 2048;

impl Kernel for CausalConvolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (data, weight) = (tensor(&inputs, 0)?, tensor(&inputs, 1)?);
        let (bias, state) = (optional_tensor(&inputs, 2)?, optional_tensor(&inputs, 3)?);
        let (&[batch, channels, length], &[rows, 1, kernel]) = (data.shape(), weight.shape()) else {
            return reference(self, inputs, context);
        };
        if kernel == 0 {
            return reference(self, inputs, context);
        }
        let state_shape = [batch, channels, kernel - 1];
        let dtype = data.dtype();
        let fits = rows == channels
            && computes(dtype)
            && [Some(weight), bias, state].into_iter().flatten().all(|operand| operand.dtype() == dtype)
            && bias.is_none_or(|bias| bias.shape() == [channels])
            && state.is_none_or(|state| state.shape() == state_shape);
        if !fits {
            return reference(self, inputs, context);
        }
        let (values, weights) = (widened(data)?, widened(weight)?);
        let (bias, state) = (bias.map(widened).transpose()?, state.map(widened).transpose()?);
        let lines = Lines {
            kernel,
            length,
            channels,
            values: &values,
            weights: &weights,
            bias: bias.as_deref(),
            state: state.as_deref(),
        };
        let output = computed(context, 0, dtype, data.shape(), |out| {
            let cost = kernel + if self.silu { SelfGated {}.cost() } else { 0 };
            let count = batch * channels;
            let each = count.div_ceil(parts(out.len().saturating_mul(cost), count)).max(1);
            let held = (SUMS / length.max(1)).max(1);
            chunks(out, (each * length).max(1), |part, out| {
                for (block, out) in out.chunks_mut(held * length).enumerate() {
                    let mut sums = vec![0.0; out.len()];
                    let first = part * each + block * held;
                    Instructions::best().run(Convolved { lines: &lines, first, sums: &mut sums });
                    finish(dtype, self.silu, &mut sums, out);
                }
            });
            Ok(())
        })?;
        let present = computed(context, 1, dtype, &state_shape, |out| {
            out.chunks_mut((kernel - 1).max(1)).enumerate().for_each(|(line, out)| lines.present(line, out));
            Ok(())
        })?;
        Ok(vec![output.into(), present.into()])
    }
}

/// Rounds sums, which are gated if so; of narrow types they are rounded before that, too.
fn finish(dtype: DType, silu: bool, sums: &mut [f64], out: &mut [f32]) {
    let is_narrow = dtype != DType::F32;
    if !silu || is_narrow {
        out.iter_mut().zip(&*sums).for_each(|(out, &sum)| *out = sum as f32);
        rounded(dtype, out);
    }
    if silu {
        if is_narrow {
            sums.iter_mut().zip(&*out).for_each(|(sum, &out)| *sum = out.into());
        }
        round_each(Instructions::best(), SelfGated {}, sums, out);
    }
}

/// Lines of channels, each behind its state.
struct Lines<'a> {
    kernel: usize,
    length: usize,
    channels: usize,
    values: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    state: Option<&'a [f32]>,
}

impl Lines<'_> {
    fn line(&self, line: usize) -> &[f32] {
        &self.values[line * self.length..][..self.length]
    }

    /// What was seen before a line, unless it was zeros.
    fn past(&self, line: usize) -> Option<&[f32]> {
        self.state.map(|state| &state[line * (self.kernel - 1)..][..self.kernel - 1])
    }

    /// The last elements seen of a line and its past.
    fn present(&self, line: usize, out: &mut [f32]) {
        let own = self.length.min(out.len());
        let kept = out.len() - own;
        match self.past(line) {
            Some(past) => out[..kept].copy_from_slice(&past[own..]),
            None => out[..kept].fill(0.0),
        }
        out[kept..].copy_from_slice(&self.line(line)[self.length - own..]);
    }
}

/// Lines from `first` on.
struct Convolved<'a> {
    lines: &'a Lines<'a>,
    first: usize,
    sums: &'a mut [f64],
}

impl Routine for Convolved<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Convolved { lines, first, sums } = self;
        let mut seen = vec![0.0; lines.kernel - 1 + lines.length];
        for (at, sums) in sums.chunks_exact_mut(lines.length).enumerate() {
            let line = first + at;
            let channel = line % lines.channels;
            let (past, own) = seen.split_at_mut(lines.kernel - 1);
            if let Some(before) = lines.past(line) {
                for (past, &before) in past.iter_mut().zip(before) {
                    *past = f64::from(before);
                }
            }
            for (own, &value) in own.iter_mut().zip(lines.line(line)) {
                *own = f64::from(value);
            }
            sums.fill(lines.bias.map_or(0.0, |bias| bias[channel].into()));
            let weights = &lines.weights[channel * lines.kernel..][..lines.kernel];
            for (tap, &weight) in weights.iter().enumerate() {
                let weight = f64::from(weight);
                for (sum, &value) in sums.iter_mut().zip(&seen[tap..]) {
                    // A product of two f32 is exact in f64, fused or not.
                    *sum = simd.fused_wide(value, weight, *sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::dtype::DType;

    #[test]
    fn lines_agree_with_their_references() {
        for silu in [false, true] {
            for (dtype, tolerance) in [(DType::F32, 0.0), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
                for [batch, channels, length, kernel] in [
                    [2, 3, 5, 4],
                    [1, 300, 1, 4],
                    [1, 2, 200, 3],
                    [1, 2, 2, 7],
                    [2, 1, 3, 1],
                    [1, 2, 0, 4],
                    [0, 2, 3, 4],
                ] {
                    let data = random(dtype, &[batch, channels, length], 1);
                    let weight = random(dtype, &[channels, 1, kernel], 2);
                    let bias = random(dtype, &[channels], 3);
                    let state = random(dtype, &[batch, channels, kernel - 1], 4);
                    let operator = CausalConvolution { silu };
                    check(&operator, &[data.clone(), weight.clone(), bias, state], tolerance);
                    check(&operator, &[data, weight], tolerance);
                }
            }
        }
    }
}
