//! Functions of one operand over slices.

use rayon::prelude::*;

use super::functions::VectorFunction;
use crate::kernels::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// `out = function(x)`.
///
/// # Panics
/// If lengths differ.
pub fn map(instructions: Instructions, function: impl VectorFunction, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "elements of x and out");
    let run = |(x, out)| instructions.run(Map { function, x, out });
    match block(x.len(), function.cost()) {
        Some(block) => x.par_chunks(block).zip(out.par_chunks_mut(block)).for_each(run),
        None => run((x, out)),
    }
}

/// `values = function(values)`.
pub fn map_in_place(instructions: Instructions, function: impl VectorFunction, values: &mut [f32]) {
    let run = |values| instructions.run(MapInPlace { function, values });
    match block(values.len(), function.cost()) {
        Some(block) => values.par_chunks_mut(block).for_each(run),
        None => run(values),
    }
}

/// Elements of a block, if several are worth it.
pub(super) fn block(count: usize, cost: usize) -> Option<usize> {
    let parts = threads::parts(count * cost, usize::MAX);
    (parts > 1).then(|| count.div_ceil(parts).next_multiple_of(LANES))
}

struct Map<'a, F> {
    function: F,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<F: VectorFunction> Routine for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (x, x_rest) = self.x.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (x, out) in x.iter().zip(out) {
            simd.store(self.function.apply(simd, simd.load(x)), out);
        }
        simd.store_partial(self.function.apply(simd, simd.load_partial(x_rest)), out_rest);
    }
}

struct MapInPlace<'a, F> {
    function: F,
    values: &'a mut [f32],
}

impl<F: VectorFunction> Routine for MapInPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (values, rest) = self.values.as_chunks_mut::<LANES>();
        for values in values {
            simd.store(self.function.apply(simd, simd.load(values)), values);
        }
        simd.store_partial(self.function.apply(simd, simd.load_partial(rest)), rest);
    }
}
