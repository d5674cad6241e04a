//! Rows of outputs, cut among tasks.

use std::ops::Range;

use super::PANEL_OUTPUTS;

/// The outputs of tasks, which are in order of outputs: of all parts for the first rows, then of all for the next. They are freed by
/// the thread that made them: two that free each other's memory wait for each other.
pub struct Shares<'a, T> {
    /// Row by row of each task.
    outputs: Vec<&'a mut [T]>,
    /// Rows of a task, and parts.
    rows: usize,
    parts: usize,
}

impl<'a, T> Shares<'a, T> {
    /// Of parts, which are ranges of each row in order, `rows_each` rows at a time. A range may reach behind the end of a row.
    ///
    /// # Panics
    /// If parts are not in order, or one begins behind the end of a row.
    pub fn new(
        rows_each: usize,
        parts: impl ExactSizeIterator<Item = Range<usize>> + Clone,
        rows: impl Iterator<Item = &'a mut [T]>,
    ) -> Self {
        let mut by_row: Vec<&'a mut [T]> = Vec::new();
        let count = parts.len();
        for mut outputs in rows {
            let mut place = 0;
            for part in parts.clone() {
                let (_, rest) = outputs.split_at_mut(part.start - place);
                let (own, rest) = rest.split_at_mut(part.len().min(rest.len()));
                place = part.start + own.len();
                by_row.push(own);
                outputs = rest;
            }
        }
        let rows = by_row.len().checked_div(count).map_or(0, |rows| rows.min(rows_each));
        let mut shares = Self { outputs: by_row, rows, parts: count };
        if rows > 1 {
            shares.by_part();
        }
        shares
    }

    /// Puts the rows of each part of a task side by side.
    fn by_part(&mut self) {
        let mut ordered = Vec::new();
        ordered.resize_with(self.outputs.len(), Default::default);
        let each = self.rows * self.parts;
        for (ordered, rows) in ordered.chunks_mut(each).zip(self.outputs.chunks_mut(each)) {
            let count = rows.len() / self.parts;
            for (index, outputs) in rows.iter_mut().enumerate() {
                ordered[index % self.parts * count + index / self.parts] = std::mem::take(outputs);
            }
        }
        self.outputs = ordered;
    }

    /// The outputs of each task.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [&'a mut [T]]> {
        let parts = self.parts.max(1);
        let blocks = self.outputs.chunks_mut((self.rows * self.parts).max(1));
        blocks.flat_map(move |block| block.chunks_mut((block.len() / parts).max(1)))
    }
}

/// The outputs of so many panels, the last of which may have fewer.
pub(super) fn outputs_of(first_output: usize, panels: usize) -> Range<usize> {
    first_output..first_output + panels * PANEL_OUTPUTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first element of each row of each task, and how many there are.
    fn shared(rows_each: usize, parts: &[Range<usize>], rows: usize) -> Vec<Vec<(usize, usize)>> {
        let mut values: Vec<usize> = (0..rows * 10).collect();
        let mut shares = Shares::new(rows_each, parts.iter().cloned(), values.chunks_mut(10));
        let of_task = |rows: &mut [&mut [usize]]| rows.iter().map(|row| (row[0], row.len())).collect();
        shares.iter_mut().map(of_task).collect()
    }

    #[test]
    fn parts_of_the_first_rows_come_before_those_of_the_next() {
        // The last block has one row, what lies between the parts is nobody's, and the last part ends with the row.
        assert_eq!(
            shared(2, &[1..4, 6..22], 3),
            [vec![(1, 3), (11, 3)], vec![(6, 4), (16, 4)], vec![(21, 3)], vec![(26, 4)]]
        );
        assert_eq!(shared(5, &[0..10, 10..10][..1], 1), [vec![(0, 10)]]);
        assert_eq!(shared(1, &[0..5, 5..10], 2), [vec![(0, 5)], vec![(5, 5)], vec![(10, 5)], vec![(15, 5)]]);
        assert!(shared(2, &[], 3).is_empty() && shared(2, &[0..3, 3..5], 0).is_empty());
    }
}
