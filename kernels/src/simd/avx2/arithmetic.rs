//! Arithmetic of f32.

use std::arch::x86_64::*;

use super::{Avx2, both};
use crate::simd::{Arithmetic, scale_in_two_steps};

impl Arithmetic for Avx2 {
    type Vector = [__m256; 2];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn subtract(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
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
        unsafe {
            [
                _mm256_blendv_ps(otherwise[0], then[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
                _mm256_blendv_ps(otherwise[1], then[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
            ]
        }
    }

    #[inline(always)]
    fn at_least(self, a: Self::Vector, least: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions. The second operand is the result where either is NaN.
        unsafe { [_mm256_max_ps(least[0], a[0]), _mm256_max_ps(least[1], a[1])] }
    }

    #[inline(always)]
    fn at_most(self, a: Self::Vector, greatest: Self::Vector) -> Self::Vector {
        // SAFETY: as above.
        unsafe { [_mm256_min_ps(greatest[0], a[0]), _mm256_min_ps(greatest[1], a[1])] }
    }

    #[inline(always)]
    fn maximum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            // Where either is NaN the instruction gives the second operand.
            [
                _mm256_blendv_ps(_mm256_max_ps(a[0], b[0]), a[0], _mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], a[0])),
                _mm256_blendv_ps(_mm256_max_ps(a[1], b[1]), a[1], _mm256_cmp_ps::<_CMP_UNORD_Q>(a[1], a[1])),
            ]
        }
    }

    #[inline(always)]
    fn minimum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            // Where either is NaN the instruction gives the second operand.
            [
                _mm256_blendv_ps(_mm256_min_ps(a[0], b[0]), a[0], _mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], a[0])),
                _mm256_blendv_ps(_mm256_min_ps(a[1], b[1]), a[1], _mm256_cmp_ps::<_CMP_UNORD_Q>(a[1], a[1])),
            ]
        }
    }

    #[inline(always)]
    fn square_root(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_sqrt_ps(a[0]), _mm256_sqrt_ps(a[1])] }
    }

    #[inline(always)]
    fn floor(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_floor_ps(a[0]), _mm256_floor_ps(a[1])] }
    }

    #[inline(always)]
    fn ceil(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_ceil_ps(a[0]), _mm256_ceil_ps(a[1])] }
    }

    #[inline(always)]
    fn absolute(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }

    #[inline(always)]
    fn copy_sign(self, magnitude: Self::Vector, sign: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            [
                _mm256_or_ps(_mm256_andnot_ps(bit, magnitude[0]), _mm256_and_ps(bit, sign[0])),
                _mm256_or_ps(_mm256_andnot_ps(bit, magnitude[1]), _mm256_and_ps(bit, sign[1])),
            ]
        }
    }

    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])]
        }
    }

    #[inline(always)]
    fn mantissa_and_exponent(self, a: Self::Vector) -> (Self::Vector, Self::Vector) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let (fraction, one) = (_mm256_set1_epi32(0x007f_ffff), _mm256_set1_epi32(0x3f80_0000));
            let bias = _mm256_set1_epi32(127);
            let [low, high] = both!(half in a => {
                let bits = _mm256_castps_si256(half);
                let mantissa = _mm256_or_si256(_mm256_and_si256(bits, fraction), one);
                let exponent = _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), bias);
                (_mm256_castsi256_ps(mantissa), _mm256_cvtepi32_ps(exponent))
            });
            ([low.0, high.0], [low.1, high.1])
        }
    }

    #[inline(always)]
    fn scale_by_power(self, a: Self::Vector, exponent: Self::Vector) -> Self::Vector {
        scale_in_two_steps(self, a, exponent)
    }
}
