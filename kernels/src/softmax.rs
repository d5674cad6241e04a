//! Softmax and its logarithm along any axis of f32, in the sense of ONNX `Softmax` and `LogSoftmax` (opset 13).
//!
//! The largest element is subtracted first, so that nothing overflows. A line of neighbours is summed in 64 lanes (element
//! modulo 64), which are joined pairwise; a line of elements apart in order. NaN, and nothing but minus infinity, give NaN.

use super::{
    elementwise::{
        functions::{Exponential, exponential, logarithm},
        of_each,
    },
    simd::{Instructions, LANES, Routine, Simd, joined},
    threads,
};

/// About how many multiplications an element takes.
const COST: usize = 16;

/// Vectors that a line is summed in.
const CHAINS: usize = 4;

/// What becomes of a line x with largest element m.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxKind {
    /// exp(x - m) / sum of exp(x - m).
    Softmax,
    /// x - m - log of the sum of exp(x - m).
    LogSoftmax,
}

/// `values = softmax(values)` along the middle axis of `[outer, length, inner]`.
///
/// # Panics
/// If the number of values is not a multiple of `length * inner`.
pub fn softmax_in_place(
    instructions: Instructions,
    kind: SoftmaxKind,
    values: &mut [f32],
    length: usize,
    inner: usize,
) {
    if values.is_empty() {
        return;
    }
    let plane = length * inner;
    assert!(values.len().is_multiple_of(plane), "{} values are not lines of {length} × {inner}", values.len());
    let planes = values.len() / plane;
    let parts = threads::parts(values.len() * COST, planes);
    threads::chunks(values, planes.div_ceil(parts) * plane, |_, values| {
        instructions.run(Task { kind, values, length, inner });
    });
}

/// The logarithm of the sum of exponentials of each row of `values: [rows, n]`; a largest element that is not finite is the
/// result.
///
/// # Panics
/// If the number of values is not a multiple of the number of rows.
pub fn log_sum_exp(instructions: Instructions, values: &[f32], out: &mut [f32]) {
    let length = values.len().checked_div(out.len()).unwrap_or(0);
    assert_eq!(values.len(), out.len() * length, "values of {} rows", out.len());
    let each = out.len().div_ceil(threads::parts(values.len() * COST, out.len())).max(1);
    threads::chunks(out, each, |part, out| {
        instructions.run(LogSums { values: &values[part * each * length..], length, out });
    });
}

struct LogSums<'a> {
    values: &'a [f32],
    length: usize,
    out: &'a mut [f32],
}

impl Routine for LogSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (lowest, zero) = (simd.splat(f32::NEG_INFINITY), simd.splat(0.0));
        for (index, out) in self.out.iter_mut().enumerate() {
            let row = &self.values[index * self.length..][..self.length];
            let mut most = lowest;
            for vector in row.chunks(LANES) {
                most = simd.maximum(most, first_lanes(simd, simd.load_partial(vector), vector.len(), lowest));
            }
            let most = largest_lane(simd, most);
            if !most.is_finite() {
                *out = most;
                continue;
            }
            let mut sums = [zero; CHAINS];
            for (index, vector) in row.chunks(LANES).enumerate() {
                let power = exponential(simd, simd.subtract(simd.load_partial(vector), simd.splat(most)));
                let sum = &mut sums[index % CHAINS];
                *sum = simd.add(*sum, first_lanes(simd, power, vector.len(), zero));
            }
            let sum = simd.splat(lane_sum(simd, sums));
            let mut lanes = [0.0; LANES];
            simd.store(logarithm(simd, sum), &mut lanes);
            *out = lanes[0] + most;
        }
    }
}

/// The largest lane; NaN if there is one.
#[inline(always)]
fn largest_lane<S: Simd>(simd: S, vector: S::Vector) -> f32 {
    let mut lanes = [0.0; LANES];
    simd.store(vector, &mut lanes);
    joined(&lanes, |a, b| if a > b || a.is_nan() { a } else { b })
}

/// The sum of all lanes, joined pairwise.
#[inline(always)]
fn lane_sum<S: Simd>(simd: S, sums: [S::Vector; CHAINS]) -> f32 {
    let mut lanes = [0.0; LANES];
    simd.store(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])), &mut lanes);
    joined(&lanes, |a, b| a + b)
}

/// Some planes of `[length, inner]`.
struct Task<'a> {
    kind: SoftmaxKind,
    values: &'a mut [f32],
    length: usize,
    inner: usize,
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { kind, values, length, inner } = self;
        for plane in values.chunks_mut(length * inner) {
            if inner == 1 {
                line(simd, kind, plane);
                continue;
            }
            for first in (0..inner).step_by(LANES) {
                columns(simd, kind, &mut plane[first..], inner, LANES.min(inner - first));
            }
        }
    }
}

/// One line of neighbours.
#[inline(always)]
fn line<S: Simd>(simd: S, kind: SoftmaxKind, values: &mut [f32]) {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let mut largest = [lowest; CHAINS];
    let (steps, rest) = values.as_chunks::<{ CHAINS * LANES }>();
    for step in steps {
        for (largest, vector) in largest.iter_mut().zip(step.as_chunks::<LANES>().0) {
            *largest = simd.maximum(*largest, simd.load(vector));
        }
    }
    let mut most = simd.maximum(simd.maximum(largest[0], largest[1]), simd.maximum(largest[2], largest[3]));
    for vector in rest.chunks(LANES) {
        most = simd.maximum(most, first_lanes(simd, simd.load_partial(vector), vector.len(), lowest));
    }
    let most = largest_lane(simd, most);

    let (largest, zero) = (simd.splat(most), simd.splat(0.0));
    let mut sums = [zero; CHAINS];
    let (steps, rest) = values.as_chunks_mut::<{ CHAINS * LANES }>();
    for step in steps {
        let vectors = step.as_chunks_mut::<LANES>().0;
        let mut differences = [zero; CHAINS];
        for chain in 0..CHAINS {
            differences[chain] = simd.subtract(simd.load(&vectors[chain]), largest);
        }
        let powers = of_each(simd, Exponential {}, differences);
        let stored = if kind == SoftmaxKind::Softmax { powers } else { differences };
        for chain in 0..CHAINS {
            simd.store(stored[chain], &mut vectors[chain]);
            sums[chain] = simd.add(sums[chain], powers[chain]);
        }
    }
    for (index, vector) in rest.chunks_mut(LANES).enumerate() {
        let difference = simd.subtract(simd.load_partial(vector), largest);
        let power = exponential(simd, difference);
        simd.store_partial(if kind == SoftmaxKind::Softmax { power } else { difference }, vector);
        sums[index] = simd.add(sums[index], first_lanes(simd, power, vector.len(), zero));
    }
    let sum = simd.splat(lane_sum(simd, sums));
    let last = match kind {
        // A sum of exponentials is at least 1.
        SoftmaxKind::Softmax => simd.divide(simd.splat(1.0), sum),
        SoftmaxKind::LogSoftmax => logarithm(simd, sum),
    };
    let (vectors, rest) = values.as_chunks_mut::<LANES>();
    for vector in vectors {
        simd.store(finished(simd, kind, simd.load(vector), last), vector);
    }
    simd.store_partial(finished(simd, kind, simd.load_partial(rest), last), rest);
}

/// A value times the reciprocal of the sum, or less its logarithm.
#[inline(always)]
fn finished<S: Simd>(simd: S, kind: SoftmaxKind, value: S::Vector, last: S::Vector) -> S::Vector {
    match kind {
        SoftmaxKind::Softmax => simd.multiply(value, last),
        SoftmaxKind::LogSoftmax => simd.subtract(value, last),
    }
}

/// The first `count` lanes of a vector, others from `rest`.
#[inline(always)]
fn first_lanes<S: Simd>(simd: S, vector: S::Vector, count: usize, rest: S::Vector) -> S::Vector {
    const INDEX: [f32; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    if count >= LANES {
        return vector;
    }
    simd.select_less(simd.load(&INDEX), simd.splat(count as f32), vector, rest)
}

/// `count` lines side by side, the elements of each `stride` apart; `values` begins with the first of them.
#[inline(always)]
fn columns<S: Simd>(simd: S, kind: SoftmaxKind, values: &mut [f32], stride: usize, count: usize) {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for row in values.chunks(stride) {
        largest = simd.maximum(largest, simd.load_partial(&row[..count]));
    }
    let mut sum = simd.splat(0.0);
    for row in values.chunks_mut(stride) {
        let difference = simd.subtract(simd.load_partial(&row[..count]), largest);
        let power = exponential(simd, difference);
        sum = simd.add(sum, power);
        simd.store_partial(if kind == SoftmaxKind::Softmax { power } else { difference }, &mut row[..count]);
    }
    let logarithm = logarithm(simd, sum);
    for row in values.chunks_mut(stride) {
        let value = simd.load_partial(&row[..count]);
        let value = match kind {
            SoftmaxKind::Softmax => simd.divide(value, sum),
            SoftmaxKind::LogSoftmax => simd.subtract(value, logarithm),
        };
        simd.store_partial(value, &mut row[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    fn exact(kind: SoftmaxKind, line: &[f32]) -> Vec<f64> {
        let largest = line.iter().copied().map(f64::from).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line.iter().map(|&value| (f64::from(value) - largest).exp()).sum();
        let value = |&value: &f32| match kind {
            SoftmaxKind::Softmax => (f64::from(value) - largest).exp() / sum,
            SoftmaxKind::LogSoftmax => f64::from(value) - largest - sum.ln(),
        };
        line.iter().map(value).collect()
    }

    #[test]
    fn agrees_with_f64() {
        for kind in [SoftmaxKind::Softmax, SoftmaxKind::LogSoftmax] {
            for (outer, length, inner) in [
                (3, 1, 1),
                (2, 5, 1),
                (3, 16, 1),
                (2, 200, 1),
                (1, 1000, 1),
                (2, 7, 3),
                (2, 9, 50),
                (0, 4, 4),
                (2, 64, 16),
            ] {
                let x: Vec<f32> = numbers(9, outer * length * inner).iter().map(|x| x * 20.0).collect();
                for instructions in Instructions::available() {
                    let mut out = x.clone();
                    softmax_in_place(instructions, kind, &mut out, length, inner);
                    for line in 0..outer * inner {
                        let places = (0..length).map(|n| (line / inner * length + n) * inner + line % inner);
                        let values: Vec<f32> = places.clone().map(|place| x[place]).collect();
                        for (place, exact) in places.zip(exact(kind, &values)) {
                            let error = (f64::from(out[place]) - exact).abs();
                            let least = if kind == SoftmaxKind::Softmax { 1e-3 } else { 1.0 };
                            assert!(error <= 1e-6 * exact.abs().max(least), "{} not {exact}", out[place]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn infinities_and_nan() {
        for instructions in Instructions::available() {
            for inner in [1, 2] {
                let run = |line: [f32; 3]| {
                    let mut values: Vec<f32> = line.iter().flat_map(|&value| vec![value; inner]).collect();
                    softmax_in_place(instructions, SoftmaxKind::Softmax, &mut values, 3, inner);
                    [values[0], values[inner], values[2 * inner]]
                };
                assert!(run([f32::NEG_INFINITY; 3]).iter().all(|value| value.is_nan()));
                assert!(run([1.0, f32::NAN, 2.0]).iter().all(|value| value.is_nan()));
                assert_eq!(run([f32::NEG_INFINITY, 5.0, f32::NEG_INFINITY]), [0.0, 1.0, 0.0]);
                assert_eq!(run([3e38, 3e38, -3e38]), [0.5, 0.5, 0.0]);
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        for (length, inner) in [(300, 1), (20, 15)] {
            let x = numbers(1, 100 * length * inner);
            for instructions in Instructions::available() {
                let run = || {
                    let mut out = x.clone();
                    softmax_in_place(instructions, SoftmaxKind::Softmax, &mut out, length, inner);
                    out
                };
                assert_eq!(with_threads(1, run), with_threads(3, run));
            }
        }
    }
}
