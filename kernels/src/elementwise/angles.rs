//! Sine, cosine and tangent of f32.
//!
//! Quarter turns are taken off with pi / 2 in three parts, which is exact enough up to [`LARGEST_ANGLE`]; what is beyond is
//! computed one by one in f64.

use super::{functions::VectorFunction, map::apply};
use crate::simd::{Instructions, Simd};

/// The largest magnitude that lanes compute.
pub const LARGEST_ANGLE: f32 = 65_536.0;

/// Magnitudes below are their own sine and tangent.
const SMALLEST_ANGLE: f32 = 1.0 / 4096.0;

/// `values = function(values)` on this thread, with those beyond [`LARGEST_ANGLE`] as `exact` gives them.
pub fn apply_to_angles(
    instructions: Instructions,
    function: impl VectorFunction,
    exact: fn(f64) -> f64,
    values: &mut [f32],
) {
    let is_large = |value: f32| value.abs() > LARGEST_ANGLE;
    let large = values.iter().enumerate().filter(|(_, value)| is_large(**value));
    let large: Vec<(usize, f32)> = large.map(|(at, &value)| (at, exact(value.into()) as f32)).collect();
    apply(instructions, function, values);
    large.into_iter().for_each(|(at, value)| values[at] = value);
}

/// `(sin(r), cos(r), n)` with x = r + n * pi / 2 and |r| up to about pi / 4. Polynomials of Cephes `sinf`.
#[inline(always)]
fn parts<S: Simd>(simd: S, x: S::Vector) -> (S::Vector, S::Vector, S::Integers) {
    let n = simd.round(simd.multiply(x, simd.splat(std::f32::consts::FRAC_2_PI)));
    // The first difference is exact, as both sides are multiples of 2^-23.
    let r = simd.fused_exactly(n, simd.splat(-std::f32::consts::FRAC_PI_2), x);
    let r = simd.fused_exactly(n, simd.splat(4.371_139e-8), r);
    let r = simd.fused_exactly(n, simd.splat(1.715_124_5e-15), r);
    let square = simd.multiply(r, r);
    let p = simd.fused(simd.splat(-1.951_529_6e-4), square, simd.splat(8.332_161e-3));
    let p = simd.fused(p, square, simd.splat(-1.666_665_5e-1));
    let sine = simd.fused(simd.multiply(p, square), r, r);
    let p = simd.fused(simd.splat(2.443_315_7e-5), square, simd.splat(-1.388_731_6e-3));
    let p = simd.fused(p, square, simd.splat(4.166_664_6e-2));
    let p = simd.fused(p, square, simd.splat(-0.5));
    (sine, simd.fused(p, square, simd.splat(1.0)), simd.nearest_integers(n))
}

/// A bit of each lane as 0 or 1.
#[inline(always)]
fn bit<S: Simd>(simd: S, integers: S::Integers, place: u32) -> S::Vector {
    simd.convert(simd.and(simd.shift_right(integers, place), simd.splat_integer(1)))
}

/// The sine after `n` quarter turns.
#[inline(always)]
fn turned<S: Simd>(simd: S, sine: S::Vector, cosine: S::Vector, n: S::Integers) -> S::Vector {
    let value = simd.select_less(bit(simd, n, 0), simd.splat(0.5), sine, cosine);
    simd.multiply(value, simd.fused(bit(simd, n, 1), simd.splat(-2.0), simd.splat(1.0)))
}

/// sin(x), to 2 ULP where |x| is at most [`LARGEST_ANGLE`].
#[derive(Clone, Copy, Debug)]
pub struct Sine {}

impl VectorFunction for Sine {
    fn cost(self) -> usize {
        20
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let (sine, cosine, n) = parts(simd, x);
        simd.select_less(simd.absolute(x), simd.splat(SMALLEST_ANGLE), x, turned(simd, sine, cosine, n))
    }
}

/// cos(x), to 2 ULP where |x| is at most [`LARGEST_ANGLE`].
#[derive(Clone, Copy, Debug)]
pub struct Cosine {}

impl VectorFunction for Cosine {
    fn cost(self) -> usize {
        20
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let (sine, cosine, n) = parts(simd, x);
        turned(simd, sine, cosine, simd.add_integers(n, simd.splat_integer(1)))
    }
}

/// tan(x), to 4 ULP where |x| is at most [`LARGEST_ANGLE`].
#[derive(Clone, Copy, Debug)]
pub struct Tangent {}

impl VectorFunction for Tangent {
    fn cost(self) -> usize {
        24
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let (sine, cosine, n) = parts(simd, x);
        let (odd, half) = (bit(simd, n, 0), simd.splat(0.5));
        let over = simd.select_less(odd, half, sine, simd.subtract(simd.splat(0.0), cosine));
        let value = simd.divide(over, simd.select_less(odd, half, cosine, sine));
        simd.select_less(simd.absolute(x), simd.splat(SMALLEST_ANGLE), x, value)
    }
}
