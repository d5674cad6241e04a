//! Arithmetic of f32.

use super::{FUSED, Portable, lanes};
use crate::simd::{Arithmetic, LANES, scale_in_two_steps};

impl Arithmetic for Portable {
    type Vector = [f32; LANES];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn subtract(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] / b[lane])
    }

    #[inline(always)]
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        if FUSED { lanes(|lane| a[lane].mul_add(b[lane], c[lane])) } else { lanes(|lane| a[lane] * b[lane] + c[lane]) }
    }

    #[inline(never)]
    fn select_less(
        self,
        a: Self::Vector,
        b: Self::Vector,
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector {
        lanes(|lane| if a[lane] < b[lane] { then[lane] } else { otherwise[lane] })
    }

    #[inline(never)]
    fn maximum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| if a[lane] > b[lane] || a[lane].is_nan() { a[lane] } else { b[lane] })
    }

    #[inline(never)]
    fn minimum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| if a[lane] < b[lane] || a[lane].is_nan() { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn square_root(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].sqrt())
    }

    #[inline(never)]
    fn floor(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].floor())
    }

    #[inline(never)]
    fn ceil(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].ceil())
    }

    #[inline(always)]
    fn absolute(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].abs())
    }

    #[inline(never)]
    fn copy_sign(self, magnitude: Self::Vector, sign: Self::Vector) -> Self::Vector {
        lanes(|lane| magnitude[lane].copysign(sign[lane]))
    }

    #[inline(never)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].round_ties_even())
    }

    #[inline(never)]
    fn mantissa_and_exponent(self, a: Self::Vector) -> (Self::Vector, Self::Vector) {
        let mantissa = lanes(|lane| f32::from_bits(a[lane].to_bits() & 0x007f_ffff | 0x3f80_0000));
        (mantissa, lanes(|lane| (a[lane].to_bits() >> 23) as f32 - 127.0))
    }

    #[inline(always)]
    fn scale_by_power(self, a: Self::Vector, exponent: Self::Vector) -> Self::Vector {
        scale_in_two_steps(self, a, exponent)
    }
}
