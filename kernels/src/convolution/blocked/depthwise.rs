//! Channels of their own in blocks: each output of a block is a vector of its 8 channels, which windows side by side fill.

use super::{
    BlockedPlan, CHANNEL_BLOCK,
    depthwise_down::{DownRows, MOST_CACHED, PAIR, finish, goes_down},
    plane,
};
use crate::{
    bands::{Band, Planes},
    convolution::ConvolutionEpilogue,
    places::SeenRows,
    scratch::scratch,
    simd::{Instructions, Routine, Simd},
    window::{self, WindowAxis},
};
use std::ops::Range;

/// Pairs of windows that are summed side by side at most, none of which waits for another: two units have eight sums in flight, for
/// which registers of half a vector have no room.
const fn most_pairs<S: Simd>() -> usize {
    if S::TILE_VECTORS == 3 { 8 } else { 4 }
}

/// Windows of a block from which on rows are given to different threads: below, those that both see are copied, for as long as the
/// windows take.
const FEWEST_OF_BANDS: usize = MOST_CACHED / CHANNEL_BLOCK;

/// Positions that rows with their padding may be longer than twice as long as those without.
const SHORT_REACH: usize = 8;

/// A line of a block that is padding.
const ZEROS: [f32; CHANNEL_BLOCK] = [0.0; CHANNEL_BLOCK];

/// The convolution of groups of one channel, `[channels, 1, taps..]`.
///
/// # Panics
/// If there is not a weight for each tap.
pub(super) fn depthwise(
    instructions: Instructions,
    plan: &BlockedPlan,
    x: &[f32],
    weight: &[f32],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let shape = plan.shape();
    let taps = window::taps(&shape.axes);
    assert_eq!(weight.len(), shape.groups * taps, "weights of {shape:?}");
    let columns = plan.axes().last().copied().unwrap_or(WindowAxis::POINT);
    let seen = plan.seen_rows();
    let rows = match plan.axes() {
        [rows, _] => Some(*rows),
        _ => None,
    };
    let inputs = plane(shape) * CHANNEL_BLOCK;
    let common = Common { seen: &seen, rows, columns, inputs, x, weight, taps, epilogue };
    let blocks = shape.groups / CHANNEL_BLOCK;
    let planes = Planes {
        images: shape.batch,
        planes: shape.batch * blocks,
        together: 1,
        rows: seen.ends.len(),
        columns: columns.output,
        row_length: columns.output * CHANNEL_BLOCK,
        fewest_windows: FEWEST_OF_BANDS,
    };
    let operations = out.len() * taps;
    planes.each(operations, out, |band| instructions.run(Task { common: &common, blocks, band }));
}

/// Everything that tasks have in common.
struct Common<'a> {
    seen: &'a SeenRows,
    /// Where windows have two axes.
    rows: Option<WindowAxis>,
    columns: WindowAxis,
    /// Values of a block of inputs.
    inputs: usize,
    x: &'a [f32],
    /// `[channels, taps]`.
    weight: &'a [f32],
    taps: usize,
    epilogue: ConvolutionEpilogue<'a>,
}

/// Some rows of outputs of some blocks of channels.
struct Task<'t, 'b, 'a> {
    common: &'t Common<'t>,
    /// Blocks of an image.
    blocks: usize,
    band: &'t mut Band<'b, 'a>,
}

impl Routine for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { common, blocks, band } = self;
        let Band { first_row, first_plane, ref mut out } = *band;
        let Common { columns, inputs, x, weight, taps, .. } = *common;
        let row_length = (columns.output * CHANNEL_BLOCK).max(1);
        let rows = out.first().map_or(0, |out| out.len() / row_length);
        let rows = first_row..first_row + rows;
        let copied = common.copied_columns();
        let line = copied.map_or(0, |columns| columns.input * CHANNEL_BLOCK);
        let seen = if copied.is_some() { common.seen_rows(rows.clone()) } else { 0..0 };
        let mut padded = scratch(seen.end * line);
        // What is not copied into is padding, the same for all blocks.
        padded[seen.start * line..].fill(0.0);
        let mut weights = scratch(CHANNEL_BLOCK * taps);
        let weights = weights.as_chunks_mut().0;
        for (index, out) in out.iter_mut().enumerate() {
            let block = first_plane + index;
            let channel = block % blocks * CHANNEL_BLOCK;
            transpose_weights(&weight[channel * taps..][..CHANNEL_BLOCK * taps], weights);
            let x = &x[block * inputs..][..inputs];
            let (columns, x) = match copied {
                Some(columns) => {
                    common.copy_rows(simd, x, seen.clone(), &mut padded, line);
                    (columns, &padded[..])
                }
                None => (columns, x),
            };
            let place = (block * common.seen.ends.len() + first_row) * row_length;
            common.multiply(simd, first_row, columns, (x, weights), channel, (out, place));
        }
    }
}

/// Weights of a tap side by side: `[taps, 8]` of `[8, taps]`.
fn transpose_weights(weight: &[f32], weights: &mut [[f32; CHANNEL_BLOCK]]) {
    match weights.len() {
        9 => return transpose_taps::<9>(weight, weights),
        25 => return transpose_taps::<25>(weight, weights),
        _ => {}
    }
    for (channel, weight) in weight.chunks_exact(weights.len().max(1)).take(CHANNEL_BLOCK).enumerate() {
        for (lanes, weight) in weights.iter_mut().zip(weight) {
            lanes[channel] = *weight;
        }
    }
}

/// As [`transpose_weights`] of a known number of taps: every place is known.
fn transpose_taps<const TAPS: usize>(weight: &[f32], weights: &mut [[f32; CHANNEL_BLOCK]]) {
    let channels: Option<&[[f32; TAPS]; CHANNEL_BLOCK]> = weight.as_chunks().0.first_chunk();
    let weights: Option<&mut [[f32; CHANNEL_BLOCK]; TAPS]> = weights.first_chunk_mut();
    let (Some(channels), Some(weights)) = (channels, weights) else { unreachable!("{TAPS} taps of a block") };
    for (tap, lanes) in weights.iter_mut().enumerate() {
        for (channel, lane) in lanes.iter_mut().enumerate() {
            *lane = channels[channel][tap];
        }
    }
}

impl Common<'_> {
    /// The outputs of rows of a block from `first_row` on, which begin at a place of the whole output.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        columns: WindowAxis,
        (x, weights): (&[f32], &[[f32; CHANNEL_BLOCK]]),
        channel: usize,
        (out, place): (&mut [f32], usize),
    ) {
        let row_length = columns.output * CHANNEL_BLOCK;
        let bias = self.epilogue.bias.map(|bias| &bias[channel..][..CHANNEL_BLOCK]);
        let bias = bias.and_then(|bias| bias.first_chunk()).unwrap_or(&ZEROS);
        let rows = out.len() / row_length.max(1);
        let addend = self.epilogue.addend.map(|addend| addend[place..][..out.len()].as_chunks().0);
        let (x, clamp) = (x.as_chunks().0, self.epilogue.clamp);
        let outputs = out.as_chunks_mut().0;
        let mut down = None;
        if let Some(axis) = self.rows.filter(|rows| goes_down::<S>([*rows, columns])) {
            let rows = first_row..first_row + rows;
            down = Some(DownRows { axes: [axis, columns], x, weights, bias, addend, clamp, rows }.run(simd, outputs));
        }
        // Nothing is left of rows without padding.
        let is_done = down.as_ref().is_some_and(|down| down.start == 0 && down.end >= columns.output);
        let rows = first_row..if is_done { first_row } else { first_row + rows };
        let rows = Rows { rows, columns, x, seen: self.seen, weights, bias, addend, clamp, out: outputs };
        match (down, columns.kernel, columns.dilation, columns.stride) {
            (Some(inside), ..) => simd.run(RowsOutside { rows, inside }),
            (None, 3, 1, 1) => simd.run(RowsOf::<3, 1>(rows)),
            (None, 3, 1, 2) => simd.run(RowsOf::<3, 2>(rows)),
            (None, 5, 1, 1) => simd.run(RowsOf::<5, 1>(rows)),
            (None, 5, 1, 2) => simd.run(RowsOf::<5, 2>(rows)),
            (None, ..) => simd.run(RowsOf::<0, 0>(rows)),
        }
        if let Some(change) = self.epilogue.change {
            change.apply(place, out);
        }
    }

    /// Windows over copies of rows with their padding, so that those at both ends are as the others, and one more where windows are
    /// odd; of small blocks only.
    fn copied_columns(&self) -> Option<WindowAxis> {
        let WindowAxis { input, output, kernel, stride, dilation, .. } = self.columns;
        if input == 0 || output == 0 || kernel <= 1 || self.inputs > MOST_CACHED {
            return None;
        }
        let reach = (output.next_multiple_of(PAIR) - 1) * stride + (kernel - 1) * dilation + 1;
        // Windows far apart, or of taps far apart, may reach anywhere: a copy would be mostly padding.
        if reach > 2 * input + SHORT_REACH {
            return None;
        }
        Some(WindowAxis { input: reach, pad_begin: 0, pad_end: 0, ..self.columns })
    }

    /// Copies rows of a block to behind the padding of lines of so many values.
    #[inline(always)]
    fn copy_rows<S: Simd>(&self, simd: S, x: &[f32], rows: Range<usize>, padded: &mut [f32], line: usize) {
        let row = self.columns.input * CHANNEL_BLOCK;
        let begin = (self.columns.pad_begin * CHANNEL_BLOCK).min(line);
        let count = row.min(line - begin);
        let from = &x[rows.start * row..rows.end * row];
        for (line, from) in padded[rows.start * line..].chunks_exact_mut(line).zip(from.chunks_exact(row)) {
            let (inside, rest) = line[begin..][..count].as_chunks_mut();
            let (from, from_rest) = from[..count].as_chunks();
            for (inside, from) in inside.iter_mut().zip(from) {
                simd.store(simd.load(from), inside);
            }
            // A position is left of an odd number.
            for (rest, from) in rest.as_chunks_mut::<CHANNEL_BLOCK>().0.iter_mut().zip(from_rest.as_chunks().0) {
                *rest = *from;
            }
        }
    }

    /// Rows of inputs from the first to the last that some rows of outputs see.
    fn seen_rows(&self, rows: Range<usize>) -> Range<usize> {
        let seen = || rows.clone().flat_map(|row| self.seen.of(row).0);
        seen().min().map_or(0..0, |first| *first..seen().max().map_or(0, |last| last + 1))
    }
}

/// Rows of outputs of a block.
struct Rows<'a, 'o> {
    rows: Range<usize>,
    columns: WindowAxis,
    x: &'a [[f32; CHANNEL_BLOCK]],
    /// Rows of inputs, and of taps, that each row of outputs sees.
    seen: &'a SeenRows,
    /// Of each tap.
    weights: &'a [[f32; CHANNEL_BLOCK]],
    /// Of the channels.
    bias: &'a [f32; CHANNEL_BLOCK],
    addend: Option<&'a [[f32; CHANNEL_BLOCK]]>,
    clamp: Option<(f32, f32)>,
    out: &'o mut [[f32; CHANNEL_BLOCK]],
}

impl<'a> Rows<'a, '_> {
    /// One of them.
    #[inline(always)]
    fn row<S: Simd>(&mut self, simd: S, row: usize) -> Row<'a, '_, S> {
        let Rows { ref rows, columns, x, seen, weights, bias, addend, clamp, ref mut out } = *self;
        let place = (row - rows.start) * columns.output;
        let addend = addend.map(|addend| &addend[place..]);
        let (bias, out) = (simd.load_halves(bias, bias), &mut out[place..][..columns.output]);
        Row { columns, x, seen: seen.of(row), weights, bias, addend, clamp, out }
    }
}

/// All windows of rows, as a function of its own: one of all kernels takes long to compile.
struct RowsOf<'a, 'o, const KERNEL: usize, const STRIDE: usize>(Rows<'a, 'o>);

impl<const KERNEL: usize, const STRIDE: usize> Routine for RowsOf<'_, '_, KERNEL, STRIDE> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for row in self.0.rows.clone() {
            self.0.row(simd, row).run::<KERNEL, STRIDE>(simd);
        }
    }
}

/// All windows of rows but some of each.
struct RowsOutside<'a, 'o> {
    rows: Rows<'a, 'o>,
    inside: Range<usize>,
}

impl Routine for RowsOutside<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for row in self.rows.rows.clone() {
            self.rows.row(simd, row).run_outside(simd, self.inside.clone());
        }
    }
}

/// A row of outputs.
struct Row<'a, 'o, S: Simd> {
    columns: WindowAxis,
    x: &'a [[f32; CHANNEL_BLOCK]],
    /// Rows of inputs, and of taps.
    seen: (&'a [usize], &'a [usize]),
    /// Of each tap.
    weights: &'a [[f32; CHANNEL_BLOCK]],
    /// Of the channels, twice.
    bias: S::Vector,
    /// From the row on.
    addend: Option<&'a [[f32; CHANNEL_BLOCK]]>,
    clamp: Option<(f32, f32)>,
    out: &'o mut [[f32; CHANNEL_BLOCK]],
}

impl<S: Simd> Row<'_, '_, S> {
    #[inline(always)]
    fn run<const KERNEL: usize, const STRIDE: usize>(mut self, simd: S) {
        // There may be one more than outputs.
        let inside = self.columns.inside(self.columns.output.next_multiple_of(PAIR));
        let mut column = 0;
        while column < self.out.len() {
            let rest = if column < inside.start { 0 } else { inside.end.saturating_sub(column) };
            // About as many each time: few wait for themselves.
            let pairs = rest / PAIR;
            column += match pairs.div_ceil(pairs.div_ceil(most_pairs::<S>()).max(1)) {
                8 if const { most_pairs::<S>() == 8 } => self.pairs::<KERNEL, STRIDE, 8>(simd, column),
                7 if const { most_pairs::<S>() == 8 } => self.pairs::<KERNEL, STRIDE, 7>(simd, column),
                6 if const { most_pairs::<S>() == 8 } => self.pairs::<KERNEL, STRIDE, 6>(simd, column),
                5 if const { most_pairs::<S>() == 8 } => self.pairs::<KERNEL, STRIDE, 5>(simd, column),
                4.. => self.pairs::<KERNEL, STRIDE, 4>(simd, column),
                3 => self.pairs::<KERNEL, STRIDE, 3>(simd, column),
                2 => self.pairs::<KERNEL, STRIDE, 2>(simd, column),
                1 => self.pairs::<KERNEL, STRIDE, 1>(simd, column),
                _ => self.at_border(simd, column),
            };
        }
    }

    /// All windows but some.
    #[inline(always)]
    fn run_outside(mut self, simd: S, inside: Range<usize>) {
        for column in (0..inside.start).chain(inside.end..self.columns.output) {
            self.at_border(simd, column);
        }
    }

    /// Some pairs of windows side by side; gives how many windows.
    #[inline(always)]
    fn pairs<const KERNEL: usize, const STRIDE: usize, const COUNT: usize>(&mut self, simd: S, column: usize) -> usize {
        let stride = if STRIDE == 0 { self.columns.stride } else { STRIDE };
        let kernel = if KERNEL == 0 { self.columns.kernel } else { KERNEL };
        let dilation = if KERNEL == 0 { self.columns.dilation } else { 1 };
        let start = column * stride - self.columns.pad_begin;
        let mut sums = [simd.splat(0.0); COUNT];
        for (line, taps) in self.seen.0.iter().zip(self.seen.1) {
            let weights = &self.weights[taps * kernel..][..kernel];
            let reach = (COUNT * PAIR - 1) * stride + (kernel - 1) * dilation + 1;
            let line = &self.x[line * self.columns.input + start..][..reach];
            for tap in 0..kernel {
                let weight = simd.load_halves(&weights[tap], &weights[tap]);
                let values = &line[tap * dilation..];
                for pair in 0..COUNT {
                    let low = &values[pair * PAIR * stride];
                    let high = &values[(pair * PAIR + 1) * stride];
                    sums[pair] = simd.fused(weight, simd.load_halves(low, high), sums[pair]);
                }
            }
        }
        let addend = self.addend.map(|addend| &addend[column..]);
        finish(simd, sums, self.bias, addend, self.clamp, &mut self.out[column..]);
        COUNT * PAIR
    }

    /// A window of which some taps may be padding; gives how many windows.
    #[inline(always)]
    fn at_border(&mut self, simd: S, column: usize) -> usize {
        let mut sums = simd.splat(0.0);
        let WindowAxis { input, kernel, stride, dilation, pad_begin, .. } = self.columns;
        // None of them is padding.
        let taps = self.columns.taps(column);
        for (line, row) in self.seen.0.iter().zip(self.seen.1) {
            for tap in taps.clone() {
                let value = &self.x[line * input + column * stride + tap * dilation - pad_begin];
                let weight = &self.weights[row * kernel + tap];
                sums = simd.fused(simd.load_halves(weight, &ZEROS), simd.load_halves(value, &ZEROS), sums);
            }
        }
        let addend = self.addend.map(|addend| &addend[column..]);
        finish(simd, [sums], self.bias, addend, self.clamp, &mut self.out[column..=column]);
        1
    }
}
