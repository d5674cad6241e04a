//! Rows of outputs, cut among tasks.

use std::ops::Range;

use super::PANEL_OUTPUTS;

/// The outputs of tasks, which are in order of outputs: of all parts for the first rows, then of all for the next. They are freed by
/// the thread that made them: two that free each other's memory wait for each other.
pub struct Shares<'a, T> {
    /// Task by task, row by row.
    outputs: Vec<&'a mut [T]>,
    /// Rows of a task, and parts.
    rows: usize,
    parts: usize,
}

impl<'a, T> Shares<'a, T> {
    /// Of parts, which are ranges of each row in order, `rows_each` rows at a time. Rows are of one length, behind whose end a range may
    /// reach.
    ///
    /// # Panics
    /// If parts are not in order, or one begins behind the end of a row.
    pub fn new(
        rows_each: usize,
        parts: impl ExactSizeIterator<Item = Range<usize>> + Clone,
        rows: impl Iterator<Item = &'a mut [T]>,
    ) -> Self {
        let (count, rows_each) = (parts.len(), rows_each.max(1));
        let mut outputs: Vec<&'a mut [T]> = Vec::new();
        // So that nothing moves while they are listed.
        let _ = outputs.try_reserve(rows.size_hint().0.saturating_mul(count));
        let mut rows = rows.peekable();
        // Each row behind the parts before: of as many rows as a task has.
        let mut rests: Vec<&'a mut [T]> = Vec::new();
        while rows.peek().is_some() {
            rests.clear();
            rests.extend(rows.by_ref().take(rows_each));
            let mut place = 0;
            for part in parts.clone() {
                let mut length = 0;
                for rest in &mut rests {
                    let (_, behind) = std::mem::take(rest).split_at_mut(part.start - place);
                    let (own, behind) = behind.split_at_mut(part.len().min(behind.len()));
                    length = own.len();
                    outputs.push(own);
                    *rest = behind;
                }
                place = part.start + length;
            }
        }
        let rows = outputs.len().checked_div(count).map_or(0, |rows| rows.min(rows_each));
        Self { outputs, rows, parts: count }
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
