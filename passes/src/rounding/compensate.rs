//! Rounding in the order of inputs, each error made up for by the inputs that follow (GPTQ, Frantar et al. 2022).

use super::block::{Fit, Parameters};
use super::grid::{Codes, output_scale};
use super::region::Region;
use super::{RoundingError, Scheme};

/// Outputs that are rounded at a time, so that a row of the factor is read once for all of them.
const OUTPUTS: usize = 16;

/// What [`Moments::factor`](crate::moments::Moments::factor) gives.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    /// `[inputs][inputs]`, upper triangular, or its diagonal alone.
    pub elements: &'a [f32],
}

impl Factor<'_> {
    fn diagonal(&self, inputs: usize, input: usize) -> f32 {
        if self.elements.len() == inputs { self.elements[input] } else { self.elements[input * inputs + input] }
    }

    /// What the square of an error costs, for each input.
    fn importance(&self, inputs: usize) -> Vec<f32> {
        let diagonal: Vec<f64> = (0..inputs).map(|input| f64::from(self.diagonal(inputs, input))).collect();
        let costs: Vec<f64> = diagonal.iter().map(|own| 1.0 / (own * own)).collect();
        let greatest = costs.iter().fold(f64::MIN_POSITIVE, |greatest, &cost| greatest.max(cost));
        // The least share is kept above zero: an input that was never seen still has a nearest code.
        costs.iter().map(|cost| (cost / greatest).max(1e-6) as f32).collect()
    }

    /// The elements behind the diagonal of a row; none where only the diagonal is known.
    fn behind(&self, inputs: usize, input: usize) -> &[f32] {
        if self.elements.len() == inputs {
            &[]
        } else {
            &self.elements[input * inputs + input + 1..(input + 1) * inputs]
        }
    }
}

impl Region {
    /// Round `values: [outputs][inputs]` as [`Region::of`] does, with errors weighed and made up for by what is known of the
    /// inputs.
    ///
    /// # Errors
    /// [`RoundingError::Scale`] where a scale is too large.
    pub fn compensated(
        scheme: Scheme,
        first_output: u64,
        mut values: Vec<f32>,
        factor: Factor<'_>,
    ) -> Result<Region, RoundingError> {
        let inputs = scheme.matrix.inputs as usize;
        let importance = factor.importance(inputs);
        let mut region = Region::empty(scheme, first_output);
        let mut fit = Fit::default();
        for rows in values.chunks_mut(inputs.max(1) * OUTPUTS) {
            region.push_compensated(rows, factor, &importance, &mut fit)?;
        }
        Ok(region)
    }

    fn push_compensated(
        &mut self,
        rows: &mut [f32],
        factor: Factor<'_>,
        importance: &[f32],
        fit: &mut Fit,
    ) -> Result<(), RoundingError> {
        let scheme = self.scheme();
        let (inputs, block) = (importance.len(), scheme.block_inputs() as usize);
        let codes = Codes::of(scheme.code, scheme.scale);
        let outputs = rows.len() / inputs.max(1);
        let output_scales: Vec<f32> = match scheme.has_output_scales() {
            true => rows.chunks_exact(inputs).map(|row| output_scale(row, codes)).collect(),
            false => vec![1.0; outputs],
        };
        let mut parameters = vec![Parameters::default(); outputs * scheme.blocks() as usize];
        let blocks = scheme.blocks() as usize;
        let mut found = vec![0u8; rows.len()];
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
                    let code = if scale == 0.0 { 0.0 } else { codes.nearest(row[input] / scale, zero_point) };
                    found[output * inputs + input] = codes.bits_of(code, zero_point);
                    let error = (row[input] - code * scale) / diagonal;
                    row[input + 1..].iter_mut().zip(behind).for_each(|(value, share)| *value -= error * share);
                }
            }
        }
        self.extend(&found, &parameters, &output_scales);
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
