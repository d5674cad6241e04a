//! Pools of f32 over planes with any number of spatial axes: maxima, sums, sums of powers, in the sense of ONNX `MaxPool`,
//! `AveragePool` and `LpPool` (opset 22).
//!
//! Windows of a row of outputs are combined side by side: sums tap by tap, in row-major order of the taps, maxima over the rows of the
//! windows first. Where positions are 8 values side by side (channels in blocks), these are the lanes. A window that is the whole plane is reduced in 16 lanes (element modulo 16), then lane by lane.

mod blocks;
mod bytes;
mod kind;
mod rows;

pub use bytes::{Byte, largest_bytes};
pub use kind::PoolKind;

use blocks::Blocks;
use rows::Rows;

use super::{
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Lanes that a whole plane is reduced in.
const WHOLE_LANES: usize = 16;

/// `out: [planes, outputs..]` from `x: [planes, inputs..]`, where the planes are those of so many images.
///
/// # Panics
/// If lengths disagree with the axes.
pub fn pool(kind: PoolKind, axes: &[WindowAxis], images: usize, x: &[f32], out: &mut [f32]) {
    let (inputs, outputs) = (window::inputs(axes), window::outputs(axes));
    if out.is_empty() {
        return;
    }
    let planes = out.len() / outputs;
    assert_eq!((x.len(), out.len()), (planes * inputs, planes * outputs), "elements of {planes} planes of {axes:?}");
    let taps: usize = axes.iter().map(|axis| axis.kernel.min(axis.input)).product();
    let planes_each = planes.div_ceil(threads::parts(out.len().saturating_mul(taps), planes));
    let each = |out: &mut [f32], run: &(dyn Fn(&[f32], &mut [f32]) + Sync)| {
        threads::chunks(out, planes_each * outputs, |part, out| {
            run(&x[part * planes_each * inputs..][..out.len() / outputs * inputs], out);
        });
    };
    match Windows::new(kind, axes) {
        Windows::Whole => each(out, &|x, out| Instructions::best().run(WholePlanes { kind, x, out })),
        Windows::Rows(rows) => each(out, &|x, out| Instructions::best().run(Planes { kind, rows: &rows, x, out })),
        Windows::Blocks(blocks) => blocks.pool(kind, images, x, out),
        Windows::Single { counts } => each(out, &|x, out| {
            for (plane, out) in out.chunks_mut(outputs).enumerate() {
                out.fill(kind.start());
                add_plane(kind, axes, &x[plane * inputs..][..inputs], out);
                finish_plane(kind, &counts, out);
            }
        }),
    }
}

/// How the windows of a plane are gone through.
enum Windows {
    /// There is one, the whole plane.
    Whole,
    /// Neighbouring windows of a row side by side.
    Rows(Rows),
    /// Lines of 8 values, each of which has windows of its own.
    Blocks(Blocks),
    /// One after another.
    Single {
        /// Elements of each window.
        counts: Vec<f32>,
    },
}

impl Windows {
    fn new(kind: PoolKind, axes: &[WindowAxis]) -> Windows {
        if axes.iter().all(WindowAxis::is_whole) {
            return Windows::Whole;
        }
        let is_norm = matches!(kind, PoolKind::Norm(_));
        match axes {
            [outer @ .., last] if !is_norm && Blocks::fits(outer, last) => {
                Windows::Blocks(Blocks::new(outer, all_counts(kind, outer)))
            }
            [outer @ .., last] if !is_norm && Rows::fits(last) => {
                Windows::Rows(Rows::new(outer, *last, all_counts(kind, axes)))
            }
            _ => Windows::Single { counts: all_counts(kind, axes) },
        }
    }
}

/// Elements of each window; none where they do not matter.
fn all_counts(kind: PoolKind, axes: &[WindowAxis]) -> Vec<f32> {
    if kind == PoolKind::Max {
        return Vec::new();
    }
    let mut all = vec![1usize];
    for axis in axes {
        let inner = counts(kind, axis);
        all = all.iter().flat_map(|&outer| inner.iter().map(move |&count| outer * count)).collect();
    }
    all.into_iter().map(|count| count as f32).collect()
}

/// Some planes whose windows are the whole plane.
struct WholePlanes<'a> {
    kind: PoolKind,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Routine for WholePlanes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let inputs = self.x.len() / self.out.len();
        for (plane, out) in self.out.iter_mut().enumerate() {
            *out = self.kind.finish(whole_plane(self.kind, &self.x[plane * inputs..][..inputs]), inputs as f32);
        }
    }
}

/// Some planes: windows side by side are combined in the lanes of a vector, tap by tap.
struct Planes<'a> {
    kind: PoolKind,
    rows: &'a Rows,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Routine for Planes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match (self.kind == PoolKind::Max, self.rows.last.stride == 1) {
            (true, true) => self.largest::<S, true>(simd),
            (true, false) => self.largest::<S, false>(simd),
            (false, true) => self.combine::<S, true>(simd),
            (false, false) => self.combine::<S, false>(simd),
        }
    }
}

impl Planes<'_> {
    /// The largest of the rows of each window, then of neighbouring positions.
    #[inline(always)]
    fn largest<S: Simd, const ADJACENT: bool>(self, simd: S) {
        let Planes { kind, rows, x, out } = self;
        let Rows { last, width, .. } = *rows;
        let stride = if ADJACENT { 1 } else { 2 };
        // What lies in the padding stays as it is.
        let mut line = scratch(width);
        line.fill(kind.start());
        let begin = last.pad_begin.min(width);
        let count = last.input.min(width - begin);
        let inputs = rows.inputs * last.input;
        for (plane, out) in out.chunks_exact_mut(rows.windows).enumerate() {
            let (x, mut first) = (&x[plane * inputs..][..inputs], 0);
            for (out, &end) in out.chunks_exact_mut(last.output).zip(&rows.seen.ends) {
                largest_of_rows(simd, (x, last.input), &rows.seen.rows[first..end], &mut line[begin..][..count]);
                first = end;
                for (block, out) in out.chunks_mut(LANES).enumerate() {
                    let line = &line[block * LANES * stride..];
                    let mut total = simd.splat(kind.start());
                    for place in (0..last.kernel).map(|tap| tap * last.dilation) {
                        let values = if ADJACENT {
                            simd.load_partial(&line[place..])
                        } else {
                            simd.load_every_second(&line[place..])
                        };
                        total = simd.maximum(total, values);
                    }
                    simd.store_partial(total, out);
                }
            }
        }
    }

    #[inline(always)]
    fn combine<S: Simd, const ADJACENT: bool>(self, simd: S) {
        let Planes { kind, rows, x, out } = self;
        let Rows { last, width, .. } = *rows;
        let stride = if ADJACENT { 1 } else { 2 };
        let plane_inputs = rows.inputs * last.input;
        let mut padded = scratch(rows.inputs * width);
        for (plane, out) in out.chunks_exact_mut(rows.windows).enumerate() {
            rows.pad(&x[plane * plane_inputs..][..plane_inputs], kind.start(), &mut padded);
            let mut begin = 0;
            for (row, out) in out.chunks_exact_mut(last.output).enumerate() {
                let taps = &rows.seen.rows[begin..rows.seen.ends[row]];
                begin = rows.seen.ends[row];
                let counts = &rows.counts[row * last.output..][..last.output];
                for (block, out) in out.chunks_mut(LANES).enumerate() {
                    let mut total = simd.splat(kind.start());
                    for &tap in taps {
                        let line = &padded[tap * width + block * LANES * stride..(tap + 1) * width];
                        for place in (0..last.kernel).map(|tap| tap * last.dilation) {
                            let values = if ADJACENT {
                                simd.load_partial(&line[place..])
                            } else {
                                simd.load_every_second(&line[place..])
                            };
                            total = simd.add(total, values);
                        }
                    }
                    total = simd.divide(total, simd.load_partial(&counts[block * LANES..]));
                    simd.store_partial(total, out);
                }
            }
        }
    }
}

/// The largest of some rows of a plane at each position; the least value without rows.
#[inline(always)]
fn largest_of_rows<S: Simd>(simd: S, (x, length): (&[f32], usize), rows: &[usize], largest: &mut [f32]) {
    let mut first = 0;
    while first < largest.len() {
        // The last vector may overlap with the one before.
        let place = if largest.len() >= LANES { first.min(largest.len() - LANES) } else { 0 };
        let mut total = simd.splat(f32::NEG_INFINITY);
        for row in rows {
            let values = &x[row * length + place..];
            total = simd.maximum(total, simd.load_partial(values));
        }
        simd.store_partial(total, &mut largest[place..]);
        first = place + LANES;
    }
}

/// The largest elements of windows, as [`PoolKind::Max`], and where they are in `x`: the first of equal ones, NaN before all
/// others; the first element of its plane for a window without elements.
///
/// # Panics
/// If lengths disagree with the axes, or there are none.
pub fn largest_with_places(axes: &[WindowAxis], x: &[f32], out: &mut [f32], places: &mut [i64]) {
    let (inputs, outputs) = (window::inputs(axes), window::outputs(axes));
    assert_eq!(out.len(), places.len(), "a place for each result");
    if out.is_empty() {
        return;
    }
    let planes = out.len() / outputs;
    assert_eq!((x.len(), out.len()), (planes * inputs, planes * outputs), "elements of {planes} planes of {axes:?}");
    let Some((last, outer)) = axes.split_last() else { panic!("pools have a spatial axis") };
    let rows = Rows::new(outer, *last, Vec::new());
    let taps = rows.seen.rows.len() * last.output * last.kernel;
    let each = planes.div_ceil(threads::parts(planes * taps, planes));
    let tasks = out.chunks_mut(each * outputs).zip(places.chunks_mut(each * outputs)).enumerate().collect();
    threads::each(tasks, |(part, (out, places)): (usize, (&mut [f32], &mut [i64]))| {
        let planes = out.chunks_exact_mut(outputs).zip(places.chunks_exact_mut(outputs));
        for (plane, (out, places)) in (part * each..).zip(planes) {
            let x = &x[plane * inputs..][..inputs];
            let mut begin = 0;
            let lines = out.chunks_exact_mut(last.output).zip(places.chunks_exact_mut(last.output));
            for (row, (out, places)) in lines.enumerate() {
                let taps = &rows.seen.rows[begin..rows.seen.ends[row]];
                begin = rows.seen.ends[row];
                for (output, (out, place)) in out.iter_mut().zip(places).enumerate() {
                    let (value, at) = largest_of_window(last, taps, output, x);
                    *out = value;
                    *place = (plane * inputs + at) as i64;
                }
            }
        }
    });
}

/// The largest element of a window of these rows, and its place in the plane.
#[inline(always)]
fn largest_of_window(last: &WindowAxis, rows: &[usize], output: usize, x: &[f32]) -> (f32, usize) {
    let columns = last.taps(output);
    let first = |row: usize| row * last.input + last.position(output, columns.start).unwrap_or(0);
    let (Some(&row), false) = (rows.first(), columns.is_empty()) else { return (f32::NEG_INFINITY, 0) };
    let (mut largest, mut place) = (x[first(row)], first(row));
    for &row in rows {
        let first = first(row);
        for (step, &value) in
            x[first..(row + 1) * last.input].iter().step_by(last.dilation).take(columns.len()).enumerate()
        {
            if (value > largest || value.is_nan()) && !largest.is_nan() {
                (largest, place) = (value, first + step * last.dilation);
            }
        }
    }
    (largest, place)
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

#[inline(always)]
fn whole_plane(kind: PoolKind, x: &[f32]) -> f32 {
    let mut lanes = [kind.start(); WHOLE_LANES];
    let (chunks, rest) = x.as_chunks::<WHOLE_LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = kind.add(*lane, value));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &value)| *lane = kind.add(*lane, value));
    lanes.into_iter().fold(kind.start(), |total, lane| kind.join(total, lane))
}

/// Adds the windows of a plane to totals.
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
        let values = x.iter().step_by(axis.stride);
        out.iter_mut().zip(values).for_each(|(total, &value)| *total = kind.add(*total, value));
    }
}

/// Turns the totals of a plane into results.
fn finish_plane(kind: PoolKind, counts: &[f32], out: &mut [f32]) {
    if kind != PoolKind::Max {
        out.iter_mut().zip(counts).for_each(|(total, &count)| *total = kind.finish(*total, count));
    }
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
                results.push(kind.finish(total, count as f32));
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
            // Lines of 8 values.
            [axis(9, 5, 3, 2, 1, 1, 1), axis(8, 8, 1, 1, 1, 0, 0)],
            [axis(7, 1, 7, 1, 1, 0, 0), axis(8, 8, 1, 1, 1, 0, 0)],
        ];
        for axes in &cases {
            let (inputs, outputs) = (axes[0].input * axes[1].input, axes[0].output * axes[1].output);
            let x = numbers(3, 3 * inputs);
            for kind in [PoolKind::Max, PoolKind::Average, PoolKind::Norm(2.0), PoolKind::Norm(3.0)] {
                let mut out = vec![7.0; 3 * outputs];
                pool(kind, axes, 1, &x, &mut out);
                let expected: Vec<f32> = x.chunks(inputs).flat_map(|x| naive(kind, axes, x)).collect();
                assert!(close(&out, &expected), "{kind:?} {axes:?}: {out:?} against {expected:?}");
            }
        }
    }

    #[test]
    fn windows_may_reach_far_or_see_padding_alone() {
        let line = WindowAxis { input: 8, output: 8, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let kernel = i32::MAX as usize;
        let far = WindowAxis { input: 2, output: 1, kernel, pad_begin: kernel - 2, ..line };
        let x = numbers(3, 2 * 16);
        let largest = |axes: &[WindowAxis]| {
            let mut out = vec![7.0; 2 * 8];
            pool(PoolKind::Max, axes, 1, &x, &mut out);
            out
        };
        let expected: Vec<f32> =
            x.chunks(16).flat_map(|x| (0..8).map(|lane| x[lane].max(x[lane + 8])).collect::<Vec<f32>>()).collect();
        assert_eq!(largest(&[far, line]), expected);
        let one = WindowAxis { input: 1, kernel, pad_begin: kernel - 1, ..far };
        assert_eq!(largest(&[one, one, far, line]), expected);
        let nothing = WindowAxis { input: 0, output: 2, kernel: 2, pad_begin: 1, pad_end: 2, ..line };
        for axes in [&[nothing][..], &[nothing, line], &[line, nothing]] {
            for (kind, expected) in [(PoolKind::Max, f32::NEG_INFINITY), (PoolKind::Norm(2.0), 0.0)] {
                let mut out = vec![7.0; 3 * window::outputs(axes)];
                pool(kind, axes, 1, &[], &mut out);
                assert!(out.iter().all(|&value| value == expected), "{kind:?} {axes:?}: {out:?}");
            }
        }
    }

    #[test]
    fn padding_counts_where_asked_and_nan_is_the_maximum() {
        let axis = WindowAxis { input: 4, output: 3, kernel: 2, stride: 2, dilation: 1, pad_begin: 1, pad_end: 1 };
        let mut out = [0.0; 3];
        pool(PoolKind::PaddedAverage, &[axis], 1, &[1.0, 2.0, 3.0, 4.0], &mut out);
        assert_eq!(out, [0.5, 2.5, 2.0]);
        pool(PoolKind::Max, &[axis], 1, &[1.0, f32::NAN, 3.0, 4.0], &mut out);
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
                pool(PoolKind::Average, &[axis, axis], 1, &x, &mut out);
                out
            })
        };
        assert_eq!(run(1), run(3));
    }
}
