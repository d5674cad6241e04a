//! Normalization of rows of f32, in the sense of ONNX `LayerNormalization` (opset 17) and `RMSNormalization` (opset 23).
//!
//! Sums over a row are made in 64 lanes (element modulo 64), which are joined pairwise; the variance is that of the differences
//! from the mean, in a pass of its own.

use super::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// About how many multiplications an element takes.
const COST: usize = 6;

/// Vectors that a row is summed in.
const CHAINS: usize = 4;

/// What becomes of rows `x: [n]`.
#[derive(Clone, Copy, Debug)]
pub struct RowNormalization<'a> {
    /// Whether the mean is subtracted; if not, the variance is the mean of squares.
    pub center: bool,
    /// Added to the variance before the root.
    pub epsilon: f32,
    /// Multiplied with each normalized element: `[n]`.
    pub scale: Option<&'a [f32]>,
    /// Added at last: `[n]`.
    pub bias: Option<&'a [f32]>,
}

/// Mean (0 if not subtracted) and inverse standard deviation of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStatistics {
    /// The mean.
    pub mean: f32,
    /// One over the root of variance plus epsilon.
    pub inverse_deviation: f32,
}

/// `out = (x - mean) / sqrt(variance + epsilon) * scale + bias` for each row of `width` elements; writes what it found for each row
/// to `statistics`.
///
/// # Panics
/// If lengths disagree.
pub fn normalize_rows(
    instructions: Instructions,
    normalization: RowNormalization<'_>,
    width: usize,
    x: &[f32],
    out: &mut [f32],
    statistics: &mut [RowStatistics],
) {
    let rows = statistics.len();
    assert_eq!(x.len(), rows * width, "elements of {rows} rows of {width}");
    assert_eq!(out.len(), x.len(), "results of {rows} rows of {width}");
    for vector in [normalization.scale, normalization.bias].into_iter().flatten() {
        assert_eq!(vector.len(), width, "scale and bias of rows of {width}");
    }
    if x.is_empty() {
        return;
    }
    let parts = threads::parts(x.len() * COST, rows);
    let rows_each = rows.div_ceil(parts);
    let block = rows_each * width;
    let rows = x.chunks(block).zip(out.chunks_mut(block)).zip(statistics.chunks_mut(rows_each));
    let task = |((x, out), statistics)| Task { normalization, width, x, out, statistics };
    threads::each(rows.map(task).collect(), |task| instructions.run(task));
}

/// Some rows.
struct Task<'a> {
    normalization: RowNormalization<'a>,
    width: usize,
    x: &'a [f32],
    out: &'a mut [f32],
    statistics: &'a mut [RowStatistics],
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { normalization, width, x, out, statistics } = self;
        let RowNormalization { center, epsilon, scale, bias } = normalization;
        for ((x, out), statistics) in x.chunks(width).zip(out.chunks_mut(width)).zip(statistics) {
            let mean = if center { lane_sum(simd, x, |value| value) / width as f32 } else { 0.0 };
            let mean_vector = simd.splat(mean);
            let squares = lane_sum(simd, x, |value| {
                let difference = simd.subtract(value, mean_vector);
                simd.multiply(difference, difference)
            });
            let inverse_deviation = 1.0 / (squares / width as f32 + epsilon).sqrt();
            *statistics = RowStatistics { mean, inverse_deviation };
            let factor = simd.splat(inverse_deviation);
            for (index, (x, out)) in x.chunks(LANES).zip(out.chunks_mut(LANES)).enumerate() {
                let first = index * LANES;
                let mut value = simd.multiply(simd.subtract(simd.load_partial(x), mean_vector), factor);
                if let Some(scale) = scale {
                    value = simd.multiply(value, simd.load_partial(&scale[first..]));
                }
                if let Some(bias) = bias {
                    value = simd.add(value, simd.load_partial(&bias[first..]));
                }
                simd.store_partial(value, out);
            }
        }
    }
}

/// The sum of `function` of each value, in 64 lanes that are joined pairwise.
#[inline(always)]
fn lane_sum<S: Simd>(simd: S, values: &[f32], function: impl Fn(S::Vector) -> S::Vector) -> f32 {
    let mut sums = [simd.splat(0.0); CHAINS];
    let (steps, rest) = values.as_chunks::<{ CHAINS * LANES }>();
    for step in steps {
        for (sum, vector) in sums.iter_mut().zip(step.as_chunks::<LANES>().0) {
            *sum = simd.add(*sum, function(simd.load(vector)));
        }
    }
    let mut lanes = [0.0; CHAINS * LANES];
    for (sum, lanes) in sums.iter().zip(lanes.as_chunks_mut::<LANES>().0) {
        simd.store(*sum, lanes);
    }
    // The last elements one vector at a time; only lanes that have one count.
    for (vector, lanes) in rest.chunks(LANES).zip(lanes.as_chunks_mut::<LANES>().0) {
        let mut terms = [0.0; LANES];
        simd.store(function(simd.load_partial(vector)), &mut terms);
        for (lane, term) in lanes.iter_mut().zip(&terms[..vector.len()]) {
            *lane += term;
        }
    }
    let mut width = lanes.len() / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    #[test]
    fn agrees_with_f64() {
        for (rows, width) in [(3, 1), (4, 5), (2, 64), (3, 100), (5, 333), (0, 7), (3, 0)] {
            let x: Vec<f32> = numbers(2, rows * width).iter().map(|x| x * 3.0 + 10.0).collect();
            let (scale, bias) = (numbers(3, width), numbers(4, width));
            for (center, affine) in [(true, true), (false, true), (true, false)] {
                let normalization = RowNormalization {
                    center,
                    epsilon: 1e-5,
                    scale: affine.then_some(&scale[..]),
                    bias: affine.then_some(&bias[..]),
                };
                for instructions in Instructions::available() {
                    let (mut out, mut statistics) = (vec![f32::NAN; x.len()], vec![RowStatistics::default(); rows]);
                    normalize_rows(instructions, normalization, width, &x, &mut out, &mut statistics);
                    for row in 0..rows {
                        let values: Vec<f64> = x[row * width..][..width].iter().map(|&x| f64::from(x)).collect();
                        let mean = if center { values.iter().sum::<f64>() / width as f64 } else { 0.0 };
                        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                        let inverse = 1.0 / (variance + 1e-5).sqrt();
                        if width > 0 {
                            assert!((f64::from(statistics[row].mean) - mean).abs() <= 1e-5);
                            assert!((f64::from(statistics[row].inverse_deviation) / inverse - 1.0).abs() <= 1e-4);
                        }
                        for column in 0..width {
                            let (scale, bias) = if affine { (scale[column], bias[column]) } else { (1.0, 0.0) };
                            let expected = (values[column] - mean) * inverse * f64::from(scale) + f64::from(bias);
                            let value = f64::from(out[row * width + column]);
                            assert!((value - expected).abs() <= 1e-4, "{value}, not {expected}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        let x = numbers(2, 200 * 300);
        let normalization = RowNormalization { center: true, epsilon: 1e-5, scale: None, bias: None };
        for instructions in Instructions::available() {
            let run = || {
                let (mut out, mut statistics) = (vec![0.0; x.len()], vec![RowStatistics::default(); 200]);
                normalize_rows(instructions, normalization, 300, &x, &mut out, &mut statistics);
                out
            };
            assert_eq!(with_threads(1, run), with_threads(3, run));
        }
    }
}
