//! Functions of one operand over slices.

use super::functions::VectorFunction;
use crate::{
    simd::{Instructions, LANES, Routine, Simd},
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

struct Apply<'a, F> {
    function: F,
    values: &'a mut [f32],
}

impl<F: VectorFunction> Routine for Apply<'_, F> {
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
