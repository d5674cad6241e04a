//! Between f32 and narrower floats: widening is exact, narrowing rounds to the nearest, ties to even.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;

use super::map::block;

/// About how many multiplications a conversion takes.
const COST: usize = 2;

macro_rules! conversions {
    ($T:ty, $widen:ident, $narrow:ident) => {
        /// `out = x`, exactly.
        ///
        /// # Panics
        /// If lengths differ.
        pub fn $widen(x: &[$T], out: &mut [f32]) {
            assert_eq!(x.len(), out.len(), "elements of x and out");
            match block(x.len(), COST) {
                Some(block) => {
                    x.par_chunks(block).zip(out.par_chunks_mut(block)).for_each(|(x, out)| x.convert_to_f32_slice(out))
                }
                None => x.convert_to_f32_slice(out),
            }
        }

        /// `out = x`, rounded.
        ///
        /// # Panics
        /// If lengths differ.
        pub fn $narrow(x: &[f32], out: &mut [$T]) {
            assert_eq!(x.len(), out.len(), "elements of x and out");
            match block(x.len(), COST) {
                Some(block) => x
                    .par_chunks(block)
                    .zip(out.par_chunks_mut(block))
                    .for_each(|(x, out)| out.convert_from_f32_slice(x)),
                None => out.convert_from_f32_slice(x),
            }
        }
    };
}

conversions!(f16, widen_f16, narrow_f16);
conversions!(bf16, widen_bf16, narrow_bf16);
