//! How integer products are cut into tasks, each of which completes its sums and runs the program over them.

use crate::steps::KernelError;
use ipuc_formats::element::Element;
use ipuc_formats::tensor::{TensorError, element_count, filled};
use ipuc_kernels::product::{IntegerPiece, PANEL_OUTPUTS};
use ipuc_kernels::threads::parts;

/// Bytes of left operands that a task multiplies.
pub(super) const OPERAND_BYTES: usize = 1 << 18;

/// Sums of a task.
const TASK_SUMS: usize = 1 << 17;

/// Rows of a task, at least, where there are so many.
pub(super) const FEWEST_ROWS: usize = 64;

/// The same where results lie row by row and the weights are near: results of a few outputs at a time would cost more than weights that
/// each task reads again.
const FEWEST_LONG_ROWS: usize = 16;

/// Rows at whose multiples operands of vectors are cut.
pub(super) const ROWS_UNIT: usize = 8;

/// How a product is cut: all parts of the outputs for the first rows, then all for the next.
pub(super) struct Cut<'w> {
    /// Rows of a task, but the last of a matrix.
    pub(super) rows: usize,
    /// Pieces of the outputs of tasks of the same rows.
    pub(super) outputs: Vec<Vec<IntegerPiece<'w>>>,
}

impl<'w> Cut<'w> {
    /// For `matrices` of `rows` of `inputs`, cut at multiples of `unit`, times what these pieces hold.
    pub(super) fn new(
        matrices: usize,
        rows: usize,
        unit: usize,
        inputs: usize,
        pieces: &[IntegerPiece<'w>],
    ) -> Cut<'w> {
        Cut::with_rows(FEWEST_ROWS, matrices, rows, unit, inputs, pieces)
    }

    /// The same for one matrix whose results lie row by row.
    pub(super) fn of_rows(rows: usize, unit: usize, inputs: usize, pieces: &[IntegerPiece<'w>]) -> Cut<'w> {
        let outputs = pieces.iter().map(|piece| piece.panels.len()).sum::<usize>() * PANEL_OUTPUTS;
        let fewest = if inputs.saturating_mul(outputs) <= OPERAND_BYTES { FEWEST_LONG_ROWS } else { FEWEST_ROWS };
        Cut::with_rows(fewest, 1, rows, unit, inputs, pieces)
    }

    /// With `fewest` rows in a task, where there are so many.
    fn with_rows(
        fewest: usize,
        matrices: usize,
        rows: usize,
        unit: usize,
        inputs: usize,
        pieces: &[IntegerPiece<'w>],
    ) -> Cut<'w> {
        let (matrices, inputs) = (matrices.max(1), inputs.max(1));
        let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
        let outputs = panels * PANEL_OUTPUTS;
        let operations = matrices.saturating_mul(rows).saturating_mul(inputs).saturating_mul(outputs);
        let wanted = parts(operations, usize::MAX);
        let most = (OPERAND_BYTES / inputs).min(TASK_SUMS / outputs.max(1)).max(fewest);
        let of_matrix = wanted.div_ceil(matrices);
        let each = rows.div_ceil(of_matrix).max(fewest).min(most).next_multiple_of(unit);
        // Few rows: they are multiplied by each part of the outputs, all at once where the parts are enough work.
        let sums = rows.saturating_mul(panels.div_ceil(of_matrix) * PANEL_OUTPUTS);
        let at_once = rows < fewest * of_matrix
            && panels >= of_matrix
            && rows.saturating_mul(inputs) <= OPERAND_BYTES
            && sums <= TASK_SUMS;
        let each = if at_once { rows.max(1).next_multiple_of(unit) } else { each };
        let among = wanted.div_ceil((matrices * rows.div_ceil(each)).max(1)).min(panels).max(1);
        let panels_each = panels.div_ceil(among);
        Cut { rows: each, outputs: in_parts(pieces, panels_each) }
    }

    /// Which tasks of some rows have this panel; `None` where it comes in another call.
    pub(super) fn part_of(&self, panel: usize) -> Option<usize> {
        self.outputs.iter().position(|pieces| pieces.iter().any(|piece| piece.panels.contains(&panel)))
    }
}

/// Pieces cut into parts of at most so many panels.
pub(super) fn in_parts<'w>(pieces: &[IntegerPiece<'w>], most: usize) -> Vec<Vec<IntegerPiece<'w>>> {
    let mut parts: Vec<Vec<IntegerPiece<'w>>> = vec![Vec::new()];
    let mut room = most;
    for piece in pieces {
        let lines = piece.lines.len() / piece.panels.len().max(1);
        let mut panel = piece.panels.start;
        while panel < piece.panels.end {
            if room == 0 {
                parts.push(Vec::new());
                room = most;
            }
            let end = piece.panels.end.min(panel.saturating_add(room));
            let own = (panel - piece.panels.start) * lines..(end - piece.panels.start) * lines;
            let part = IntegerPiece { panels: panel..end, lines: &piece.lines[own], ..piece.clone() };
            parts.last_mut().into_iter().for_each(|own| own.push(part.clone()));
            room -= end - panel;
            panel = end;
        }
    }
    parts
}

/// Zeros for the sums of a result of this shape.
pub(super) fn sums_of<T: Element>(shape: &[usize]) -> Result<Vec<T>, KernelError> {
    let too_large = || TensorError::TooLarge { dtype: T::DTYPE, shape: shape.to_vec() };
    Ok(filled(T::zeroed(), element_count(shape).ok_or_else(too_large)?)?)
}
