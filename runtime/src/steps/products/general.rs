//! Products of types that have no vector kernels: f64 and integers, which wrap.
//!
//! Each element is summed over the shared axis in order, from zero: as the reference does.

use ipuc_formats::element::Element;
use ipuc_formats::ops::ProductPlan;
use ipuc_kernels::threads::{chunks, parts};

/// Numbers that products are made of.
pub(super) trait Term: Element {
    /// The empty sum.
    const ZERO: Self;
    /// `self + left * right`.
    fn plus_product(self, left: Self, right: Self) -> Self;
}

impl Term for f64 {
    const ZERO: f64 = 0.0;
    fn plus_product(self, left: f64, right: f64) -> f64 {
        self + left * right
    }
}

macro_rules! wrapping {
    ($($T:ty)*) => { $(
        impl Term for $T {
            const ZERO: $T = 0;
            fn plus_product(self, left: $T, right: $T) -> $T {
                self.wrapping_add(left.wrapping_mul(right))
            }
        }
    )* };
}
wrapping! { i32 u32 i64 u64 }

/// All products of a plan into `out`.
pub(super) fn multiply<T: Term>(plan: &ProductPlan, a: &[T], b: &[T], out: &mut [T]) {
    let (rows, columns, shared) = (plan.a.rows, plan.b.columns, plan.a.columns);
    if out.is_empty() {
        return;
    }
    let (a_row, a_column) = plan.a.strides();
    let (b_row, b_column) = plan.b.strides();
    let one_row = |index: usize, out: &mut [T]| {
        let (a_start, b_start) = plan.batches[index / rows];
        let a_start = a_start + index % rows * a_row;
        out.fill(T::ZERO);
        for inner in 0..shared {
            let left = a[a_start + inner * a_column];
            let b_start = b_start + inner * b_row;
            if b_column == 1 {
                let right = &b[b_start..b_start + columns];
                out.iter_mut().zip(right).for_each(|(sum, &right)| *sum = sum.plus_product(left, right));
            } else {
                let right = b[b_start..].iter().step_by(b_column);
                out.iter_mut().zip(right).for_each(|(sum, &right)| *sum = sum.plus_product(left, right));
            }
        }
    };
    let all_rows = out.len() / columns;
    let rows_each = all_rows.div_ceil(parts(out.len().saturating_mul(shared), all_rows));
    chunks(out, rows_each * columns, |part, out| {
        out.chunks_mut(columns).enumerate().for_each(|(row, out)| one_row(part * rows_each + row, out));
    });
}
