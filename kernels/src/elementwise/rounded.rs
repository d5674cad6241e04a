//! Functions of f32 with the bits of their f64 functions, rounded once.
//!
//! Lanes compute in f64 with errors far below those of f32, which rounds to the same f32 as the exact function does unless the
//! middle of two f32 lies between. Where it is that near, the exact function is called. So results depend neither on
//! instructions nor on how lanes compute, and are those of references, which constants are folded by.

use crate::simd::{Instructions, LANES, Routine, Simd};

/// A function of one number that is rounded once to f32.
pub trait RoundedFunction: Copy + Send + Sync {
    /// About how many multiplications it takes.
    fn cost(self) -> usize;

    /// The function, by the standard library.
    fn exact(self, x: f64) -> f64;

    /// Whether [`RoundedFunction::near`] computes it and what f32 hold of the result is normal or exact.
    fn is_usual(self, x: f64) -> bool;

    /// The function to 2^-40 of the result. Implementations are `#[inline(always)]`, without branches, so that the compiler
    /// vectorises them.
    fn near<S: Simd>(self, simd: S, x: f64) -> f64;
}

/// `values = function(values)` on this thread.
pub fn apply_rounded(instructions: Instructions, function: impl RoundedFunction, values: &mut [f32]) {
    instructions.run(InPlace { function, values });
}

/// `out = function(x)` on this thread.
///
/// # Panics
/// If the lengths differ.
pub fn round_each(instructions: Instructions, function: impl RoundedFunction, x: &[f64], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of both sides");
    instructions.run(Each { function, x, out });
}

/// The polynomial with `coefficients` from the highest power down.
#[inline(always)]
pub(super) fn polynomial<S: Simd, const N: usize>(simd: S, x: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = simd.fused_wide(sum, x, *coefficient);
    }
    sum
}

/// Added to a number below 2^50, leaves the nearest integer in the last places.
pub(super) const ROUNDING: f64 = 6_755_399_441_055_744.0;

/// Units in the last place of f64 that lanes may be off by: at least 2^-38 of the result.
pub(super) const MARGIN: u64 = 1 << 15;

/// Places of an f64 that an f32 has not.
const LOST_PLACES: u32 = 29;

/// Whether the middle of two f32 is so near that the exact value may lie on its other side.
#[inline(always)]
fn is_between(value: f64) -> bool {
    const MIDDLE: u64 = 1 << (LOST_PLACES - 1);
    const LOST: u64 = (1 << LOST_PLACES) - 1;
    (value.to_bits().wrapping_add(MARGIN + MIDDLE) & LOST) < 2 * MARGIN
}

/// The function of 16 numbers.
#[inline(always)]
fn block<S: Simd>(simd: S, function: impl RoundedFunction, x: &[f64; LANES]) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    let mut is_special = false;
    for lane in 0..LANES {
        values[lane] = function.near(simd, x[lane]);
        is_special |= !function.is_usual(x[lane]) | is_between(values[lane]);
    }
    if is_special {
        compute_special(function, x, &mut values);
    }
    let mut rounded = [0.0; LANES];
    for lane in 0..LANES {
        rounded[lane] = values[lane] as f32;
    }
    rounded
}

#[cold]
#[inline(never)]
fn compute_special(function: impl RoundedFunction, x: &[f64; LANES], values: &mut [f64; LANES]) {
    for (value, &x) in values.iter_mut().zip(x) {
        if !function.is_usual(x) || is_between(*value) {
            *value = function.exact(x);
        }
    }
}

struct InPlace<'a, F> {
    function: F,
    values: &'a mut [f32],
}

impl<F: RoundedFunction> Routine for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (blocks, rest) = self.values.as_chunks_mut::<LANES>();
        for values in blocks {
            let mut x = [0.0; LANES];
            for lane in 0..LANES {
                x[lane] = f64::from(values[lane]);
            }
            *values = block(simd, self.function, &x);
        }
        if !rest.is_empty() {
            let mut x = [0.0; LANES];
            x.iter_mut().zip(&*rest).for_each(|(x, &value)| *x = f64::from(value));
            rest.copy_from_slice(&block(simd, self.function, &x)[..rest.len()]);
        }
    }
}

struct Each<'a, F> {
    function: F,
    x: &'a [f64],
    out: &'a mut [f32],
}

impl<F: RoundedFunction> Routine for Each<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ((x, x_rest), (out, out_rest)) = (self.x.as_chunks::<LANES>(), self.out.as_chunks_mut::<LANES>());
        for (x, out) in x.iter().zip(out) {
            *out = block(simd, self.function, x);
        }
        if !x_rest.is_empty() {
            let mut x = [0.0; LANES];
            x[..x_rest.len()].copy_from_slice(x_rest);
            out_rest.copy_from_slice(&block(simd, self.function, &x)[..out_rest.len()]);
        }
    }
}
