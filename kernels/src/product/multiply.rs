//! Cuts products into tasks; the products of rows of activations with a weight in panels, piece by piece.

use super::{
    Epilogue, PANEL_OUTPUTS, PanelPiece,
    shares::{Shares, outputs_of},
    task::{FEW_ROWS, Operand, Part, Start, Task},
    thin,
    tile::MOST_VECTORS,
};
use crate::{
    matrix::{Matrix, MatrixMut},
    simd::Instructions,
    threads,
};

/// Rows of a task, so that their run of inputs stays in the second-level cache.
const MOST_ROWS: usize = 240;

/// Rows of tasks are whole multiples of these: tiles of all instruction sets.
const TASK_ROWS: usize = 24;

/// Elements of a weight that is read again for each part of the rows.
const NEAR_ELEMENTS: usize = 384 << 10;

/// Rows of a task from which on a weight that is read again for each costs less than the products.
const LONG_ROWS: usize = 96;

/// Panels of a task of many rows, so that its outputs stay in the second-level cache.
const MOST_PANELS: usize = 48;

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
    if let [piece] = pieces
        && piece.inputs.len() == x.columns()
        && start == Start::Zero
        && thin::is_thin(x, &out)
    {
        return thin::thin_product(instructions, x, Operand::Panels(piece.elements), out, epilogue);
    }
    let panels = pieces.iter().map(|piece| piece.panels.len()).sum();
    let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
    // One row waits for its weight: that takes as long as to multiply it with two.
    let operations = rows.max(2) * depth * panels * PANEL_OUTPUTS;
    let cut = Cut::new(rows, depth, panels, threads::parts(operations, usize::MAX));
    let mut parts = Vec::new();
    for piece in pieces {
        for first in piece.panels.clone().step_by(cut.panels) {
            let range = first..piece.panels.end.min(first + cut.panels);
            parts.push(Part {
                operand: Operand::Panels(piece.elements_of(range.clone())),
                inputs: piece.inputs.clone(),
                panels: range.len(),
                first_output: first * PANEL_OUTPUTS,
            });
        }
    }
    run_parts(instructions, &cut, (x, &parts), out, start, epilogue);
}

/// Runs the tasks that parts are cut into, side by side if there are several.
pub(super) fn run_parts(
    instructions: Instructions,
    cut: &Cut,
    (x, parts): (Matrix<'_>, &[Part<'_>]),
    out: MatrixMut<'_>,
    start: Start,
    epilogue: Epilogue<'_>,
) {
    let [part] = parts else {
        let mut shares = cut.shares(parts, out);
        return run_all(instructions, cut.tasks(x, parts, &mut shares, start, epilogue));
    };
    // Tasks have whole rows: each lists its own, while the others do.
    let own = outputs_of(part.first_output, part.panels);
    let own = own.start..own.end.min(out.columns());
    threads::each_mut(out.into_blocks(cut.rows).enumerate().collect(), |(index, block)| {
        let mut rows: Vec<&mut [f32]> = block.reborrow().into_rows().map(|row| &mut row[own.clone()]).collect();
        let (first_row, part, out) = (*index * cut.rows, part.clone(), &mut rows[..]);
        instructions.run(&mut Task { x, first_row, part, out, start, epilogue });
    });
}

/// Runs tasks, side by side if there are several.
pub(super) fn run_all(instructions: Instructions, tasks: Vec<Task<'_, '_>>) {
    threads::each_mut(tasks, |task| instructions.run(task));
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

/// How a product is cut into tasks.
pub(super) struct Cut {
    /// Panels of a task.
    pub panels: usize,
    /// Rows of a task.
    pub rows: usize,
}

impl Cut {
    /// For a product of `rows` and `panels` that is to make about `parts` tasks.
    pub(super) fn new(rows: usize, depth: usize, panels: usize, parts: usize) -> Self {
        // Without inputs or outputs there is next to nothing to do.
        let parts = if depth == 0 { 1 } else { parts };
        if rows <= FEW_ROWS {
            return Self { panels: panels.div_ceil(parts).max(1), rows: rows.next_multiple_of(TASK_ROWS) };
        }
        let whole_columns =
            |parts: usize| panels.div_ceil(parts).next_multiple_of(MOST_VECTORS).clamp(MOST_VECTORS, MOST_PANELS);
        let rows_each = |parts: usize| {
            let each = rows.div_ceil(parts.max(rows.div_ceil(MOST_ROWS))).next_multiple_of(TASK_ROWS);
            // A short last task would read a whole weight for few rows.
            let leaves_few = each > LONG_ROWS && (1..each / 2).contains(&(rows % each));
            if leaves_few { each - TASK_ROWS } else { each }
        };
        // A weight that the second-level cache holds is read again by each part of the rows: these are shared out first, so that
        // rows of outputs are long. Of others panels are.
        let is_near = depth * panels * PANEL_OUTPUTS <= NEAR_ELEMENTS || rows_each(parts) >= LONG_ROWS;
        let (panels_each, rows_each) = if is_near {
            let rows_each = rows_each(parts);
            (whole_columns(parts.div_ceil(rows.div_ceil(rows_each))), rows_each)
        } else {
            let panels_each = whole_columns(parts);
            (panels_each, rows_each(parts.div_ceil(panels.div_ceil(panels_each).max(1))))
        };
        Self { panels: panels_each, rows: rows_each }
    }

    /// The tasks of `parts`, which are in order of outputs; `shares` of their outputs.
    pub(super) fn tasks<'a, 'o>(
        &self,
        x: Matrix<'a>,
        parts: &[Part<'a>],
        shares: &'a mut Shares<'o, f32>,
        start: Start,
        epilogue: Epilogue<'a>,
    ) -> Vec<Task<'a, 'o>> {
        let task = |(index, out)| {
            let (rows, part): (usize, usize) = (index / parts.len(), index % parts.len());
            Task { x, first_row: rows * self.rows, part: parts[part].clone(), out, start, epilogue }
        };
        shares.iter_mut().enumerate().map(task).collect()
    }

    /// The outputs of these parts.
    pub(super) fn shares<'a>(&self, parts: &[Part<'_>], out: MatrixMut<'a>) -> Shares<'a, f32> {
        Shares::new(self.rows, parts.iter().map(|part| outputs_of(part.first_output, part.panels)), out.into_rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_about_as_many_rows() {
        let rows = |rows: usize, parts: usize| Cut::new(rows, 1024, 64, parts).rows;
        assert_eq!([rows(512, 1), rows(1500, 1)], [192, 216], "3 and 7 tasks");
        assert_eq!(rows(3136, 8), 216, "240 would leave 16");
        assert_eq!([rows(240, 1), rows(241, 1)], [240, 144]);
        assert_eq!(rows(512, 8), 192, "long rows come before as many tasks");
    }
}
