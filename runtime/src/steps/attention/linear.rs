//! Attention by a recurrent state: one or two walks over the state a step, heads side by side. Sums and states are f64, in the
//! order of the reference, so that they are the same bits whatever the instructions are.

use crate::steps::floats::{computed, computes, widened};
use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{LinearAttention, LinearAttentionSizes, optional_tensor, tensor};
use ipuc_formats::tensor::{TensorError, element_count, filled};
use ipuc_formats::value::Value;
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::strided::Strided;
use ipuc_kernels::threads::{each, parts};

impl Kernel for LinearAttention {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (dtype, state_type) = self.types(&inputs)?;
        let sizes = self.sizes(&inputs)?;
        if !computes(dtype) || !computes(state_type) {
            return reference(self, inputs, context);
        }
        let LinearAttentionSizes { batch, steps, query_heads, heads, key, value } = sizes;
        let optional =
            |operand: usize| -> Result<_, KernelError> { optional_tensor(&inputs, operand)?.map(widened).transpose() };
        let (query, keys, values) =
            (widened(tensor(&inputs, 0)?)?, widened(tensor(&inputs, 1)?)?, widened(tensor(&inputs, 2)?)?);
        let (before, decay, rate) = (optional(3)?, optional(4)?, optional(5)?);
        let heads_of = Heads {
            sizes,
            query: &query,
            keys: &keys,
            values: &values,
            decay: decay.as_deref(),
            rate: rate.as_deref(),
            scale: self.scale.map_or(1.0 / (key as f64).sqrt(), f64::from),
        };
        // Head by head.
        let shape = [batch, steps, query_heads, value];
        let too_large = || TensorError::TooLarge { dtype: DType::F32, shape: shape.to_vec() };
        let mut read = filled(0.0, element_count(&shape).ok_or_else(too_large)?)?;
        let state = computed(context, 1, state_type, &[batch, heads, key, value], |state| {
            match &before {
                Some(before) => state.copy_from_slice(before),
                None => state.fill(0.0),
            }
            heads_of.walk(state, &mut read);
            Ok(())
        })?;
        let group = query_heads / heads;
        let output = computed(context, 0, dtype, &[batch, steps, query_heads * value], |out| {
            let extents = [batch, steps, heads, group * value];
            let strides = [heads * steps * group * value, group * value, steps * group * value, 1];
            Strided::new(&extents, &strides.map(|stride| stride as isize), 0).copy(&read, out);
            Ok(())
        })?;
        Ok(vec![output.into(), state.into()])
    }
}

/// Operands of all heads.
struct Heads<'a> {
    sizes: LinearAttentionSizes,
    query: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    decay: Option<&'a [f32]>,
    rate: Option<&'a [f32]>,
    scale: f64,
}

impl Heads<'_> {
    /// Changes the states, `[batch, heads, key, value]`, and reads them: `[batch, heads, steps, query heads of a head, value]`.
    fn walk(&self, states: &mut [f32], out: &mut [f32]) {
        let LinearAttentionSizes { steps, query_heads, heads, key, value, .. } = self.sizes;
        let (state, read) = (key * value, steps * (query_heads / heads) * value);
        if out.is_empty() {
            return;
        }
        // Without keys there are no states, and what is read is zero.
        let count = out.len() / read;
        let mut states = states.chunks_mut(state.max(1));
        let all = out.chunks_mut(read).enumerate();
        let tasks: Vec<_> = all.map(|(head, out)| (head, states.next().unwrap_or_default(), out)).collect();
        let run = |(head, state, out)| Instructions::best().run(Head { heads: self, head, state, out });
        match parts(4 * count * steps * state, count) {
            1 => tasks.into_iter().for_each(run),
            _ => each(tasks, run),
        }
    }
}

/// One head of one sequence.
struct Head<'a> {
    heads: &'a Heads<'a>,
    /// Of all sequences.
    head: usize,
    /// `[key, value]`.
    state: &'a mut [f32],
    /// `[steps, query heads, value]`.
    out: &'a mut [f32],
}

impl Routine for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Head { heads: all, head, state, out } = self;
        let LinearAttentionSizes { steps, query_heads, heads, key, value, .. } = all.sizes;
        let (sequence, head, group) = (head / heads, head % heads, query_heads / heads);
        let mut wide: Vec<f64> = state.iter().map(|&state| f64::from(state)).collect();
        let mut sums = vec![0.0; out.len() / steps];
        let mut added = vec![0.0; value];
        for (step, out) in out.chunks_exact_mut(group * value).enumerate() {
            let row = sequence * steps + step;
            let place = row * heads + head;
            let keys = &all.keys[place * key..][..key];
            let decays = all.decays(row, head);
            if let Some(rate) = all.rate(row, head) {
                added.fill(-0.0);
                for (at, line) in wide.chunks_exact_mut(value).enumerate() {
                    decays.apply(at, line);
                    add(&mut added, line, keys[at].into());
                }
                for (added, &value) in added.iter_mut().zip(&all.values[place * value..]) {
                    *added = rate * (f64::from(value) - *added);
                }
            } else {
                for (added, &value) in added.iter_mut().zip(&all.values[place * value..]) {
                    *added = f64::from(value);
                }
            }
            // As the sums of iterators begin, so that -0 stays.
            sums.fill(-0.0);
            for (at, line) in wide.chunks_exact_mut(value).enumerate() {
                if all.rate.is_none() {
                    decays.apply(at, line);
                }
                add(line, &added, keys[at].into());
                for (query_head, sums) in sums.chunks_exact_mut(value).enumerate() {
                    add(sums, line, all.query[(row * query_heads + head * group + query_head) * key + at].into());
                }
            }
            for (out, &sum) in out.iter_mut().zip(&sums) {
                *out = (all.scale * sum) as f32;
            }
        }
        for (state, &wide) in state.iter_mut().zip(&wide) {
            *state = wide as f32;
        }
    }
}

/// `sums += x * factor`, rounded twice.
#[inline(always)]
fn add(sums: &mut [f64], x: &[f64], factor: f64) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum += x * factor;
    }
}

/// Factors of the rows of a state in a step.
enum Decays<'a> {
    None,
    /// The same of all.
    Head(f64),
    /// Of each its logarithm.
    Rows(&'a [f32]),
}

impl Decays<'_> {
    #[inline(always)]
    fn apply(&self, row: usize, line: &mut [f64]) {
        let factor = match self {
            Decays::None => return,
            Decays::Head(factor) => *factor,
            Decays::Rows(logarithms) => f64::from(logarithms[row]).exp(),
        };
        for state in line {
            *state *= factor;
        }
    }
}

impl Heads<'_> {
    fn decays(&self, row: usize, head: usize) -> Decays<'_> {
        let LinearAttentionSizes { batch, steps, heads, key, .. } = self.sizes;
        let place = row * heads + head;
        match self.decay {
            None => Decays::None,
            Some(decay) if decay.len() == batch * steps * heads => Decays::Head(f64::from(decay[place]).exp()),
            Some(decay) => Decays::Rows(&decay[place * key..][..key]),
        }
    }

    fn rate(&self, row: usize, head: usize) -> Option<f64> {
        let LinearAttentionSizes { batch, steps, heads, .. } = self.sizes;
        let rate = self.rate?;
        let shared = rate.len() == batch * steps;
        Some(rate[if shared { row } else { row * heads + head }].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::ops::UpdateRule;
    use strum::VariantArray;

    #[test]
    fn states_agree_with_their_references() {
        for &rule in UpdateRule::VARIANTS {
            for (at, [batch, steps, group, heads, key, value]) in [
                [2, 5, 2, 3, 7, 9],
                [1, 1, 1, 4, 64, 128],
                [1, 40, 3, 1, 16, 1],
                [0, 2, 1, 2, 3, 4],
                [1, 0, 1, 2, 3, 4],
            ]
            .into_iter()
            .enumerate()
            {
                for (dtype, tolerance) in [(DType::F32, 0.0), (DType::F16, 3e-3)] {
                    let scale = (at % 2 == 0).then_some(0.3);
                    let (query_heads, key_heads) = ((group * heads) as i64, heads as i64);
                    let operator = LinearAttention { rule, query_heads, key_heads, scale };
                    let decays = matches!(rule, UpdateRule::Gated | UpdateRule::GatedDelta);
                    let corrects = matches!(rule, UpdateRule::Delta | UpdateRule::GatedDelta);
                    let rows = |width: usize, seed| random(dtype, &[batch, steps, width], seed);
                    let decay = rows(if at % 2 == 0 { heads } else { heads * key }, 5).filter(|_| decays);
                    let rate = rows(if at % 2 == 0 { 1 } else { heads }, 6).filter(|_| corrects);
                    let state = random(DType::F32, &[batch, heads, key, value], 4).filter(|_| at != 1);
                    let inputs = [
                        rows(group * heads * key, 1),
                        rows(heads * key, 2),
                        rows(heads * value, 3),
                        state,
                        decay,
                        rate,
                    ];
                    check(&operator, &inputs, tolerance);
                }
            }
        }
    }
}
