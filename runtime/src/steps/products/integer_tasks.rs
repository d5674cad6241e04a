//! How integer products are cut into tasks, each of which completes its sums and runs the program over them.

use crate::steps::KernelError;
use ipuc_formats::element::Element;
use ipuc_formats::tensor::{TensorError, element_count, filled};
use ipuc_kernels::product::{IntegerPiece, PANEL_OUTPUTS, Shares};
use ipuc_kernels::team::count;
use ipuc_kernels::threads::parts;
use std::ops::Range;

/// Bytes of left operands that a task multiplies.
pub(super) const OPERAND_BYTES: usize = 1 << 18;

/// Sums of a task.
const TASK_SUMS: usize = 1 << 17;

/// Rows of a task, about, where there are so many: at least half of them.
pub(super) const FEWEST_ROWS: usize = 64;

/// The same where results lie row by row.
const FEWEST_LONG_ROWS: usize = 32;

/// Panels of a task whose results lie row by row, at least, where there are so many: shorter rows cost as much to begin as to finish.
const FEWEST_PANELS: usize = 16;

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
        let (matrices, inputs) = (matrices.max(1), inputs.max(1));
        let panels = panels_of(pieces);
        let outputs = panels * PANEL_OUTPUTS;
        let operations = matrices.saturating_mul(rows).saturating_mul(inputs).saturating_mul(outputs);
        let wanted = parts(operations, usize::MAX);
        let most = (OPERAND_BYTES / inputs).min(TASK_SUMS / outputs.max(1)).max(FEWEST_ROWS);
        let of_matrix = wanted.div_ceil(matrices);
        let each = rows.div_ceil(of_matrix).max(FEWEST_ROWS).min(most);
        // About as many in each task.
        let each = rows.div_ceil(rows.div_ceil(each).max(1)).max(1).next_multiple_of(unit);
        // Few rows: they are multiplied by each part of the outputs, all at once where the parts are enough work.
        let sums = rows.saturating_mul(panels.div_ceil(of_matrix) * PANEL_OUTPUTS);
        let at_once = rows < FEWEST_ROWS * of_matrix
            && panels >= of_matrix
            && rows.saturating_mul(inputs) <= OPERAND_BYTES
            && sums <= TASK_SUMS;
        let each = if at_once { rows.max(1).next_multiple_of(unit) } else { each };
        let among = wanted.div_ceil((matrices * rows.div_ceil(each)).max(1)).min(panels).max(1);
        Cut { rows: each, outputs: in_parts(pieces, panels.div_ceil(among)) }
    }

    /// The same for one matrix whose results lie row by row: each thread has rows of its own, where there are many, and long ones.
    pub(super) fn of_rows(rows: usize, unit: usize, inputs: usize, pieces: &[IntegerPiece<'w>]) -> Cut<'w> {
        let (panels, threads) = (panels_of(pieces), count());
        let outputs = (panels * PANEL_OUTPUTS).max(1);
        let wanted = parts(rows.saturating_mul(inputs).saturating_mul(outputs), usize::MAX);
        let blocks = (rows / FEWEST_LONG_ROWS).clamp(1, wanted);
        let blocks = if blocks > threads { blocks - blocks % threads } else { blocks };
        let most = (OPERAND_BYTES / inputs.max(1)).min(TASK_SUMS / outputs).max(FEWEST_LONG_ROWS);
        let each = rows.div_ceil(blocks).clamp(1, most).next_multiple_of(unit);
        let blocks = rows.div_ceil(each).max(1);
        let among = wanted.div_ceil(blocks).clamp(1, panels.max(1));
        // No thread is without a task for long rows.
        let fewest = if blocks > 1 { FEWEST_PANELS.min(panels.div_ceil(threads.div_ceil(blocks))) } else { 1 };
        Cut { rows: each, outputs: in_parts(pieces, panels.div_ceil(among).max(fewest)) }
    }

    /// The results of each task, of a matrix with so many columns of so many bytes.
    pub(super) fn shares<'a>(&self, out: &'a mut [u8], columns: usize, size: usize) -> Shares<'a, u8> {
        let parts = self.outputs.iter().map(|pieces| {
            let own = outputs_of(pieces, columns);
            own.start * size..own.end * size
        });
        Shares::new(self.rows, parts, out.chunks_mut(columns * size))
    }

    /// Which tasks of some rows have this panel; `None` where it comes in another call.
    pub(super) fn part_of(&self, panel: usize) -> Option<usize> {
        self.outputs.iter().position(|pieces| pieces.iter().any(|piece| piece.panels.contains(&panel)))
    }
}

/// The outputs of pieces, which are in order, of a matrix of so many columns: from the first to the last.
pub(super) fn outputs_of(pieces: &[IntegerPiece<'_>], columns: usize) -> Range<usize> {
    let first = pieces.first().map_or(0, |piece| piece.panels.start * PANEL_OUTPUTS);
    let end = pieces.last().map_or(0, |piece| piece.panels.end * PANEL_OUTPUTS);
    first..columns.min(end)
}

pub(super) fn panels_of(pieces: &[IntegerPiece<'_>]) -> usize {
    pieces.iter().map(|piece| piece.panels.len()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_kernels::product::IntegerLine;
    use ipuc_kernels::testing::with_threads;

    /// Rows of a task and panels of each part of the outputs, of 256 inputs by 256 outputs.
    fn cut(threads: usize, rows: usize) -> (usize, Vec<usize>) {
        let lines: Vec<IntegerLine> = vec![[0; 64]; 16 * 64];
        let piece = IntegerPiece { panels: 0..16, inputs: 0..256, lines: &lines };
        let cut = with_threads(threads, || Cut::of_rows(rows, ROWS_UNIT, 256, &[piece]));
        (cut.rows, cut.outputs.iter().map(|pieces| panels_of(pieces)).collect())
    }

    #[test]
    fn each_thread_has_as_many_rows_as_the_others_and_long_ones() {
        assert_eq!(cut(2, 72), (40, vec![16]));
        assert_eq!(cut(2, 96), (48, vec![16]));
        assert_eq!(cut(2, 128), (32, vec![16]));
        // Fewer rows than threads could take: parts of the outputs.
        assert_eq!(cut(4, 72), (40, vec![8, 8]));
        assert_eq!(cut(2, 16), (16, vec![2; 8]));
        assert_eq!(cut(1, 128), (128, vec![16]));
    }
}
