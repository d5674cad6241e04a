//! Convolution over padded copies of channels: every tap of 16 neighbouring positions is one read at a fixed distance.
//!
//! A block of rows of outputs is laid out on the grid of its padded input: positions that no output has are computed with
//! the others and dropped. Where windows are some positions apart, the channel is split into as many interleaved grids, so
//! that neighbouring windows are neighbours again. What is read is copied once for all taps, which gathering (`gather`)
//! copies once for each; that remains for shapes of which the grid would be mostly waste.
//!
//! The order of each sum is that of `gather`.

use std::ops::Range;

use super::{
    finish::Finish,
    gather::Taken,
    tiles::{Column, Data, MOST_COLUMN, Operands, columns},
};
use crate::{
    product::{PANEL_OUTPUTS, Panels, RUN},
    scratch::{Scratch, scratch},
    simd::{LANES, Places, Simd},
    window::{self, WindowAxis},
};

/// Positions of a block, where there are many: with their inputs of a run they stay in the second-level cache.
const MOST_POSITIONS: usize = 768;

/// Fewest positions of a block of several.
const FEWEST_POSITIONS: usize = 96;

/// Inputs of a block that are read again for each panel of outputs: they stay in the second-level cache.
const MOST_INPUTS: usize = 1 << 17;

/// Inputs on a grid that are held at a time.
const MOST_HELD: usize = 1 << 18;

/// Channels between the one that is packed and the one that is asked for.
const CHANNELS_AHEAD: usize = 4;

/// The longest row of a grid.
const LONGEST_ROW: usize = 4096;

/// The geometry of all blocks.
pub(super) struct Grid {
    /// How far the last tap lies behind the first, along each axis, in positions of the grid.
    reach: Vec<usize>,
    /// Which of the interleaved grids along each axis taps fall on.
    phases: Vec<Vec<usize>>,
    /// Positions of a row along the first axis.
    row: usize,
}

impl Grid {
    /// `None` where the grid would be mostly waste.
    pub(super) fn new(axes: &[WindowAxis]) -> Option<Grid> {
        if window::taps(axes) == 0 {
            return None;
        }
        let reach: Vec<usize> = axes.iter().map(|axis| (axis.kernel - 1) * axis.dilation / axis.stride).collect();
        let phases = axes.iter().map(|axis| {
            let mut phases: Vec<usize> = (0..axis.kernel).map(|tap| tap * axis.dilation % axis.stride).collect();
            phases.sort_unstable();
            phases.dedup();
            phases
        });
        let inner = axes.iter().zip(&reach).skip(1);
        let row = inner.map(|(axis, reach)| axis.output + reach).product();
        let grid = Grid { phases: phases.collect(), row, reach };
        let positions = axes[0].output * grid.row;
        let halo = (axes[0].output + grid.reach[0]) * grid.row;
        let outputs = window::outputs(axes).next_multiple_of(LANES);
        (row <= LONGEST_ROW && positions <= outputs + outputs / 2 && halo <= 4 * outputs).then_some(grid)
    }

    /// Rows along the first axis, of `rows` in all, that a block has for `channels` inputs when there are to be `parts`.
    pub(super) fn rows_each(&self, rows: usize, channels: usize, parts: usize) -> usize {
        let fewest = FEWEST_POSITIONS.div_ceil(self.row);
        let most = (MOST_INPUTS / channels.max(1)).clamp(FEWEST_POSITIONS, MOST_POSITIONS).div_ceil(self.row);
        // A single axis is cut at whole rows of tiles.
        let unit = if self.row == 1 { 3 * LANES } else { 1 };
        rows.div_ceil(parts).max(fewest).min(most).next_multiple_of(unit)
    }

    /// The most rows along the first axis of which the copy of a channel has about so many values.
    pub(super) fn rows_within(&self, values: usize) -> usize {
        let grids: usize = self.phases.iter().map(Vec::len).product();
        // Not less than what neighbouring blocks both copy.
        (values / (self.row * grids)).saturating_sub(self.reach[0]).max(self.reach[0] + 1)
    }
}

/// A column of positions as a copy.
struct LastColumn {
    /// Its first position.
    first: usize,
    /// The inputs, vector by vector.
    data: Scratch,
    /// Where each input begins.
    offsets: Vec<usize>,
}

/// The outputs of a panel.
struct Panel<'o, 'r, F> {
    /// The first among those of the task.
    row: usize,
    out: &'o mut [&'r mut [f32]],
    finish: F,
}

/// Rows of a channel of which a copy takes as many values at the same distance.
pub(super) struct Lines {
    pub count: usize,
    /// Distance of neighbours in the channel.
    pub stride: usize,
    /// All bits of the lanes that a line of less than a vector has.
    pub mask: [i32; LANES],
    /// Where each begins in the copy, in ascending order, and in the channel.
    pub places: Vec<(usize, usize)>,
}

/// Some rows of outputs along the first axis.
pub(super) struct Block {
    /// Values of a channel on its grids.
    pub(super) channel: usize,
    /// Positions that are computed.
    pub(super) positions: usize,
    /// Distance of each tap from the first.
    pub(super) taps: Vec<usize>,
    /// Rows of a channel along the last axis: where they go, and where they come from if not from the padding.
    sources: Vec<(usize, Option<usize>)>,
    /// Grids along the last axis: distance from the first, the input position that they begin with, and what they take of a row.
    last_phases: Vec<(usize, isize, Taken)>,
    /// Values of a row along the last axis.
    width: usize,
    last: WindowAxis,
    /// Where each row of outputs begins.
    pub(super) rows: Vec<usize>,
    /// Outputs of a row.
    pub(super) row_length: usize,
    /// Where the block begins in a channel of the input that is its own grid.
    pub(super) in_place: Option<usize>,
}

impl Block {
    pub(super) fn new(axes: &[WindowAxis], grid: &Grid, rows: Range<usize>) -> Block {
        let rank = axes.len();
        let count = |axis: usize| if axis == 0 { rows.len() } else { axes[axis].output };
        let extent = |axis: usize| count(axis) + grid.reach[axis];
        let mut strides = vec![1; rank];
        for axis in (0..rank - 1).rev() {
            strides[axis] = strides[axis + 1] * extent(axis + 1);
        }
        // Vectors that are written at the end of a grid reach behind it.
        let mut phase_strides = vec![strides[0] * extent(0) + LANES; rank];
        for axis in (0..rank - 1).rev() {
            phase_strides[axis] = phase_strides[axis + 1] * grid.phases[axis + 1].len();
        }
        let first = |axis: usize| axes[axis].start(if axis == 0 { rows.start } else { 0 });
        let (strides, phase_strides) = (&strides[..], &phase_strides[..]);
        let (mut taps, mut starts, mut sources) = (vec![0], vec![0], vec![(0, Some(0))]);
        for (at, axis) in axes.iter().enumerate() {
            let phases = &grid.phases[at];
            let place = |tap: usize| {
                let phase = phases.iter().position(|&phase| phase == tap * axis.dilation % axis.stride);
                phase.unwrap_or(0) * phase_strides[at] + tap * axis.dilation / axis.stride * strides[at]
            };
            taps = taps.iter().flat_map(|&base| (0..axis.kernel).map(move |tap| base + place(tap))).collect();
            if at + 1 == rank {
                break;
            }
            starts = starts.iter().flat_map(|&base| (0..count(at)).map(move |row| base + row * strides[at])).collect();
            let lines = phases.iter().enumerate().flat_map(|(index, phase)| {
                let to = move |row: usize| index * phase_strides[at] + row * strides[at];
                (0..extent(at)).map(move |row| (to(row), first(at) + (row * axis.stride + phase) as isize))
            });
            let lines: Vec<(usize, isize)> = lines.collect();
            let inside = |from: usize, position: isize| {
                usize::try_from(position).ok().filter(|&at| at < axis.input).map(|at| from * axis.input + at)
            };
            sources = sources
                .iter()
                .flat_map(|&(base, from)| {
                    let line = move |&(to, position): &(usize, isize)| {
                        (base + to, from.and_then(|from| inside(from, position)))
                    };
                    lines.iter().map(line)
                })
                .collect();
        }
        let last = axes[rank - 1];
        let last_start = first(rank - 1);
        let last_phases = grid.phases[rank - 1].iter().enumerate();
        let last_phases = last_phases.map(|(index, &phase)| {
            let start = last_start + phase as isize;
            (index * phase_strides[rank - 1], start, Taken::new(last.input, start, last.stride, extent(rank - 1)))
        });
        let positions = (0..rank).map(|axis| count(axis).saturating_sub(1) * strides[axis]).sum::<usize>() + 1;
        let is_dense = grid.reach.iter().skip(1).all(|reach| *reach == 0);
        let is_input = axes
            .iter()
            .all(|axis| axis.kernel == 1 && axis.stride == 1 && axis.start(0) == 0 && axis.output == axis.input);
        Block {
            channel: phase_strides[0] * grid.phases[0].len(),
            positions,
            taps,
            sources,
            last_phases: last_phases.collect(),
            width: extent(rank - 1),
            rows: if is_dense { vec![0] } else { starts },
            row_length: if is_dense { positions } else { count(rank - 1) },
            in_place: is_input.then_some(rows.start * grid.row),
            last,
        }
    }

    /// A channel on its grids.
    #[inline(always)]
    fn fill<S: Simd>(&self, simd: S, plane: &[f32], channel: &mut [f32]) {
        for &(phase, _, ref taken) in &self.last_phases {
            for &(to, from) in &self.sources {
                let line = &mut channel[phase + to..][..self.width];
                match from {
                    Some(from) => {
                        let row = &plane[from * self.last.input..][..self.last.input];
                        taken.copy(simd, row, line);
                    }
                    None => line.fill(0.0),
                }
            }
        }
    }

    /// What is copied of a channel, for each of the grids along the last axis.
    pub(super) fn lines(&self) -> Vec<Lines> {
        let lines = |&(phase, _, ref taken): &(usize, isize, Taken)| {
            let source = |&(to, from): &(usize, Option<usize>)| {
                Some((phase + to + taken.inside.start, from? * self.last.input + taken.from))
            };
            let places = self.sources.iter().filter_map(source).collect();
            let count = taken.inside.len();
            let mask = std::array::from_fn(|lane| if lane < count { -1 } else { 0 });
            Lines { count, stride: taken.stride, mask, places }
        };
        self.last_phases.iter().map(lines).filter(|lines| lines.count > 0).collect()
    }

    /// As [`Block::fill`], of bytes shifted by so many positions of the input along the last axis; the padding is `pad`.
    #[inline(always)]
    pub(super) fn fill_bytes(&self, plane: &[u8], shift: usize, pad: u8, channel: &mut [u8]) {
        for &(phase, start, _) in &self.last_phases {
            for &(to, from) in &self.sources {
                let line = &mut channel[phase + to..][..self.width];
                match from {
                    Some(from) => {
                        let row = &plane[from * self.last.input..][..self.last.input];
                        copy_bytes(row, start + shift as isize, self.last.stride, pad, line);
                    }
                    None => line.fill(pad),
                }
            }
        }
    }

    /// Sums on the grid become outputs side by side.
    #[inline(always)]
    pub(super) fn collect<S: Simd>(&self, simd: S, sums: &[f32], out: &mut [f32], finish: &Finish<'_>) {
        let mut place = 0;
        for (out, &start) in out.chunks_mut(self.row_length).zip(&self.rows) {
            let addend = finish.addend.map(|addend| &addend[place..][..out.len()]);
            place += out.len();
            finish.row(simd, &sums[start..][..out.len()], addend, out);
        }
        if let Some((change, start)) = finish.change {
            change.apply(start, out);
        }
    }

    /// The other way round.
    fn spread(&self, out: &[f32], sums: &mut [f32]) {
        for (out, &start) in out.chunks(self.row_length).zip(&self.rows) {
            sums[start..start + out.len()].copy_from_slice(out);
        }
    }

    /// The product of the inputs `inputs` (channels × taps) of `image: [channels, plane]` and the panels of them:
    /// overwrites the outputs where `inputs` begin at 0, else adds to them; `finish` says what follows for each channel.
    ///
    /// All inputs of the block are multiplied with a panel before the next one, so that its sums stay in the first-level cache.
    #[inline(always)]
    pub(super) fn multiply<'a, S: Simd>(
        &self,
        simd: S,
        (image, plane): (&[f32], usize),
        inputs: Range<usize>,
        panels: Panels<'_>,
        out: &mut [&mut [f32]],
        finish: impl Fn(usize) -> Finish<'a>,
    ) {
        let pitch = self.positions.next_multiple_of(LANES);
        let taps = self.taps.len().max(1);
        let held = (MOST_HELD / self.channel.max(1) * taps / RUN * RUN).max(RUN);
        let is_whole = inputs.len() <= held;
        let mut sums =
            scratch(if is_whole { PANEL_OUTPUTS } else { out.len().next_multiple_of(PANEL_OUTPUTS) } * pitch);
        // Vectors at the end of the last channel reach behind it.
        let mut data =
            scratch((inputs.len().min(held).div_ceil(taps) + 1) * self.channel.next_multiple_of(LANES) + LANES);
        let mut wide = scratch(if panels.are_f32() { 0 } else { held.min(inputs.len()) * LANES });
        let mut offsets = Vec::with_capacity(held.min(inputs.len()));
        let out_length = out.first().map_or(0, |out| out.len());
        if inputs.is_empty() {
            sums.fill(0.0);
            out.iter_mut().enumerate().for_each(|(row, out)| self.collect(simd, &sums, out, &finish(row)));
        }
        for first in inputs.clone().step_by(held) {
            let part = first..inputs.end.min(first + held);
            let is_dense = self.rows.len() == 1 && part == (0..inputs.end);
            let (data, end) = self.read(simd, (image, plane), (part.clone(), is_dense), &mut data, &mut offsets);
            let offsets = Places::new(&offsets);
            let of_panel = part.start - inputs.start..part.end - inputs.start;
            for (panel, out) in out.chunks_mut(PANEL_OUTPUTS).enumerate() {
                let row = panel * PANEL_OUTPUTS;
                let sums = &mut sums[if is_whole { 0 } else { row * pitch }..][..PANEL_OUTPUTS * pitch];
                if first == inputs.start && first > 0 {
                    out.iter().zip(sums.chunks_mut(pitch)).for_each(|(out, sums)| self.spread(out, sums));
                }
                let weights = panels.in_f32(simd, panel, of_panel.clone(), &mut wide);
                let operands = Operands { panel: weights, data, offsets, fresh: first == 0 };
                let finishes = Panel { row, out, finish: &finish };
                if is_dense {
                    self.multiply_dense(simd, operands, end.as_ref(), finishes);
                    continue;
                }
                for column in columns::<S>(pitch) {
                    // About where the outputs of these positions lie: the grid has more positions than there are outputs.
                    let near = column.first * out_length / pitch;
                    let rows = finishes.out.len();
                    operands.column(simd, (column, rows), (&mut *sums, column.first, pitch), (finishes.out, near));
                }
                if part.end == inputs.end {
                    for (index, (out, sums)) in finishes.out.iter_mut().zip(sums.chunks(pitch)).enumerate() {
                        self.collect(simd, sums, out, &finish(row + index));
                    }
                }
            }
        }
    }

    /// The last column of positions that are read where they lie, for `inputs` channels, as a copy: vectors at its end would reach
    /// behind the image. `None` where none does.
    #[inline(always)]
    fn last_in_place<S: Simd>(&self, simd: S, (image, plane): (&[f32], usize), inputs: usize) -> Option<LastColumn> {
        let first = self.in_place?;
        let column = columns::<S>(self.positions).last()?;
        let width = column.vectors * LANES;
        (first + (inputs - 1) * plane + column.first + width > image.len()).then_some(())?;
        let mut data = scratch(inputs * width);
        for (plane, data) in image.chunks(plane).zip(data.chunks_mut(width)) {
            let values = &plane[first..][column.first..self.positions];
            for (vector, values) in data.as_chunks_mut().0.iter_mut().zip(values.chunks(LANES)) {
                simd.store(simd.load_partial(values), vector);
            }
        }
        Some(LastColumn { first: column.first, data, offsets: (0..inputs).map(|input| input * width).collect() })
    }

    /// The product with a panel where outputs lie side by side on the grid, of all inputs: straight into the outputs.
    #[inline(always)]
    fn multiply_dense<'a, S: Simd>(
        &self,
        simd: S,
        operands: Operands<'_>,
        last: Option<&LastColumn>,
        Panel { row, out, finish }: Panel<'_, '_, impl Fn(usize) -> Finish<'a>>,
    ) {
        let mut near = scratch(PANEL_OUTPUTS * MOST_COLUMN);
        let mut finishes = [Finish::default(); PANEL_OUTPUTS];
        finishes.iter_mut().enumerate().take(out.len()).for_each(|(index, own)| *own = finish(row + index));
        for column in columns::<S>(self.positions) {
            let (operands, own) = match last.filter(|last| last.first == column.first) {
                Some(LastColumn { data, offsets, .. }) => {
                    let data = Data { values: data, distance: LANES };
                    (Operands { data, offsets: Places::new(offsets), ..operands }, Column { first: 0, ..column })
                }
                None => (operands, column),
            };
            operands.column(simd, (own, out.len()), (&mut near, 0, MOST_COLUMN), (out, column.first));
            let end = self.positions.min(column.first + column.vectors * LANES);
            for ((out, sums), finish) in out.iter_mut().zip(near.chunks(MOST_COLUMN)).zip(&finishes) {
                let addend = finish.addend.map(|addend| &addend[column.first..end]);
                finish.row(simd, &sums[..end - column.first], addend, &mut out[column.first..end]);
            }
        }
        for (out, finish) in out.iter_mut().zip(finishes) {
            if let Some((change, start)) = finish.change {
                change.apply(start, out);
            }
        }
    }

    /// Where the inputs `inputs` (channels × taps) lie: in `image: [channels, plane]` or, on their grids or by vectors, in `data`.
    /// `offsets` has the place of each at position 0. The last column may lie elsewhere where all inputs are read (`is_dense`).
    #[inline(always)]
    fn read<'d, S: Simd>(
        &self,
        simd: S,
        (image, plane): (&'d [f32], usize),
        (inputs, is_dense): (Range<usize>, bool),
        data: &'d mut [f32],
        offsets: &mut Vec<usize>,
    ) -> (Data<'d>, Option<LastColumn>) {
        if const { S::TILE_VECTORS == 1 } && self.taps.len() == 1 {
            return (self.pack(simd, (image, plane), inputs, data, offsets), None);
        }
        let end = if is_dense { self.last_in_place(simd, (image, plane), inputs.end) } else { None };
        let taps = self.taps.len().max(1);
        let channels = inputs.start / taps..(inputs.end - 1) / taps + 1;
        offsets.clear();
        if let Some(first) = self.in_place {
            let pitch = self.positions.next_multiple_of(LANES);
            // Vectors at the end of the last channel may reach behind the image.
            if let Some(data) = image.get(channels.start * plane + first..)
                && (end.is_some() || (channels.len() - 1) * plane + pitch <= data.len())
            {
                offsets.extend((0..channels.len()).map(|channel| channel * plane));
                return (Data { values: data, distance: LANES }, end);
            }
        }
        for (slot, channel) in data.chunks_mut(self.channel).zip(channels.clone()) {
            self.fill(simd, &image[channel * plane..][..plane], slot);
        }
        let offset = |input: usize| (input / taps - channels.start) * self.channel + self.taps[input % taps];
        offsets.extend(inputs.map(offset));
        (Data { values: data, distance: LANES }, None)
    }

    /// The inputs of windows of one tap, vector by vector: all inputs of 16 positions side by side. Those of a channel are far
    /// from those of the next one, on pages of their own that often fall on the same cache sets.
    #[inline(always)]
    fn pack<'d, S: Simd>(
        &self,
        simd: S,
        (image, plane): (&[f32], usize),
        channels: Range<usize>,
        data: &'d mut [f32],
        offsets: &mut Vec<usize>,
    ) -> Data<'d> {
        // An odd number of lines: vectors of a channel do not fall on the same cache sets.
        let distance = (channels.len() | 1) * LANES;
        let mut line = scratch(if self.in_place.is_some() { 0 } else { self.channel });
        offsets.clear();
        offsets.extend((0..channels.len()).map(|input| input * LANES));
        for (input, channel) in channels.enumerate() {
            let plane = &image[channel * plane..][..plane];
            let values = match self.in_place {
                Some(first) => &plane[first..][..self.positions],
                None => {
                    self.fill(simd, plane, &mut line);
                    &line[..self.positions]
                }
            };
            let packed = data[input * LANES..].chunks_mut(distance);
            let first = (channel + CHANNELS_AHEAD) * plane.len() + self.in_place.unwrap_or(0);
            for (vector, (values, packed)) in values.chunks(LANES).zip(packed).enumerate() {
                if self.in_place.is_some() {
                    simd.prefetch(image, first + vector * LANES);
                }
                simd.store(simd.load_partial(values), &mut packed.as_chunks_mut().0[0]);
            }
        }
        Data { values: data, distance }
    }
}

/// Bytes of every second one that are copied together.
const PAIRS: usize = 8;

/// Every `stride`-th byte of `row` from `start` on, `pad` outside of it.
#[inline(always)]
fn copy_bytes(row: &[u8], start: isize, stride: usize, pad: u8, line: &mut [u8]) {
    let below = |position: isize| (position.max(0) as usize).div_ceil(stride).min(line.len());
    let (first, end) = (below(-start), below(row.len() as isize - start));
    let first = first.min(end);
    line[..first].fill(pad);
    line[end..].fill(pad);
    if first == end {
        return;
    }
    let (line, row) = (&mut line[first..end], &row[(start + (first * stride) as isize) as usize..]);
    match stride {
        1 => line.copy_from_slice(&row[..line.len()]),
        2 => {
            let blocks = line.as_chunks_mut::<PAIRS>().0;
            let pairs = row.as_chunks::<{ 2 * PAIRS }>().0;
            // Lengths that are known become vectors.
            for (to, from) in blocks.iter_mut().zip(pairs) {
                for index in 0..PAIRS {
                    to[index] = from[2 * index];
                }
            }
            // A row may end with the first byte of a pair.
            let done = blocks.len().min(pairs.len());
            let line = line[done * PAIRS..].iter_mut();
            line.zip(row[done * 2 * PAIRS..].iter().step_by(2)).for_each(|(to, from)| *to = *from);
        }
        _ => line.iter_mut().zip(row.iter().step_by(stride)).for_each(|(to, from)| *to = *from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_of_long_windows_on_a_short_axis_is_mostly_waste() {
        let axis = |output| WindowAxis {
            input: output + 6,
            output,
            kernel: 7,
            stride: 1,
            dilation: 1,
            pad_begin: 0,
            pad_end: 0,
        };
        assert!(Grid::new(&[axis(3), axis(3)]).is_none());
        assert!(Grid::new(&[axis(30), axis(30)]).is_some());
    }
}
