//! Functions of one operand over slices.

use super::functions::VectorFunction;
use crate::{
    simd::{Instructions, LANES, Routine, Simd, Together},
    threads,
};

/// `values = function(values)`, side by side where it is worth it.
pub fn map_in_place(instructions: Instructions, function: impl VectorFunction, values: &mut [f32]) {
    let parts = threads::parts(values.len() * function.cost(), usize::MAX);
    let size = values.len().div_ceil(parts).next_multiple_of(LANES).max(LANES);
    threads::chunks(values, size, |_, values| apply(instructions, function, values));
}

/// `values = function(values)` on this thread.
pub fn apply(instructions: Instructions, function: impl VectorFunction, values: &mut [f32]) {
    instructions.run(Apply { function, values });
}

/// `values = function(values)` within a routine, by a function of its own: one that had the code of all functions that it might be
/// told to compute would take minutes to compile.
#[inline(always)]
pub fn change<S: Simd>(simd: S, function: impl VectorFunction, values: &mut [f32]) {
    simd.run(Apply { function, values });
}

/// Vectors that are loaded before their functions are computed, and stored behind all, where each is one of 32 registers.
const TOGETHER: usize = 4;

/// `values = function(values)`.
#[inline(always)]
pub fn change_vectors<S: Simd>(simd: S, function: impl VectorFunction, values: &mut [[f32; LANES]]) {
    let count = if const { S::TILE_VECTORS == 3 } { values.len() / TOGETHER * TOGETHER } else { 0 };
    let (groups, rest) = values.split_at_mut(count);
    for group in groups.as_chunks_mut::<TOGETHER>().0 {
        let mut vectors = [simd.splat(0.0); TOGETHER];
        for index in 0..TOGETHER {
            vectors[index] = simd.load(&group[index]);
        }
        let vectors = of_each(simd, function, vectors);
        for index in 0..TOGETHER {
            simd.store(vectors[index], &mut group[index]);
        }
    }
    for values in rest {
        simd.store(function.apply(simd, simd.load(values)), values);
    }
}

/// The function of each vector: of all together where a vector is one of 32 registers, else of one after the other. By a function of
/// its own where instructions have no loops of their own, for the reason that [`change`] has one.
#[inline(always)]
pub fn of_each<S: Simd, const COUNT: usize>(
    simd: S,
    function: impl VectorFunction,
    mut vectors: [S::Vector; COUNT],
) -> [S::Vector; COUNT] {
    if const { S::TILE_VECTORS == 3 } {
        return function.apply(Together::<S, COUNT>(simd), vectors);
    }
    if const { !S::HAS_OWN_LOOPS } {
        let mut values = [[0.0; LANES]; COUNT];
        for index in 0..COUNT {
            simd.store(vectors[index], &mut values[index]);
        }
        change(simd, function, values.as_flattened_mut());
        for index in 0..COUNT {
            vectors[index] = simd.load(&values[index]);
        }
        return vectors;
    }
    for index in 0..COUNT {
        vectors[index] = function.apply(simd, vectors[index]);
    }
    vectors
}

struct Apply<'a, F> {
    function: F,
    values: &'a mut [f32],
}

impl<F: VectorFunction> Routine for Apply<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (values, rest) = self.values.as_chunks_mut::<LANES>();
        change_vectors(simd, self.function, values);
        if !rest.is_empty() {
            simd.store_partial(self.function.apply(simd, simd.load_partial(rest)), rest);
        }
    }
}
