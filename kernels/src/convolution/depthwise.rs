//! Convolution of channels that do not see one another: groups of one input channel.
//!
//! Each channel is copied with its padding, so that every tap of 16 outputs is one read at a fixed distance (`depthwise_grid`).
//! Where rows are short, vectors hold channels instead (`depthwise_lanes`); shapes of which the copy would be mostly waste are
//! computed row by row.

use std::ops::Range;

use super::{
    ConvolutionEpilogue, ConvolutionShape,
    depthwise_grid::on_grids,
    depthwise_lanes::{LanesTask, whole_blocks},
    direct::Grid,
};
use crate::{
    product::tile,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// The longest row of outputs for which vectors hold channels.
const SHORT_ROW: usize = 8;

/// The most positions that the windows of a channel see, if vectors hold channels: those of 16 channels stay in a near cache.
const FEW_POSITIONS: usize = 2048;

/// `out = x * weight` with `weight: [groups * group_outputs, 1, taps..]` and groups of one input channel, then the epilogue.
///
/// # Panics
/// If lengths disagree with the shape, or groups have several input channels.
pub fn depthwise(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    weight: &[f32],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let channels = shape.groups * shape.group_outputs;
    let taps = window::taps(&shape.axes);
    assert_eq!(shape.group_inputs, 1, "groups of one input channel");
    assert_eq!(x.len(), shape.inputs(), "inputs of {shape:?}");
    assert_eq!(out.len(), shape.outputs(), "outputs of {shape:?}");
    assert_eq!(weight.len(), channels * taps, "weights of {shape:?}");
    epilogue.check(channels, out.len());
    if out.is_empty() {
        return;
    }
    let axes = window::joined(&shape.axes);
    if shape.group_outputs == 1 && in_lanes(instructions, shape, &axes, (x, weight), out, epilogue) {
        return;
    }
    if let Some(grid) = Grid::new(&axes) {
        return on_grids(instructions, shape, (&axes, &grid), (x, weight), out, epilogue);
    }
    let plan = Plan::new(&axes);
    let (plane, positions) = (window::inputs(&axes), window::outputs(&axes));
    // A task has some rows along the first axis (where there are others) of one channel.
    let first = axes[0].output;
    let all_parts = threads::parts(out.len() * taps, usize::MAX);
    let parts = all_parts.div_ceil(shape.batch * channels);
    let rows_each = if axes.len() == 1 { first } else { first.div_ceil(parts) };
    let row_parts = first.div_ceil(rows_each);
    let rows_length = positions / first * rows_each;
    let task = |padded: &mut Vec<f32>, index: usize, out: &mut [f32]| {
        let (part, channel) = (index % row_parts, index / row_parts);
        let (image, channel) = (channel / channels, channel % channels);
        let input = image * shape.groups + channel / shape.group_outputs;
        instructions.run(Task {
            axes: &axes,
            plan: &plan,
            rows: part * rows_each..first.min((part + 1) * rows_each),
            input: &x[input * plane..][..plane],
            weight: &weight[channel * taps..][..taps],
            out,
            padded,
            epilogue,
            channel,
            place: (image * channels + channel) * positions + part * rows_length,
        });
    };
    let rows: Vec<&mut [f32]> = out.chunks_mut(positions).flat_map(|channel| channel.chunks_mut(rows_length)).collect();
    let rows_each = rows.len().div_ceil(all_parts);
    let mut rows = rows;
    threads::chunks(&mut rows, rows_each, |part, rows| {
        let mut padded = Vec::new();
        for (index, out) in rows.iter_mut().enumerate() {
            task(&mut padded, part * rows_each + index, out);
        }
    });
}

/// The convolution with channels in the lanes of vectors; whether rows are short enough for it.
fn in_lanes(
    instructions: Instructions,
    shape: &ConvolutionShape,
    axes: &[WindowAxis],
    (x, weight): (&[f32], &[f32]),
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) -> bool {
    let axes = match axes {
        [columns] => [&WindowAxis::POINT, columns],
        [rows, columns] => [rows, columns],
        _ => return false,
    };
    let extents = [extent(axes[0], axes[0].output), extent(axes[1], whole_blocks(axes[1].output))];
    if axes[1].output > SHORT_ROW || extents[0].saturating_mul(extents[1]) > FEW_POSITIONS {
        return false;
    }
    let (channels, taps) = (shape.groups, axes[0].kernel * axes[1].kernel);
    let tap =
        |index| index / axes[1].kernel * axes[0].dilation * extents[1] + index % axes[1].kernel * axes[1].dilation;
    let offsets: Vec<usize> = (0..taps).map(tap).collect();
    let (plane, positions) = (axes[0].input * axes[1].input, axes[0].output * axes[1].output);
    let images = out.chunks_mut(channels * positions).enumerate();
    let mut parts: Vec<(usize, usize, &mut [f32])> = images
        .flat_map(|(image, out)| {
            out.chunks_mut(LANES * positions).enumerate().map(move |(block, out)| (image, block * LANES, out))
        })
        .collect();
    let each = parts.len().div_ceil(threads::parts(shape.outputs() * taps, usize::MAX));
    threads::chunks(&mut parts, each, |_, parts| {
        for (image, channel, out) in parts {
            let (first, count) = (*image * channels + *channel, LANES.min(channels - *channel));
            instructions.run(LanesTask {
                axes,
                extents,
                offsets: &offsets,
                input: &x[first * plane..][..count * plane],
                weight: &weight[*channel * taps..][..count * taps],
                out,
                epilogue,
                channel: *channel,
                place: first * positions,
            });
        }
    });
    true
}

/// Distances within the copy of a channel, the same for all.
struct Plan {
    /// Of neighbours along each axis.
    strides: Vec<usize>,
    /// Of each tap from the first.
    offsets: Vec<usize>,
}

impl Plan {
    fn new(axes: &[WindowAxis]) -> Self {
        let mut strides = vec![1; axes.len()];
        for index in (1..axes.len()).rev() {
            strides[index - 1] = strides[index] * extent(&axes[index], axes[index].output);
        }
        let mut offsets = vec![0];
        for (axis, stride) in axes.iter().zip(&strides) {
            let taps = |offset: usize| (0..axis.kernel).map(move |tap| offset + tap * axis.dilation * stride);
            offsets = offsets.into_iter().flat_map(taps).collect();
        }
        Self { strides, offsets }
    }
}

/// Positions that `count` windows see, with padding.
fn extent(axis: &WindowAxis, count: usize) -> usize {
    count.saturating_sub(1) * axis.stride + axis.kernel.saturating_sub(1) * axis.dilation + 1
}

/// Some rows of the outputs of one channel.
struct Task<'a> {
    axes: &'a [WindowAxis],
    plan: &'a Plan,
    /// Outputs along the first axis.
    rows: Range<usize>,
    /// The input channel.
    input: &'a [f32],
    /// One weight a tap.
    weight: &'a [f32],
    out: &'a mut [f32],
    /// Room for the copy of the channel.
    padded: &'a mut Vec<f32>,
    epilogue: ConvolutionEpilogue<'a>,
    channel: usize,
    /// Where `out` begins in the whole output.
    place: usize,
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        self.pad();
        match self.axes.last().map_or(1, |last| last.stride) {
            1 => self.slide::<S, 1>(simd),
            2 => self.slide::<S, 2>(simd),
            _ => self.slide::<S, 0>(simd),
        }
        self.epilogue.apply(simd, self.channel, self.place, self.out);
    }
}

impl Task<'_> {
    /// Sums the taps of all outputs. `STRIDE`, along the last axis, is known, or 0.
    #[inline(always)]
    fn slide<S: Simd, const STRIDE: usize>(&mut self, simd: S) {
        let Some((last, outer)) = self.axes.split_last() else { return };
        let is_finite = self.weight.iter().all(|weight| weight.is_finite());
        for row in 0..self.out.len() / last.output.max(1) {
            let (mut rest, mut base) = (row, 0);
            for (index, (axis, stride)) in outer.iter().zip(&self.plan.strides).enumerate().rev() {
                let count = if index == 0 { self.rows.len() } else { axis.output };
                base += rest % count * axis.stride * stride;
                rest /= count;
            }
            // Taps on padding add zeros, unless they are infinite or NaN.
            let taps = match outer {
                [rows] if is_finite => {
                    let taps = rows.taps(self.rows.start + row);
                    taps.start * last.kernel..taps.end * last.kernel
                }
                _ => 0..self.weight.len(),
            };
            let mut place = 0;
            while place < last.output {
                let (taps, from) = (taps.clone(), base + place * last.stride);
                let to = row * last.output + place..(row + 1) * last.output;
                let vectors = (last.output - place).div_ceil(LANES);
                place += LANES
                    * match vectors {
                        4.. => self.vectors::<S, STRIDE, 4>(simd, taps, from, to),
                        2.. => self.vectors::<S, STRIDE, 2>(simd, taps, from, to),
                        _ => self.vectors::<S, STRIDE, 1>(simd, taps, from, to),
                    };
            }
        }
    }

    /// Sums some taps of some vectors of outputs side by side, none of which waits for another; gives how many.
    #[inline(always)]
    fn vectors<S: Simd, const STRIDE: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        taps: Range<usize>,
        from: usize,
        to: Range<usize>,
    ) -> usize {
        let stride = if STRIDE == 0 { self.axes.last().map_or(1, |last| last.stride) } else { STRIDE };
        let mut sums = [simd.splat(0.0); VECTORS];
        for (&offset, &weight) in self.plan.offsets[taps.clone()].iter().zip(&self.weight[taps]) {
            let values = &self.padded[from + offset..];
            for vector in 0..VECTORS {
                let value = tap_values::<S, STRIDE>(simd, values, vector * LANES * stride, stride);
                sums[vector] = simd.fused(simd.splat(weight), value, sums[vector]);
            }
        }
        let out = &mut self.out[to];
        for vector in 0..VECTORS {
            simd.store_partial(sums[vector], tile::at_most_a_vector(&mut out[vector * LANES..]));
        }
        VECTORS
    }

    /// Copies what the windows of these rows see.
    fn pad(&mut self) {
        let Some((last, outer)) = self.axes.split_last() else { return };
        let count = |index: usize| if index == 0 { self.rows.len() } else { self.axes[index].output };
        let first = |index: usize| self.axes[index].start(if index == 0 { self.rows.start } else { 0 });
        let width = extent(last, count(outer.len()));
        let rows: usize = outer.iter().enumerate().map(|(index, axis)| extent(axis, count(index))).product();
        // Whole vectors may be read at the last position.
        self.padded.resize(rows * width + 2 * LANES, 0.0);
        let start = first(outer.len());
        let begin = ((-start).max(0) as usize).min(width);
        let end = (last.input as isize - start).clamp(begin as isize, width as isize) as usize;
        for (row, values) in self.padded[..rows * width].chunks_mut(width).enumerate() {
            let (mut rest, mut place, mut plane, mut inside) = (row, 0, 1, begin < end);
            for (index, axis) in outer.iter().enumerate().rev() {
                let extent = extent(axis, count(index));
                let position = (rest % extent) as isize + first(index);
                rest /= extent;
                inside &= (0..axis.input as isize).contains(&position);
                place += position.max(0) as usize * plane;
                plane *= axis.input;
            }
            if !inside {
                values.fill(0.0);
                continue;
            }
            let from = place * last.input + (start + begin as isize) as usize;
            values[..begin].fill(0.0);
            values[begin..end].copy_from_slice(&self.input[from..][..end - begin]);
            values[end..].fill(0.0);
        }
    }
}

/// One tap of 16 outputs side by side, where the first output's first tap is `values[0]`.
#[inline(always)]
fn tap_values<S: Simd, const STRIDE: usize>(simd: S, values: &[f32], offset: usize, stride: usize) -> S::Vector {
    let values = &values[offset..];
    match STRIDE {
        1 => simd.load(&values.as_chunks().0[0]),
        2 => simd.load_every_second(&values[..2 * LANES]),
        _ => {
            let mut lanes = [0.0; LANES];
            lanes.iter_mut().zip(values.iter().step_by(stride)).for_each(|(lane, value)| *lane = *value);
            simd.load(&lanes)
        }
    }
}
