//! Pools of f32 over planes with any number of spatial axes: maxima, sums, sums of powers, in the sense of ONNX `MaxPool`,
//! `AveragePool` and `LpPool` (opset 22).
//!
//! Windows of a row of outputs are combined tap by tap, in row-major order of the taps, so that neighbouring outputs are
//! computed side by side. A window that is the whole plane is reduced in 16 lanes (element modulo 16), then lane by lane.

use super::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Lanes that a whole plane is reduced in.
const WHOLE_LANES: usize = 16;

/// How the elements of a window are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolKind {
    /// The largest; NaN if there is one; the least value without elements.
    Max,
    /// The sum over the number of elements that are not padding.
    Average,
    /// The sum over the number of elements, padding included.
    PaddedAverage,
    /// The root of this degree of the sum of these powers of magnitudes.
    Norm(f32),
}

impl PoolKind {
    fn start(self) -> f32 {
        if self == PoolKind::Max { f32::NEG_INFINITY } else { 0.0 }
    }

    /// One element more.
    #[inline(always)]
    fn add(self, total: f32, value: f32) -> f32 {
        match self {
            PoolKind::Max if value > total || value.is_nan() => value,
            PoolKind::Max => total,
            PoolKind::Average | PoolKind::PaddedAverage => total + value,
            PoolKind::Norm(1.0) => total + value.abs(),
            PoolKind::Norm(2.0) => value.mul_add(value, total),
            PoolKind::Norm(exponent) => total + value.abs().powf(exponent),
        }
    }

    /// Two parts of a window together.
    fn join(self, left: f32, right: f32) -> f32 {
        if self == PoolKind::Max { self.add(left, right) } else { left + right }
    }

    /// What comes out of a window of `count` elements.
    fn finish(self, total: f32, count: usize) -> f32 {
        match self {
            PoolKind::Max => total,
            PoolKind::Average | PoolKind::PaddedAverage => total / count as f32,
            PoolKind::Norm(2.0) => total.sqrt(),
            PoolKind::Norm(exponent) => total.powf(1.0 / exponent),
        }
    }
}

/// `out: [planes, outputs..]` from `x: [planes, inputs..]`.
///
/// # Panics
/// If lengths disagree with the axes.
pub fn pool(kind: PoolKind, axes: &[WindowAxis], x: &[f32], out: &mut [f32]) {
    let (inputs, outputs) = (window::inputs(axes), window::outputs(axes));
    if out.is_empty() {
        return;
    }
    let planes = out.len() / outputs;
    assert_eq!((x.len(), out.len()), (planes * inputs, planes * outputs), "elements of {planes} planes of {axes:?}");
    let whole = axes.iter().all(WindowAxis::is_whole);
    let taps: usize = axes.iter().map(|axis| axis.kernel.min(axis.input)).product();
    let counts: Vec<Vec<usize>> = axes.iter().map(|axis| counts(kind, axis)).collect();
    let one = |plane: usize, out: &mut [f32]| {
        let x = &x[plane * inputs..][..inputs];
        if whole {
            out[0] = kind.finish(whole_plane(kind, x), inputs);
        } else {
            one_plane(kind, axes, x, out);
            finish_plane(kind, &counts, out);
        }
    };
    let planes_each = planes.div_ceil(threads::parts(out.len().saturating_mul(taps), planes));
    threads::chunks(out, planes_each * outputs, |part, out| {
        out.chunks_mut(outputs).enumerate().for_each(|(plane, out)| one(part * planes_each + plane, out));
    });
}

/// Elements of each window along an axis, as the average counts them.
fn counts(kind: PoolKind, axis: &WindowAxis) -> Vec<usize> {
    let count = |output: usize| match kind {
        PoolKind::PaddedAverage => {
            let room = (axis.input + axis.pad_end) as isize - axis.start(output);
            usize::try_from(room).unwrap_or(0).div_ceil(axis.dilation).min(axis.kernel)
        }
        PoolKind::Average | PoolKind::Max | PoolKind::Norm(_) => axis.taps(output).len(),
    };
    (0..axis.output).map(count).collect()
}

fn whole_plane(kind: PoolKind, x: &[f32]) -> f32 {
    let mut lanes = [kind.start(); WHOLE_LANES];
    let (chunks, rest) = x.as_chunks::<WHOLE_LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = kind.add(*lane, value));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &value)| *lane = kind.add(*lane, value));
    lanes.into_iter().fold(kind.start(), |total, lane| kind.join(total, lane))
}

/// Totals of all windows of a plane.
fn one_plane(kind: PoolKind, axes: &[WindowAxis], x: &[f32], out: &mut [f32]) {
    out.fill(kind.start());
    match axes {
        [] => out[0] = kind.add(kind.start(), x[0]),
        [axis] => one_row(kind, axis, x, out),
        [axis, inner @ ..] => {
            let (input, output) = (window::inputs(inner), window::outputs(inner));
            for (place, out) in out.chunks_mut(output).enumerate() {
                for tap in axis.taps(place) {
                    let Some(position) = axis.position(place, tap) else { continue };
                    add_plane(kind, inner, &x[position * input..][..input], out);
                }
            }
        }
    }
}

/// Adds the windows of a plane of fewer axes to totals.
fn add_plane(kind: PoolKind, axes: &[WindowAxis], x: &[f32], out: &mut [f32]) {
    match axes {
        [] => out[0] = kind.add(out[0], x[0]),
        [axis] => one_row(kind, axis, x, out),
        [axis, inner @ ..] => {
            let (input, output) = (window::inputs(inner), window::outputs(inner));
            for (place, out) in out.chunks_mut(output).enumerate() {
                for tap in axis.taps(place) {
                    let Some(position) = axis.position(place, tap) else { continue };
                    add_plane(kind, inner, &x[position * input..][..input], out);
                }
            }
        }
    }
}

/// Adds the windows of a row to totals, tap by tap.
fn one_row(kind: PoolKind, axis: &WindowAxis, x: &[f32], out: &mut [f32]) {
    for tap in 0..axis.kernel {
        // Windows whose tap is not padding: from the first whose position is 0 or more to the last below the input's end.
        let offset = tap * axis.dilation;
        let first = axis.pad_begin.saturating_sub(offset).div_ceil(axis.stride);
        let end = (axis.input + axis.pad_begin).saturating_sub(offset).div_ceil(axis.stride).min(axis.output);
        if first >= end {
            continue;
        }
        let x = &x[first * axis.stride + offset - axis.pad_begin..];
        let out = &mut out[first..end];
        match (kind, axis.stride) {
            (PoolKind::Norm(_), _) | (_, 3..) => {
                let values = x.iter().step_by(axis.stride);
                out.iter_mut().zip(values).for_each(|(total, &value)| *total = kind.add(*total, value));
            }
            (_, stride) => Instructions::best().run(RowTap { largest: kind == PoolKind::Max, stride, x, out }),
        }
    }
}

/// One tap of windows side by side, a stride of 1 or 2 apart, that is added to totals or a candidate for the largest.
struct RowTap<'a> {
    largest: bool,
    stride: usize,
    /// From the tap of the first window on.
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Routine for RowTap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (out, x) in self.out.chunks_mut(LANES).zip(self.x.chunks(self.stride * LANES)) {
            let total = simd.load_partial(out);
            let values = if self.stride == 1 { simd.load_partial(x) } else { simd.load_every_second(x) };
            let total = if self.largest { simd.maximum(total, values) } else { simd.add(total, values) };
            simd.store_partial(total, out);
        }
    }
}

/// Turns the totals of a plane into results.
fn finish_plane(kind: PoolKind, counts: &[Vec<usize>], out: &mut [f32]) {
    if kind == PoolKind::Max {
        return;
    }
    let mut product = vec![1usize];
    for axis in counts {
        product = product.iter().flat_map(|&outer| axis.iter().map(move |&count| outer * count)).collect();
    }
    out.iter_mut().zip(product).for_each(|(total, count)| *total = kind.finish(*total, count));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    fn naive(kind: PoolKind, axes: &[WindowAxis; 2], x: &[f32]) -> Vec<f32> {
        let mut results = Vec::new();
        for row in 0..axes[0].output {
            for column in 0..axes[1].output {
                let mut total = kind.start();
                let mut count = 0;
                for down in 0..axes[0].kernel {
                    for across in 0..axes[1].kernel {
                        let place = axes[0].position(row, down).zip(axes[1].position(column, across));
                        if let Some((y, x_position)) = place {
                            total = kind.add(total, x[y * axes[1].input + x_position]);
                            count += 1;
                        }
                    }
                }
                results.push(kind.finish(total, count));
            }
        }
        results
    }

    fn close(left: &[f32], right: &[f32]) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + b.abs()))
    }

    #[test]
    fn windows_agree_with_naive_loops() {
        let axis = |input, output, kernel, stride, dilation, pad_begin, pad_end| WindowAxis {
            input,
            output,
            kernel,
            stride,
            dilation,
            pad_begin,
            pad_end,
        };
        let cases = [
            [axis(9, 5, 3, 2, 1, 1, 1), axis(20, 10, 3, 2, 1, 1, 1)],
            [axis(7, 5, 3, 1, 1, 0, 0), axis(33, 29, 3, 1, 2, 0, 0)],
            [axis(5, 2, 4, 3, 1, 2, 0), axis(4, 1, 2, 3, 2, 1, 0)],
            [axis(6, 1, 6, 1, 1, 0, 0), axis(50, 1, 50, 1, 1, 0, 0)],
            // One window with as many taps as there are positions, some of them on the padding behind.
            [axis(2, 1, 2, 1, 2, 0, 1), axis(3, 1, 3, 1, 2, 0, 2)],
        ];
        for axes in &cases {
            let x = numbers(3, axes[0].input * axes[1].input);
            for kind in [PoolKind::Max, PoolKind::Average, PoolKind::Norm(2.0), PoolKind::Norm(3.0)] {
                let mut out = vec![7.0; axes[0].output * axes[1].output];
                pool(kind, axes, &x, &mut out);
                let expected = naive(kind, axes, &x);
                assert!(close(&out, &expected), "{kind:?} {axes:?}: {out:?} against {expected:?}");
            }
        }
    }

    #[test]
    fn padding_counts_where_asked_and_nan_is_the_maximum() {
        let axis = WindowAxis { input: 4, output: 3, kernel: 2, stride: 2, dilation: 1, pad_begin: 1, pad_end: 1 };
        let mut out = [0.0; 3];
        pool(PoolKind::PaddedAverage, &[axis], &[1.0, 2.0, 3.0, 4.0], &mut out);
        assert_eq!(out, [0.5, 2.5, 2.0]);
        pool(PoolKind::Max, &[axis], &[1.0, f32::NAN, 3.0, 4.0], &mut out);
        assert!(out[1].is_nan());
        assert_eq!([out[0], out[2]], [1.0, 4.0]);
    }

    #[test]
    fn threads_do_not_change_bits() {
        let axis = WindowAxis { input: 64, output: 32, kernel: 3, stride: 2, dilation: 1, pad_begin: 1, pad_end: 0 };
        let x = numbers(5, 16 * 64 * 64);
        let run = |threads| {
            with_threads(threads, || {
                let mut out = vec![0.0; 16 * 32 * 32];
                pool(PoolKind::Average, &[axis, axis], &x, &mut out);
                out
            })
        };
        assert_eq!(run(1), run(3));
    }
}
