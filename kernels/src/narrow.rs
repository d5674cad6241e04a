//! Floats of 16 bits: to f32 and back, and functions of elements that compute in f32 and round once, 16 lanes at a time.

use crate::simd::{Instructions, LANES, Routine, Simd};
use half::{bf16, f16};
use std::marker::PhantomData;

/// A float of 16 bits.
pub trait Narrow: Copy + Default + Send + Sync {
    /// Reads 16 lanes, exactly. Implementations are `#[inline(always)]`.
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector;

    /// Writes 16 lanes, rounded. Implementations are `#[inline(always)]`.
    fn store<S: Simd>(simd: S, vector: S::Vector, values: &mut [Self; LANES]);
}

impl Narrow for f16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector {
        simd.load_f16(values)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, vector: S::Vector, values: &mut [Self; LANES]) {
        simd.store_f16(vector, values);
    }
}

impl Narrow for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector {
        simd.load_bf16(values)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, vector: S::Vector, values: &mut [Self; LANES]) {
        simd.store_bf16(vector, values);
    }
}

/// Up to 16 elements; those that are missing are 0.
#[inline(always)]
fn padded<T: Copy + Default>(values: &[T]) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// `out = x`, exactly.
///
/// # Panics
/// If the lengths differ.
pub fn widen<T: Narrow>(x: &[T], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of both sides");
    Instructions::best().run(Widen { x, out });
}

struct Widen<'a, T> {
    x: &'a [T],
    out: &'a mut [f32],
}

impl<T: Narrow> Routine for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ((x, x_rest), (out, out_rest)) = (self.x.as_chunks(), self.out.as_chunks_mut());
        for (x, out) in x.iter().zip(out) {
            simd.store(T::load(simd, x), out);
        }
        simd.store_partial(T::load(simd, &padded(x_rest)), out_rest);
    }
}

/// `out = x`, rounded to the nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
pub fn narrow<T: Narrow>(x: &[f32], out: &mut [T]) {
    assert_eq!(x.len(), out.len(), "lengths of both sides");
    Instructions::best().run(Round { x, out });
}

struct Round<'a, T> {
    x: &'a [f32],
    out: &'a mut [T],
}

impl<T: Narrow> Routine for Round<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ((x, x_rest), (out, out_rest)) = (self.x.as_chunks(), self.out.as_chunks_mut());
        for (x, out) in x.iter().zip(out) {
            T::store(simd, simd.load(x), out);
        }
        let mut last = [T::default(); LANES];
        T::store(simd, simd.load_partial(x_rest), &mut last);
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

/// Each value rounded to the nearest of the type, ties to even.
pub fn round_in_place<T: Narrow>(values: &mut [f32]) {
    Instructions::best().run(RoundInPlace::<T> { values, narrow: PhantomData });
}

struct RoundInPlace<'a, T> {
    values: &'a mut [f32],
    narrow: PhantomData<T>,
}

impl<T: Narrow> Routine for RoundInPlace<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut rounded = [T::default(); LANES];
        for values in self.values.chunks_mut(LANES) {
            T::store(simd, simd.load_partial(values), &mut rounded);
            simd.store_partial(T::load(simd, &rounded), values);
        }
    }
}

/// A function of two operands over blocks, in f32, rounded once.
pub fn zip_block<T: Narrow>(function: impl Fn(f32, f32) -> f32 + Sync) -> impl Fn(&mut [T], &[T], &[T]) + Sync {
    let instructions = Instructions::best();
    move |out: &mut [T], x: &[T], y: &[T]| instructions.run(Zip { out, x, y, function: &function })
}

struct Zip<'a, T, F> {
    out: &'a mut [T],
    x: &'a [T],
    y: &'a [T],
    function: &'a F,
}

impl<T: Narrow, F: Fn(f32, f32) -> f32> Zip<'_, T, F> {
    #[inline(always)]
    fn lanes<S: Simd>(simd: S, function: &F, x: &[T; LANES], y: &[T; LANES], out: &mut [T; LANES]) {
        let (mut left, mut right) = ([0.0; LANES], [0.0; LANES]);
        simd.store(T::load(simd, x), &mut left);
        simd.store(T::load(simd, y), &mut right);
        for lane in 0..LANES {
            left[lane] = function(left[lane], right[lane]);
        }
        T::store(simd, simd.load(&left), out);
    }
}

impl<T: Narrow, F: Fn(f32, f32) -> f32> Routine for Zip<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Zip { out, x, y, function } = self;
        let ((x, x_rest), (y, y_rest)) = (x[..out.len()].as_chunks(), y[..out.len()].as_chunks());
        let (out, out_rest) = out.as_chunks_mut();
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            Self::lanes(simd, function, x, y, out);
        }
        let mut last = [T::default(); LANES];
        Self::lanes(simd, function, &padded(x_rest), &padded(y_rest), &mut last);
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

/// A relation of two operands over blocks: 1 where it holds, else 0.
pub fn relation_block<T: Narrow>(relation: impl Fn(f32, f32) -> bool + Sync) -> impl Fn(&mut [u8], &[T], &[T]) + Sync {
    let instructions = Instructions::best();
    move |out: &mut [u8], x: &[T], y: &[T]| instructions.run(Related { out, x, y, relation: &relation })
}

struct Related<'a, T, F> {
    out: &'a mut [u8],
    x: &'a [T],
    y: &'a [T],
    relation: &'a F,
}

impl<T: Narrow, F: Fn(f32, f32) -> bool> Related<'_, T, F> {
    #[inline(always)]
    fn lanes<S: Simd>(simd: S, relation: &F, x: &[T; LANES], y: &[T; LANES]) -> [u8; LANES] {
        let (mut left, mut right, mut holds) = ([0.0; LANES], [0.0; LANES], [0; LANES]);
        simd.store(T::load(simd, x), &mut left);
        simd.store(T::load(simd, y), &mut right);
        for lane in 0..LANES {
            holds[lane] = u8::from(relation(left[lane], right[lane]));
        }
        holds
    }
}

impl<T: Narrow, F: Fn(f32, f32) -> bool> Routine for Related<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Related { out, x, y, relation } = self;
        let ((x, x_rest), (y, y_rest)) = (x[..out.len()].as_chunks(), y[..out.len()].as_chunks());
        let (out, out_rest) = out.as_chunks_mut();
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = Self::lanes(simd, relation, x, y);
        }
        let last = Self::lanes(simd, relation, &padded(x_rest), &padded(y_rest));
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    fn check<T: Narrow + PartialEq + std::fmt::Debug>(to_f32: fn(T) -> f32, from_f32: fn(f32) -> T) {
        for length in [0, 1, 15, 16, 17, 100] {
            let exact = [numbers(1, length), numbers(2, length)];
            let [x, y] = exact.each_ref().map(|values| values.iter().map(|&value| from_f32(value)).collect::<Vec<T>>());
            let mut rounded = vec![T::default(); length];
            narrow(&exact[0], &mut rounded);
            assert_eq!(rounded, x);
            let mut wide = exact[0].clone();
            round_in_place::<T>(&mut wide);
            assert_eq!(wide, x.iter().map(|&x| to_f32(x)).collect::<Vec<f32>>());
            wide.fill(9.0);
            widen(&x, &mut wide);
            assert_eq!(wide, x.iter().map(|&x| to_f32(x)).collect::<Vec<f32>>());
            let expected: Vec<T> = x.iter().zip(&y).map(|(&x, &y)| from_f32(to_f32(x) / to_f32(y))).collect();
            zip_block(|x, y| x / y)(&mut rounded, &x, &y);
            assert_eq!(rounded, expected);
            let mut holds = vec![9; length];
            relation_block(|x, y| x < y)(&mut holds, &x, &y);
            assert_eq!(holds, x.iter().zip(&y).map(|(&x, &y)| u8::from(to_f32(x) < to_f32(y))).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn blocks_agree_with_single_elements() {
        check::<f16>(f16::to_f32, f16::from_f32);
        check::<bf16>(bf16::to_f32, bf16::from_f32);
    }
}
