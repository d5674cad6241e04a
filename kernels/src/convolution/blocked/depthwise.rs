//! Channels of their own in blocks: each output of a block is a vector of its 8 channels, which windows side by side fill.

use super::{CHANNEL_BLOCK, plane};
use crate::{
    convolution::{ConvolutionEpilogue, ConvolutionShape},
    places::SeenRows,
    product::clamped,
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};
use std::ops::Range;

/// Windows of a vector.
const PAIR: usize = LANES / CHANNEL_BLOCK;

/// Pairs of windows that are summed side by side, none of which waits for another.
const PAIRS: usize = 4;

/// Values of a block up to which rows of outputs read copies of them with the padding: about as many as the first-level cache holds.
const MOST_COPIED: usize = 1 << 13;

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
    shape: &ConvolutionShape,
    x: &[f32],
    weight: &[f32],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let taps = window::taps(&shape.axes);
    assert_eq!(weight.len(), shape.groups * taps, "weights of {shape:?}");
    let mut axes = window::joined(&shape.axes);
    let columns = axes.pop().unwrap_or(WindowAxis::POINT);
    let seen = SeenRows::new(&axes);
    let rows = seen.ends.len();
    let (inputs, blocks) = (plane(shape) * CHANNEL_BLOCK, shape.groups / CHANNEL_BLOCK);
    let row_length = columns.output * CHANNEL_BLOCK;
    let parts = threads::parts(out.len() * taps, usize::MAX);
    let rows_each = rows.div_ceil(parts.div_ceil(shape.batch * blocks));
    let parts_of_block = rows.div_ceil(rows_each);
    let mut tasks: Vec<Task<'_>> = Vec::with_capacity(shape.batch * blocks * parts_of_block);
    for (block, out) in out.chunks_mut(rows * row_length).enumerate() {
        let channel = block % blocks * CHANNEL_BLOCK;
        tasks.extend(out.chunks_mut(rows_each * row_length).enumerate().map(|(part, out)| Task {
            seen: &seen,
            columns,
            first_row: part * rows_each,
            x: &x[block * inputs..][..inputs],
            weight: &weight[channel * taps..][..CHANNEL_BLOCK * taps],
            place: block * rows * row_length + part * rows_each * row_length,
            out,
            channel,
            epilogue,
        }));
    }
    let each = (blocks * shape.batch * parts_of_block).div_ceil(parts);
    threads::chunks(&mut tasks, each, |_, tasks| instructions.run(Chunk(tasks)));
}

/// Tasks of one thread, which share the memory that they copy into.
struct Chunk<'t, 'a>(&'t mut [Task<'a>]);

impl Routine for Chunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Some(first) = self.0.first() else { return };
        let mut weights = scratch(first.weight.len());
        let copied = first.copied_columns();
        let line = copied.map_or(0, |columns| columns.input * CHANNEL_BLOCK);
        // What is not copied into is padding, the same for all.
        let mut padded = scratch(first.x.len() / (first.columns.input * CHANNEL_BLOCK).max(1) * line);
        padded.fill(0.0);
        for task in self.0 {
            let weights = weights.as_chunks_mut().0;
            task.transpose_weights(weights);
            let (columns, x) = match copied {
                Some(columns) => {
                    task.copy_rows(simd, &mut padded, line);
                    (columns, &padded[..])
                }
                None => (task.columns, task.x),
            };
            task.multiply(simd, columns, x, weights);
        }
    }
}

/// Some rows of outputs of a block of channels.
struct Task<'a> {
    seen: &'a SeenRows,
    columns: WindowAxis,
    first_row: usize,
    /// The block.
    x: &'a [f32],
    /// `[8 channels, taps]`.
    weight: &'a [f32],
    out: &'a mut [f32],
    channel: usize,
    /// Where the outputs begin in the whole output.
    place: usize,
    epilogue: ConvolutionEpilogue<'a>,
}

impl Task<'_> {
    /// The outputs from rows of these windows.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, columns: WindowAxis, x: &[f32], weights: &[[f32; CHANNEL_BLOCK]]) {
        let row_length = columns.output * CHANNEL_BLOCK;
        let bias = self.epilogue.bias.map(|bias| &bias[self.channel..][..CHANNEL_BLOCK]);
        let bias = bias.and_then(|bias| bias.first_chunk()).unwrap_or(&ZEROS);
        for row in 0..self.out.len() / row_length.max(1) {
            let addend = self.epilogue.addend.map(|addend| &addend[self.place + row * row_length..][..row_length]);
            let row = Row {
                columns,
                x: x.as_chunks().0,
                seen: self.seen.of(self.first_row + row),
                weights,
                bias: simd.load_halves(bias, bias),
                addend: addend.map(|addend| addend.as_chunks().0),
                clamp: self.epilogue.clamp,
                out: self.out[row * row_length..][..row_length].as_chunks_mut().0,
            };
            match (columns.kernel, columns.dilation, columns.stride) {
                (3, 1, 1) => row.run::<3, 1>(simd),
                (3, 1, 2) => row.run::<3, 2>(simd),
                (5, 1, 1) => row.run::<5, 1>(simd),
                (5, 1, 2) => row.run::<5, 2>(simd),
                _ => row.run::<0, 0>(simd),
            }
        }
        if let Some(change) = self.epilogue.change {
            change.apply(self.place, self.out);
        }
    }

    /// Weights of a tap side by side.
    fn transpose_weights(&self, weights: &mut [[f32; CHANNEL_BLOCK]]) {
        let taps = weights.len();
        for (tap, weights) in weights.iter_mut().enumerate() {
            for channel in 0..CHANNEL_BLOCK {
                weights[channel] = self.weight[channel * taps + tap];
            }
        }
    }

    /// Windows over copies of rows with their padding, so that those at both ends are as the others, and one more where windows are
    /// odd; of small blocks only.
    fn copied_columns(&self) -> Option<WindowAxis> {
        let WindowAxis { input, output, kernel, stride, dilation, .. } = self.columns;
        if input == 0 || output == 0 || kernel <= 1 || self.x.len() > MOST_COPIED {
            return None;
        }
        let reach = (output.next_multiple_of(PAIR) - 1) * stride + (kernel - 1) * dilation + 1;
        // Windows far apart, or of taps far apart, may reach anywhere: a copy would be mostly padding.
        if reach > 2 * input + SHORT_REACH {
            return None;
        }
        Some(WindowAxis { input: reach, pad_begin: 0, pad_end: 0, ..self.columns })
    }

    /// Copies rows to behind the padding of lines of so many values.
    #[inline(always)]
    fn copy_rows<S: Simd>(&self, simd: S, padded: &mut [f32], line: usize) {
        let row = self.columns.input * CHANNEL_BLOCK;
        let begin = (self.columns.pad_begin * CHANNEL_BLOCK).min(line);
        for (line, from) in padded.chunks_exact_mut(line).zip(self.x.chunks_exact(row)) {
            let inside = &mut line[begin..];
            let count = row.min(inside.len());
            for (inside, from) in inside[..count].chunks_mut(LANES).zip(from[..count].chunks(LANES)) {
                simd.store_partial(simd.load_partial(from), inside);
            }
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
    addend: Option<&'a [[f32; CHANNEL_BLOCK]]>,
    clamp: Option<(f32, f32)>,
    out: &'o mut [[f32; CHANNEL_BLOCK]],
}

impl<S: Simd> Row<'_, '_, S> {
    #[inline(always)]
    fn run<const KERNEL: usize, const STRIDE: usize>(mut self, simd: S) {
        let inside = self.inside();
        let mut column = 0;
        while column < self.out.len() {
            let rest = if column < inside.start { 0 } else { inside.end.saturating_sub(column) };
            column += match rest / PAIR {
                PAIRS.. => self.pairs::<KERNEL, STRIDE, PAIRS>(simd, column),
                3 => self.pairs::<KERNEL, STRIDE, 3>(simd, column),
                2 => self.pairs::<KERNEL, STRIDE, 2>(simd, column),
                1 => self.pairs::<KERNEL, STRIDE, 1>(simd, column),
                _ => self.at_border(simd, column),
            };
        }
    }

    /// The windows of which no tap is padding; there may be one more than outputs.
    fn inside(&self) -> Range<usize> {
        let WindowAxis { input, output, kernel, stride, dilation, pad_begin, .. } = self.columns;
        let reach = kernel.saturating_sub(1) * dilation + 1;
        let end = (input + pad_begin).checked_sub(reach).map_or(0, |last| last / stride + 1);
        let end = end.min(output.next_multiple_of(PAIR));
        pad_begin.div_ceil(stride).min(end)..end
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
        for pair in 0..COUNT {
            self.finish(simd, column + pair * PAIR, sums[pair]);
        }
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
        self.finish(simd, column, sums);
        1
    }

    /// Sums become the outputs of a window and, where it is there, of the next one.
    #[inline(always)]
    fn finish(&mut self, simd: S, column: usize, sums: S::Vector) {
        let mut value = simd.add(sums, self.bias);
        if let Some(addend) = self.addend {
            value = simd.add(value, simd.load_halves(&addend[column], addend.get(column + 1).unwrap_or(&ZEROS)));
        }
        let value = clamped(simd, self.clamp, value);
        match &mut self.out[column..] {
            [low, high, ..] => simd.store_halves(value, low, high),
            [low] => simd.store_halves(value, low, &mut [0.0; CHANNEL_BLOCK]),
            [] => {}
        }
    }
}
