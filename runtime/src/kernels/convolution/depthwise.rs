//! Convolution of channels that do not see one another: groups of one input channel.
//!
//! Each channel is copied with its padding, so that every tap of 16 outputs of a row is one read at a fixed distance.

use std::ops::Range;

use rayon::prelude::*;

use super::{ConvolutionEpilogue, ConvolutionShape};
use crate::kernels::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

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
    let (plane, positions) = (window::inputs(&axes), window::outputs(&axes));
    // A task has some rows along the first axis (where there are others) of one channel.
    let first = axes[0].output;
    let parts = threads::parts(out.len() * taps, usize::MAX).div_ceil(shape.batch * channels);
    let rows_each = if axes.len() == 1 { first } else { first.div_ceil(parts) };
    let rows_length = positions / first * rows_each;
    let task = |(index, out): (usize, &mut [f32])| {
        let (row_part, channel) = (index % first.div_ceil(rows_each), index / first.div_ceil(rows_each));
        let (image, channel) = (channel / channels, channel % channels);
        let input = image * shape.groups + channel / shape.group_outputs;
        instructions.run(Task {
            axes: &axes,
            rows: row_part * rows_each..first.min((row_part + 1) * rows_each),
            input: &x[input * plane..][..plane],
            weight: &weight[channel * taps..][..taps],
            out,
            epilogue,
            channel,
            place: (image * channels + channel) * positions + row_part * rows_length,
        });
    };
    let rows = out.chunks_mut(positions).flat_map(|channel| channel.chunks_mut(rows_length)).enumerate();
    if threads::parts(shape.outputs() * taps, usize::MAX) == 1 {
        return rows.for_each(task);
    }
    rows.collect::<Vec<_>>().into_par_iter().for_each(task);
}

/// Some rows of the outputs of one channel.
struct Task<'a> {
    axes: &'a [WindowAxis],
    /// Outputs along the first axis.
    rows: Range<usize>,
    /// The input channel.
    input: &'a [f32],
    /// One weight a tap.
    weight: &'a [f32],
    out: &'a mut [f32],
    epilogue: ConvolutionEpilogue<'a>,
    channel: usize,
    /// Where `out` begins in the whole output.
    place: usize,
}

/// The copy of a channel with its padding.
struct Padded {
    values: Vec<f32>,
    /// Distance of neighbours along each axis.
    strides: Vec<usize>,
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let padded = self.pad();
        let mut offsets = vec![0];
        for (axis, stride) in self.axes.iter().zip(&padded.strides) {
            let taps = |offset: usize| (0..axis.kernel).map(move |tap| offset + tap * axis.dilation * stride);
            offsets = offsets.into_iter().flat_map(taps).collect();
        }
        let Some((last, outer)) = self.axes.split_last() else { return };
        for (row, out) in self.out.chunks_mut(last.output.max(1)).enumerate() {
            let (mut rest, mut base) = (row, 0);
            for (index, (axis, stride)) in outer.iter().zip(&padded.strides).enumerate().rev() {
                let count = if index == 0 { self.rows.len() } else { axis.output };
                base += rest % count * axis.stride * stride;
                rest /= count;
            }
            for (vector, out) in out.chunks_mut(LANES).enumerate() {
                let values = &padded.values[base + vector * LANES * last.stride..];
                let mut sum = simd.splat(0.0);
                for (&offset, &weight) in offsets.iter().zip(self.weight) {
                    let tap = match last.stride {
                        1 => simd.load_partial(&values[offset..]),
                        2 => simd.load_every_second(&values[offset..]),
                        stride => {
                            let mut lanes = [0.0; LANES];
                            let strided = values[offset..].iter().step_by(stride);
                            lanes.iter_mut().zip(strided).for_each(|(lane, value)| *lane = *value);
                            simd.load(&lanes)
                        }
                    };
                    sum = simd.fused(simd.splat(weight), tap, sum);
                }
                simd.store_partial(sum, out);
            }
        }
        self.epilogue.apply(simd, self.channel, self.place, self.out);
    }
}

impl Task<'_> {
    /// Copies what the windows of these rows see.
    #[inline(always)]
    fn pad(&self) -> Padded {
        let extents: Vec<usize> = self
            .axes
            .iter()
            .enumerate()
            .map(|(index, axis)| {
                let count = if index == 0 { self.rows.len() } else { axis.output };
                (count - 1) * axis.stride + axis.kernel.saturating_sub(1) * axis.dilation + 1
            })
            .collect();
        let mut strides = vec![1; extents.len()];
        for index in (1..extents.len()).rev() {
            strides[index - 1] = strides[index] * extents[index];
        }
        let total: usize = extents.iter().product();
        // Whole vectors may be read at the last position.
        let mut values = vec![0.0; total + 2 * LANES];
        let Some(last) = self.axes.last() else { return Padded { values, strides } };
        let width = extents[extents.len() - 1];
        let starts: Vec<isize> = self
            .axes
            .iter()
            .enumerate()
            .map(|(index, axis)| axis.start(if index == 0 { self.rows.start } else { 0 }))
            .collect();
        for (row, values) in values[..total].chunks_mut(width).enumerate() {
            let (mut rest, mut place, mut plane, mut inside) = (row, 0, 1, true);
            for (index, axis) in self.axes[..self.axes.len() - 1].iter().enumerate().rev() {
                let position = (rest % extents[index]) as isize + starts[index];
                rest /= extents[index];
                inside &= (0..axis.input as isize).contains(&position);
                place += position.max(0) as usize * plane;
                plane *= axis.input;
            }
            let start = starts[starts.len() - 1];
            let first = (-start).max(0) as usize;
            let end = (last.input as isize - start).clamp(0, width as isize) as usize;
            if inside && first < end {
                let from = place * last.input + (start + first as isize) as usize;
                values[first..end].copy_from_slice(&self.input[from..from + end - first]);
            }
        }
        Padded { values, strides }
    }
}
