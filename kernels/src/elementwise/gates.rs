//! Gates of sums that are still f64.

use super::rounded::{ROUNDING, RoundedFunction, polynomial};
use crate::simd::Simd;
use std::f64::consts::{LN_2, LOG2_E};

/// Below, an f32 holds a gated number with fewer places.
const LEAST: f64 = -87.0;

/// Above, one and the exponential are one.
const LARGEST: f64 = 40.0;

/// x / (1 + exp(-x)).
#[derive(Clone, Copy, Debug)]
pub struct SelfGated {}

impl RoundedFunction for SelfGated {
    fn cost(self) -> usize {
        45
    }

    fn exact(self, x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    #[inline(always)]
    fn is_usual(self, x: f64) -> bool {
        x >= LEAST
    }

    #[inline(always)]
    fn near<S: Simd>(self, simd: S, x: f64) -> f64 {
        let bounded = if x < LARGEST { x } else { LARGEST };
        let shifted = simd.fused_wide(bounded, -LOG2_E, ROUNDING);
        let rest = simd.fused_wide(shifted - ROUNDING, -LN_2, -bounded);
        let series = polynomial(
            simd,
            rest,
            [
                1.0 / 39_916_800.0,
                1.0 / 3_628_800.0,
                1.0 / 362_880.0,
                1.0 / 40_320.0,
                1.0 / 5_040.0,
                1.0 / 720.0,
                1.0 / 120.0,
                1.0 / 24.0,
                1.0 / 6.0,
                1.0 / 2.0,
                1.0,
                1.0,
            ],
        );
        x / (1.0 + series * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52))
    }
}
