//! Products of many rows with one panel of few inputs: the panel stays in the first-level cache, and rows of outputs that are
//! shorter than a vector are written as whole ones, of which the next row overwrites what is not its own.
//!
//! The order of the sums is that of `product`.

use super::{
    Epilogue, PANEL_OUTPUTS,
    panels::{Panels, RUN},
    task::Operand,
};
use crate::{
    matrix::{Matrix, MatrixMut},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Rows from which on it pays.
const LEAST_ROWS: usize = 64;

/// Rows that are summed at once.
const ROWS_AT_ONCE: usize = 8;

/// Whether a product of this shape, with all of its inputs, is computed here.
pub(super) fn is_thin(x: Matrix<'_>, out: &MatrixMut<'_>) -> bool {
    let (inputs, outputs) = (x.columns(), out.columns());
    (1..=RUN).contains(&inputs) && outputs <= PANEL_OUTPUTS && x.rows() >= LEAST_ROWS && out.is_dense()
}

/// `out = x · w`, then the epilogue; `operand` has all inputs of the outputs.
pub(super) fn thin_product(
    instructions: Instructions,
    x: Matrix<'_>,
    operand: Operand<'_>,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
) {
    let (rows, outputs) = (out.rows(), out.columns());
    let mut panel = vec![[0.0; LANES]; x.columns().min(RUN)];
    instructions.run(Fill { operand, panel: &mut panel });
    let rows_each = rows.div_ceil(threads::parts(rows * x.columns() * PANEL_OUTPUTS, usize::MAX));
    let rows_each = rows_each.next_multiple_of(ROWS_AT_ONCE);
    let tasks = out.into_dense().chunks_mut(rows_each * outputs).enumerate().collect();
    threads::each(tasks, |(part, out): (usize, &mut [f32])| {
        let x = x.part(part * rows_each, out.len() / outputs, 0..x.columns());
        instructions.run(Thin { x, first_row: part * rows_each, panel: &panel, outputs, out, epilogue });
    });
}

/// Lays the right side out as one panel of f32.
struct Fill<'a> {
    operand: Operand<'a>,
    panel: &'a mut [[f32; LANES]],
}

impl Routine for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Fill { operand, panel } = self;
        match operand {
            Operand::Panels(elements) => Panels::new(elements, panel.len()).fill(simd, 0, 0..panel.len(), panel),
            Operand::Plain(matrix) => matrix.fill_panel(simd, 0, 0..panel.len(), panel),
            Operand::Coded(weight) => weight.decode(simd, 0, 0, panel),
        }
    }
}

/// Some rows.
struct Thin<'a> {
    x: Matrix<'a>,
    first_row: usize,
    panel: &'a [[f32; LANES]],
    outputs: usize,
    out: &'a mut [f32],
    epilogue: Epilogue<'a>,
}

impl Routine for Thin<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let rows = self.x.rows();
        let whole = rows / ROWS_AT_ONCE * ROWS_AT_ONCE;
        for row in (0..whole).step_by(ROWS_AT_ONCE) {
            self.rows::<S, ROWS_AT_ONCE>(simd, row);
        }
        for row in whole..rows {
            self.rows::<S, 1>(simd, row);
        }
        if !self.epilogue.is_empty() {
            let mut rows: Vec<&mut [f32]> = self.out.chunks_exact_mut(self.outputs).collect();
            self.epilogue.apply_to_rows(simd, self.first_row, 0, &mut rows);
        }
    }
}

impl Thin<'_> {
    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize>(&mut self, simd: S, first: usize) {
        let inputs = self.panel.len();
        let mut left = [&[][..]; ROWS];
        for row in 0..ROWS {
            left[row] = &self.x.row(first + row)[..inputs];
        }
        let mut sums = [simd.splat(0.0); ROWS];
        for (input, weights) in self.panel.iter().enumerate() {
            let weights = simd.load(weights);
            for row in 0..ROWS {
                sums[row] = simd.fused(simd.splat(left[row][input]), weights, sums[row]);
            }
        }
        for row in 0..ROWS {
            let out = &mut self.out[(first + row) * self.outputs..];
            let sum = simd.add(simd.splat(0.0), sums[row]);
            match out.first_chunk_mut() {
                Some(full) => simd.store(sum, full),
                None => simd.store_partial(sum, &mut out[..self.outputs]),
            }
        }
    }
}
