//! Few rows by the panels of a weight: each panel is read once, from its begin to its end.

use super::{
    PANEL_OUTPUTS,
    panels::{self, BLOCK, RUN, Weight},
    tile::{self, RowsLeft},
};
use crate::{
    matrix::Matrix,
    simd::{Routine, Simd},
};

/// Few rows by panels: one panel after another, each read once from its begin to its end.
pub(super) struct Few<'a, 'o, W, const ROWS: usize> {
    /// The inputs of these panels.
    pub x: Matrix<'a>,
    pub panels: usize,
    pub elements: &'a [W],
    /// One slice a row, to which products are added.
    pub out: &'a mut [&'o mut [f32]],
}

impl<W: Weight, const ROWS: usize> Routine for Few<'_, '_, W, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, panels, elements, out } = self;
        let mut rows = [&[][..]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = x.row(row);
        }
        let mut panel = 0;
        // Rows too short for two runs at once: two panels keep as many additions in flight.
        while const { S::TILE_VECTORS > 1 } && rows[0].len() < BLOCK && panel + 2 <= panels {
            two_panels(simd, out, rows, elements, panel);
            panel += 2;
        }
        for panel in panel..panels {
            let mut weights = panels::groups(elements, x.columns(), panel);
            let first = panel * PANEL_OUTPUTS;
            let mut totals = [simd.splat(0.0); ROWS];
            for row in 0..ROWS {
                totals[row] = simd.load_partial(&out[row][first..]);
            }
            let mut rest = rows;
            while rest[0].len() >= BLOCK {
                let sums = tile::two_runs::<S, W, ROWS>(simd, rest, weights);
                for row in 0..ROWS {
                    totals[row] = simd.add(simd.add(totals[row], sums[0][row]), sums[1][row]);
                }
                weights = &weights[BLOCK / W::GROUP..];
                rest = tile::stretch(rest, BLOCK..rest[0].len());
            }
            while !rest[0].is_empty() {
                let length = rest[0].len().min(RUN);
                let left = RowsLeft(tile::stretch(rest, 0..length));
                let sums = tile::run::<S, W, _, ROWS, 1>(simd, left, [weights], length, 0);
                for row in 0..ROWS {
                    totals[row] = simd.add(totals[row], simd.load(&sums[row][0]));
                }
                weights = &weights[length.div_ceil(W::GROUP)..];
                rest = tile::stretch(rest, length..rest[0].len());
            }
            for row in 0..ROWS {
                simd.store_partial(totals[row], tile::at_most_a_vector(&mut out[row][first..]));
            }
        }
    }
}

/// Adds the products of few rows with two panels.
#[inline(always)]
fn two_panels<S: Simd, W: Weight, const ROWS: usize>(
    simd: S,
    out: &mut [&mut [f32]],
    rows: [&[f32]; ROWS],
    elements: &[W],
    panel: usize,
) {
    let panels = [panel, panel + 1].map(|panel| panels::groups(elements, rows[0].len(), panel));
    for first in (0..rows[0].len()).step_by(RUN) {
        let length = RUN.min(rows[0].len() - first);
        let mut left = rows;
        let mut weights = panels;
        for row in 0..ROWS {
            left[row] = &rows[row][first..first + length];
        }
        for panel in 0..2 {
            weights[panel] = &panels[panel][first / W::GROUP..];
        }
        let sums = tile::run::<S, W, _, ROWS, 2>(simd, RowsLeft(left), weights, length, 0);
        for row in 0..ROWS {
            for (index, sums) in sums[row].iter().enumerate() {
                let out = tile::at_most_a_vector(&mut out[row][(panel + index) * PANEL_OUTPUTS..]);
                simd.store_partial(simd.add(simd.load_partial(out), simd.load(sums)), out);
            }
        }
    }
}
