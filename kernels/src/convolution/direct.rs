//! Convolution over padded copies of channels: every tap of 16 neighbouring positions is one read at a fixed distance.
//!
//! A block of rows of outputs is laid out on the grid of its padded input: positions that no output has are computed with
//! the others and dropped. Where windows are some positions apart, the channel is split into as many interleaved grids, so
//! that neighbouring windows are neighbours again. What is read is copied once for all taps, which gathering (`gather`)
//! copies once for each; that remains for shapes of which the grid would be mostly waste.
//!
//! The order of each sum is that of `gather`.

use std::ops::Range;

use super::gather::copy_row;
use crate::{
    change::Change,
    product::{PANEL_OUTPUTS, RUN, Weight, tile},
    scratch::scratch,
    simd::{LANES, Routine, Simd},
    window::{self, WindowAxis},
};

/// Positions of a block, where there are many: with their inputs of a run they stay in the second-level cache.
const MOST_POSITIONS: usize = 768;

/// Fewest positions of a block of several.
const FEWEST_POSITIONS: usize = 96;

/// Sums of a block: they stay in the second-level cache.
const MOST_SUMS: usize = 1 << 17;

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

    /// Rows along the first axis, of `rows` in all, that a block has for `channels` outputs when there are to be `parts`.
    pub(super) fn rows_each(&self, rows: usize, channels: usize, parts: usize) -> usize {
        let fewest = FEWEST_POSITIONS.div_ceil(self.row);
        let most = (MOST_SUMS / channels.max(1)).clamp(FEWEST_POSITIONS, MOST_POSITIONS).div_ceil(self.row);
        // A single axis is cut at whole rows of tiles.
        let unit = if self.row == 1 { 3 * LANES } else { 1 };
        rows.div_ceil(parts).max(fewest).min(most).next_multiple_of(unit)
    }
}

/// What becomes of the complete outputs of a channel: the bias is added, then the addend, then the value is clamped, then comes
/// the caller's change.
#[derive(Clone, Copy, Default)]
pub(super) struct Finish<'a> {
    pub bias: Option<f32>,
    /// A value for each output of the block.
    pub addend: Option<&'a [f32]>,
    pub clamp: Option<(f32, f32)>,
    /// The change, and where the outputs begin in the whole output.
    pub change: Option<(Change<'a>, usize)>,
}

/// Some rows of outputs along the first axis.
pub(super) struct Block {
    /// Values of a channel on its grids.
    channel: usize,
    /// Positions that are computed.
    positions: usize,
    /// Distance of each tap from the first.
    taps: Vec<usize>,
    /// Rows of a channel along the last axis: where they go, and where they come from if not from the padding.
    sources: Vec<(usize, Option<usize>)>,
    /// Grids along the last axis: distance from the first, and the input position that they begin with.
    last_phases: Vec<(usize, isize)>,
    /// Values of a row along the last axis.
    width: usize,
    last: WindowAxis,
    /// Where each row of outputs begins.
    rows: Vec<usize>,
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
        let mut phase_strides = vec![strides[0] * extent(0); rank];
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
        let last_phases =
            last_phases.map(|(index, &phase)| (index * phase_strides[rank - 1], last_start + phase as isize));
        Block {
            channel: phase_strides[0] * grid.phases[0].len(),
            positions: (0..rank).map(|axis| count(axis).saturating_sub(1) * strides[axis]).sum::<usize>() + 1,
            taps,
            sources,
            last_phases: last_phases.collect(),
            width: extent(rank - 1),
            rows: starts,
            last: WindowAxis { output: count(rank - 1), ..last },
        }
    }

    /// A channel on its grids.
    #[inline(always)]
    fn fill<S: Simd>(&self, simd: S, plane: &[f32], channel: &mut [f32]) {
        for &(phase, start) in &self.last_phases {
            for &(to, from) in &self.sources {
                let line = &mut channel[phase + to..][..self.width];
                match from {
                    Some(from) => {
                        let row = &plane[from * self.last.input..][..self.last.input];
                        copy_row(simd, row, start, self.last.stride, line);
                    }
                    None => line.fill(0.0),
                }
            }
        }
    }

    /// Sums on the grid become outputs side by side.
    #[inline(always)]
    fn collect<S: Simd>(&self, simd: S, sums: &[f32], out: &mut [f32], finish: &Finish<'_>) {
        let (bias, clamp) = (finish.bias.map(|bias| simd.splat(bias)), finish.clamp);
        let clamp = clamp.map(|(least, greatest)| (simd.splat(least), simd.splat(greatest)));
        let mut place = 0;
        for (out, &start) in out.chunks_mut(self.last.output).zip(&self.rows) {
            for (index, out) in out.chunks_mut(LANES).enumerate() {
                let mut value = simd.load_partial(&sums[start + index * LANES..][..out.len()]);
                if let Some(bias) = bias {
                    value = simd.add(value, bias);
                }
                if let Some(addend) = finish.addend {
                    value = simd.add(value, simd.load_partial(&addend[place..][..out.len()]));
                }
                if let Some((least, greatest)) = clamp {
                    value = simd.select_less(value, least, least, value);
                    value = simd.select_less(greatest, value, greatest, value);
                }
                simd.store_partial(value, out);
                place += out.len();
            }
        }
        if let Some((change, start)) = finish.change {
            change.apply(start, out);
        }
    }

    /// The other way round.
    fn spread(&self, out: &[f32], sums: &mut [f32]) {
        for (out, &start) in out.chunks(self.last.output).zip(&self.rows) {
            sums[start..start + out.len()].copy_from_slice(out);
        }
    }

    /// The product of the inputs `inputs` (channels × taps) of `image: [channels, plane]` and the panels `elements`:
    /// overwrites the outputs where `inputs` begin at 0, else adds to them; `finish` says what follows for each channel.
    #[inline(always)]
    pub(super) fn multiply<'a, S: Simd, W: Weight>(
        &self,
        simd: S,
        (image, plane): (&[f32], usize),
        inputs: Range<usize>,
        elements: &[W],
        out: &mut [&mut [f32]],
        finish: impl Fn(usize) -> Finish<'a>,
    ) {
        let pitch = self.positions.next_multiple_of(LANES);
        let mut sums = scratch(out.len() * pitch);
        if inputs.is_empty() {
            sums.fill(0.0);
        }
        if inputs.start > 0 {
            out.iter().zip(sums.chunks_mut(pitch)).for_each(|(out, sums)| self.spread(out, sums));
        }
        let taps = self.taps.len().max(1);
        let slots = inputs.len().min(RUN).div_ceil(taps) + 1;
        // Vectors at the end of the last channel reach behind it.
        let mut data = scratch(slots * self.channel + LANES);
        let mut wide = [[0.0; LANES]; RUN];
        let mut offsets = [0; RUN];
        let panel_length = inputs.len().next_multiple_of(W::GROUP) * PANEL_OUTPUTS;
        for first_input in (0..inputs.len()).step_by(RUN) {
            let length = RUN.min(inputs.len() - first_input);
            let first = inputs.start + first_input;
            let channels = first / taps..(first + length - 1) / taps + 1;
            for (slot, channel) in data.chunks_mut(self.channel).zip(channels.clone()) {
                self.fill(simd, &image[channel * plane..][..plane], slot);
            }
            for (input, offset) in (first..first + length).zip(&mut offsets) {
                *offset = (input / taps - channels.start) * self.channel + self.taps[input % taps];
            }
            let panels = elements.chunks(panel_length).zip(sums.chunks_mut(PANEL_OUTPUTS * pitch));
            for (elements, sums) in panels {
                let groups = &W::groups(elements)[first_input / W::GROUP..];
                let panel = match W::as_f32(groups) {
                    Some(groups) => &groups[..length],
                    None => {
                        tile::widen_panel::<S, W>(simd, groups, &mut wide[..length]);
                        &wide[..length]
                    }
                };
                panel_by_positions(simd, panel, &data, &offsets[..length], sums, pitch, first == 0);
            }
        }
        for (channel, (out, sums)) in out.iter_mut().zip(sums.chunks(pitch)).enumerate() {
            self.collect(simd, sums, out, &finish(channel));
        }
    }
}

/// Adds the product of one panel of channels by all positions over one run of inputs to `sums: [channels, pitch]`.
#[inline(always)]
fn panel_by_positions<S: Simd>(
    simd: S,
    panel: &[[f32; LANES]],
    data: &[f32],
    offsets: &[usize],
    sums: &mut [f32],
    pitch: usize,
    fresh: bool,
) {
    let vectors = pitch / LANES;
    let mut vector = 0;
    while vector < vectors {
        // Four are better shared out evenly.
        let count = match vectors - vector {
            _ if S::TILE_VECTORS == 1 => 1,
            rest @ 1..=2 => rest,
            4 => 2,
            _ => 3,
        };
        let operands = Operands { panel, data, offsets, pitch, fresh, first: vector * LANES };
        match count {
            3 => operands.column_of_tiles::<S, 3>(simd, sums),
            2 => operands.column_of_tiles::<S, 2>(simd, sums),
            _ => operands.column_of_tiles::<S, 1>(simd, sums),
        }
        vector += count;
    }
}

/// What tiles have in common.
#[derive(Clone, Copy)]
struct Operands<'a> {
    /// `[inputs][16 channels]`.
    panel: &'a [[f32; LANES]],
    data: &'a [f32],
    /// Where each input of position 0 lies.
    offsets: &'a [usize],
    /// Distance between channels of the sums.
    pitch: usize,
    /// Whether sums are overwritten.
    fresh: bool,
    /// First position.
    first: usize,
}

impl Operands<'_> {
    /// All channels by up to three vectors of positions.
    #[inline(always)]
    fn column_of_tiles<S: Simd, const VECTORS: usize>(self, simd: S, sums: &mut [f32]) {
        let rows = sums.len() / self.pitch;
        let mut row = 0;
        while row < rows {
            let sums = &mut sums[row * self.pitch..];
            let count = [S::TILE_ROWS, 4].into_iter().find(|&count| count <= rows - row).unwrap_or(1);
            match count {
                8 if S::TILE_ROWS == 8 => simd.run(Tile::<8, VECTORS> { operands: self, row, sums }),
                6 if S::TILE_ROWS == 6 => simd.run(Tile::<6, VECTORS> { operands: self, row, sums }),
                4 => simd.run(Tile::<4, VECTORS> { operands: self, row, sums }),
                _ => simd.run(Tile::<1, VECTORS> { operands: self, row, sums }),
            }
            row += count;
        }
    }
}

/// Some channels by up to three vectors of positions.
struct Tile<'a, 's, const ROWS: usize, const VECTORS: usize> {
    operands: Operands<'a>,
    /// First channel in the panel.
    row: usize,
    /// From that channel on.
    sums: &'s mut [f32],
}

impl<const ROWS: usize, const VECTORS: usize> Routine for Tile<'_, '_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Operands { panel, data, offsets, pitch, fresh, first } = self.operands;
        let run = sums::<S, ROWS, VECTORS>(simd, panel, self.row, &data[first..], offsets);
        for row in 0..ROWS {
            let sums = &mut self.sums[row * pitch + first..][..VECTORS * LANES];
            for (sums, run) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(&run[row]) {
                let run = simd.load(run);
                let before = if fresh { simd.splat(0.0) } else { simd.load(sums) };
                simd.store(simd.add(before, run), sums);
            }
        }
    }
}

/// Sums over one run of inputs, beginning at 0; handed over in memory, as those of `tile`.
#[inline(always)]
fn sums<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    panel: &[[f32; LANES]],
    first_row: usize,
    data: &[f32],
    offsets: &[usize],
) -> tile::Sums<ROWS, VECTORS> {
    let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
    for (weights, &offset) in panel.iter().zip(offsets) {
        let weights = &weights[first_row..first_row + ROWS];
        let values = &data[offset..][..VECTORS * LANES];
        let mut vectors = [simd.splat(0.0); VECTORS];
        for (vector, values) in vectors.iter_mut().zip(values.as_chunks::<LANES>().0) {
            *vector = simd.load(values);
        }
        for row in 0..ROWS {
            let factor = simd.splat(weights[row]);
            for vector in 0..VECTORS {
                sums[row][vector] = simd.fused(factor, vectors[vector], sums[row][vector]);
            }
        }
    }
    let mut stored = [[[0.0; LANES]; VECTORS]; ROWS];
    for row in 0..ROWS {
        for vector in 0..VECTORS {
            simd.store(sums[row][vector], &mut stored[row][vector]);
        }
    }
    stored
}
