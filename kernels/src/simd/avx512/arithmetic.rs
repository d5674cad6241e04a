//! Arithmetic of f32.

use std::arch::x86_64::*;

use super::Avx512;
use crate::simd::Arithmetic;

impl Arithmetic for Avx512 {
    type Vector = __m512;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn subtract(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn select_less(
        self,
        a: Self::Vector,
        b: Self::Vector,
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), otherwise, then) }
    }

    #[inline(always)]
    fn at_least(self, a: Self::Vector, least: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions. The second operand is the result where either is NaN.
        unsafe { _mm512_max_ps(least, a) }
    }

    #[inline(always)]
    fn at_most(self, a: Self::Vector, greatest: Self::Vector) -> Self::Vector {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(greatest, a) }
    }

    #[inline(always)]
    fn maximum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a) }
    }

    #[inline(always)]
    fn minimum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a) }
    }

    #[inline(always)]
    fn square_root(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_sqrt_ps(a) }
    }

    #[inline(always)]
    fn floor(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn ceil(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn absolute(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn copy_sign(self, magnitude: Self::Vector, sign: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign))
        }
    }

    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }

    #[inline(always)]
    fn mantissa_and_exponent(self, a: Self::Vector) -> (Self::Vector, Self::Vector) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { (_mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_ZERO>(a), _mm512_getexp_ps(a)) }
    }

    #[inline(always)]
    fn scale_by_power(self, a: Self::Vector, exponent: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_scalef_ps(a, exponent) }
    }

    #[inline(always)]
    fn scale_by_power_from(self, a: Self::Vector, exponent: Self::Vector, x: Self::Vector, least: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let is_seen = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(least));
            _mm512_maskz_scalef_ps(is_seen, a, exponent)
        }
    }

    #[inline(always)]
    fn multiply_from(self, a: Self::Vector, b: Self::Vector, x: Self::Vector, least: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let is_seen = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(least));
            _mm512_maskz_mul_ps(is_seen, a, b)
        }
    }

    /// From an estimate of 14 bits: processors divide 16 lanes one half after the other.
    #[inline(always)]
    fn reciprocal(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let estimate = _mm512_rcp14_ps(a);
            let error = _mm512_fnmadd_ps(a, estimate, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(estimate, error, estimate)
        }
    }
}
