//! Folds over rows and over columns of f32: sums, products, extremes.
//!
//! The order: a row is folded in 64 lanes (element modulo 64), each of them in runs of `RUN` elements that are added up in order; then the
//! lanes are joined in halves. Columns whose number divides 64 lie in lanes of their own, and are folded as a row is, until as many
//! lanes are left. Other columns are folded in runs of `RUN` elements from the first on, and the runs in order. None of it depends on
//! threads or on other rows.

use super::{
    simd::{Instructions, Routine, Simd},
    threads,
};

/// Lanes of a row.
const ROW_LANES: usize = 64;

/// Elements of a column, or of a lane of a row, that are folded before they join the rest.
const RUN: usize = 64;

/// Columns that are folded side by side.
const BLOCK_COLUMNS: usize = 256;

/// How two values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Sum.
    Sum,
    /// Sum of absolute values.
    AbsoluteSum,
    /// Sum of squares.
    SquareSum,
    /// Product.
    Product,
    /// Largest; NaN wins.
    Max,
    /// Smallest; NaN wins.
    Min,
}

impl Fold {
    /// The fold that joins results of this one.
    #[must_use]
    pub fn joining(self) -> Fold {
        match self {
            Fold::Sum | Fold::AbsoluteSum | Fold::SquareSum => Fold::Sum,
            Fold::Product => Fold::Product,
            Fold::Max => Fold::Max,
            Fold::Min => Fold::Min,
        }
    }
}

/// A fold as code.
trait Folding: Copy + Send + Sync {
    const START: f32;
    fn add(self, so_far: f32, value: f32) -> f32;
    fn join(self, left: f32, right: f32) -> f32;
}

macro_rules! foldings {
    ($($name:ident: $start:expr, $add:expr, $join:expr;)*) => { $(
        #[derive(Clone, Copy)]
        struct $name;
        impl Folding for $name {
            const START: f32 = $start;
            #[inline(always)]
            fn add(self, so_far: f32, value: f32) -> f32 {
                let add: fn(f32, f32) -> f32 = $add;
                add(so_far, value)
            }
            #[inline(always)]
            fn join(self, left: f32, right: f32) -> f32 {
                let join: fn(f32, f32) -> f32 = $join;
                join(left, right)
            }
        }
    )* };
}
foldings! {
    Sum: 0.0, |sum, value| sum + value, |a, b| a + b;
    AbsoluteSum: 0.0, |sum, value| sum + value.abs(), |a, b| a + b;
    SquareSum: 0.0, |sum, value| sum + value * value, |a, b| a + b;
    Product: 1.0, |product, value| product * value, |a, b| a * b;
    Max: f32::NEG_INFINITY, larger, larger;
    Min: f32::INFINITY, smaller, smaller;
}

/// NaN wins, on either side.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if b < a || b.is_nan() { b } else { a }
}

macro_rules! with_folding {
    ($fold:expr, $folding:ident => $body:expr) => {
        match $fold {
            Fold::Sum => {
                let $folding = Sum;
                $body
            }
            Fold::AbsoluteSum => {
                let $folding = AbsoluteSum;
                $body
            }
            Fold::SquareSum => {
                let $folding = SquareSum;
                $body
            }
            Fold::Product => {
                let $folding = Product;
                $body
            }
            Fold::Max => {
                let $folding = Max;
                $body
            }
            Fold::Min => {
                let $folding = Min;
                $body
            }
        }
    };
}

/// Folds each row of `values: [rows, n]` into `out: [rows]`.
///
/// # Panics
/// If lengths disagree.
pub fn fold_rows(instructions: Instructions, fold: Fold, values: &[f32], out: &mut [f32]) {
    let (rows, length) = (out.len(), values.len().checked_div(out.len()).unwrap_or(0));
    assert_eq!(values.len(), rows * length, "values of {rows} rows");
    if !out.is_empty() {
        fold_lines(instructions, fold, values, 1, out);
    }
}

/// Folds the middle axis of `values: [outer, n, inner]` into `out: [outer, inner]`.
///
/// # Panics
/// If lengths disagree.
pub fn fold_columns(instructions: Instructions, fold: Fold, values: &[f32], inner: usize, out: &mut [f32]) {
    let outer = out.len().checked_div(inner).unwrap_or(0);
    let length = values.len().checked_div(out.len()).unwrap_or(0);
    assert_eq!((values.len(), out.len()), (outer * length * inner, outer * inner), "extents of columns");
    if out.is_empty() {
        return;
    }
    if ROW_LANES.is_multiple_of(inner) {
        return fold_lines(instructions, fold, values, inner, out);
    }
    let width = BLOCK_COLUMNS.min(inner);
    let blocks = outer * inner.div_ceil(width);
    let each = blocks.div_ceil(threads::parts_of_moves(values.len(), blocks)).max(1);
    // A task is some blocks of columns; it never reaches from one outer index into the next.
    let columns_each = (each * width).min(inner);
    let tasks: Vec<(usize, &mut [f32])> = out
        .chunks_mut(inner)
        .enumerate()
        .flat_map(|(outer, row)| {
            let start = outer * length * inner;
            row.chunks_mut(columns_each).enumerate().map(move |(block, out)| (start + block * columns_each, out))
        })
        .collect();
    let run = |(start, out): (usize, &mut [f32])| {
        let values = &values[start.min(values.len())..];
        with_folding!(fold, folding => instructions.run(Columns { folding, values, stride: inner, length, out }));
    };
    if values.len().saturating_mul(threads::MOVE_OPERATIONS) < threads::SERIAL_OPERATIONS {
        return tasks.into_iter().for_each(run);
    }
    threads::each(tasks, run);
}

/// Folds rows of lines of `width` values, which divides the lanes of a row, into a line each.
fn fold_lines(instructions: Instructions, fold: Fold, values: &[f32], width: usize, out: &mut [f32]) {
    let (rows, length) = (out.len() / width, values.len() / out.len() * width);
    let rows_each = rows.div_ceil(threads::parts_of_moves(values.len(), rows));
    threads::chunks(out, rows_each * width, |index, out| {
        let values = &values[index * rows_each * length..][..out.len() / width * length];
        with_folding!(fold, folding => instructions.run(Lines { folding, values, width, out }));
    });
}

/// The fold of one row of lines of `line` values in 64 lanes, of which the first ones are the result.
#[inline(always)]
fn fold_lanes(
    row: &[f32],
    line: usize,
    start: f32,
    add: impl Fn(f32, usize, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> [f32; ROW_LANES] {
    let mut lanes = [start; ROW_LANES];
    let (chunks, rest) = row.as_chunks::<ROW_LANES>();
    for run in chunks.chunks(RUN) {
        let mut folded = [start; ROW_LANES];
        for chunk in run {
            for lane in 0..ROW_LANES {
                folded[lane] = add(folded[lane], lane, chunk[lane]);
            }
        }
        for lane in 0..ROW_LANES {
            lanes[lane] = join(lanes[lane], folded[lane]);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        lanes[lane] = add(lanes[lane], lane, *value);
    }
    let mut width = ROW_LANES / 2;
    while width >= line {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes
}

/// The sum of `each` of the values, in the order of a row. For use inside of routines.
#[inline(always)]
pub(crate) fn lane_sum(values: &[f32], each: impl Fn(f32) -> f32) -> f32 {
    fold_lanes(values, 1, 0.0, |sum, _, value| sum + each(value), |left, right| left + right)[0]
}

/// The sums of `each` of the values, and of its column, of rows of `N` columns, which divide the lanes: in the order of a line of `N`
/// values. For use inside of routines.
#[inline(always)]
pub(crate) fn column_sums<const N: usize>(values: &[f32], each: impl Fn(usize, f32) -> f32) -> [f32; N] {
    let lanes = fold_lanes(values, N, 0.0, |sum, lane, value| sum + each(lane % N, value), |left, right| left + right);
    std::array::from_fn(|column| lanes[column])
}

/// Rows of lines of `width` values, each of which is folded into a line.
struct Lines<'a, F> {
    folding: F,
    values: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl<F: Folding> Routine for Lines<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { folding, values, width, out } = self;
        let length = values.len().checked_div(out.len()).unwrap_or(0) * width;
        for (index, out) in out.chunks_exact_mut(width).enumerate() {
            let row = &values[index * length..][..length];
            let lanes = fold_lanes(row, width, F::START, |a, _, b| folding.add(a, b), |a, b| folding.join(a, b));
            out.copy_from_slice(&lanes[..width]);
        }
    }
}

struct Columns<'a, F> {
    folding: F,
    values: &'a [f32],
    stride: usize,
    length: usize,
    out: &'a mut [f32],
}

impl<F: Folding> Routine for Columns<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { folding, values, stride, length, out } = self;
        let mut run = [F::START; BLOCK_COLUMNS];
        for (block, out) in out.chunks_mut(BLOCK_COLUMNS).enumerate() {
            out.fill(F::START);
            for first in (0..length).step_by(RUN) {
                let run = &mut run[..out.len()];
                run.fill(F::START);
                for row in first..length.min(first + RUN) {
                    let row = &values[row * stride + block * BLOCK_COLUMNS..][..run.len()];
                    run.iter_mut().zip(row).for_each(|(run, value)| *run = folding.add(*run, *value));
                }
                out.iter_mut().zip(run).for_each(|(out, run)| *out = folding.join(*out, *run));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    const FOLDS: [Fold; 6] = [Fold::Sum, Fold::AbsoluteSum, Fold::SquareSum, Fold::Product, Fold::Max, Fold::Min];

    fn plain(fold: Fold, values: impl Iterator<Item = f32>) -> f64 {
        let values = values.map(f64::from);
        match fold {
            Fold::Sum => values.sum(),
            Fold::AbsoluteSum => values.map(f64::abs).sum(),
            Fold::SquareSum => values.map(|value| value * value).sum(),
            Fold::Product => values.product(),
            Fold::Max => values.fold(f64::NEG_INFINITY, f64::max),
            Fold::Min => values.fold(f64::INFINITY, f64::min),
        }
    }

    fn close(found: f32, expected: f64, tolerance: f64) -> bool {
        f64::from(found) == expected || (f64::from(found) - expected).abs() <= tolerance * expected.abs().max(1.0)
    }

    #[test]
    fn rows_and_columns_agree_with_plain_folds() {
        for (outer, length, inner) in [
            (3, 200, 1),
            (2, 130, 300),
            (1, 0, 5),
            (4, 1, 7),
            (1, 3000, 20),
            (5, 49, 8),
            (2, 77, 32),
            (1, 1, 16),
            (2, 0, 4),
        ] {
            let values = numbers(7, outer * length * inner);
            for fold in FOLDS {
                for instructions in Instructions::available() {
                    let mut out = vec![9.0; outer * inner];
                    fold_columns(instructions, fold, &values, inner, &mut out);
                    for (index, out) in out.iter().enumerate() {
                        let (o, i) = (index / inner, index % inner);
                        let expected = plain(fold, (0..length).map(|n| values[(o * length + n) * inner + i]));
                        assert!(close(*out, expected, 1e-4), "{fold:?} {instructions:?} {out} {expected}");
                    }
                    let mut rows = vec![9.0; outer];
                    fold_rows(instructions, fold, &values, &mut rows);
                    for (row, out) in rows.iter().enumerate() {
                        let width = length * inner;
                        let expected = plain(fold, values[row * width..][..width].iter().copied());
                        assert!(
                            f64::from(*out) == expected || (f64::from(*out) - expected).abs() <= 1e-2,
                            "{fold:?} {out} {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        let values = numbers(3, 600 * 500);
        let run = |threads| {
            with_threads(threads, || {
                let (mut rows, mut columns) = (vec![0.0; 600], vec![0.0; 500]);
                fold_rows(Instructions::best(), Fold::Sum, &values, &mut rows);
                fold_columns(Instructions::best(), Fold::Sum, &values, 500, &mut columns);
                (rows, columns)
            })
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn nan_wins_wherever_it_is() {
        for position in [0, 5, 63, 64, 99] {
            let mut values = numbers(1, 100);
            values[position] = f32::NAN;
            for fold in [Fold::Max, Fold::Min] {
                let mut out = [0.0];
                fold_rows(Instructions::best(), fold, &values, &mut out);
                assert!(out[0].is_nan(), "{position}");
                fold_columns(Instructions::best(), fold, &values, 1, &mut out);
                assert!(out[0].is_nan(), "{position}");
            }
        }
    }
}
