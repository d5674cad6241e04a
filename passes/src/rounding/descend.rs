//! Codes and scales of compensated outputs made better one by one.
//!
//! Rounding in the order of inputs decides on each code before it knows what becomes of those that follow. Afterwards every code
//! is looked at again: the error of results is a quadratic function of it, whose least value lies where the others say. A
//! scale is what makes that error least for the codes of its block. Both only lower the error, so that a few rounds are enough.

use super::block::Parameters;
use super::factor::Factor;
use super::grid::{Codes, stored_scales};
use std::ops::Range;

/// How often each code is looked at.
const ROUNDS: usize = 2;

/// Rows of the matrix of moments that are laid out at a time.
pub(super) const STRIP: usize = 64;

/// Outputs that have been rounded.
pub(super) struct Rounded<'a> {
    /// `[outputs][inputs]`: what they were.
    pub(super) values: &'a [f32],
    /// `[outputs][inputs]`: codes less zero points.
    pub(super) steps: &'a mut [f32],
    /// `[outputs][blocks]`.
    pub(super) parameters: &'a mut [Parameters],
    /// `[outputs]`.
    pub(super) output_scales: &'a [f32],
}

/// Working memory of [`Descent::improve`].
pub(super) struct Descent<'a> {
    factor: Factor<'a>,
    inputs: usize,
    block: usize,
    codes: Codes,
    /// `[rows of the strip][inputs]`: moments.
    strip: Vec<f32>,
    /// `[outputs][inputs]`: errors times moments, half of what the error of results changes by.
    gradient: Vec<f32>,
}

impl<'a> Descent<'a> {
    /// For weights with so many inputs in blocks; `None` where moments of pairs are not known.
    pub(super) fn new(factor: Factor<'a>, inputs: usize, block: usize, codes: Codes) -> Option<Self> {
        let block = block.min(inputs);
        factor.is_paired(inputs).then_some(Descent {
            factor,
            inputs,
            block,
            codes,
            strip: Vec::new(),
            gradient: Vec::new(),
        })
    }

    /// Lower the error of the results of these outputs.
    pub(super) fn improve(&mut self, rounded: &mut Rounded<'_>) {
        let (inputs, outputs) = (self.inputs, rounded.output_scales.len());
        self.gradient.clear();
        self.gradient.resize(rounded.values.len(), 0.0);
        for rows in self.strips() {
            self.lay_out(rows.clone());
            for output in 0..outputs {
                for input in rows.clone() {
                    let at = output * inputs + input;
                    let error =
                        rounded.steps[at] * rounded.scale(output, input, self.block, inputs) - rounded.values[at];
                    self.add(output, error, input - rows.start);
                }
            }
        }
        for _ in 0..ROUNDS {
            for rows in self.strips() {
                self.lay_out(rows.clone());
                for output in 0..outputs {
                    self.improve_codes(rounded, output, rows.clone());
                    // A block of which a strip has a part keeps its scale.
                    for start in rows.clone().step_by(self.block) {
                        let block = start..inputs.min(start + self.block);
                        if start % self.block == 0 && block.end <= rows.end {
                            self.improve_scale(rounded, output, block, rows.start);
                        }
                    }
                }
            }
        }
    }

    /// Strips of whole blocks, or of parts of large ones.
    fn strips(&self) -> Vec<Range<usize>> {
        let height = if self.block <= STRIP { STRIP / self.block * self.block } else { STRIP };
        (0..self.inputs).step_by(height).map(|start| start..self.inputs.min(start + height)).collect()
    }

    /// Rows of the symmetric matrix, of which the factor has the part below the diagonal.
    fn lay_out(&mut self, rows: Range<usize>) {
        let inputs = self.inputs;
        self.strip.resize(rows.len() * inputs, 0.0);
        for (row, to) in rows.clone().zip(self.strip.chunks_exact_mut(inputs)) {
            to[..row].copy_from_slice(self.factor.below(inputs, row));
            to[row] = self.factor.moment(inputs, row);
        }
        for column in rows.start + 1..inputs {
            let height = rows.len().min(column - rows.start);
            let from = &self.factor.below(inputs, column)[rows.start..rows.start + height];
            for (row, &moment) in from.iter().enumerate() {
                self.strip[row * inputs + column] = moment;
            }
        }
    }

    /// Count a change of the weight at this row of the strip.
    fn add(&mut self, output: usize, change: f32, row: usize) {
        if change != 0.0 {
            let moments = &self.strip[row * self.inputs..(row + 1) * self.inputs];
            let gradient = &mut self.gradient[output * self.inputs..(output + 1) * self.inputs];
            gradient.iter_mut().zip(moments).for_each(|(gradient, moment)| *gradient += change * moment);
        }
    }

    fn improve_codes(&mut self, rounded: &mut Rounded<'_>, output: usize, rows: Range<usize>) {
        let inputs = self.inputs;
        for input in rows.clone() {
            let at = output * inputs + input;
            let scale = rounded.scale(output, input, self.block, inputs);
            if scale == 0.0 {
                continue;
            }
            let own = self.strip[(input - rows.start) * inputs + input];
            let step = rounded.steps[at];
            let zero_point = rounded.parameters[self.place(output, input)].zero_point;
            let better = self.codes.nearest(step - self.gradient[at] / (own * scale), zero_point);
            if better != step {
                rounded.steps[at] = better;
                self.add(output, (better - step) * scale, input - rows.start);
            }
        }
    }

    fn improve_scale(&mut self, rounded: &mut Rounded<'_>, output: usize, block: Range<usize>, first_row: usize) {
        let inputs = self.inputs;
        let steps = &rounded.steps[output * inputs..][block.clone()];
        let gradient = &self.gradient[output * inputs..][block.clone()];
        let product: f32 = gradient.iter().zip(steps).map(|(gradient, step)| gradient * step).sum();
        let mut square = 0.0f32;
        for (row, step) in steps.iter().enumerate() {
            let moments = &self.strip[(block.start - first_row + row) * inputs..][block.clone()];
            square += step * moments.iter().zip(steps).map(|(moment, step)| moment * step).sum::<f32>();
        }
        let (place, output_scale) = (self.place(output, block.start), rounded.output_scales[output]);
        let scale = rounded.parameters[place].scale;
        if scale == 0.0 || square <= 0.0 {
            return;
        }
        let aimed = scale - product / (square * output_scale);
        // By how much the error of results changes.
        let change = |held: f32| {
            let by = (held - scale) * output_scale;
            by * (2.0 * product + by * square)
        };
        let held =
            stored_scales(aimed, self.codes.scale).filter(|held| held.is_normal() && (*held > 0.0) == (scale > 0.0));
        let Some(best) = held.min_by(|&one, &other| change(one).total_cmp(&change(other))) else { return };
        if change(best) < 0.0 {
            let by = (best - scale) * output_scale;
            rounded.parameters[place].scale = best;
            for input in block {
                self.add(output, by * rounded.steps[output * inputs + input], input - first_row);
            }
        }
    }

    fn place(&self, output: usize, input: usize) -> usize {
        output * self.inputs.div_ceil(self.block) + input / self.block
    }
}

impl Rounded<'_> {
    fn scale(&self, output: usize, input: usize, block: usize, inputs: usize) -> f32 {
        self.output_scales[output] * self.parameters[output * inputs.div_ceil(block) + input / block].scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Moments;
    use ipuc_formats::dtype::DType;

    /// The error of the results is lower after it, and what is laid out piece by piece is the whole matrix.
    #[test]
    fn codes_and_scales_only_get_better() {
        const INPUTS: usize = 150;
        const OUTPUTS: usize = 3;
        let mut state = 3u32;
        let mut numbers = |count: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..count).map(|_| next() + next()).collect()
        };
        let values = numbers(OUTPUTS * INPUTS);
        let mut x = numbers(400 * INPUTS);
        x.chunks_exact_mut(INPUTS).for_each(|row| (1..INPUTS).for_each(|at| row[at] += 0.7 * row[at - 1]));
        let mut moments = Moments::new(INPUTS);
        moments.add(&x);
        let factor = moments.factor().unwrap();
        let factor = Factor { elements: factor.elements::<f32>().unwrap() };
        // Scales of blocks within a strip get better: of blocks of 128 that is the last.
        for (block, scale, changes) in
            [(16, DType::F32, true), (32, DType::F16, true), (128, DType::F32, true), (INPUTS, DType::F32, false)]
        {
            let codes = Codes::of(DType::I4, scale);
            let blocks = INPUTS.div_ceil(block);
            let mut parameters = vec![Parameters { scale: 0.25, zero_point: 0.0 }; OUTPUTS * blocks];
            let mut steps: Vec<f32> = values.iter().map(|value| codes.nearest(value / 0.25, 0.0)).collect();
            let error = |steps: &[f32], parameters: &[Parameters]| {
                let wrong =
                    |at: usize| steps[at] * parameters[at / INPUTS * blocks + at % INPUTS / block].scale - values[at];
                moments.energy(&(0..values.len()).map(wrong).collect::<Vec<f32>>())
            };
            let before = error(&steps, &parameters);
            let mut descent = Descent::new(factor, INPUTS, block, codes).unwrap();
            let output_scales = [1.0; OUTPUTS];
            let mut rounded = Rounded {
                values: &values,
                steps: &mut steps,
                parameters: &mut parameters,
                output_scales: &output_scales,
            };
            descent.improve(&mut rounded);
            let after = error(&steps, &parameters);
            assert!(after < 0.6 * before, "blocks of {block}: {after} after {before}");
            assert!(steps.iter().all(|step| step.fract() == 0.0 && (-8.0..=7.0).contains(step)));
            let has_changed = parameters.iter().any(|parameters| parameters.scale != 0.25);
            assert_eq!(has_changed, changes, "blocks of {block}");
        }
    }
}
