//! Reductions of f64 and of integers of 32 and 64 bits, each set in the order of its elements but for lanes of a row.

use ipuc_formats::element::Number;
use ipuc_formats::ops::ReduceFunction;
use ipuc_formats::tensor::{Tensor, TensorError};
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::threads::{chunks, parts};

/// Elements of a row that are combined side by side.
const LANES: usize = 16;

/// A number whose sums wrap around, or are rounded.
pub(super) trait Reducible: Number {
    /// The empty sum.
    const ZERO: Self;
    /// The least and the greatest value.
    const RANGE: (Self, Self);
    /// The sum of two.
    fn plus(self, other: Self) -> Self;
    /// A sum over how many were added; `None` where it is not that of f64.
    fn over(self, count: usize) -> Option<Self>;
}

macro_rules! integers {
    ($($T:ty)*) => { $(
        impl Reducible for $T {
            const ZERO: $T = 0;
            const RANGE: ($T, $T) = (<$T>::MIN, <$T>::MAX);
            #[inline(always)]
            fn plus(self, other: $T) -> $T {
                self.wrapping_add(other)
            }
            fn over(self, _count: usize) -> Option<$T> {
                None
            }
        }
    )* };
}
integers! { i32 i64 }

impl Reducible for f64 {
    const ZERO: f64 = 0.0;
    const RANGE: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);
    #[inline(always)]
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn over(self, count: usize) -> Option<f64> {
        Some(self / count as f64)
    }
}

/// Reduces the `groups` of `data` (extent, and whether it is reduced) into `out`; false for functions without a loop here.
///
/// # Errors
/// [`TensorError`] where the tensors have other types.
pub(super) fn reduce<T: Reducible>(
    function: ReduceFunction,
    groups: &[(usize, bool)],
    data: &Tensor,
    out: &mut Tensor,
) -> Result<bool, TensorError> {
    let (values, out) = (data.elements::<T>()?, out.elements_mut::<T>()?);
    let count = values.len().checked_div(out.len()).unwrap_or(0);
    match function {
        ReduceFunction::Sum => fold(groups, values, out, T::ZERO, T::plus),
        ReduceFunction::Mean if T::ZERO.over(1).is_some() => {
            fold(groups, values, out, T::ZERO, T::plus);
            out.iter_mut().for_each(|out| *out = out.over(count).unwrap_or(*out));
        }
        ReduceFunction::Max => fold(groups, values, out, T::RANGE.0, |best, value| {
            if value > best || value.partial_cmp(&value).is_none() { value } else { best }
        }),
        ReduceFunction::Min => fold(groups, values, out, T::RANGE.1, |best, value| {
            if value < best || value.partial_cmp(&value).is_none() { value } else { best }
        }),
        ReduceFunction::Mean
        | ReduceFunction::L1
        | ReduceFunction::L2
        | ReduceFunction::LogSum
        | ReduceFunction::LogSumExp
        | ReduceFunction::Product
        | ReduceFunction::SumSquare => return Ok(false),
    }
    Ok(true)
}

fn fold<T: Number>(groups: &[(usize, bool)], values: &[T], out: &mut [T], start: T, join: impl Fn(T, T) -> T + Sync) {
    // Parts of an outermost group that stays are reduced side by side.
    let whole = match groups {
        [(extent, false), inner @ ..] => (*extent, inner),
        inner => (1, inner),
    };
    let (outer, groups) = whole;
    let (from, to) = (values.len() / outer, out.len() / outer);
    let each = outer.div_ceil(parts(values.len(), outer)).max(1);
    chunks(out, each * to, |part, out| {
        for (at, out) in out.chunks_exact_mut(to).enumerate() {
            let values = &values[(part * each + at) * from..][..from];
            out.fill(start);
            Instructions::best().run(Folded { groups, values, out, start, join: &join });
        }
    });
}

struct Folded<'a, T, F> {
    groups: &'a [(usize, bool)],
    values: &'a [T],
    out: &'a mut [T],
    start: T,
    join: &'a F,
}

impl<T: Number, F: Fn(T, T) -> T> Routine for Folded<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Folded { groups, values, out, start, join } = self;
        let Some((&(length, reduced), outer)) = groups.split_last() else {
            out.copy_from_slice(values);
            return;
        };
        for (row, values) in values.chunks_exact(length).enumerate() {
            // Where the row goes: the positions along the outer groups that stay.
            let (mut rest, mut place, mut stride) = (row, 0, if reduced { 1 } else { length });
            for &(extent, reduced) in outer.iter().rev() {
                if !reduced {
                    place += rest % extent * stride;
                    stride *= extent;
                }
                rest /= extent;
            }
            if !reduced {
                for (out, &value) in out[place..].iter_mut().zip(values) {
                    *out = join(*out, value);
                }
                continue;
            }
            let (blocks, last) = values.as_chunks::<LANES>();
            let mut lanes = [start; LANES];
            for values in blocks {
                for lane in 0..LANES {
                    lanes[lane] = join(lanes[lane], values[lane]);
                }
            }
            let out = &mut out[place];
            for &value in lanes.iter().chain(last) {
                *out = join(*out, value);
            }
        }
    }
}
