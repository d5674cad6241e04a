//! Gathers the inputs of a block of output positions into panels: `[position / 16][input][16]`.

use std::ops::Range;

use crate::{
    simd::{LANES, Simd},
    window::{self, WindowAxis},
};

/// Positions side by side along the last axis, all in one row of outputs.
struct Segment {
    /// First position within the block.
    place: usize,
    length: usize,
    /// First window along the last axis.
    first: usize,
}

/// The gathering of one block of output positions.
pub(super) struct Gather<'a> {
    axes: &'a [WindowAxis],
    segments: Vec<Segment>,
    /// For each segment and each axis but the last: where tap 0 lies in the input.
    starts: Vec<isize>,
    positions: usize,
    /// One input of all positions.
    line: Vec<f32>,
}

impl<'a> Gather<'a> {
    /// For the output positions `positions`, counted over all axes.
    pub(super) fn new(axes: &'a [WindowAxis], positions: Range<usize>) -> Self {
        let (last, outer) = axes.split_last().map_or((1, axes), |(last, outer)| (last.output, outer));
        let (mut segments, mut starts) = (Vec::new(), Vec::new());
        let mut position = positions.start;
        while position < positions.end {
            let first = position % last;
            let length = (last - first).min(positions.end - position);
            segments.push(Segment { place: position - positions.start, length, first });
            let mut row = position / last;
            let begin = starts.len();
            for axis in outer.iter().rev() {
                starts.push(axis.start(row % axis.output));
                row /= axis.output;
            }
            starts[begin..].reverse();
            position += length;
        }
        let line = vec![0.0; positions.len().next_multiple_of(LANES)];
        Self { axes, segments, starts, positions: positions.len(), line }
    }

    /// The number of vectors of positions.
    pub(super) fn vectors(&self) -> usize {
        self.positions.div_ceil(LANES)
    }

    /// Gathers the inputs `inputs` (channels × taps) of an image `[channels, positions..]` into `packed`, of which each vector
    /// of positions has a panel of `panel_inputs` inputs.
    #[inline(always)]
    pub(super) fn gather<S: Simd>(
        &mut self,
        simd: S,
        image: &[f32],
        inputs: Range<usize>,
        packed: &mut [[f32; LANES]],
        panel_inputs: usize,
    ) {
        let (plane, taps) = (window::inputs(self.axes), window::taps(self.axes));
        let mut tap = vec![0; self.axes.len()];
        let mut rest = inputs.start % taps.max(1);
        for (tap, axis) in tap.iter_mut().zip(self.axes).rev() {
            *tap = rest % axis.kernel;
            rest /= axis.kernel;
        }
        let mut channel = inputs.start / taps.max(1);
        for input in 0..inputs.len() {
            self.fill_line(simd, &image[channel * plane..][..plane], &tap);
            for (vector, values) in self.line.as_chunks::<LANES>().0.iter().enumerate() {
                simd.store(simd.load(values), &mut packed[vector * panel_inputs + input]);
            }
            let mut carry = true;
            for (tap, axis) in tap.iter_mut().zip(self.axes).rev() {
                *tap += 1;
                carry = *tap == axis.kernel;
                if !carry {
                    break;
                }
                *tap = 0;
            }
            channel += usize::from(carry);
        }
    }

    /// One input of all positions.
    #[inline(always)]
    fn fill_line<S: Simd>(&mut self, simd: S, plane: &[f32], tap: &[usize]) {
        let Some((last, outer)) = self.axes.split_last() else { return };
        for (index, segment) in self.segments.iter().enumerate() {
            let line = &mut self.line[segment.place..][..segment.length];
            let starts = &self.starts[index * outer.len()..][..outer.len()];
            let mut row = Some(0);
            for ((axis, start), tap) in outer.iter().zip(starts).zip(tap) {
                let position = start + (tap * axis.dilation) as isize;
                let inside = (0..axis.input as isize).contains(&position);
                row = row.filter(|_| inside).map(|row| row * axis.input + position as usize);
            }
            let Some(row) = row else {
                line.fill(0.0);
                continue;
            };
            let start = last.start(segment.first) + (tap[outer.len()] * last.dilation) as isize;
            copy_row(simd, &plane[row * last.input..][..last.input], start, last.stride, line);
        }
    }
}

/// Every `stride`-th value of `row` from `start` on, 0 outside of it.
#[inline(always)]
pub(super) fn copy_row<S: Simd>(simd: S, row: &[f32], start: isize, stride: usize, line: &mut [f32]) {
    Taken::new(row.len(), start, stride, line.len()).copy(simd, row, line);
}

/// Which values of a row a line takes: every `stride`-th from some position on, which may lie outside of the row.
pub(super) struct Taken {
    pub stride: usize,
    /// The first value that is there.
    pub from: usize,
    /// The values of the line that are there; the others are 0.
    pub inside: Range<usize>,
}

impl Taken {
    /// Of a row of so many values, from `start` on, for a line of so many.
    pub(super) fn new(row: usize, start: isize, stride: usize, line: usize) -> Taken {
        let below = |position: isize| (position.max(0) as usize).div_ceil(stride).min(line);
        let (first, end) = (below(-start), below(row as isize - start));
        let first = first.min(end);
        let from = if first == end { 0 } else { (start + (first * stride) as isize) as usize };
        Taken { stride, from, inside: first..end }
    }

    /// Copies them.
    #[inline(always)]
    pub(super) fn copy<S: Simd>(&self, simd: S, row: &[f32], line: &mut [f32]) {
        fill_zero(simd, &mut line[..self.inside.start]);
        fill_zero(simd, &mut line[self.inside.end..]);
        let line = &mut line[self.inside.clone()];
        if !line.is_empty() {
            copy_inside(simd, &row[self.from..], self.stride, line);
        }
    }
}

/// Every `stride`-th value of a row, which has all of them.
#[inline(always)]
fn copy_inside<S: Simd>(simd: S, row: &[f32], stride: usize, line: &mut [f32]) {
    match stride {
        1 => {
            let (vectors, rest) = line.as_chunks_mut::<LANES>();
            let (from, last) = row.as_chunks::<LANES>();
            for (to, from) in vectors.iter_mut().zip(from) {
                simd.store(simd.load(from), to);
            }
            // Behind the last vector of the line, the row may go on.
            if !rest.is_empty() {
                let from = from.get(vectors.len()).map_or(last, |from| from);
                simd.store_partial(simd.load_partial(from), rest);
            }
        }
        2 => {
            for (to, from) in line.chunks_mut(LANES).zip(row.chunks(2 * LANES)) {
                simd.store_partial(simd.load_every_second(from), to);
            }
        }
        _ => line.iter_mut().zip(row.iter().step_by(stride)).for_each(|(to, from)| *to = *from),
    }
}

/// Zeros; the parts in the padding are short.
#[inline(always)]
fn fill_zero<S: Simd>(simd: S, values: &mut [f32]) {
    for values in values.chunks_mut(LANES) {
        simd.store_partial(simd.splat(0.0), values);
    }
}
