//! The numbers that codes may be: integers of a range, or floats of at most 8 bits.

use super::RoundingError;
use half::f16;
use ipuc_formats::dtype::DType;
use ipuc_formats::narrow::{self, RoundMode};

/// Adding and subtracting it rounds numbers of small magnitude to integers, halves to even.
const ROUNDS: f32 = 12_582_912.0;

/// Explicit bits of an f32's mantissa.
const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;

/// The mantissas and exponents of floats of 8 bits and less.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Floats {
    mantissa_bits: u32,
    /// The exponent of the least normal number.
    least_exponent: i32,
}

/// What codes of a block may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Codes {
    pub(super) code: DType,
    pub(super) least: f32,
    pub(super) greatest: f32,
    pub(super) zero_point: bool,
    /// Where they are no integers.
    pub(super) floats: Option<Floats>,
    pub(super) scale: DType,
}

impl Codes {
    /// Of a type of codes; unsigned integers have a zero point.
    pub(super) fn of(code: DType, scale: DType) -> Codes {
        let floats = |mantissa_bits, least_exponent| Some(Floats { mantissa_bits, least_exponent });
        let (floats, end) = match code {
            DType::F8E4M3FN => (floats(3, -6), 448.0),
            DType::F8E5M2 => (floats(2, -14), 57344.0),
            DType::F4E2M1 => (floats(1, 0), 6.0),
            _ => (None, 0.0),
        };
        let (bits, zero_point) = (code.bits(), code.is_unsigned_integer());
        let half = (1u32 << (bits - 1)) as f32;
        let (least, greatest) = match (zero_point, bits) {
            _ if floats.is_some() => (-end, end),
            (true, _) => (0.0, 2.0 * half - 1.0),
            // One magnitude both ways, as the codes of activations.
            (false, 8) => (1.0 - half, half - 1.0),
            (false, _) => (-half, half - 1.0),
        };
        Codes { code, least, greatest, zero_point, floats, scale }
    }

    /// A value in steps of its scale as the nearest code less the zero point.
    #[inline(always)]
    pub(super) fn nearest(&self, steps: f32, zero_point: f32) -> f32 {
        let (least, greatest) = (self.least - zero_point, self.greatest - zero_point);
        match self.floats {
            None => whole(steps, least, greatest),
            Some(floats) => floats.nearest(steps, greatest),
        }
    }

    /// The stored bits of what [`Codes::nearest`] gives.
    #[inline(always)]
    pub(super) fn bits_of(&self, nearest: f32, zero_point: f32) -> u8 {
        match self.floats {
            None => (nearest + zero_point) as i32 as u8,
            Some(floats) => floats.bits_of(nearest) | if nearest < 0.0 { 1 << (self.code.bits() - 1) } else { 0 },
        }
    }
}

/// The nearest integer of a range.
#[inline(always)]
pub(super) fn whole(steps: f32, least: f32, greatest: f32) -> f32 {
    within(steps, least, greatest) + ROUNDS - ROUNDS
}

#[inline(always)]
fn within(steps: f32, least: f32, greatest: f32) -> f32 {
    let above = if steps > least { steps } else { least };
    if above < greatest { above } else { greatest }
}

impl Floats {
    /// The nearest of these floats up to the greatest one, halves to even.
    #[inline(always)]
    pub(super) fn nearest(self, steps: f32, greatest: f32) -> f32 {
        let steps = within(steps, -greatest, greatest);
        let exponent = steps.to_bits() & 0x7f80_0000;
        let least = ((127 + self.least_exponent) as u32) << MANTISSA_BITS;
        // The last place of this, and of its sum with the value, is that of the value's exponent.
        let exponent = exponent.max(least) + ((MANTISSA_BITS - self.mantissa_bits) << MANTISSA_BITS);
        let rounds = f32::from_bits(exponent | 0x0040_0000);
        steps + rounds - rounds
    }

    /// Exponent and mantissa of one of these floats.
    #[inline(always)]
    fn bits_of(self, value: f32) -> u8 {
        let Floats { mantissa_bits, least_exponent } = self;
        let magnitude = value.abs();
        let least = f32::from_bits(((127 + least_exponent) as u32) << MANTISSA_BITS);
        if magnitude < least {
            // The subnormal numbers count steps of the least exponent.
            return (magnitude / least * (1 << mantissa_bits) as f32) as u8;
        }
        let below = ((127 + least_exponent - 1) as u32) << mantissa_bits;
        ((magnitude.to_bits() >> (MANTISSA_BITS - mantissa_bits)) - below) as u8
    }
}

/// A scale of a block as its type holds it, and where types have few, those beside it. No scale becomes zero, and one that its
/// type cannot hold is missing or the greatest.
pub(super) fn stored_scales(scale: f32, dtype: DType) -> impl Iterator<Item = f32> {
    let coarse = |dtype, nearest: u8, most: u8| {
        let magnitudes = nearest.saturating_sub(1)..=nearest.saturating_add(1).min(most);
        let values = magnitudes.map(move |code| narrow::decode(dtype, code)).filter(|&value| value > 0.0);
        values.map(move |value| value.copysign(scale)).collect::<Vec<f32>>()
    };
    let encoded = |dtype| narrow::encode(dtype, scale.abs(), true, RoundMode::Nearest);
    let held = match dtype {
        DType::F8E8M0 => coarse(dtype, encoded(dtype), 0xfe),
        DType::F8E4M3FN => coarse(dtype, encoded(dtype), 0x7e),
        DType::F16 => vec![f16::from_f32(scale).to_f32()],
        _ => vec![scale],
    };
    let least = f16::from_bits(1).to_f32().copysign(scale);
    held.into_iter().filter(|held| held.is_finite()).map(move |held| if held == 0.0 { least } else { held })
}

/// The stored bytes of a scale that its type holds.
pub(super) fn write_scale(scale: f32, dtype: DType, bytes: &mut [u8]) {
    match dtype {
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
        DType::F8E8M0 | DType::F8E4M3FN => {
            bytes.copy_from_slice(&[narrow::encode(dtype, scale, true, RoundMode::Nearest)])
        }
        _ => bytes.copy_from_slice(&scale.to_le_bytes()),
    }
}

/// The scale of an output whose blocks have scales of their own in few bits: their scales become at most 256, so that they have all
/// their bits, and room above for what rounding moves to later inputs.
pub(super) fn output_scale(values: &[f32], codes: Codes) -> f32 {
    let magnitude = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = magnitude / (codes.greatest.max(-codes.least) * 256.0);
    if scale.is_normal() { scale } else { 1.0 }
}

/// The error of a block that has no scale of its type.
pub(super) fn no_scale(magnitude: f32, codes: Codes) -> RoundingError {
    RoundingError::Scale { magnitude, scale: codes.scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_the_nearest_and_have_their_bits() {
        for code in [DType::F8E4M3FN, DType::F8E5M2, DType::F4E2M1] {
            let codes = Codes::of(code, DType::F32);
            let mut state = 5u32;
            for round in 0..20_000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // All magnitudes that the type has, and some beyond; halves between neighbours, too.
                let exponent = 127 - 18 + (state >> 8) % 40;
                let mantissa = if round % 3 == 0 { state & 0x0070_0000 } else { state & 0x007f_ffff };
                let value = f32::from_bits((state & 0x8000_0000) | exponent << 23 | mantissa);
                let nearest = codes.nearest(value, 0.0);
                let bits = narrow::encode(code, value, true, RoundMode::Nearest);
                assert_eq!(nearest, narrow::decode(code, bits), "{code} {value}");
                // Zero has no sign.
                let expected = if nearest == 0.0 { 0 } else { bits };
                assert_eq!(codes.bits_of(nearest, 0.0), expected, "{code} {value}");
            }
        }
    }

    #[test]
    fn scales_are_those_of_their_types() {
        let all = |scale, dtype| stored_scales(scale, dtype).collect::<Vec<f32>>();
        assert_eq!(all(0.3, DType::F32), [0.3]);
        assert_eq!(all(1e-9, DType::F16), [f16::from_bits(1).to_f32()]);
        assert!(all(1e7, DType::F16).is_empty());
        assert_eq!(all(0.3, DType::F8E8M0), [0.125, 0.25, 0.5]);
        assert_eq!(all(0.0, DType::F8E8M0), [2.0f32.powi(-127), 2.0f32.powi(-126)]);
        assert_eq!(all(f32::MAX, DType::F8E8M0), [2.0f32.powi(126), 2.0f32.powi(127)]);
        assert_eq!(all(-1.0, DType::F8E4M3FN), [-0.9375, -1.0, -1.125]);
        assert_eq!(all(1e9, DType::F8E4M3FN), [416.0, 448.0]);
        assert_eq!(all(0.0, DType::F8E4M3FN), [2.0f32.powi(-9)]);
    }
}
