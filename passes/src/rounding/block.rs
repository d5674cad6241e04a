//! The scale and the zero point of one block.

use super::RoundingError;
use super::grid::{Codes, no_scale, stored_scales, whole};
use ipuc_formats::dtype::DType;

/// Magnitudes below this become zero: the reciprocal of a smaller scale is not finite.
pub(super) const LEAST_MAGNITUDE: f32 = f32::from_bits((127 - 100) << 23);

/// Sums are made in so many lanes.
const LANES: usize = 8;

/// Shares of the range of codes that the largest magnitude of a block takes: below 1 it is coded inside the range, above
/// it is clipped, which makes steps finer. Floats of 8 bits have finer steps below, up to half of which all that matters is
/// where values lie between them.
fn shares(code: DType) -> &'static [f32] {
    match code.bits() {
        8 if code.is_float() => &[0.5, 0.56, 0.63, 0.7, 0.78, 0.86, 0.93, 1.0, 1.07],
        4 if code.is_float() => &[0.6, 0.67, 0.75, 0.83, 0.92, 1.0, 1.08, 1.17, 1.3],
        8 => &[1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0],
        4 => &[0.875, 0.94, 1.0, 1.06, 1.12, 1.18, 1.25, 1.35, 1.5],
        _ => &[0.6, 0.75, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0],
    }
}

/// What gives the codes of a block their values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Parameters {
    /// As it is stored.
    pub(super) scale: f32,
    pub(super) zero_point: f32,
}

/// A scale that was tried, on values of magnitudes below 2.
#[derive(Clone, Copy)]
struct Tried {
    scale: f32,
    zero_point: f32,
    /// By how much it lowers the sum of squares, which is greatest for the smallest error.
    gain: f32,
}

/// Working memory of [`Fit::parameters`].
#[derive(Default)]
pub(super) struct Fit {
    values: Vec<f32>,
    importance: Vec<f32>,
}

impl Fit {
    /// The parameters of a block of finite values whose codes have the smallest sum of squared errors that was found, each
    /// square times the importance of its input where that is known. The scale is multiplied by that of the output.
    pub(super) fn parameters(
        &mut self,
        block: &[f32],
        importance: Option<&[f32]>,
        codes: Codes,
        output_scale: f32,
    ) -> Result<Parameters, RoundingError> {
        let magnitude = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        if magnitude < LEAST_MAGNITUDE {
            return Ok(Parameters::default());
        }
        // A power of two, so that sums neither overflow nor lose what is small.
        let exponent = (magnitude.to_bits() >> 23).clamp(1, 253);
        let factor = f32::from_bits((254 - exponent) << 23);
        let padded = block.len().next_multiple_of(LANES);
        self.values.clear();
        self.values.extend(block.iter().map(|value| value * factor));
        self.values.resize(padded, 0.0);
        self.importance.clear();
        match importance {
            Some(importance) => self.importance.extend(importance),
            None => self.importance.resize(block.len(), 1.0),
        }
        self.importance.resize(padded, 0.0);
        let mut best = if codes.zero_point { self.best_with_zero_point(codes) } else { self.best_symmetric(codes) };
        for _ in 0..2 {
            let refined = self.tried(1.0 / best.scale, best.zero_point, codes);
            if refined.gain > best.gain && is_usable(refined.scale) {
                best = refined;
            }
        }
        let held = stored_scales(best.scale / factor / output_scale, codes.scale);
        let gain = |scale: f32| self.gain(scale * output_scale * factor, best.zero_point, codes);
        let scale = held.max_by(|&one, &other| gain(one).total_cmp(&gain(other)));
        Ok(Parameters { scale: scale.ok_or(no_scale(magnitude, codes))?, zero_point: best.zero_point })
    }

    fn best_symmetric(&self, codes: Codes) -> Tried {
        let largest = self
            .values
            .iter()
            .fold(0.0f32, |largest, &value| if value.abs() > largest.abs() { value } else { largest });
        // The code farthest from zero stands for the largest magnitude, whatever its sign; floats have both.
        let largest = if codes.floats.is_some() { largest.abs() } else { largest };
        let end = if -codes.least > codes.greatest { codes.least } else { codes.greatest };
        let plain = Tried { scale: largest / end, zero_point: 0.0, gain: f32::NEG_INFINITY };
        let tried = shares(codes.code).iter().map(|share| self.tried(share * end / largest, 0.0, codes));
        best_of(plain, tried)
    }

    fn best_with_zero_point(&self, codes: Codes) -> Tried {
        let least = self.values.iter().fold(0.0f32, |least, &value| least.min(value));
        let greatest = self.values.iter().fold(0.0f32, |greatest, &value| greatest.max(value));
        let (range, middle) = (greatest - least, (greatest + least) / 2.0);
        let zero_point = |inverse: f32| {
            (codes.greatest / 2.0 - middle * inverse).round_ties_even().clamp(codes.least, codes.greatest)
        };
        let inverse = codes.greatest / range;
        let plain = Tried { scale: range / codes.greatest, zero_point: zero_point(inverse), gain: f32::NEG_INFINITY };
        let tried = shares(codes.code).iter().map(|share| {
            let inverse = share * inverse;
            self.tried(inverse, zero_point(inverse), codes)
        });
        best_of(plain, tried)
    }

    /// The least-squares scale of the codes that this reciprocal of a scale gives.
    fn tried(&self, inverse: f32, zero_point: f32, codes: Codes) -> Tried {
        let (product, square) = self.sums(inverse, zero_point, codes);
        let scale = product / square;
        Tried { scale, zero_point, gain: product * scale }
    }

    /// By how much a scale as it is lowers the sum of squares.
    fn gain(&self, scale: f32, zero_point: f32, codes: Codes) -> f32 {
        let (product, square) = self.sums(1.0 / scale, zero_point, codes);
        2.0 * scale * product - scale * scale * square
    }

    /// The sums of the products of values and their codes, and of the squares of codes.
    fn sums(&self, inverse: f32, zero_point: f32, codes: Codes) -> (f32, f32) {
        // Loops of their own.
        match codes.floats {
            None => {
                let (least, greatest) = (codes.least - zero_point, codes.greatest - zero_point);
                self.sums_of(|value| whole(value * inverse, least, greatest))
            }
            Some(floats) => self.sums_of(|value| floats.nearest(value * inverse, codes.greatest)),
        }
    }

    #[inline(always)]
    fn sums_of(&self, code: impl Fn(f32) -> f32) -> (f32, f32) {
        let (mut products, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
        let values = self.values.as_chunks::<LANES>().0;
        for (values, importance) in values.iter().zip(self.importance.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let code = code(values[lane]);
                let weighted = code * importance[lane];
                products[lane] += weighted * values[lane];
                squares[lane] += weighted * code;
            }
        }
        (products.iter().sum(), squares.iter().sum())
    }
}

fn best_of(plain: Tried, tried: impl Iterator<Item = Tried>) -> Tried {
    tried.fold(plain, |best, one| if one.gain > best.gain && is_usable(one.scale) { one } else { best })
}

fn is_usable(scale: f32) -> bool {
    scale.is_normal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn error(block: &[f32], parameters: Parameters, codes: Codes) -> f64 {
        let Parameters { scale, zero_point } = parameters;
        let off = |&value: &f32| f64::from(codes.nearest(value / scale, zero_point) * scale - value);
        block.iter().map(|value| off(value).powi(2)).sum()
    }

    fn fit(block: &[f32], importance: Option<&[f32]>, codes: Codes) -> Parameters {
        Fit::default().parameters(block, importance, codes, 1.0).unwrap()
    }

    /// A fixed sequence with the tails of a normal distribution.
    fn normal(count: usize, mean: f32) -> Vec<f32> {
        let mut state = 7u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        (0..count).map(|_| mean + (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn a_scale_is_better_than_that_of_the_largest_magnitude() {
        for (code, less_than) in [(DType::I8, 0.985), (DType::I4, 0.85), (DType::I2, 0.75)] {
            let codes = Codes::of(code, DType::F32);
            let (mut plain, mut found) = (0.0, 0.0);
            for block in normal(64 * 256, 0.0).chunks(if code == DType::I8 { 4096 } else { 32 }) {
                let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                plain += error(block, Parameters { scale: largest / codes.greatest, zero_point: 0.0 }, codes);
                found += error(block, fit(block, None, codes), codes);
            }
            assert!(found < less_than * plain, "{code}: {found} and {plain}");
        }
    }

    #[test]
    fn zero_points_follow_values_that_lie_on_one_side() {
        let block = normal(32, 9.0);
        let symmetric = Codes::of(DType::I4, DType::F32);
        let shifted = Codes::of(DType::U4, DType::F32);
        let parameters = fit(&block, None, shifted);
        assert_eq!(parameters.zero_point, 0.0);
        assert!(error(&block, parameters, shifted) < 0.5 * error(&block, fit(&block, None, symmetric), symmetric));
        let negative: Vec<f32> = block.iter().map(|value| -value).collect();
        assert_eq!(fit(&negative, None, shifted).zero_point, 15.0);
    }

    #[test]
    fn what_matters_more_is_nearer() {
        let codes = Codes::of(DType::I2, DType::F32);
        let block = [1.0, 0.32, -0.3, 0.31, 0.29, -0.33, 0.3, 0.3];
        let importance = [0.001, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let own = |parameters: Parameters| error(&block[1..], parameters, codes);
        assert!(own(fit(&block, Some(&importance), codes)) < 0.1 * own(fit(&block, None, codes)));
    }

    #[test]
    fn scales_are_held_by_their_type() {
        let codes = Codes::of(DType::I4, DType::F16);
        let magnitude = 1e7;
        let refused = Fit::default().parameters(&[magnitude, 0.0], None, codes, 1.0);
        assert_eq!(refused, Err(RoundingError::Scale { magnitude, scale: DType::F16 }));
        // A step of the least scale, and nothing finer.
        let parameters = fit(&[1e-9, -1e-9], None, codes);
        assert_eq!(parameters.scale.abs(), f16::from_bits(1).to_f32());
        for magnitude in [3e38, 1e-29, 1.0] {
            let codes = Codes::of(DType::I8, DType::F32);
            let parameters = fit(&[magnitude, -magnitude], None, codes);
            assert!(((parameters.scale * 127.0).abs() / magnitude - 1.0).abs() < 0.02, "{magnitude} {parameters:?}");
        }
        for nothing in [0.0, 1e-40, LEAST_MAGNITUDE / 2.0] {
            assert_eq!(fit(&[nothing, -nothing], None, codes), Parameters::default());
        }
    }
}
