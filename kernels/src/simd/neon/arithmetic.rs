//! Arithmetic of f32.

use std::arch::aarch64::*;

use super::{Floats, Neon, both, each};
use crate::simd::{Arithmetic, Simd, scale_in_two_steps};

impl Arithmetic for Neon {
    type Vector = Floats;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        // SAFETY: every processor has the instructions.
        unsafe { [vdupq_n_f32(value); 4] }
    }

    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn subtract(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    fn multiply(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn divide(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    fn fused(self, a: Floats, b: Floats, c: Floats) -> Floats {
        self.fused_exactly(a, b, c)
    }

    #[inline(always)]
    fn select_less(self, a: Floats, b: Floats, then: Floats, otherwise: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        let less = both(a, b, |a, b| unsafe { vcltq_f32(a, b) });
        let chosen = both(then, otherwise, |then, otherwise| (then, otherwise));
        // SAFETY: as above.
        both(less, chosen, |less, (then, otherwise)| unsafe { vbslq_f32(less, then, otherwise) })
    }

    #[inline(always)]
    fn maximum(self, a: Floats, b: Floats) -> Floats {
        // The second where both are equal, so that zeros keep the sign that they have on other instruction sets.
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vbslq_f32(vornq_u32(vcgtq_f32(a, b), vceqq_f32(a, a)), a, b) })
    }

    #[inline(always)]
    fn minimum(self, a: Floats, b: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vbslq_f32(vornq_u32(vcltq_f32(a, b), vceqq_f32(a, a)), a, b) })
    }

    #[inline(always)]
    fn square_root(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vsqrtq_f32(a) })
    }

    #[inline(always)]
    fn floor(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vrndmq_f32(a) })
    }

    #[inline(always)]
    fn ceil(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vrndpq_f32(a) })
    }

    #[inline(always)]
    fn absolute(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vabsq_f32(a) })
    }

    #[inline(always)]
    fn copy_sign(self, magnitude: Floats, sign: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        both(magnitude, sign, |magnitude, sign| unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), sign, magnitude) })
    }

    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vrndnq_f32(a) })
    }

    #[inline(always)]
    fn mantissa_and_exponent(self, a: Floats) -> (Floats, Floats) {
        // SAFETY: every processor has the instructions.
        let bits = each(a, |a| unsafe { vreinterpretq_u32_f32(a) });
        // SAFETY: as above.
        let mantissa = each(bits, |bits| unsafe {
            let fraction = vandq_u32(bits, vdupq_n_u32(0x007f_ffff));
            vreinterpretq_f32_u32(vorrq_u32(fraction, vdupq_n_u32(0x3f80_0000)))
        });
        // SAFETY: as above.
        let exponent =
            each(bits, |bits| unsafe { vsubq_f32(vcvtq_f32_u32(vshrq_n_u32::<23>(bits)), vdupq_n_f32(127.0)) });
        (mantissa, exponent)
    }

    #[inline(always)]
    fn scale_by_power(self, a: Self::Vector, exponent: Self::Vector) -> Self::Vector {
        scale_in_two_steps(self, a, exponent)
    }
}
