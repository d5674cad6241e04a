//! What a caller does to complete outputs of a kernel while they lie in a near cache.

use std::fmt;

/// Changes outputs that are complete: `(place, outputs)`, where the first of them lies at `place` of the whole output and the
/// others follow it side by side. Each output is changed once; calls come from all threads.
#[derive(Clone, Copy)]
pub struct Change<'a>(pub &'a (dyn Fn(usize, &mut [f32]) + Sync));

impl Change<'_> {
    /// Applies it.
    #[inline(always)]
    pub(crate) fn apply(&self, place: usize, outputs: &mut [f32]) {
        (self.0)(place, outputs);
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Change")
    }
}

/// A change of the outputs of a product, row by row.
#[derive(Clone, Copy, Debug)]
pub struct RowChange<'a> {
    /// The change.
    pub change: Change<'a>,
    /// Where the first row of the product begins in the whole output.
    pub start: usize,
    /// Outputs of a row.
    pub columns: usize,
}

impl RowChange<'_> {
    /// The same for a product whose first row is this many rows further.
    #[must_use]
    pub fn rows_further(self, rows: usize) -> Self {
        Self { start: self.start + rows * self.columns, ..self }
    }
}
