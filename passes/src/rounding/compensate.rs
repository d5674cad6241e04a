//! Rounding in the order of inputs, each error made up for by the inputs that follow (GPTQ, Frantar et al. 2022).

use super::block::{Fit, Parameters};
use super::descend::{Descent, Rounded, STRIP};
use super::factor::Factor;
use super::grid::{Codes, output_scale};
use super::region::Region;
use super::{RoundingError, Scheme};

/// Outputs that are rounded at a time, so that a row of the factor is read once for all of them.
const OUTPUTS: usize = 16;

/// Outputs whose codes are looked at again at a time, for the same reason.
const DESCENDING_OUTPUTS: usize = 64;

impl Region {
    /// Round `values: [outputs][inputs]` as [`Region::of`] does, with errors weighed and made up for by what is known of the
    /// inputs.
    ///
    /// # Errors
    /// [`RoundingError::Scale`] where a scale is too large.
    pub fn compensated(
        scheme: Scheme,
        first_output: u64,
        values: Vec<f32>,
        factor: Factor<'_>,
    ) -> Result<Region, RoundingError> {
        let descent = Descent::new(
            factor,
            scheme.matrix.inputs as usize,
            scheme.block_inputs() as usize,
            Codes::of(scheme.code, scheme.scale),
        );
        Region::in_order(scheme, first_output, values, factor, descent)
    }

    /// [`Region::compensated`] without the second look at codes, which takes most of the time: enough to compare schemes.
    ///
    /// # Errors
    /// As [`Region::compensated`].
    pub fn estimated(scheme: Scheme, values: Vec<f32>, factor: Factor<'_>) -> Result<Region, RoundingError> {
        Region::in_order(scheme, 0, values, factor, None)
    }

    /// Bytes that making up for errors takes beside [`Region::memory_bytes`]: originals, steps and gradients of the outputs
    /// that are looked at together, and a strip of moments.
    pub fn compensating_bytes(scheme: &Scheme, outputs: u64) -> u64 {
        let rows = 3 * outputs.min(DESCENDING_OUTPUTS as u64) + STRIP as u64;
        rows.saturating_mul(scheme.matrix.inputs).saturating_mul(4)
    }

    fn in_order(
        scheme: Scheme,
        first_output: u64,
        mut values: Vec<f32>,
        factor: Factor<'_>,
        mut descent: Option<Descent<'_>>,
    ) -> Result<Region, RoundingError> {
        let inputs = scheme.matrix.inputs as usize;
        let importance = factor.importance(inputs);
        let codes = Codes::of(scheme.code, scheme.scale);
        let mut region = Region::empty(scheme, first_output);
        let mut fit = Fit::default();
        for rows in values.chunks_mut(inputs.max(1) * DESCENDING_OUTPUTS) {
            let original = if descent.is_some() { rows.to_vec() } else { Vec::new() };
            let mut found = Compensated::default();
            for rows in rows.chunks_mut(inputs.max(1) * OUTPUTS) {
                found.push(scheme, rows, factor, &importance, &mut fit)?;
            }
            if let Some(descent) = &mut descent {
                descent.improve(&mut Rounded {
                    values: &original,
                    steps: &mut found.steps,
                    parameters: &mut found.parameters,
                    output_scales: &found.output_scales,
                });
            }
            let blocks = scheme.blocks() as usize;
            let zero_point = |at: usize| {
                let block = at % inputs / scheme.block_inputs() as usize;
                found.parameters[at / inputs * blocks + block].zero_point
            };
            let bits: Vec<u8> =
                found.steps.iter().enumerate().map(|(at, &step)| codes.bits_of(step, zero_point(at))).collect();
            region.extend(&bits, &found.parameters, &found.output_scales);
        }
        Ok(region)
    }
}

/// Outputs that have been rounded in the order of inputs.
#[derive(Default)]
struct Compensated {
    /// `[outputs][inputs]`: codes less zero points.
    steps: Vec<f32>,
    /// `[outputs][blocks]`.
    parameters: Vec<Parameters>,
    /// `[outputs]`.
    output_scales: Vec<f32>,
}

impl Compensated {
    /// Round rows `[outputs][inputs]`, which become what the errors before each element leave of it.
    fn push(
        &mut self,
        scheme: Scheme,
        rows: &mut [f32],
        factor: Factor<'_>,
        importance: &[f32],
        fit: &mut Fit,
    ) -> Result<(), RoundingError> {
        let (inputs, block) = (importance.len(), scheme.block_inputs() as usize);
        let codes = Codes::of(scheme.code, scheme.scale);
        let outputs = rows.len() / inputs.max(1);
        let output_scales: Vec<f32> = match scheme.has_output_scales() {
            true => rows.chunks_exact(inputs).map(|row| output_scale(row, codes)).collect(),
            false => vec![1.0; outputs],
        };
        let blocks = scheme.blocks() as usize;
        let mut parameters = vec![Parameters::default(); outputs * blocks];
        let mut steps = vec![0.0f32; rows.len()];
        for (number, start) in (0..inputs).step_by(block.max(1)).enumerate() {
            let own = start..inputs.min(start + block);
            for (output, row) in rows.chunks_exact(inputs).enumerate() {
                let (block, importance) = (&row[own.clone()], Some(&importance[own.clone()]));
                parameters[output * blocks + number] =
                    fit.parameters(block, importance, codes, output_scales[output])?;
            }
            for input in own {
                let (diagonal, behind) = (factor.diagonal(inputs, input), factor.behind(inputs, input));
                for (output, row) in rows.chunks_exact_mut(inputs).enumerate() {
                    let Parameters { scale, zero_point } = parameters[output * blocks + number];
                    let scale = output_scales[output] * scale;
                    let step = if scale == 0.0 { 0.0 } else { codes.nearest(row[input] / scale, zero_point) };
                    steps[output * inputs + input] = step;
                    let error = (row[input] - step * scale) / diagonal;
                    row[input + 1..].iter_mut().zip(behind).for_each(|(value, share)| *value -= error * share);
                }
            }
        }
        self.steps.extend(steps);
        self.parameters.extend(parameters);
        self.output_scales.extend(output_scales);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Moments;
    use ipuc_formats::dtype::DType;
    use ipuc_formats::ops::WeightMatrix;

    const INPUTS: usize = 64;
    const OUTPUTS: usize = 24;
    const ROWS: usize = 300;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| uniform() + uniform()).collect()
    }

    /// The squared error of the results of a product with rounded weights.
    fn result_error(x: &[f32], weights: &[f32], region: &Region) -> f64 {
        let decoded = region.decoded();
        x.chunks_exact(INPUTS)
            .flat_map(|row| {
                weights.chunks_exact(INPUTS).zip(decoded.chunks_exact(INPUTS)).map(|(weights, decoded)| {
                    let off = row.iter().zip(weights.iter().zip(decoded)).map(|(x, (w, d))| f64::from(x * (w - d)));
                    off.sum::<f64>().powi(2)
                })
            })
            .sum()
    }

    #[test]
    fn errors_of_results_are_smaller_with_what_is_known_of_inputs() {
        let weights = numbers(OUTPUTS * INPUTS, 3);
        let mut x = numbers(ROWS * INPUTS, 9);
        for row in x.chunks_exact_mut(INPUTS) {
            // Neighbours resemble each other, and some channels are large.
            (1..INPUTS).for_each(|at| row[at] = 0.8 * row[at - 1] + 0.6 * row[at]);
            row.iter_mut().step_by(11).for_each(|value| *value *= 6.0);
        }
        let mut moments = Moments::new(INPUTS);
        moments.add(&x);
        let factor = moments.factor().unwrap();
        let factor = factor.elements::<f32>().unwrap();
        let diagonal: Vec<f32> = (0..INPUTS).map(|at| factor[at * INPUTS + at]).collect();
        let (inputs, outputs) = (INPUTS as u64, OUTPUTS as u64);
        let matrix = WeightMatrix { groups: 1, inputs, outputs, output_axis: 0 };
        for (code, scale, block) in [
            (DType::I4, DType::F32, 32),
            (DType::U4, DType::F32, 16),
            (DType::I2, DType::F32, 32),
            (DType::I8, DType::F32, 0),
            (DType::F8E4M3FN, DType::F32, 0),
            (DType::F8E5M2, DType::F16, 32),
            (DType::F4E2M1, DType::F8E8M0, 32),
            (DType::F4E2M1, DType::F8E4M3FN, 16),
        ] {
            let scheme = Scheme { code, scale, block, matrix };
            let plain = result_error(&x, &weights, &Region::of(scheme, 0, &weights).unwrap());
            let with = |elements| {
                let region = Region::compensated(scheme, 0, weights.clone(), Factor { elements }).unwrap();
                result_error(&x, &weights, &region)
            };
            let (weighed, compensated) = (with(diagonal.as_slice()), with(factor));
            assert!(weighed < 1.02 * plain, "{code}: {weighed} and {plain}");
            assert!(compensated < 0.6 * plain, "{code}: {compensated} and {plain}");
        }
    }
}
