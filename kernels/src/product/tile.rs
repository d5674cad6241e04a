//! The register tile: rows × panels of running sums over a run of inputs.
//!
//! [`Left`] is what is broadcast (a row of activations; in a convolution a channel of weights), the panels are what is read
//! as vectors (weights; in a convolution the input's positions). Before the loop over inputs every slice is cut to the length
//! of the loop, so that no bound is checked inside it.

use std::{
    ops::Range,
    sync::atomic::{Ordering, compiler_fence},
};

use super::panels::{RUN, Weight};
use crate::ahead::{CacheLine, LinesAhead};
use crate::simd::{LANES, Routine, Simd};

/// The most vectors in a row of a tile on any instruction set.
pub(super) const MOST_VECTORS: usize = 3;

/// The broadcast side of a tile of `ROWS` rows.
pub(crate) trait Left<const ROWS: usize>: Copy {
    /// The values of a run of inputs.
    type Run: Copy;

    /// As many of the first `length` inputs as there are of all rows in the form that the inner loop reads.
    fn whole(self, length: usize) -> usize;

    /// The first `length` inputs, of which all are whole: every index below `length` is known to be within bounds.
    fn run(self, length: usize) -> Self::Run;

    /// Row `row` at input `input` of a run.
    fn at(run: &Self::Run, row: usize, input: usize) -> f32;

    /// Row `row` at input `input`, which need not be whole.
    #[inline(always)]
    fn single(self, row: usize, input: usize) -> f32 {
        Self::at(&self.run(input + 1), row, input)
    }
}

/// Rows that lie apart, each with its inputs side by side; all of the same length.
#[derive(Clone, Copy)]
pub(crate) struct RowsLeft<'a, const ROWS: usize>(pub [&'a [f32]; ROWS]);

impl<'a, const ROWS: usize> Left<ROWS> for RowsLeft<'a, ROWS> {
    type Run = [&'a [f32]; ROWS];

    #[inline(always)]
    fn whole(self, length: usize) -> usize {
        length
    }

    #[inline(always)]
    fn run(self, length: usize) -> Self::Run {
        let mut run = self.0;
        for row in 0..ROWS {
            run[row] = &self.0[row][..length];
        }
        run
    }

    #[inline(always)]
    fn at(run: &Self::Run, row: usize, input: usize) -> f32 {
        run[row][input]
    }
}

/// Rows of a run one behind the other, each with room for a whole run.
#[derive(Clone, Copy)]
pub(crate) struct NearLeft<'a, const ROWS: usize>(pub &'a [[f32; RUN]; ROWS]);

impl<'a, const ROWS: usize> Left<ROWS> for NearLeft<'a, ROWS> {
    type Run = &'a [[f32; RUN]; ROWS];

    #[inline(always)]
    fn whole(self, length: usize) -> usize {
        length.min(RUN)
    }

    #[inline(always)]
    fn run(self, _length: usize) -> Self::Run {
        self.0
    }

    #[inline(always)]
    fn at(run: &Self::Run, row: usize, input: usize) -> f32 {
        run[row][input]
    }
}

/// Up to 16 rows side by side for each input: a panel, given from the first row's value of the first input on.
#[derive(Clone, Copy)]
pub(crate) struct PanelLeft<'a>(pub &'a [f32]);

impl<'a, const ROWS: usize> Left<ROWS> for PanelLeft<'a> {
    type Run = &'a [[f32; LANES]];

    #[inline(always)]
    fn whole(self, length: usize) -> usize {
        length.min(self.0.len() / LANES)
    }

    #[inline(always)]
    fn run(self, length: usize) -> Self::Run {
        &self.0.as_chunks().0[..length]
    }

    #[inline(always)]
    fn at(run: &Self::Run, row: usize, input: usize) -> f32 {
        run[input][row]
    }

    #[inline(always)]
    fn single(self, row: usize, input: usize) -> f32 {
        self.0[input * LANES + row]
    }
}

/// A stretch of each row. A loop of its own: `map` is compiled once more for each closure that it is given.
#[inline(always)]
pub(crate) fn stretch<T, const ROWS: usize>(mut rows: [&[T]; ROWS], stretch: Range<usize>) -> [&[T]; ROWS] {
    for row in 0..ROWS {
        rows[row] = &rows[row][stretch.clone()];
    }
    rows
}

/// An element of each row.
#[inline(always)]
pub(crate) fn each<'a, T, const ROWS: usize>(rows: &[&'a [T]; ROWS], index: usize) -> [&'a T; ROWS] {
    let mut elements = [&rows[0][index]; ROWS];
    for row in 1..ROWS {
        elements[row] = &rows[row][index];
    }
    elements
}

/// Sums of a tile in memory: rows × panels.
pub(crate) type Sums<const ROWS: usize, const PANELS: usize> = [[[f32; LANES]; PANELS]; ROWS];

/// One run: [`sums`] in memory, for callers that index them by row.
#[inline(always)]
pub(crate) fn run<S: Simd, W: Weight, L: Left<ROWS>, const ROWS: usize, const PANELS: usize>(
    simd: S,
    left: L,
    panels: [&[W::Group]; PANELS],
    length: usize,
    ahead: usize,
) -> Sums<ROWS, PANELS> {
    let sums = sums::<S, W, L, ROWS, PANELS>(simd, left, panels, length, WeightsAhead::<W, PANELS> { panels, ahead });
    let mut stored = [[[0.0; LANES]; PANELS]; ROWS];
    for row in 0..ROWS {
        for panel in 0..PANELS {
            simd.store(sums[row][panel], &mut stored[row][panel]);
        }
    }
    stored
}

/// Memory that is asked for beside the sums of a tile.
trait Beside {
    /// Asks for some while the sums over these groups are made.
    fn ask<S: Simd>(&mut self, simd: S, groups: Range<usize>);
}

impl<A: Beside, B: Beside> Beside for (A, B) {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, groups: Range<usize>) {
        self.0.ask(simd, groups.clone());
        self.1.ask(simd, groups);
    }
}

/// The panels that are multiplied, so many inputs ahead, or nothing if these are 0.
#[derive(Clone, Copy)]
struct WeightsAhead<'a, W: Weight, const PANELS: usize> {
    panels: [&'a [W::Group]; PANELS],
    ahead: usize,
}

impl<W: Weight, const PANELS: usize> Beside for WeightsAhead<'_, W, PANELS> {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, groups: Range<usize>) {
        if self.ahead > 0 {
            for group in groups {
                for panel in 0..PANELS {
                    simd.prefetch(self.panels[panel], group + self.ahead / W::GROUP);
                }
            }
        }
    }
}

/// Outputs from `first` on, of one row after another.
struct Outputs<'a, 'o, const PANELS: usize> {
    rows: std::slice::Iter<'a, &'o mut [f32]>,
    first: usize,
}

impl<const PANELS: usize> Beside for Outputs<'_, '_, PANELS> {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, _groups: Range<usize>) {
        if let Some(row) = self.rows.next() {
            for panel in 0..PANELS {
                simd.prefetch(row, self.first + panel * LANES);
            }
        }
    }
}

/// What is read after the tiles.
impl<const SLICES: usize> Beside for &mut LinesAhead<'_, SLICES> {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, _groups: Range<usize>) {
        LinesAhead::ask(self, simd);
    }
}

/// Inputs from one time that memory is asked for to the next.
const STRETCH: usize = 16;

/// Sums over `length` inputs (at most [`RUN`]) beginning at 0. `panels` begin at the left side's input 0.
///
/// They are registers as long as they are indexed by numbers that the compiler knows.
#[inline(always)]
fn sums<S: Simd, W: Weight, L: Left<ROWS>, const ROWS: usize, const PANELS: usize>(
    simd: S,
    left: L,
    panels: [&[W::Group]; PANELS],
    length: usize,
    mut beside: impl Beside,
) -> [[S::Vector; PANELS]; ROWS] {
    let mut sums = [[simd.splat(0.0); PANELS]; ROWS];
    let groups = left.whole(length) / W::GROUP;
    let inputs = left.run(groups * W::GROUP);
    // All slices of the loop have the length of the loop: no bound is checked in it.
    let mut weights = panels;
    for panel in 0..PANELS {
        weights[panel] = &panels[panel][..groups];
    }
    for first in (0..groups).step_by(const { STRETCH / W::GROUP }) {
        let stretch = first..groups.min(first + const { STRETCH / W::GROUP });
        beside.ask(simd, stretch.clone());
        for group in stretch {
            for step in 0..W::GROUP {
                let mut vectors = [simd.splat(0.0); PANELS];
                for panel in 0..PANELS {
                    vectors[panel] = W::load(simd, &weights[panel][group], step);
                }
                for row in 0..ROWS {
                    let factor = simd.splat(L::at(&inputs, row, group * W::GROUP + step));
                    for panel in 0..PANELS {
                        sums[row][panel] = simd.fused(factor, vectors[panel], sums[row][panel]);
                    }
                }
            }
        }
    }
    for input in groups * W::GROUP..length {
        for panel in 0..PANELS {
            let weights = W::load(simd, &panels[panel][input / W::GROUP], input % W::GROUP);
            for row in 0..ROWS {
                sums[row][panel] = simd.fused(simd.splat(left.single(row, input)), weights, sums[row][panel]);
            }
        }
    }
    sums
}

/// Inputs that are code of their own where registers hold few sums: a loop over each of them takes a twentieth of the time more.
const UNROLLED: usize = 8;

/// As [`sums`], of rows that lie near each other, some inputs at a time without a loop.
#[inline(always)]
fn unrolled_sums<S: Simd, const ROWS: usize, const PANELS: usize>(
    simd: S,
    rows: &[[f32; RUN]; ROWS],
    panels: [&[[f32; LANES]]; PANELS],
    length: usize,
    mut beside: impl Beside,
) -> [[S::Vector; PANELS]; ROWS] {
    assert!(length <= RUN, "{length} inputs of a run");
    let mut sums = [[simd.splat(0.0); PANELS]; ROWS];
    let count = length / UNROLLED;
    let mut weights = [&[][..]; PANELS];
    for panel in 0..PANELS {
        weights[panel] = &panels[panel].as_chunks::<UNROLLED>().0[..count];
    }
    for unrolled in 0..count {
        // The compiler knows that these are of a run.
        let first = unrolled % const { RUN / UNROLLED } * UNROLLED;
        if first.is_multiple_of(STRETCH) {
            beside.ask(simd, first..first + STRETCH);
        }
        for place in 0..UNROLLED {
            let mut vectors = [simd.splat(0.0); PANELS];
            for panel in 0..PANELS {
                vectors[panel] = simd.load(&weights[panel][unrolled][place]);
            }
            for row in 0..ROWS {
                let factor = simd.splat(rows[row][first + place]);
                for panel in 0..PANELS {
                    sums[row][panel] = simd.fused(factor, vectors[panel], sums[row][panel]);
                }
                // Values of the next rows would be loaded first otherwise, for which registers have no room.
                compiler_fence(Ordering::SeqCst);
            }
        }
    }
    let rest = count * UNROLLED..length;
    if !rest.is_empty() && rest.start.is_multiple_of(STRETCH) {
        beside.ask(simd, rest.clone());
    }
    for input in rest {
        for panel in 0..PANELS {
            let weights = simd.load(&panels[panel][input]);
            for row in 0..ROWS {
                sums[row][panel] = simd.fused(simd.splat(rows[row][input]), weights, sums[row][panel]);
            }
        }
    }
    sums
}

/// A whole block of one panel: both runs at once, so that twice as many additions are in flight.
///
/// `rows` have at least [`BLOCK`] inputs. Returns the sums of the first and of the second run.
#[inline(always)]
pub(crate) fn two_runs<S: Simd, W: Weight, const ROWS: usize>(
    simd: S,
    rows: [&[f32]; ROWS],
    panel: &[W::Group],
) -> [[S::Vector; ROWS]; 2] {
    let mut sums = [[simd.splat(0.0); ROWS]; 2];
    let half = RUN / W::GROUP;
    let (first, second) = panel[..2 * half].split_at(half);
    let (mut first_rows, mut second_rows) = ([&[0.0; RUN]; ROWS], [&[0.0; RUN]; ROWS]);
    for row in 0..ROWS {
        let runs = rows[row].as_chunks::<RUN>().0;
        (first_rows[row], second_rows[row]) = (&runs[0], &runs[1]);
    }
    // What the processor asks for by itself ends with a page, and a run is no longer than two: it has ended when it begins.
    let groups_of_a_line = size_of::<CacheLine>().div_ceil(size_of::<W::Group>());
    for group in 0..half {
        if group % groups_of_a_line == 0 {
            simd.prefetch(first, group + 2 * half);
            simd.prefetch(second, group + 2 * half);
        }
        for step in 0..W::GROUP {
            let input = group * W::GROUP + step;
            let weights = [W::load(simd, &first[group], step), W::load(simd, &second[group], step)];
            for row in 0..ROWS {
                sums[0][row] = simd.fused(simd.splat(first_rows[row][input]), weights[0], sums[0][row]);
                sums[1][row] = simd.fused(simd.splat(second_rows[row][input]), weights[1], sums[1][row]);
            }
        }
    }
    sums
}

/// One tile over a run of inputs that is added to the outputs: a routine of its own, so that the code around it is not
/// compiled into one function with all sizes of tiles.
pub(crate) struct AddTile<'a, 'o, W: Weight, L, const ROWS: usize, const PANELS: usize> {
    pub left: L,
    pub panels: [&'a [W::Group]; PANELS],
    /// At most [`RUN`].
    pub length: usize,
    /// One slice a row.
    pub out: &'a mut [&'o mut [f32]],
    /// Where the tile's outputs begin in each row.
    pub first: usize,
    /// How many inputs ahead memory is asked for, or 0.
    pub ahead: usize,
    /// Whether the outputs are overwritten.
    pub fresh: bool,
}

impl<W: Weight, L: Left<ROWS>, const ROWS: usize, const PANELS: usize> Routine for AddTile<'_, '_, W, L, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weights = WeightsAhead::<W, PANELS> { panels: self.panels, ahead: self.ahead };
        let beside = (weights, Outputs::<PANELS> { rows: self.out.iter(), first: self.first });
        let sums = sums::<S, W, L, ROWS, PANELS>(simd, self.left, self.panels, self.length, beside);
        for row in 0..ROWS {
            let out = &mut self.out[row][self.first..];
            if let Some(whole) = out.as_chunks_mut::<LANES>().0.first_chunk_mut::<PANELS>() {
                add_vectors(simd, sums[row], whole, self.fresh);
                continue;
            }
            for panel in 0..PANELS {
                let outputs = at_most_a_vector(&mut out[panel * LANES..]);
                let before = if self.fresh { simd.splat(0.0) } else { simd.load_partial(outputs) };
                simd.store_partial(simd.add(before, sums[row][panel]), outputs);
            }
        }
    }
}

/// Adds sums to outputs, or overwrites those if they are `fresh`.
#[inline(always)]
fn add_vectors<S: Simd, const PANELS: usize>(
    simd: S,
    sums: [S::Vector; PANELS],
    out: &mut [[f32; LANES]],
    fresh: bool,
) {
    for panel in 0..PANELS {
        let before = if fresh { simd.splat(0.0) } else { simd.load(&out[panel]) };
        simd.store(simd.add(before, sums[panel]), &mut out[panel]);
    }
}

/// Whole tiles of a run, one behind the other, that are added to whole vectors of the outputs.
pub(crate) struct AddTiles<'a, 'o, const ROWS: usize, const PANELS: usize> {
    /// The rows of each tile.
    pub near: &'a [[[f32; RUN]; ROWS]],
    pub panels: [&'a [[f32; LANES]]; PANELS],
    /// At most [`RUN`].
    pub length: usize,
    /// One slice a row.
    pub out: &'a mut [&'o mut [f32]],
    /// Where outputs begin in each row.
    pub first: usize,
    /// Whether the outputs are overwritten.
    pub fresh: bool,
    /// What is read after this run, slices of one length: it is asked for in equal parts while the tiles are computed.
    pub next: [&'a [CacheLine]; MOST_VECTORS],
}

impl<const ROWS: usize, const PANELS: usize> Routine for AddTiles<'_, '_, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { near, panels, length, out, first, fresh, next } = self;
        let mut lines = LinesAhead::new(next, near.len() * length.div_ceil(STRETCH));
        for (near, out) in near.iter().zip(out.as_chunks_mut::<ROWS>().0) {
            let beside = (&mut lines, Outputs::<PANELS> { rows: out.iter(), first });
            let sums = if const { S::TILE_VECTORS == 1 } {
                unrolled_sums(simd, near, panels, length, beside)
            } else {
                sums::<S, f32, _, ROWS, PANELS>(simd, NearLeft(near), panels, length, beside)
            };
            for row in 0..ROWS {
                add_vectors(simd, sums[row], &mut out[row][first..].as_chunks_mut().0[..PANELS], fresh);
            }
        }
    }
}

/// The rows of the next tile, if `left` rows are left.
#[inline(always)]
pub(crate) fn tile_rows<S: Simd>(left: usize) -> usize {
    match left {
        8 if ends_with_fours::<S>(left) => 4,
        _ => [S::TILE_ROWS, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1),
    }
}

/// Whether so many rows end with two tiles of four in place of one of six and one of two, whose sums are fewer than two units have in
/// flight.
pub(super) const fn ends_with_fours<S: Simd>(rows: usize) -> bool {
    S::TILE_ROWS == 6 && rows >= 8 && rows % 6 == 2
}

/// The first 16 values, or as many as there are.
#[inline(always)]
pub(crate) fn at_most_a_vector(values: &mut [f32]) -> &mut [f32] {
    let count = values.len().min(LANES);
    &mut values[..count]
}
