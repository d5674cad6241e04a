//! Transposed convolution: each input position is multiplied by all taps of all output channels at once (a product with
//! outputs × taps as its outputs), and the taps are added where they belong.

use std::ops::Range;

use super::{ConvolutionEpilogue, gather::Gather, grouped};
use crate::{
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece, Panels, RUN, pack_panels},
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Values of taps that are made before they are added into place: they stay in the second-level cache.
const MOST_TAP_VALUES: usize = 64 * 1024;

/// The shape of a transposed convolution: `[batch, groups * group_inputs, ..]` to `[batch, groups * group_outputs, ..]`.
#[derive(Clone, Debug)]
pub struct TransposedShape {
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not see one another.
    pub groups: usize,
    /// Input channels of a group.
    pub group_inputs: usize,
    /// Output channels of a group.
    pub group_outputs: usize,
    /// Spatial axes of the convolution that this one is the transpose of: its `output` positions are read here, and its
    /// `input` positions are written.
    pub axes: Vec<WindowAxis>,
}

impl TransposedShape {
    /// Panels of a group.
    fn group_panels(&self) -> usize {
        (self.group_outputs * window::taps(&self.axes)).div_ceil(PANEL_OUTPUTS)
    }

    /// The number of input values.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.batch * self.groups * self.group_inputs * window::outputs(&self.axes)
    }

    /// The number of output values.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.batch * self.groups * self.group_outputs * window::inputs(&self.axes)
    }

    /// The panels of a weight as ONNX stores it, `[groups * group_inputs, group_outputs, taps..]`, as [`transposed`] takes them:
    /// for each group a weight of `group_inputs` inputs and `group_outputs * taps` outputs.
    ///
    /// # Panics
    /// If the length of `weight` disagrees with the shape.
    #[must_use]
    pub fn pack(&self, weight: &[f32]) -> Vec<f32> {
        let outputs = self.group_outputs * window::taps(&self.axes);
        assert_eq!(weight.len(), self.groups * self.group_inputs * outputs, "weights of {self:?}");
        let mut groups = vec![Vec::new(); self.groups];
        threads::chunks(&mut groups, 1, |group, packed| {
            let weight = &weight[group * self.group_inputs * outputs..];
            packed[0] =
                pack_panels::<f32>(self.group_inputs, outputs, |input, output| weight[input * outputs + output]);
        });
        groups.concat()
    }
}

/// `out = transposed x * weight`, then the epilogue. `weight` holds the panels of all groups, see [`TransposedShape::pack`].
///
/// Each output is the sum of its taps, in the order of blocks of input positions and, within, of taps; blocks depend on
/// the shape alone.
///
/// # Panics
/// If lengths disagree with the shape.
pub fn transposed(
    instructions: Instructions,
    shape: &TransposedShape,
    x: &[f32],
    weight: PanelElements<'_>,
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let channels = shape.groups * shape.group_outputs;
    assert_eq!(x.len(), shape.inputs(), "inputs of {shape:?}");
    assert_eq!(out.len(), shape.outputs(), "outputs of {shape:?}");
    epilogue.check(channels, out.len());
    let piece =
        PanelPiece { panels: 0..shape.groups * shape.group_panels(), inputs: 0..shape.group_inputs, elements: weight };
    piece.check(shape.group_inputs, shape.groups * shape.group_panels());
    if out.is_empty() {
        return;
    }
    let (taps, plane) = (window::taps(&shape.axes), window::inputs(&shape.axes));
    // Whole channels in whole panels.
    let aligned = (1..=PANEL_OUTPUTS).find(|count| (count * taps).is_multiple_of(PANEL_OUTPUTS)).unwrap_or(1);
    let parts = threads::parts(x.len() * shape.group_outputs * taps, usize::MAX).div_ceil(shape.batch * shape.groups);
    let channels_each = shape.group_outputs.div_ceil(parts).next_multiple_of(aligned).min(
        // Blocks of positions are to be as long as a row of tiles at least.
        (MOST_TAP_VALUES / (taps.max(1) * 3 * LANES)).max(aligned).next_multiple_of(aligned),
    );
    let mut tasks = Vec::new();
    for (group, out) in out.chunks_mut(shape.group_outputs * plane).enumerate() {
        for (part, out) in out.chunks_mut(channels_each * plane).enumerate() {
            let (image, group) = (group / shape.groups, group % shape.groups);
            let first = part * channels_each;
            let count = out.len() / plane;
            let panels = group * shape.group_panels() + first * taps / PANEL_OUTPUTS;
            let end = group * shape.group_panels() + ((first + count) * taps).div_ceil(PANEL_OUTPUTS);
            let elements = piece.elements_of(panels..end);
            tasks.push(Task { shape, x, image, group, channels: first..first + count, elements, out, epilogue });
        }
    }
    threads::each(tasks, |task| instructions.run(task));
}

/// Some output channels of one group of one image.
struct Task<'a> {
    shape: &'a TransposedShape,
    x: &'a [f32],
    image: usize,
    group: usize,
    /// Within the group.
    channels: Range<usize>,
    elements: PanelElements<'a>,
    out: &'a mut [f32],
    epilogue: ConvolutionEpilogue<'a>,
}

impl Routine for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        self.out.fill(0.0);
        self.multiply(simd);
        let plane = window::inputs(&self.shape.axes);
        let first = self.group * self.shape.group_outputs + self.channels.start;
        for (channel, out) in self.out.chunks_mut(plane).enumerate() {
            let channel = first + channel;
            let place = (self.image * self.shape.groups * self.shape.group_outputs + channel) * plane;
            self.epilogue.apply(simd, channel, place, out);
        }
    }
}

impl Task<'_> {
    /// Makes the taps of a block of positions, and adds them into place, block after block.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S) {
        let shape = self.shape;
        let (positions, inputs) = (window::outputs(&shape.axes), shape.group_inputs);
        let rows = self.channels.len() * window::taps(&shape.axes);
        if rows == 0 || inputs == 0 {
            return;
        }
        // The length of a block has an influence on the order of sums: it follows from the shape, not from this task.
        let most = (MOST_TAP_VALUES / (window::taps(&shape.axes) * PANEL_OUTPUTS)).next_multiple_of(3 * LANES);
        let line = [WindowAxis {
            input: positions,
            output: positions,
            kernel: 1,
            stride: 1,
            dilation: 1,
            pad_begin: 0,
            pad_end: 0,
        }];
        let image = &self.x[(self.image * shape.groups + self.group) * inputs * positions..][..inputs * positions];
        let panels = Panels::new(self.elements, inputs);
        let mut wide = scratch(if panels.are_f32() { 0 } else { RUN * LANES });
        for first_position in (0..positions).step_by(most) {
            let block = first_position..positions.min(first_position + most);
            let mut taps = vec![0.0; rows * block.len()];
            let mut taps_rows: Vec<&mut [f32]> = taps.chunks_mut(block.len()).collect();
            let mut gather = Gather::new(&line, block.clone());
            let mut packed = vec![[0.0; LANES]; gather.vectors() * grouped::PANEL_INPUTS];
            for first_input in (0..inputs).step_by(RUN) {
                let length = RUN.min(inputs - first_input);
                let run = first_input..first_input + length;
                gather.gather(simd, image, run.clone(), &mut packed, grouped::PANEL_INPUTS);
                for (panel, rows) in taps_rows.chunks_mut(PANEL_OUTPUTS).enumerate() {
                    let weights = panels.in_f32(simd, panel, run.clone(), &mut wide);
                    grouped::multiply_panel(simd, weights.as_flattened(), &packed, length, rows);
                }
            }
            let plane = window::inputs(&shape.axes);
            let taps_each = window::taps(&shape.axes);
            for (out, taps) in self.out.chunks_mut(plane).zip(taps.chunks(taps_each * block.len())) {
                for (tap, values) in taps.chunks(block.len()).enumerate() {
                    add_tap(&shape.axes, tap, block.clone(), values, out);
                }
            }
        }
    }
}

/// Adds windows up where they lie: `columns: [planes, taps.., outputs..]` to `out: [planes, inputs..]`, tap by tap.
///
/// # Panics
/// If lengths disagree with the axes.
pub fn add_windows(axes: &[WindowAxis], columns: &[f32], out: &mut [f32]) {
    let (plane, positions) = (window::inputs(axes), window::outputs(axes));
    let size = window::taps(axes) * positions;
    let planes = out.len().checked_div(plane).unwrap_or(0);
    assert_eq!((out.len(), columns.len()), (planes * plane, planes * size), "elements of {planes} planes of {axes:?}");
    if out.is_empty() {
        return;
    }
    let each = planes.div_ceil(threads::parts(columns.len(), planes));
    threads::chunks(out, each * plane, |part, out| {
        let columns = &columns[part * each * size..];
        Instructions::best().run(Windows { axes, columns, positions, out });
    });
}

/// Windows of some planes.
struct Windows<'a> {
    axes: &'a [WindowAxis],
    columns: &'a [f32],
    positions: usize,
    out: &'a mut [f32],
}

impl Routine for Windows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let taps = window::taps(self.axes);
        for (plane, out) in self.out.chunks_exact_mut(window::inputs(self.axes)).enumerate() {
            out.fill(0.0);
            for tap in 0..taps {
                let values = &self.columns[(plane * taps + tap) * self.positions..][..self.positions];
                add_tap(self.axes, tap, 0..self.positions, values, out);
            }
        }
    }
}

/// Adds the values of one tap at the positions `block` to one output channel.
#[inline(always)]
fn add_tap(axes: &[WindowAxis], tap: usize, block: Range<usize>, values: &[f32], out: &mut [f32]) {
    let Some((last, outer)) = axes.split_last() else {
        out[0] += values[0];
        return;
    };
    let mut position = block.start;
    while position < block.end {
        let first = position % last.output;
        let length = (last.output - first).min(block.end - position);
        let values = &values[position - block.start..][..length];
        let (mut row, mut rest_tap) = (position / last.output, tap / last.kernel);
        position += length;
        let (mut place, mut plane, mut inside) = (0, 1, true);
        for axis in outer.iter().rev() {
            let to = axis.position(row % axis.output, rest_tap % axis.kernel);
            (row, rest_tap) = (row / axis.output, rest_tap / axis.kernel);
            inside &= to.is_some();
            place += to.unwrap_or(0) * plane;
            plane *= axis.input;
        }
        if !inside {
            continue;
        }
        let out = &mut out[place * last.input..][..last.input];
        let start = last.start(first) + (tap % last.kernel * last.dilation) as isize;
        let below = |position: isize| (position.max(0) as usize).div_ceil(last.stride).min(length);
        let (begin, end) = (below(-start), below(last.input as isize - start));
        if begin >= end {
            continue;
        }
        let out = &mut out[(start + (begin * last.stride) as isize) as usize..];
        if last.stride == 1 {
            out.iter_mut().zip(&values[begin..end]).for_each(|(out, value)| *out += value);
        } else {
            out.iter_mut().step_by(last.stride).zip(&values[begin..end]).for_each(|(out, value)| *out += value);
        }
    }
}
