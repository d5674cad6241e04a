//! Products of types that have no vector kernels: f64 and integers, which wrap.
//!
//! Each element is summed over the shared axis in order, from zero: as the reference does.

use ipuc_formats::element::Element;
use ipuc_formats::ops::ProductPlan;
use ipuc_formats::tensor::{TensorError, filled};
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::threads::{each, parts};
use std::ops::Range;

/// Numbers that products are made of.
pub(super) trait Term: Element {
    /// The empty sum.
    const ZERO: Self;
    /// `self + left * right`.
    fn plus_product(self, left: Self, right: Self) -> Self;
}

impl Term for f64 {
    const ZERO: f64 = 0.0;
    #[inline(always)]
    fn plus_product(self, left: f64, right: f64) -> f64 {
        self + left * right
    }
}

macro_rules! wrapping {
    ($($T:ty)*) => { $(
        impl Term for $T {
            const ZERO: $T = 0;
            #[inline(always)]
            fn plus_product(self, left: $T, right: $T) -> $T {
                self.wrapping_add(left.wrapping_mul(right))
            }
        }
    )* };
}
wrapping! { i32 u32 i64 u64 }

/// Rows of a tile whose sums stay in registers.
const TILE_ROWS: usize = 4;

/// Columns of a tile.
const TILE_COLUMNS: usize = 16;

/// Fewer columns are multiplied where they lie: tiles of them would be padding for the most part.
const LEAST_PACKED_COLUMNS: usize = 8;

/// All products of a plan into `out`.
///
/// # Errors
/// [`TensorError::Room`] where there is no memory to pack the right matrix in.
pub(super) fn multiply<T: Term>(plan: &ProductPlan, a: &[T], b: &[T], out: &mut [T]) -> Result<(), TensorError> {
    let (rows, columns, shared) = (plan.a.rows, plan.b.columns, plan.a.columns);
    if out.is_empty() {
        return Ok(());
    }
    // A task packs the right matrix for its rows.
    let parts = parts(out.len().saturating_mul(shared), usize::MAX).div_ceil(plan.batches.len());
    let rows_each = rows.div_ceil(parts).next_multiple_of(TILE_ROWS);
    let packed = if columns < LEAST_PACKED_COLUMNS { 0 } else { shared };
    let mut tasks = Vec::new();
    for (out, &(a_start, b_start)) in out.chunks_mut(rows * columns).zip(&plan.batches) {
        for (part, out) in out.chunks_mut(rows_each * columns).enumerate() {
            let a = &a[(a_start + part * rows_each * plan.a.strides().0).min(a.len())..];
            tasks.push(Rows {
                plan,
                panel: filled([T::ZERO; TILE_COLUMNS], packed)?,
                a,
                b: &b[b_start.min(b.len())..],
                out,
            });
        }
    }
    each(tasks, |task| Instructions::best().run(task));
    Ok(())
}

/// Some rows of one product.
struct Rows<'a, T> {
    plan: &'a ProductPlan,
    /// Columns of the right matrix that are multiplied at a time.
    panel: Vec<[T; TILE_COLUMNS]>,
    /// From the first row on.
    a: &'a [T],
    /// From the matrix on.
    b: &'a [T],
    out: &'a mut [T],
}

impl<T: Term> Routine for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, _simd: S) {
        let columns = self.plan.b.columns;
        if columns < LEAST_PACKED_COLUMNS {
            return self.multiply_unpacked();
        }
        let mut panel = std::mem::take(&mut self.panel);
        for first in (0..columns).step_by(TILE_COLUMNS) {
            let count = TILE_COLUMNS.min(columns - first);
            self.pack(first, count, &mut panel);
            for (tile, out) in self.out.chunks_mut(TILE_ROWS * columns).enumerate() {
                let count = first..first + count;
                match out.len() / columns {
                    TILE_ROWS => tile_of::<T, TILE_ROWS>(self.plan, &panel, self.a, tile * TILE_ROWS, count, out),
                    rows => {
                        for (row, out) in (0..rows).zip(out.chunks_exact_mut(columns)) {
                            tile_of::<T, 1>(self.plan, &panel, self.a, tile * TILE_ROWS + row, count.clone(), out);
                        }
                    }
                }
            }
        }
    }
}

impl<T: Term> Rows<'_, T> {
    /// Element by element.
    #[inline(always)]
    fn multiply_unpacked(self) {
        let ((a_row, a_column), (b_row, b_column)) = (self.plan.a.strides(), self.plan.b.strides());
        for (row, out) in self.out.chunks_exact_mut(self.plan.b.columns).enumerate() {
            for (column, out) in out.iter_mut().enumerate() {
                let add = |sum: T, inner: usize| {
                    sum.plus_product(self.a[row * a_row + inner * a_column], self.b[inner * b_row + column * b_column])
                };
                *out = (0..self.plan.a.columns).fold(T::ZERO, add);
            }
        }
    }

    /// Lays `count` columns from `first` on side by side.
    #[inline(always)]
    fn pack(&self, first: usize, count: usize, panel: &mut [[T; TILE_COLUMNS]]) {
        let (row, column) = self.plan.b.strides();
        if panel.is_empty() {
            return;
        }
        if column == 1 {
            for (inner, panel) in panel.iter_mut().enumerate() {
                panel[..count].copy_from_slice(&self.b[inner * row + first..][..count]);
            }
            return;
        }
        for at in 0..count {
            let source = &self.b[(first + at) * column..];
            for (inner, panel) in panel.iter_mut().enumerate() {
                panel[at] = source[inner * row];
            }
        }
    }
}

/// `columns` of `ROWS` rows from `first` on.
#[inline(always)]
fn tile_of<T: Term, const ROWS: usize>(
    plan: &ProductPlan,
    panel: &[[T; TILE_COLUMNS]],
    a: &[T],
    first: usize,
    columns: Range<usize>,
    out: &mut [T],
) {
    let (a_row, a_column) = plan.a.strides();
    let mut sums = [[T::ZERO; TILE_COLUMNS]; ROWS];
    for (inner, right) in panel.iter().enumerate() {
        for row in 0..ROWS {
            let left = a[(first + row) * a_row + inner * a_column];
            for column in 0..TILE_COLUMNS {
                sums[row][column] = sums[row][column].plus_product(left, right[column]);
            }
        }
    }
    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(plan.b.columns)) {
        out[columns.clone()].copy_from_slice(&sums[..columns.len()]);
    }
}
