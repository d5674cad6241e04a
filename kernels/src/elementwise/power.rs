//! Powers of f32 in f64, so that they are rounded once but for a few units of the last f64 places: the logarithm and the
//! exponential are series without branches, which the compiler vectorises.

use crate::simd::{Instructions, LANES, Routine, Simd};

/// Exponents of a power.
#[derive(Clone, Copy, Debug)]
pub enum Exponents<'a> {
    /// The same of all elements.
    One(f64),
    /// One for each element.
    Each(&'a [f32]),
}

/// `out = x ^ exponent`, with the infinities and NaN of IEEE 754 `pow`.
///
/// # Panics
/// If lengths disagree.
pub fn powers(instructions: Instructions, x: &[f32], exponents: Exponents<'_>, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of both sides");
    if let Exponents::Each(exponents) = exponents {
        assert_eq!(exponents.len(), out.len(), "exponents of all elements");
    }
    instructions.run(Powers { x, exponents, out });
}

struct Powers<'a> {
    x: &'a [f32],
    exponents: Exponents<'a>,
    out: &'a mut [f32],
}

impl Routine for Powers<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (block, out) in self.out.chunks_mut(LANES).enumerate() {
            let (mut x, mut y) = ([1.0; LANES], [1.0; LANES]);
            let first = block * LANES;
            for (lane, value) in self.x[first..][..out.len()].iter().enumerate() {
                x[lane] = f64::from(*value);
            }
            match self.exponents {
                Exponents::One(exponent) => y = [exponent; LANES],
                Exponents::Each(exponents) => {
                    for (lane, value) in exponents[first..][..out.len()].iter().enumerate() {
                        y[lane] = f64::from(*value);
                    }
                }
            }
            let mut results = [0.0; LANES];
            let mut is_special = false;
            for lane in 0..LANES {
                results[lane] = power(x[lane], y[lane]) as f32;
                is_special |= !is_usual(x[lane], y[lane]);
            }
            if is_special {
                for lane in 0..LANES {
                    if !is_usual(x[lane], y[lane]) {
                        results[lane] = x[lane].powf(y[lane]) as f32;
                    }
                }
            }
            out.copy_from_slice(&results[..out.len()]);
        }
    }
}

/// Whether [`power`] computes it.
#[inline(always)]
fn is_usual(x: f64, y: f64) -> bool {
    x > 0.0 && x < f64::INFINITY && y.abs() < f64::INFINITY
}

/// The bits of 2^52: an integer below it in their last places makes the float of the sum.
const MAGIC: u64 = 0x4330_0000_0000_0000;

/// Added to a number below 2^50, leaves the nearest integer in the last places.
const ROUNDING: f64 = 6_755_399_441_055_744.0;

/// `x ^ y` of a positive, normal, finite x and a finite y, for results that an f32 may hold: others become 0 or infinite in f32.
#[inline(always)]
fn power(x: f64, y: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = f64::from_bits(MAGIC | bits >> 52) - f64::from_bits(MAGIC | 1023);
    let mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1.0f64.to_bits());
    let is_large = mantissa > std::f64::consts::SQRT_2;
    let mantissa = if is_large { mantissa * 0.5 } else { mantissa };
    let exponent = if is_large { exponent + 1.0 } else { exponent };
    // log(m) = 2 * atanh(s), with s up to 0.172: the first term left out is below 2^-50 of the result.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 1.0 / 17.0;
    for term in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / term;
    }
    let logarithm = exponent + 2.0 * std::f64::consts::LOG2_E * s * series;
    // Within the exponents of an f64, and beyond those of an f32.
    let scaled = (y * logarithm).clamp(-300.0, 300.0);
    let shifted = scaled + ROUNDING;
    let rest = (scaled - (shifted - ROUNDING)) * std::f64::consts::LN_2;
    // exp(r), with |r| up to 0.347.
    let mut series = 1.0 / 479_001_600.0;
    for factorial in [39_916_800.0, 3_628_800.0, 362_880.0, 40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        series = series * rest + 1.0 / factorial;
    }
    series * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_f64() {
        let mut x: Vec<f32> = (0..u32::MAX / 90_001).map(|step| f32::from_bits(step * 90_001)).collect();
        x.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45]);
        let others = [0.0f32, -0.0, 1.0, -1.0, 0.7, -2.3, 3.0, 17.0, 1e-30, 300.0, f32::INFINITY, f32::NAN];
        let same = |found: f32, x: f32, y: f64| {
            let exact = f64::from(x).powf(y);
            let expected = exact as f32;
            // Where the exact value is near the middle of two f32, either is right.
            let step = f64::from(expected.abs().next_up()) - f64::from(expected.abs());
            let is_close = (f64::from(found) - exact).abs() <= 0.5001 * step;
            assert!(
                found == expected || found.is_nan() && expected.is_nan() || is_close,
                "{x:e} ^ {y:e} is {found:e}, expected {expected:e}"
            );
        };
        for instructions in Instructions::available() {
            let mut out = vec![0.0; x.len()];
            for y in others {
                powers(instructions, &x, Exponents::One(y.into()), &mut out);
                x.iter().zip(&out).for_each(|(&x, &found)| same(found, x, y.into()));
            }
            let y: Vec<f32> = (0..x.len()).map(|at| others[at % others.len()] + at as f32 / 1e5).collect();
            powers(instructions, &x, Exponents::Each(&y), &mut out);
            x.iter().zip(&y).zip(&out).for_each(|((&x, &y), &found)| same(found, x, y.into()));
        }
    }
}
