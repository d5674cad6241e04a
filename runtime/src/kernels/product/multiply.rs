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

/// Panels of a block of inputs that stay in the second-level cache while rows pass by.
const CACHED_PANELS: usize = 12;

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
    let panels = out.columns().div_ceil(PANEL_OUTPUTS);
    let mut next = 0;
    for piece in pieces {
        let (first, end) = (piece.inputs.start, piece.inputs.end);
        assert!(
            next <= piece.panels.start && piece.panels.start <= piece.panels.end && piece.panels.end <= panels,
            "panels {:?} after panel {next} of {panels}",
            piece.panels
        );
        assert!(
            first <= end
                && end <= x.columns()
                && first.is_multiple_of(BLOCK)
                && (end.is_multiple_of(BLOCK) || end == x.columns()),
            "inputs {first}..{end} of {} are not cut at multiples of {BLOCK}",
            x.columns()
        );
        assert_eq!(piece.elements.len(), piece.panels.len() * piece.panel_length(), "elements of a piece");
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
        panels.div_ceil(parts).next_multiple_of(3).clamp(3, 4 * CACHED_PANELS)
    };
    let column_parts = panels.div_ceil(panels_each).max(1);
    let rows_each = rows.div_ceil(parts.div_ceil(column_parts)).next_multiple_of(24);

    let mut row_parts: Vec<Vec<Task<'a>>> = Vec::new();
    for first_row in (0..rows).step_by(rows_each) {
        let mut tasks = Vec::new();
        for piece in pieces {
            for first in piece.panels.clone().step_by(panels_each) {
                let range = first..piece.panels.end.min(first + panels_each);
                tasks.push(Task {
                    x,
                    first_row,
                    elements: panels_of(piece, range.clone()),
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

/// The elements of some panels of a piece.
fn panels_of<'a>(piece: &PanelPiece<'a>, panels: Range<usize>) -> PanelElements<'a> {
    let length = piece.panel_length();
    let range = (panels.start - piece.panels.start) * length..(panels.end - piece.panels.start) * length;
    match piece.elements {
        PanelElements::F32(elements) => PanelElements::F32(&elements[range]),
        PanelElements::F16(elements) => PanelElements::F16(&elements[range]),
        PanelElements::Bf16(elements) => PanelElements::Bf16(&elements[range]),
    }
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
                let sums = tile::run::<S, W, _, ROWS, 1>(simd, left, [weights], length);
                for row in 0..ROWS {
                    totals[row] = simd.add(totals[row], sums[row][0]);
                }
                weights = &weights[length.div_ceil(W::GROUP)..];
                rest = rest.map(|row| &row[length..]);
            }
            for row in 0..ROWS {
                simd.store_partial(totals[row], tail_mut(&mut self.out[row][first..]));
            }
        }
    }

    /// Many rows: a block of inputs of some panels stays in the cache while all rows pass by.
    #[inline(always)]
    fn many<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        let scratch_inputs = if W::NARROW { BLOCK } else { 0 };
        let mut scratch = vec![[0.0; LANES]; CACHED_PANELS.min(self.panels) * scratch_inputs];
        for first_panel in (0..self.panels).step_by(CACHED_PANELS) {
            let panels = CACHED_PANELS.min(self.panels - first_panel);
            for first_input in (0..self.inputs.len()).step_by(BLOCK) {
                let inputs = BLOCK.min(self.inputs.len() - first_input);
                let mut weights = [&[][..]; CACHED_PANELS];
                let mut unused = &mut scratch[..];
                for (panel, weights) in weights[..panels].iter_mut().enumerate() {
                    let (own, rest) = unused.split_at_mut(scratch_inputs);
                    let groups = &self.panel(elements, first_panel + panel)[first_input / W::GROUP..];
                    *weights = W::widen(simd, groups, inputs, own);
                    unused = rest;
                }
                self.block(simd, first_panel, first_input, &weights[..panels]);
            }
        }
    }

    /// Adds the product of all rows with one block of inputs of some panels.
    #[inline(always)]
    fn block<S: Simd>(&mut self, simd: S, first_panel: usize, first_input: usize, weights: &[&[[f32; LANES]]]) {
        let mut row = 0;
        while row < self.out.len() {
            let rows = tile_rows::<S>(self.out.len() - row);
            let place = (row, first_panel, first_input);
            match rows {
                8 if S::TILE_ROWS == 8 => self.row_of_tiles::<S, 8>(simd, place, weights),
                6 if S::TILE_ROWS == 6 => self.row_of_tiles::<S, 6>(simd, place, weights),
                4 => self.row_of_tiles::<S, 4>(simd, place, weights),
                2 => self.row_of_tiles::<S, 2>(simd, place, weights),
                _ => self.row_of_tiles::<S, 1>(simd, place, weights),
            }
            row += rows;
        }
    }

    /// A few rows by some panels.
    #[inline(always)]
    fn row_of_tiles<S: Simd, const ROWS: usize>(
        &mut self,
        simd: S,
        (row, first_panel, first_input): (usize, usize, usize),
        weights: &[&[[f32; LANES]]],
    ) {
        let mut left = [&[][..]; ROWS];
        for (index, left) in left.iter_mut().enumerate() {
            *left = &self.x.row(self.first_row + row + index)[self.inputs.clone()][first_input..];
        }
        let out = &mut self.out[row..row + ROWS];
        let mut panel = 0;
        if S::TILE_VECTORS == 3 {
            while panel + 3 <= weights.len() {
                let panels = [weights[panel], weights[panel + 1], weights[panel + 2]];
                tile_block::<S, ROWS, 3>(simd, left, panels, out, (first_panel + panel) * PANEL_OUTPUTS);
                panel += 3;
            }
        }
        while panel < weights.len() {
            tile_block::<S, ROWS, 1>(simd, left, [weights[panel]], out, (first_panel + panel) * PANEL_OUTPUTS);
            panel += 1;
        }
    }
}

/// The rows of the next tile, if `left` rows are left.
#[inline(always)]
fn tile_rows<S: Simd>(left: usize) -> usize {
    [S::TILE_ROWS, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1)
}

/// One tile over a block of inputs, added to the outputs that begin at `first` in each row.
#[inline(always)]
fn tile_block<S: Simd, const ROWS: usize, const PANELS: usize>(
    simd: S,
    left: [&[f32]; ROWS],
    panels: [&[[f32; LANES]]; PANELS],
    out: &mut [&mut [f32]],
    first: usize,
) {
    for input in (0..panels[0].len()).step_by(RUN) {
        let length = RUN.min(panels[0].len() - input);
        let rows = RowsLeft(left.map(|row| &row[input..][..length]));
        let weights = panels.map(|panel| &panel[input..]);
        let sums = tile::run::<S, f32, _, ROWS, PANELS>(simd, rows, weights, length);
        for (out, sums) in out.iter_mut().zip(&sums) {
            for (panel, &sum) in sums.iter().enumerate() {
                let outputs = tail_mut(&mut out[first + panel * LANES..]);
                let total = simd.load_partial(outputs);
                simd.store_partial(simd.add(total, sum), outputs);
            }
        }
    }
}

/// The first 16 values, or as many as there are.
#[inline(always)]
fn tail_mut(values: &mut [f32]) -> &mut [f32] {
    let count = values.len().min(LANES);
    &mut values[..count]
}
