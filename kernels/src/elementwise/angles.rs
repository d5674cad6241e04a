//! Sine, cosine and tangent.
//!
//! Quarter turns are taken off with pi / 2 in two parts, which is exact enough up to [`LARGEST_ANGLE`].

use super::rounded::{ROUNDING, RoundedFunction, polynomial};
use crate::simd::Simd;
use std::f64::consts::FRAC_2_PI;

/// The largest magnitude that lanes compute.
pub const LARGEST_ANGLE: f64 = 65_536.0;

/// The first 33 bits of pi / 2, whose product with a number of quarter turns is exact.
const QUARTER_TURN: f64 = 1.570_796_326_734_125_6;

/// The rest of pi / 2.
const QUARTER_TURN_REST: f64 = 6.077_100_506_506_192e-11;

/// `(sin(r), cos(r), n)` with x = r + n * pi / 2 and |r| up to about pi / 4; the last bits of the third are those of n.
#[inline(always)]
fn parts<S: Simd>(simd: S, x: f64) -> (f64, f64, u64) {
    let shifted = simd.fused_wide(x, FRAC_2_PI, ROUNDING);
    let n = shifted - ROUNDING;
    let r = simd.fused_wide(n, -QUARTER_TURN, x);
    let r = simd.fused_wide(n, -QUARTER_TURN_REST, r);
    let square = r * r;
    let sine = polynomial(
        simd,
        square,
        [1.0 / 6_227_020_800.0, -1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0],
    );
    let cosine = polynomial(
        simd,
        square,
        [1.0 / 479_001_600.0, -1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0, 1.0],
    );
    (r * sine, cosine, shifted.to_bits())
}

/// The sine after `n` quarter turns.
#[inline(always)]
fn turned(sine: f64, cosine: f64, n: u64) -> f64 {
    let value = if n & 1 == 0 { sine } else { cosine };
    f64::from_bits(value.to_bits() ^ (n & 2) << 62)
}

/// Declares functions of angles: documentation, name, cost, the exact function, and the expression of its parts.
macro_rules! angles {
    ($($(#[$doc:meta])+ $name:ident cost $cost:literal $exact:path, |$sine:ident, $cosine:ident, $n:ident| $body:expr;)+) => { $(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name {}

        impl RoundedFunction for $name {
            fn cost(self) -> usize {
                $cost
            }

            fn exact(self, x: f64) -> f64 {
                $exact(x)
            }

            #[inline(always)]
            fn is_usual(self, x: f64) -> bool {
                x.abs() <= LARGEST_ANGLE
            }

            #[inline(always)]
            fn near<S: Simd>(self, simd: S, x: f64) -> f64 {
                let ($sine, $cosine, $n) = parts(simd, x);
                $body
            }
        }
    )+ };
}

angles! {
    /// sin(x).
    Sine cost 40 f64::sin, |sine, cosine, n| turned(sine, cosine, n);
    /// cos(x).
    Cosine cost 40 f64::cos, |sine, cosine, n| turned(sine, cosine, n.wrapping_add(1));
    /// tan(x).
    Tangent cost 50 f64::tan, |sine, cosine, n| {
        let is_even = n & 1 == 0;
        let over = if is_even { sine } else { -cosine };
        over / if is_even { cosine } else { sine }
    };
}
