//! Products of rows of activations with a weight in panels, piece by piece.

use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    Epilogue, PANEL_OUTPUTS, PanelElements, PanelPiece,
    panels::Weight,
    tile::{self, BLOCK, RUN, RowsLeft},
};
use crate::kernels::{
    matrix::{Matrix, MatrixMut},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Up to this many rows a product is bound by reading the weight: panels are read one at a time, in order.
const FEW_ROWS: usize = 4;

/// Up to this many tiles of rows, the weight is still read in order and converted in registers.
const SEVERAL_TILES: usize = 2;

/// Rows of a task, so that their run of inputs stays in the second-level cache.
const MOST_ROWS: usize = 240;

/// Panels of a task of many rows, so that its outputs stay in the second-level cache.
const MOST_PANELS: usize = 24;

/// The most vectors in a row of a tile on any instruction set.
const MOST_VECTORS: usize = 3;

/// Inputs between those that the first rows multiply and those they ask for.
const AHEAD: usize = 32;

/// What the reduction of the first inputs begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Zero: what the output held is overwritten.
    #[default]
    Zero,
    /// What the output holds.
    Output,
}

/// `out[m, n] (+)= x[m, k] · w[k, n]`, as far as `pieces` of `w` reach.
///
/// The first piece of a panel (inputs from 0) begins as `start` says, later ones add to the output, the last one
/// (inputs to k) is followed by the epilogue. `pieces` are in order of panels, and none has a panel twice; pieces of the same panel
/// come in separate calls, in order of inputs. A weight without inputs (k = 0) still needs a piece, with no elements.
///
/// # Panics
/// If shapes disagree.
pub fn panels_product(
    instructions: Instructions,
    x: Matrix<'_>,
    pieces: &[PanelPiece<'_>],
    out: MatrixMut<'_>,
    start: Start,
    epilogue: Epilogue<'_>,
) {
    check(x, pieces, &out, epilogue);
    let rows = x.rows();
    if rows == 0 || out.columns() == 0 {
        return;
    }
    let tasks = split(x, pieces, out, start, epilogue);
    if tasks.len() == 1 {
        return tasks.into_iter().for_each(|task| instructions.run(task));
    }
    tasks.into_par_iter().with_max_len(1).for_each(|task| instructions.run(task));
}

/// Panics if shapes disagree.
fn check(x: Matrix<'_>, pieces: &[PanelPiece<'_>], out: &MatrixMut<'_>, epilogue: Epilogue<'_>) {
    assert_eq!(x.rows(), out.rows(), "a product's rows");
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), out.columns(), "a bias is one value for each output");
    }
    let mut next = 0;
    for piece in pieces {
        assert!(next <= piece.panels.start, "panels {:?} after panel {next}", piece.panels);
        piece.check(x.columns(), out.columns().div_ceil(PANEL_OUTPUTS));
        next = piece.panels.end;
    }
}

/// A part of a product: some panels of a piece, some rows.
struct Task<'a> {
    x: Matrix<'a>,
    first_row: usize,
    elements: PanelElements<'a>,
    inputs: Range<usize>,
    panels: usize,
    first_output: usize,
    /// The outputs of these panels, row by row.
    out: Vec<&'a mut [f32]>,
    start: Start,
    epilogue: Epilogue<'a>,
}

/// Cuts a product into tasks with outputs of their own.
fn split<'a>(
    x: Matrix<'a>,
    pieces: &[PanelPiece<'a>],
    out: MatrixMut<'a>,
    start: Start,
    epilogue: Epilogue<'a>,
) -> Vec<Task<'a>> {
    let (rows, columns) = (x.rows(), out.columns());
    let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
    let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
    let parts = threads::parts(rows * depth * panels * PANEL_OUTPUTS, usize::MAX);
    // Panels are shared out first, as every part of the rows reads them again.
    let panels_each = if rows <= FEW_ROWS {
        panels.div_ceil(parts).max(1)
    } else {
        panels.div_ceil(parts).next_multiple_of(MOST_VECTORS).clamp(MOST_VECTORS, MOST_PANELS)
    };
    let column_parts = panels.div_ceil(panels_each).max(1);
    let rows_each = rows.div_ceil(parts.div_ceil(column_parts)).next_multiple_of(24).min(MOST_ROWS);

    let mut row_parts: Vec<Vec<Task<'a>>> = Vec::new();
    for first_row in (0..rows).step_by(rows_each) {
        let mut tasks = Vec::new();
        for piece in pieces {
            for first in piece.panels.clone().step_by(panels_each) {
                let range = first..piece.panels.end.min(first + panels_each);
                tasks.push(Task {
                    x,
                    first_row,
                    elements: piece.elements_of(range.clone()),
                    inputs: piece.inputs.clone(),
                    panels: range.len(),
                    first_output: first * PANEL_OUTPUTS,
                    out: Vec::with_capacity(rows_each.min(rows - first_row)),
                    start,
                    epilogue,
                });
            }
        }
        row_parts.push(tasks);
    }
    for (row, mut outputs) in out.into_rows().enumerate() {
        let tasks = &mut row_parts[row / rows_each];
        let mut place = 0;
        for task in tasks {
            let count = task.panels * PANEL_OUTPUTS;
            let (_, rest) = outputs.split_at_mut(task.first_output - place);
            let (own, rest) = rest.split_at_mut(count.min(rest.len()));
            place = task.first_output + own.len();
            task.out.push(own);
            outputs = rest;
        }
        debug_assert!(place <= columns);
    }
    row_parts.into_iter().flatten().collect()
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        match self.elements {
            PanelElements::F32(elements) => self.multiply::<S, f32>(simd, elements),
            PanelElements::F16(elements) => self.multiply::<S, f16>(simd, elements),
            PanelElements::Bf16(elements) => self.multiply::<S, bf16>(simd, elements),
        }
        if self.inputs.end == self.x.columns() && !self.epilogue.is_empty() {
            for outputs in &mut self.out {
                self.epilogue.apply(simd, self.first_output, outputs);
            }
        }
    }
}

impl Task<'_> {
    /// The product by element type of the weight.
    #[inline(always)]
    fn multiply<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        if self.start == Start::Zero && self.inputs.start == 0 {
            self.out.iter_mut().for_each(|outputs| outputs.fill(0.0));
        }
        match self.out.len() {
            1 => self.few::<S, W, 1>(simd, elements),
            2 => self.few::<S, W, 2>(simd, elements),
            3 => self.few::<S, W, 3>(simd, elements),
            FEW_ROWS => self.few::<S, W, FEW_ROWS>(simd, elements),
            rows if rows <= SEVERAL_TILES * S::TILE_ROWS => self.several::<S, W>(simd, elements),
            _ => self.many::<S, W>(simd, elements),
        }
    }

    /// The elements of one panel, in groups.
    #[inline(always)]
    fn panel<'e, W: Weight>(&self, elements: &'e [W], panel: usize) -> &'e [W::Group] {
        let length = self.inputs.len().next_multiple_of(W::GROUP) * PANEL_OUTPUTS;
        W::groups(&elements[panel * length..][..length])
    }

    /// Few rows: one panel after another, each read once from its begin to its end.
    #[inline(always)]
    fn few<S: Simd, W: Weight, const ROWS: usize>(&mut self, simd: S, elements: &[W]) {
        let mut rows = [&[][..]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = &self.x.row(self.first_row + row)[self.inputs.clone()];
        }
        for panel in 0..self.panels {
            let mut weights = self.panel(elements, panel);
            let first = panel * PANEL_OUTPUTS;
            let mut totals = [simd.splat(0.0); ROWS];
            for row in 0..ROWS {
                totals[row] = simd.load_partial(&self.out[row][first..]);
            }
            let mut rest = rows;
            while rest[0].len() >= BLOCK {
                let sums = tile::two_runs::<S, W, ROWS>(simd, rest, weights);
                for row in 0..ROWS {
                    totals[row] = simd.add(simd.add(totals[row], sums[0][row]), sums[1][row]);
                }
                weights = &weights[BLOCK / W::GROUP..];
                rest = rest.map(|row| &row[BLOCK..]);
            }
            while !rest[0].is_empty() {
                let length = rest[0].len().min(RUN);
                let left = RowsLeft(rest.map(|row| &row[..length]));
                let sums = tile::run::<S, W, _, ROWS, 1>(simd, left, [weights], length, 0);
                for row in 0..ROWS {
                    totals[row] = simd.add(totals[row], simd.load(&sums[row][0]));
                }
                weights = &weights[length.div_ceil(W::GROUP)..];
                rest = rest.map(|row| &row[length..]);
            }
            for row in 0..ROWS {
                simd.store_partial(totals[row], tile::at_most_a_vector(&mut self.out[row][first..]));
            }
        }
    }

    /// More rows, but so few that reading the weight counts: three panels after another, each to its end.
    #[inline(always)]
    fn several<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        for first_panel in (0..self.panels).step_by(S::TILE_VECTORS) {
            let panels = S::TILE_VECTORS.min(self.panels - first_panel);
            for first_input in (0..self.inputs.len()).step_by(RUN) {
                let length = RUN.min(self.inputs.len() - first_input);
                let mut weights = [&[][..]; MOST_VECTORS];
                for (panel, weights) in weights[..panels].iter_mut().enumerate() {
                    *weights = &self.panel(elements, first_panel + panel)[first_input / W::GROUP..];
                }
                let first = self.inputs.start + first_input;
                let x = self.x.part(self.first_row, self.out.len(), first..first + length);
                self.column_of_tiles::<S, W>(simd, x, first_panel * PANEL_OUTPUTS, &weights[..panels], AHEAD);
            }
        }
    }

    /// Many rows: a run of inputs of three panels stays in the first-level cache while all rows pass by, and the rows' inputs
    /// stay in the second-level cache for all panels.
    #[inline(always)]
    fn many<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        let rows = self.out.len();
        let mut near = vec![0.0; rows * RUN];
        let mut wide = [[[0.0; LANES]; RUN]; MOST_VECTORS];
        for first_input in (0..self.inputs.len()).step_by(RUN) {
            let length = RUN.min(self.inputs.len() - first_input);
            let first = self.inputs.start + first_input;
            let far = self.x.part(self.first_row, rows, first..first + length);
            for (row, near) in near.chunks_mut(RUN).enumerate() {
                near[..length].copy_from_slice(far.row(row));
            }
            let x = Matrix::with_stride(&near, rows, length, RUN);
            for first_panel in (0..self.panels).step_by(S::TILE_VECTORS) {
                let panels = S::TILE_VECTORS.min(self.panels - first_panel);
                for (panel, wide) in wide[..panels].iter_mut().enumerate() {
                    let groups = &self.panel(elements, first_panel + panel)[first_input / W::GROUP..];
                    tile::widen_panel::<S, W>(simd, groups, &mut wide[..length]);
                }
                let weights = [&wide[0][..length], &wide[1][..length], &wide[2][..length]];
                self.column_of_tiles::<S, f32>(simd, x, first_panel * PANEL_OUTPUTS, &weights[..panels], 0);
            }
        }
    }

    /// Adds the product of all rows of `x` (one run of inputs) and up to three panels. The first rows ask for the inputs
    /// that lie `ahead`.
    #[inline(always)]
    fn column_of_tiles<S: Simd, W: Weight>(
        &mut self,
        simd: S,
        x: Matrix<'_>,
        first_output: usize,
        weights: &[&[W::Group]],
        ahead: usize,
    ) {
        let mut row = 0;
        while row < x.rows() {
            let place = (row, first_output);
            let ahead = if row == 0 { ahead } else { 0 };
            let rows = tile::tile_rows::<S>(x.rows() - row);
            match rows {
                8 if S::TILE_ROWS == 8 => self.row_of_tiles::<S, W, 8>(simd, x, place, weights, ahead),
                6 if S::TILE_ROWS == 6 => self.row_of_tiles::<S, W, 6>(simd, x, place, weights, ahead),
                4 => self.row_of_tiles::<S, W, 4>(simd, x, place, weights, ahead),
                2 => self.row_of_tiles::<S, W, 2>(simd, x, place, weights, ahead),
                _ => self.row_of_tiles::<S, W, 1>(simd, x, place, weights, ahead),
            }
            row += rows;
        }
    }

    /// A few rows by up to three panels.
    #[inline(always)]
    fn row_of_tiles<S: Simd, W: Weight, const ROWS: usize>(
        &mut self,
        simd: S,
        x: Matrix<'_>,
        (row, first_output): (usize, usize),
        weights: &[&[W::Group]],
        ahead: usize,
    ) {
        let mut left = [&[][..]; ROWS];
        for (index, left) in left.iter_mut().enumerate() {
            *left = x.row(row + index);
        }
        let (left, length) = (RowsLeft(left), x.columns());
        let out = &mut self.out[row..row + ROWS];
        if let (3, &[first, second, third]) = (S::TILE_VECTORS, weights) {
            return tile::add::<S, W, _, ROWS, 3>(simd, left, [first, second, third], length, out, first_output, ahead);
        }
        for (panel, weights) in weights.iter().enumerate() {
            let first_output = first_output + panel * PANEL_OUTPUTS;
            tile::add::<S, W, _, ROWS, 1>(simd, left, [weights], length, out, first_output, ahead);
        }
    }
}
