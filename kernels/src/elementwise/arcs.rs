//! Arc sine, arc cosine and arc tangent. Their polynomials interpolate at Chebyshev's points.

use super::rounded::{RoundedFunction, polynomial};
use crate::simd::Simd;
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// tan(3 pi / 8), beyond which an arc tangent is pi / 2 - atan(1 / x).
const FAR: f64 = 2.414_213_562_373_095;

/// tan(pi / 8), beyond which an arc tangent is pi / 4 + atan((x - 1) / (x + 1)).
const NEAR: f64 = 0.414_213_562_373_095;

/// atan(x).
#[derive(Clone, Copy, Debug)]
pub struct ArcTangent {}

impl RoundedFunction for ArcTangent {
    fn cost(self) -> usize {
        45
    }

    fn exact(self, x: f64) -> f64 {
        x.atan()
    }

    #[inline(always)]
    fn is_usual(self, _x: f64) -> bool {
        true
    }

    #[inline(always)]
    fn near<S: Simd>(self, simd: S, x: f64) -> f64 {
        let magnitude = x.abs();
        let (is_far, is_near) = (magnitude > FAR, magnitude <= NEAR);
        let over = if is_near { magnitude } else { magnitude - 1.0 };
        let over = if is_far { -1.0 } else { over };
        let under = if is_near { 1.0 } else { magnitude + 1.0 };
        let under = if is_far { magnitude } else { under };
        let begin = if is_near { 0.0 } else { FRAC_PI_4 };
        let begin = if is_far { FRAC_PI_2 } else { begin };
        let r = over / under;
        let factor = polynomial(
            simd,
            r * r,
            [
                0.032_954_973_726_117_41,
                -0.060_272_055_771_844_794,
                0.076_047_777_791_266_85,
                -0.090_840_994_973_794_33,
                0.111_108_195_852_173_17,
                -0.142_857_081_069_611_92,
                0.199_999_999_498_223_75,
                -0.333_333_333_332_661_5,
                1.0,
            ],
        );
        simd.fused_wide(r, factor, begin).copysign(x)
    }
}

/// The arc sine of |x| up to 1/2, beyond it that of the root of (1 - |x|) / 2, which is NaN beyond 1.
#[inline(always)]
fn reduced_arc_sine<S: Simd>(simd: S, magnitude: f64) -> f64 {
    let folded = 0.5 - 0.5 * magnitude;
    let is_folded = magnitude > 0.5;
    let square = if is_folded { folded } else { magnitude * magnitude };
    let r = if is_folded { folded.sqrt() } else { magnitude };
    let factor = polynomial(
        simd,
        square,
        [
            0.028_346_731_176_293_542,
            0.001_067_522_195_474_330_7,
            0.016_864_083_009_780_57,
            0.016_902_685_616_631_247,
            0.022_412_417_497_432_877,
            0.030_379_945_226_677_776,
            0.044_642_906_473_983_06,
            0.074_999_999_534_305_36,
            0.166_666_666_667_386_4,
            1.0,
        ],
    );
    r * factor
}

/// asin(x).
#[derive(Clone, Copy, Debug)]
pub struct ArcSine {}

impl RoundedFunction for ArcSine {
    fn cost(self) -> usize {
        45
    }

    fn exact(self, x: f64) -> f64 {
        x.asin()
    }

    #[inline(always)]
    fn is_usual(self, _x: f64) -> bool {
        true
    }

    #[inline(always)]
    fn near<S: Simd>(self, simd: S, x: f64) -> f64 {
        let magnitude = x.abs();
        let (factor, begin) = if magnitude > 0.5 { (-2.0, FRAC_PI_2) } else { (1.0, 0.0) };
        simd.fused_wide(reduced_arc_sine(simd, magnitude), factor, begin).copysign(x)
    }
}

/// acos(x).
#[derive(Clone, Copy, Debug)]
pub struct ArcCosine {}

impl RoundedFunction for ArcCosine {
    fn cost(self) -> usize {
        45
    }

    fn exact(self, x: f64) -> f64 {
        x.acos()
    }

    #[inline(always)]
    fn is_usual(self, _x: f64) -> bool {
        true
    }

    #[inline(always)]
    fn near<S: Simd>(self, simd: S, x: f64) -> f64 {
        let begin = if x < -0.5 { PI } else { FRAC_PI_2 };
        let begin = if x > 0.5 { 0.0 } else { begin };
        let factor = if x.abs() > 0.5 { 2.0 } else { -1.0 };
        simd.fused_wide(reduced_arc_sine(simd, x.abs()).copysign(x), factor, begin)
    }
}
