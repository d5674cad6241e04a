//! The register tile: rows × panels of running sums over a run of inputs.
//!
//! [`Left`] is what is broadcast (a row of activations; in a convolution a channel of weights), the panels are what is read
//! as vectors (weights; in a convolution the input's positions).

use super::panels::Weight;
use crate::kernels::simd::Simd;

/// Inputs that are summed in one chain, beginning at 0. Two chains at a time cover the latency of an addition in a
/// product of a matrix and a vector, and a chain is long enough that adding it to the output costs little.
pub(crate) const RUN: usize = 128;

/// Inputs at whose multiples a piece of a weight may end: two runs.
pub(crate) const BLOCK: usize = 2 * RUN;

/// The broadcast side of a tile.
pub(crate) trait Left: Copy {
    /// Row `row` at input `input`.
    fn at(self, row: usize, input: usize) -> f32;
}

/// Rows that lie apart, each with its inputs side by side; all of the same length.
#[derive(Clone, Copy)]
pub(crate) struct RowsLeft<'a, const ROWS: usize>(pub [&'a [f32]; ROWS]);

impl<const ROWS: usize> Left for RowsLeft<'_, ROWS> {
    #[inline(always)]
    fn at(self, row: usize, input: usize) -> f32 {
        self.0[row][input]
    }
}

/// One run: sums over `length` inputs (at most [`RUN`]) beginning at 0. `panels` begin at the left side's input 0.
#[inline(always)]
pub(crate) fn run<S: Simd, W: Weight, L: Left, const ROWS: usize, const PANELS: usize>(
    simd: S,
    left: L,
    panels: [&[W::Group]; PANELS],
    length: usize,
) -> [[S::Vector; PANELS]; ROWS] {
    let mut sums = [[simd.splat(0.0); PANELS]; ROWS];
    let groups = length / W::GROUP;
    let panels = panels.map(|panel| &panel[..length.div_ceil(W::GROUP)]);
    for group in 0..groups {
        for step in 0..W::GROUP {
            add_input::<S, W, L, ROWS, PANELS>(simd, left, panels, group, step, &mut sums);
        }
    }
    if !length.is_multiple_of(W::GROUP) {
        add_input::<S, W, L, ROWS, PANELS>(simd, left, panels, groups, 0, &mut sums);
    }
    sums
}

/// Adds one input to all sums.
#[inline(always)]
fn add_input<S: Simd, W: Weight, L: Left, const ROWS: usize, const PANELS: usize>(
    simd: S,
    left: L,
    panels: [&[W::Group]; PANELS],
    group: usize,
    step: usize,
    sums: &mut [[S::Vector; PANELS]; ROWS],
) {
    let mut weights = [simd.splat(0.0); PANELS];
    for panel in 0..PANELS {
        weights[panel] = W::load(simd, &panels[panel][group], step);
    }
    for row in 0..ROWS {
        let factor = simd.splat(left.at(row, group * W::GROUP + step));
        for panel in 0..PANELS {
            sums[row][panel] = simd.fused(factor, weights[panel], sums[row][panel]);
        }
    }
}

/// A whole block of one panel: both runs at once, so that twice as many additions are in flight.
///
/// `rows` have [`BLOCK`] inputs. Returns the sums of the first and of the second run.
#[inline(always)]
pub(crate) fn two_runs<S: Simd, W: Weight, const ROWS: usize>(
    simd: S,
    rows: [&[f32]; ROWS],
    panel: &[W::Group],
) -> [[S::Vector; ROWS]; 2] {
    let mut sums = [[simd.splat(0.0); ROWS]; 2];
    let half = RUN / W::GROUP;
    let (first, second) = panel[..2 * half].split_at(half);
    let rows = rows.map(|row| row[..BLOCK].split_at(RUN));
    for group in 0..half {
        for step in 0..W::GROUP {
            let input = group * W::GROUP + step;
            let weights = [W::load(simd, &first[group], step), W::load(simd, &second[group], step)];
            for row in 0..ROWS {
                sums[0][row] = simd.fused(simd.splat(rows[row].0[input]), weights[0], sums[0][row]);
                sums[1][row] = simd.fused(simd.splat(rows[row].1[input]), weights[1], sums[1][row]);
            }
        }
    }
    sums
}
