//! Rotation by position. Of the caches only the rows of positions that occur are read.

use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::ops::{RotaryEmbedding, RotaryPlan, tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::rotary::rotate_halves;
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{chunks, parts};

impl Kernel for RotaryEmbedding {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let dtype = tensor(&inputs, 0)?.dtype();
        let rotated = match dtype {
            DType::F32 => rotated::<f32>(&self.resolve(&inputs)?, &inputs, in_f32, context)?,
            DType::F16 => rotated::<f16>(&self.resolve(&inputs)?, &inputs, pair_by_pair, context)?,
            DType::BF16 => rotated::<bf16>(&self.resolve(&inputs)?, &inputs, pair_by_pair, context)?,
            _ => return reference(self, inputs, context),
        };
        Ok(vec![rotated.into()])
    }
}

/// Rotates the first elements of a head: its own, cosines and sines of its pairs, and the result.
type Rotate<T> = fn(&RotaryPlan, &[T], &[T], &[T], &mut [T]);

fn pair_by_pair<T: Number>(plan: &RotaryPlan, own: &[T], cos: &[T], sin: &[T], out: &mut [T]) {
    for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
        let (first, second) = plan.pair(pair);
        (out[first], out[second]) = turned([own[first], own[second]], *cos, *sin);
    }
}

fn in_f32(plan: &RotaryPlan, own: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    if plan.half == 0 || plan.pair(0).1 != plan.half {
        return pair_by_pair(plan, own, cos, sin, out);
    }
    let rotated = 2 * plan.half;
    rotate_halves(Instructions::best(), &own[..rotated], cos, sin, &mut out[..rotated]);
}

/// The reference computes in f64; so does this, with its bits.
fn rotated<T: Number>(
    plan: &RotaryPlan,
    inputs: &[Option<Value>],
    rotate: Rotate<T>,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let x = tensor(inputs, 0)?;
    let (cos, sin) = (tensor(inputs, 1)?.elements::<T>()?, tensor(inputs, 2)?.elements::<T>()?);
    let mut result = context.allocate(0, x.dtype(), x.shape())?;
    let x = x.elements::<T>()?;
    if x.is_empty() {
        return Ok(result);
    }
    let heads = x.len() / plan.size;
    let each = heads.div_ceil(parts(4 * x.len(), heads)).max(1);
    chunks(result.elements_mut::<T>()?, each * plan.size, |index, out| {
        for (at, out) in out.chunks_exact_mut(plan.size).enumerate() {
            let head = index * each + at;
            let angles = plan.angles(head);
            let own = &x[head * plan.size..][..plan.size];
            out[2 * plan.half..].copy_from_slice(&own[2 * plan.half..]);
            let (cos, sin) = (&cos[angles..][..plan.half], &sin[angles..][..plan.half]);
            rotate(plan, own, cos, sin, out);
        }
    });
    Ok(result)
}

#[inline(always)]
fn turned<T: Number>([x, y]: [T; 2], cos: T, sin: T) -> (T, T) {
    // Types of 16 bits are rounded after each operator, wider ones once.
    let narrow = size_of::<T>() == 2;
    let times = |a: T, b: T| {
        let product = a.to_f64_lossy() * b.to_f64_lossy();
        if narrow { T::from_f64_lossy(product).to_f64_lossy() } else { product }
    };
    (T::from_f64_lossy(times(cos, x) - times(sin, y)), T::from_f64_lossy(times(sin, x) + times(cos, y)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};

    #[test]
    fn heads_are_rotated_with_the_bits_of_the_reference() {
        let positions = Tensor::from_elements(&[2, 5], &[3i64, 0, 6, 6, 1, 2, 2, 5, 4, 0]).unwrap();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            for interleaved in [false, true] {
                for (rotated, half) in [(None, 8), (Some(6), 3), (Some(0), 0)] {
                    let four = random(dtype, &[2, 3, 5, 16], 1);
                    let caches = |shape: &[usize]| [random(dtype, shape, 2), random(dtype, shape, 3)];
                    let [cos, sin] = caches(&[2, 5, half]);
                    let operator = |heads| RotaryEmbedding { interleaved, rotated, heads };
                    check(&operator(None), &[four.clone(), cos.clone(), sin.clone()], 0.0);
                    check(&operator(Some(3)), &[random(dtype, &[2, 5, 48], 4), cos, sin], 0.0);
                    let [cos, sin] = caches(&[7, half]);
                    check(&operator(None), &[four, cos, sin, Some(positions.clone())], 0.0);
                }
            }
        }
        let empty = random(DType::F32, &[2, 3, 0, 16], 1);
        let cache = || random(DType::F32, &[2, 0, 8], 2);
        check(&RotaryEmbedding { interleaved: false, rotated: None, heads: None }, &[empty, cache(), cache()], 0.0);
    }
}
