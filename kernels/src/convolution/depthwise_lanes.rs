//! Depthwise convolution of short rows: a vector holds one position of 16 channels.
//!
//! Channels are turned into lanes while their padding is added, and back while outputs are written. A row that is no multiple
//! of 16 long wastes nothing, and what depends on positions alone is worked out once for 16 channels.

use super::ConvolutionEpilogue;
use crate::{
    scratch::scratch,
    simd::{LANES, Routine, Simd},
    window::WindowAxis,
};

/// Positions of a row that are summed at once.
const COLUMNS: usize = 4;

/// Positions of a row of outputs, with those that fill the last block.
pub(super) fn whole_blocks(columns: usize) -> usize {
    columns.next_multiple_of(COLUMNS)
}

/// Up to 16 channels of one image.
pub(super) struct LanesTask<'a> {
    /// Along rows and columns.
    pub axes: [&'a WindowAxis; 2],
    /// Positions that the windows of whole blocks see along each axis, with padding.
    pub extents: [usize; 2],
    /// Of each tap from the first, in positions with padding.
    pub offsets: &'a [usize],
    /// `[channels, rows, columns]`.
    pub input: &'a [f32],
    /// `[channels, taps]`.
    pub weight: &'a [f32],
    /// `[channels, output rows, output columns]`.
    pub out: &'a mut [f32],
    pub epilogue: ConvolutionEpilogue<'a>,
    /// The first channel.
    pub channel: usize,
    /// Where `out` begins in the whole output.
    pub place: usize,
}

impl Routine for LanesTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let [height, width] = self.extents;
        let mut padded = scratch(height * width * LANES);
        padded.fill(0.0);
        let padded = padded.as_chunks_mut::<LANES>().0;
        self.turn(simd, padded);
        let pitch = whole_blocks(self.axes[1].output);
        let mut sums = scratch(self.axes[0].output * pitch * LANES);
        let sums = sums.as_chunks_mut::<LANES>().0;
        let [rows, columns] = self.axes;
        match (rows.kernel, columns.kernel, rows.dilation * columns.dilation, columns.stride) {
            (3, 3, 1, 1) => self.blocks::<S, 3, 1, 6>(simd, padded, sums),
            (3, 3, 1, 2) => self.blocks::<S, 3, 2, 9>(simd, padded, sums),
            (5, 5, 1, 1) => self.blocks::<S, 5, 1, 8>(simd, padded, sums),
            (5, 5, 1, 2) => self.blocks::<S, 5, 2, 11>(simd, padded, sums),
            _ => self.positions(simd, padded, sums),
        }
        self.turn_back(simd, sums);
        let positions = self.axes[0].output * self.axes[1].output;
        for (index, out) in self.out.chunks_mut(positions).enumerate() {
            self.epilogue.apply(simd, self.channel + index, self.place + index * positions, out);
        }
    }
}

impl LanesTask<'_> {
    /// Writes the inputs that windows see to their places between the padding.
    #[inline(always)]
    fn turn<S: Simd>(&self, simd: S, padded: &mut [[f32; LANES]]) {
        let [rows, columns] = self.axes;
        let width = self.extents[1];
        let plane = rows.input * columns.input;
        let mut turned = scratch(plane.next_multiple_of(LANES) * LANES);
        let turned = turned.as_chunks_mut::<LANES>().0;
        for (block, turned) in turned.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let position = block * LANES;
            let count = LANES.min(plane - position);
            let mut channels = [simd.splat(0.0); LANES];
            if self.input.len() == LANES * plane {
                for channel in 0..LANES {
                    channels[channel] = simd.load_partial(&self.input[channel * plane + position..][..count]);
                }
            } else {
                for (vector, channel) in channels.iter_mut().zip(self.input.chunks(plane)) {
                    *vector = simd.load_partial(&channel[position..][..count]);
                }
            }
            let lanes = simd.transpose(channels);
            for lane in 0..LANES {
                simd.store(lanes[lane], &mut turned[lane]);
            }
        }
        // Columns of the input that are seen, and where the first of them is seen.
        let (first_row, first_column) = (rows.start(0), columns.start(0));
        let left = first_column.max(0) as usize;
        let place = (-first_column).max(0) as usize;
        let seen = columns.input.saturating_sub(left).min(width.saturating_sub(place));
        for (row, padded) in padded.chunks_mut(width).enumerate() {
            let row = row as isize + first_row;
            if seen > 0 && (0..rows.input as isize).contains(&row) {
                let from = &turned[row as usize * columns.input + left..][..seen];
                padded[place..place + seen].copy_from_slice(from);
            }
        }
    }

    /// The weights of a tap, one a channel.
    fn weights(&self, tap: usize) -> [f32; LANES] {
        let taps = self.offsets.len();
        std::array::from_fn(|channel| self.weight.get(channel * taps + tap).copied().unwrap_or(0.0))
    }

    /// Sums of windows of `KERNEL` by `KERNEL` without gaps, [`COLUMNS`] at a time, which see `SPAN` positions of a row.
    #[inline(always)]
    fn blocks<S: Simd, const KERNEL: usize, const STRIDE: usize, const SPAN: usize>(
        &self,
        simd: S,
        padded: &[[f32; LANES]],
        sums: &mut [[f32; LANES]],
    ) {
        let width = self.extents[1];
        let stride = self.axes[0].stride;
        let mut weights = [[[0.0; LANES]; KERNEL]; KERNEL];
        for (tap, weights) in weights.as_flattened_mut().iter_mut().enumerate() {
            *weights = self.weights(tap);
        }
        let pitch = whole_blocks(self.axes[1].output);
        for (row, sums) in sums.chunks_mut(pitch).enumerate() {
            for (block, sums) in sums.as_chunks_mut::<COLUMNS>().0.iter_mut().enumerate() {
                let mut totals = [simd.splat(0.0); COLUMNS];
                for tap in 0..KERNEL {
                    let line = &padded[(row * stride + tap) * width + block * COLUMNS * STRIDE..][..SPAN];
                    for (step, weights) in weights[tap].iter().enumerate() {
                        let weights = simd.load(weights);
                        for (column, total) in totals.iter_mut().enumerate() {
                            *total = simd.fused(weights, simd.load(&line[column * STRIDE + step]), *total);
                        }
                    }
                }
                for (sum, &total) in sums.iter_mut().zip(&totals) {
                    simd.store(total, sum);
                }
            }
        }
    }

    /// Sums of any windows, one at a time.
    #[inline(always)]
    fn positions<S: Simd>(&self, simd: S, padded: &[[f32; LANES]], sums: &mut [[f32; LANES]]) {
        let [rows, columns] = self.axes;
        let weights: Vec<_> = (0..self.offsets.len()).map(|tap| self.weights(tap)).collect();
        for (row, sums) in sums.chunks_mut(whole_blocks(columns.output)).enumerate() {
            for (column, sums) in sums[..columns.output].iter_mut().enumerate() {
                let window = &padded[row * rows.stride * self.extents[1] + column * columns.stride..];
                let mut sum = simd.splat(0.0);
                for (&offset, weights) in self.offsets.iter().zip(&weights) {
                    sum = simd.fused(simd.load(weights), simd.load(&window[offset]), sum);
                }
                simd.store(sum, sums);
            }
        }
    }

    /// Writes the sums to the outputs of their channels.
    #[inline(always)]
    fn turn_back<S: Simd>(&mut self, simd: S, sums: &[[f32; LANES]]) {
        let [rows, columns] = self.axes;
        let (pitch, positions) = (whole_blocks(columns.output), rows.output * columns.output);
        let (mut row, mut column) = (0, 0);
        for first in (0..positions).step_by(LANES) {
            let count = LANES.min(positions - first);
            let mut lanes = [simd.splat(0.0); LANES];
            for lane in 0..LANES {
                if lane < count {
                    lanes[lane] = simd.load(&sums[row * pitch + column]);
                }
                column += 1;
                if column == columns.output {
                    (row, column) = (row + 1, 0);
                }
            }
            let channels = simd.transpose(lanes);
            if self.out.len() == LANES * positions {
                for channel in 0..LANES {
                    simd.store_partial(channels[channel], &mut self.out[channel * positions + first..][..count]);
                }
            } else {
                for (&vector, out) in channels.iter().zip(self.out.chunks_mut(positions)) {
                    simd.store_partial(vector, &mut out[first..first + count]);
                }
            }
        }
    }
}
