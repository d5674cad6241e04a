//! Powers with one exponent for all elements.

use ipuc_kernels::elements::map_block;
use ipuc_kernels::elementwise::power::{Exponents, powers};
use ipuc_kernels::simd::Instructions;

/// Operations that a power costs.
pub(in crate::steps) const POWER_COST: usize = 20;

/// A power of which the usual exponents have cheaper forms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::steps) enum Power {
    /// x * x, which an f64 holds exactly.
    Square,
    /// The square root, but as a power that of minus infinity is infinity, and of minus zero zero.
    Root,
    /// x * x * x.
    Cube,
    /// Any other exponent.
    Of(f64),
}

impl Power {
    pub(in crate::steps) fn new(exponent: f64) -> Power {
        match exponent {
            2.0 => Power::Square,
            0.5 => Power::Root,
            3.0 => Power::Cube,
            other => Power::Of(other),
        }
    }

    /// About how many multiplications an element takes.
    pub(in crate::steps) fn cost(self) -> usize {
        match self {
            Power::Square => 1,
            Power::Cube => 2,
            Power::Root => 4,
            Power::Of(_) => POWER_COST,
        }
    }

    /// The power of one number.
    #[inline(always)]
    pub(in crate::steps) fn of_f64(self, x: f64) -> f64 {
        match self {
            Power::Square => x * x,
            Power::Root if x == f64::NEG_INFINITY => f64::INFINITY,
            Power::Root => (x + 0.0).sqrt(),
            Power::Cube => x * x * x,
            Power::Of(exponent) => x.powf(exponent),
        }
    }

    /// The powers of f32, each rounded once; the cube twice, as it is in chains.
    pub(in crate::steps) fn of_all(self, x: &[f32], out: &mut [f32]) {
        match self {
            // Each has a loop of its own.
            Power::Square => map_block(|x: f32| x * x)(out, x),
            Power::Root => map_block(|x: f32| Power::Root.of_f64(x.into()) as f32)(out, x),
            Power::Cube => map_block(|x: f32| x * x * x)(out, x),
            Power::Of(exponent) => powers(Instructions::best(), x, Exponents::One(exponent), out),
        }
    }
}
