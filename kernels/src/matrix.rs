//! Borrowed row-major matrices of f32 with a distance between rows.

/// A matrix `[rows, columns]` to read; row `r` begins at `r * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

/// A matrix `[rows, columns]` to write; row `r` begins at `r * stride`.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

/// Panics unless `length` values hold the matrix.
fn check(length: usize, rows: usize, columns: usize, stride: usize) {
    let needed = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
    assert!(
        needed <= length && (rows <= 1 || columns <= stride),
        "a matrix of {rows} rows, {columns} columns and row stride {stride} does not lie in {length} values"
    );
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie one behind the other.
    ///
    /// # Panics
    /// If `values` is shorter than `rows * columns`.
    #[must_use]
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::with_stride(values, rows, columns, columns)
    }

    /// A matrix whose rows begin `stride` values apart.
    ///
    /// # Panics
    /// If `values` does not hold it, or rows overlap.
    #[must_use]
    pub fn with_stride(values: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check(values.len(), rows, columns, stride);
        Self { values, rows, columns, stride }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows with what lies behind their columns, where they begin `STRIDE` values apart and each has so many.
    #[inline(always)]
    pub(crate) fn as_chunks<const STRIDE: usize>(&self) -> Option<&'a [[f32; STRIDE]]> {
        if self.stride == STRIDE { self.values.as_chunks().0.get(..self.rows) } else { None }
    }

    /// `rows` rows from `first_row` on, and of them the columns `columns`.
    ///
    /// # Panics
    /// If it does not have them.
    #[must_use]
    pub fn part(&self, first_row: usize, rows: usize, columns: std::ops::Range<usize>) -> Self {
        assert!(
            first_row + rows <= self.rows && columns.end <= self.columns,
            "a part of {} rows and {} columns to column {} lies outside of {} × {}",
            first_row + rows,
            columns.len(),
            columns.end,
            self.rows,
            self.columns
        );
        let first = first_row * self.stride + columns.start;
        Self::with_stride(self.values.get(first..).unwrap_or_default(), rows, columns.len(), self.stride)
    }

    /// One row: `[columns]`.
    #[must_use]
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.columns]
    }
}

impl<'a> MatrixMut<'a> {
    /// A matrix whose rows lie one behind the other.
    ///
    /// # Panics
    /// If `values` is shorter than `rows * columns`.
    #[must_use]
    pub fn new(values: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::with_stride(values, rows, columns, columns)
    }

    /// A matrix whose rows begin `stride` values apart.
    ///
    /// # Panics
    /// If `values` does not hold it, or rows overlap.
    #[must_use]
    pub fn with_stride(values: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check(values.len(), rows, columns, stride);
        Self { values, rows, columns, stride }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The same matrix for a while.
    #[must_use]
    pub fn reborrow(&mut self) -> MatrixMut<'_> {
        let Self { values, rows, columns, stride } = self;
        MatrixMut { values, rows: *rows, columns: *columns, stride: *stride }
    }

    /// Whether rows lie one behind the other.
    pub(crate) fn is_dense(&self) -> bool {
        self.stride == self.columns
    }

    /// The rows one behind the other.
    ///
    /// # Panics
    /// If they do not lie so.
    pub(crate) fn into_dense(self) -> &'a mut [f32] {
        assert!(self.is_dense(), "rows of {} values are {} apart", self.columns, self.stride);
        &mut self.values[..self.rows * self.columns]
    }

    /// Blocks of so many rows in order, the last of which may have fewer.
    pub(crate) fn into_blocks(self, rows_each: usize) -> impl Iterator<Item = MatrixMut<'a>> {
        let Self { values, rows, columns, stride } = self;
        let blocks = values.chunks_mut((rows_each * stride).max(1)).take(rows.div_ceil(rows_each.max(1)));
        blocks.enumerate().map(move |(block, values)| {
            let rows = rows_each.min(rows - block * rows_each);
            MatrixMut::with_stride(values, rows, columns, stride)
        })
    }

    /// The rows in order, each `[columns]`.
    pub fn into_rows(self) -> impl Iterator<Item = &'a mut [f32]> {
        let columns = self.columns;
        self.values.chunks_mut(self.stride.max(1)).take(self.rows).map(move |row| &mut row[..columns])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_rows_one_after_another() {
        let mut values: Vec<f32> = (0..23).map(|value| value as f32).collect();
        // Five rows of three, of which the last ends with the values.
        let matrix = MatrixMut::with_stride(&mut values, 5, 3, 5);
        let rows = |block: MatrixMut<'_>| block.into_rows().map(|row| row[0]).collect::<Vec<_>>();
        assert_eq!(matrix.into_blocks(2).map(rows).collect::<Vec<_>>(), [vec![0.0, 5.0], vec![10.0, 15.0], vec![20.0]]);
        let whole = MatrixMut::new(&mut values, 2, 4).into_blocks(24).map(rows).collect::<Vec<_>>();
        assert_eq!(whole, [vec![0.0, 4.0]]);
        assert_eq!(MatrixMut::new(&mut values, 0, 4).into_blocks(3).count(), 0);
    }
}
