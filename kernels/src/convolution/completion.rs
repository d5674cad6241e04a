//! What becomes of the sums of a filter: zero points and the bias are added, then they are handed on or made codes.

use std::ops::Range;

use crate::{
    product::Requantize,
    simd::{LANES, Routine, Simd},
};

/// Positions of a block that are multiplied together, so that their sums stay in the first-level cache.
pub(super) struct Run {
    /// On the grid.
    pub positions: Range<usize>,
    /// The first output, counted from those of the block.
    pub first: usize,
    /// Rows of outputs, and how far apart they lie.
    pub rows: usize,
    pub row_length: usize,
    pub distance: usize,
}

/// What zero points and the bias add to the products of a filter.
pub(super) struct Correction<'a> {
    pub constant: i32,
    /// The zero point of the filter and the sums of windows, from the first position of a run on.
    pub windows: Option<(i32, &'a [i32])>,
}

impl Correction<'_> {
    /// The sums of 16 positions.
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, sums: &[i32; LANES], place: usize) -> S::Integers {
        let sums = simd.add_integers(simd.load_integers(sums), simd.splat_integer(self.constant));
        let Some((zero, windows)) = self.windows else { return sums };
        let windows = simd.load_integers(&windows[place..].as_chunks().0[0]);
        simd.subtract_integers(sums, simd.multiply_integers(simd.splat_integer(zero), windows))
    }
}

/// What takes the sums of filters.
pub(super) trait Complete {
    /// Takes those of a filter, counted from the first that is multiplied, at the positions of a run; there are 16 more, which may be
    /// anything, as may be those between rows.
    fn complete<S: Simd>(&mut self, simd: S, filter: usize, run: &Run, by: Correction<'_>, sums: &mut [i32]);
}

/// Hands them on, with the place of the first.
pub(super) struct Handed<V>(pub V);

impl<V: FnMut(usize, usize, &[i32])> Complete for Handed<V> {
    #[inline(always)]
    fn complete<S: Simd>(&mut self, simd: S, filter: usize, run: &Run, by: Correction<'_>, sums: &mut [i32]) {
        let vectors = run.positions.len().div_ceil(LANES);
        for (index, own) in sums.as_chunks_mut::<LANES>().0[..vectors].iter_mut().enumerate() {
            let corrected = by.of(simd, own, index * LANES);
            simd.store_integers(corrected, own);
        }
        if run.distance > run.row_length {
            for row in 1..run.rows {
                let start = row * run.distance;
                sums.copy_within(start..start + run.row_length, row * run.row_length);
            }
        }
        (self.0)(filter, run.first, &sums[..run.rows * run.row_length]);
    }
}

/// Makes codes of them: `by` says how for a filter, whose codes are in `results`.
pub(super) struct Codes<'r, 'o, B> {
    pub by: B,
    pub results: &'r mut [&'o mut [u8]],
}

impl<'a, B: Fn(usize) -> Requantize<'a>> Complete for Codes<'_, '_, B> {
    #[inline(always)]
    fn complete<S: Simd>(&mut self, simd: S, filter: usize, run: &Run, by: Correction<'_>, sums: &mut [i32]) {
        let codes = (self.by)(filter);
        let results = &mut self.results[filter][run.first..];
        // A function of its own keeps what all vectors have in common in registers.
        if codes.are_near() {
            simd.run(Rows::<true> { run, by, sums, codes, results });
        } else {
            simd.run(Rows::<false> { run, by, sums, codes, results });
        }
    }
}

/// The codes of the rows of a run.
struct Rows<'a, const NEAR: bool> {
    run: &'a Run,
    by: Correction<'a>,
    sums: &'a [i32],
    codes: Requantize<'a>,
    results: &'a mut [u8],
}

impl<const NEAR: bool> Routine for Rows<'_, NEAR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Rows { run: &Run { first, rows, row_length, distance, .. }, by, sums, codes, results } = self;
        let length = row_length.next_multiple_of(LANES);
        for row in 0..rows {
            let (from, to) = (row * distance, row * row_length);
            let vectors = sums[from..][..length].as_chunks::<LANES>().0;
            // What is behind the end of a row is overwritten by the next one, or by the next run.
            let room = length.min(results.len() - to);
            let (whole, rest) = results[to..][..room].as_chunks_mut::<LANES>();
            let (fours, others) = whole.as_chunks_mut::<4>();
            for (index, (sums, results)) in vectors.as_chunks::<4>().0.iter().zip(fours.iter_mut()).enumerate() {
                let place = index * 4 * LANES;
                let mut own = [simd.splat_integer(0); 4];
                for vector in 0..4 {
                    own[vector] = by.of(simd, &sums[vector], from + place + vector * LANES);
                }
                *results = bytemuck::cast(codes.of_vectors::<S, NEAR, 4>(simd, first + to + place, own));
            }
            let four = fours.len() * 4;
            for (index, (sums, results)) in vectors[four..].iter().zip(others).enumerate() {
                let place = (four + index) * LANES;
                *results = codes.of::<S, NEAR>(simd, first + to + place, by.of(simd, sums, from + place));
            }
            if !rest.is_empty() {
                let place = room - rest.len();
                let sums = &vectors[place / LANES];
                let codes = codes.of::<S, NEAR>(simd, first + to + place, by.of(simd, sums, from + place));
                rest.copy_from_slice(&codes[..rest.len()]);
            }
        }
    }
}
