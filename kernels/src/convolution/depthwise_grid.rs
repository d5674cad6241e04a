//! Depthwise convolution over padded copies of channels: a block of rows of outputs is laid out on the grid of its padded input
//! (see `direct`), so that every tap of neighbouring positions is one read at a fixed distance, from one row to the next too.

use super::{
    ConvolutionEpilogue, ConvolutionShape,
    direct::{Block, Grid, Lines},
    finish::Finish,
};
use crate::{
    scratch::scratch,
    simd::{Adjacent, Instructions, LANES, Places, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Values of the copy of a channel: with its sums it stays in the first-level cache.
const MOST_COPIED: usize = 4096;

/// Vectors of positions that are summed at once, where registers hold as many.
const MOST_VECTORS: usize = 8;

/// The convolution `out = x * weight` with `weight: [groups * group_outputs, 1, taps..]`, then the epilogue.
pub(super) fn on_grids(
    instructions: Instructions,
    shape: &ConvolutionShape,
    (axes, grid): (&[WindowAxis], &Grid),
    (x, weight): (&[f32], &[f32]),
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let channels = shape.batch * shape.groups * shape.group_outputs;
    let positions = window::outputs(axes);
    let rows = axes[0].output;
    let parts = threads::parts(out.len() * window::taps(axes), usize::MAX);
    let rows_each = rows.div_ceil(parts.div_ceil(channels)).min(grid.rows_within(MOST_COPIED));
    let starts = (0..rows).step_by(rows_each);
    let block = |row: usize| {
        let block = Block::new(axes, grid, row..rows.min(row + rows_each));
        let lines = block.lines();
        (block, lines)
    };
    let blocks: Vec<(Block, Vec<Lines>)> = starts.map(block).collect();
    let block_length = positions / rows * rows_each;
    let channels = out.chunks_mut(positions).enumerate();
    let mut outputs: Vec<Part<'_>> = channels
        .flat_map(|(channel, out)| {
            let blocks = out.chunks_mut(block_length).enumerate();
            blocks.map(move |(block, out)| Part { block, channel, out })
        })
        .collect();
    outputs.sort_by_key(|part| part.block);
    let each = outputs.len().div_ceil(parts);
    threads::chunks(&mut outputs, each, |_, parts| {
        instructions.run(Task { shape, blocks: &blocks, x, weight, block_length, positions, parts, epilogue });
    });
}

/// The outputs of a block of rows of a channel.
struct Part<'o> {
    block: usize,
    /// Counted over all images.
    channel: usize,
    out: &'o mut [f32],
}

/// Some blocks of rows of channels, those of the same rows one after another.
struct Task<'a, 'o> {
    shape: &'a ConvolutionShape,
    /// Those of a channel.
    blocks: &'a [(Block, Vec<Lines>)],
    x: &'a [f32],
    weight: &'a [f32],
    /// Outputs of all blocks of a channel but the last.
    block_length: usize,
    /// Outputs of a channel.
    positions: usize,
    parts: &'a mut [Part<'o>],
    epilogue: ConvolutionEpilogue<'a>,
}

impl Routine for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let channels = self.shape.groups * self.shape.group_outputs;
        let plane = self.x.len() / (self.shape.batch * self.shape.groups);
        let longest =
            |length: fn(&Block) -> usize| self.blocks.iter().map(|(block, _)| length(block)).max().unwrap_or(0);
        // Vectors reach behind the last position.
        let mut copy = scratch(longest(|block| block.channel) + MOST_VECTORS * LANES);
        let mut sums = scratch(longest(|block| block.positions) + 2 * LANES);
        let mut copied = None;
        for Part { block: index, channel, out } in self.parts {
            let (block, lines) = &self.blocks[*index];
            let input = *channel / self.shape.group_outputs;
            if copied.is_none_or(|(block, _)| block != *index) {
                copy.fill(0.0);
            }
            if copied.replace((*index, input)) != Some((*index, input)) {
                // A loop, since closures would not be compiled for the instructions.
                for lines in lines {
                    lines.copy(simd, &self.x[input * plane..][..plane], &mut copy);
                }
            }
            let place = *channel * self.positions + *index * self.block_length;
            let channel = *channel % channels;
            let weights = &self.weight[channel * block.taps.len()..][..block.taps.len()];
            let finish = Finish::of(self.epilogue, channel, place);
            // Without addends all positions of the grid are completed, with those that are dropped.
            let (own, rest) =
                if finish.addend.is_none() { (finish, Finish::default()) } else { (Finish::default(), finish) };
            let vectors = &mut sums.as_chunks_mut().0[..block.positions.div_ceil(LANES)];
            Sums { weights, taps: Places::new(&block.taps), copy: &copy, sums: vectors, finish: own }.add(simd);
            if finish.addend.is_some() {
                block.collect(simd, &sums, out, &rest);
                continue;
            }
            collect(simd, &sums, block, out);
            if let Some((change, start)) = finish.change {
                change.apply(start, out);
            }
        }
    }
}

impl Lines {
    /// Copies them from a channel into a copy that has zeros between them. A line of less than a vector is written with zeros behind it,
    /// which only the lines that follow it have other values for.
    #[inline(always)]
    fn copy<S: Simd>(&self, simd: S, plane: &[f32], copy: &mut [f32]) {
        match self.stride {
            1 if self.count >= LANES => {
                for &(to, from) in &self.places {
                    copy_long_row(simd, &plane[from..][..self.count], &mut copy[to..][..self.count]);
                }
            }
            1 | 2 if self.count < LANES => {
                // Lanes behind the line are zeros, as the padding is.
                let mask = simd.load_integers(&self.mask);
                for &(to, from) in &self.places {
                    let values = &plane[from..];
                    let values =
                        if self.stride == 1 { simd.load_partial(values) } else { simd.load_every_second(values) };
                    let values = simd.of_bits(simd.and(simd.bits(values), mask));
                    simd.store(values, &mut copy[to..].as_chunks_mut().0[0]);
                }
            }
            2 => {
                let last = self.count - LANES;
                for &(to, from) in &self.places {
                    let (values, copy) = (&plane[from..], &mut copy[to..][..self.count]);
                    for (index, copy) in copy.as_chunks_mut().0.iter_mut().enumerate() {
                        simd.store(simd.load_every_second(&values[2 * LANES * index..]), copy);
                    }
                    simd.store(simd.load_every_second(&values[2 * last..]), &mut copy[last..].as_chunks_mut().0[0]);
                }
            }
            stride => {
                for &(to, from) in &self.places {
                    let copy = copy[to..][..self.count].iter_mut();
                    copy.zip(plane[from..].iter().step_by(stride)).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }
}

/// Copies at least a vector: the last one may overlap with the one before.
#[inline(always)]
fn copy_long_row<S: Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        simd.store(simd.load(from), to);
    }
    let last = to.len() - LANES;
    simd.store(simd.load(&from[last..].as_chunks().0[0]), &mut to[last..].as_chunks_mut().0[0]);
}

/// Complete outputs on the grid become outputs side by side.
#[inline(always)]
fn collect<S: Simd>(simd: S, sums: &[f32], block: &Block, out: &mut [f32]) {
    let length = block.row_length;
    if length >= LANES {
        for (out, &start) in out.chunks_mut(length).zip(&block.rows) {
            copy_long_row(simd, &sums[start..][..length], out);
        }
        return;
    }
    for (row, &start) in block.rows.iter().enumerate() {
        let (sums, out) = (&sums[start..].as_chunks().0[0], &mut out[row * length..]);
        match out.first_chunk_mut() {
            // What a vector writes behind its row is written again by the next one.
            Some(out) => simd.store(simd.load(sums), out),
            None => out[..length].copy_from_slice(&sums[..length]),
        }
    }
}

/// The sums of a block.
struct Sums<'a> {
    /// One for each tap.
    weights: &'a [f32],
    /// Distance of each tap from the first.
    taps: Places<'a>,
    copy: &'a [f32],
    /// Vectors of positions.
    sums: &'a mut [[f32; LANES]],
    finish: Finish<'a>,
}

impl Sums<'_> {
    #[inline(always)]
    fn add<S: Simd>(mut self, simd: S) {
        let mut first = 0;
        while first < self.sums.len() {
            first += match self.sums.len() - first {
                MOST_VECTORS.. if const { S::TILE_VECTORS == 3 } => self.vectors::<S, MOST_VECTORS>(simd, first),
                // One alone would wait for each of its taps.
                3 | 5 => self.vectors::<S, 3>(simd, first),
                4.. => self.vectors::<S, 4>(simd, first),
                2.. => self.vectors::<S, 2>(simd, first),
                _ => self.vectors::<S, 1>(simd, first),
            };
        }
    }

    /// Sums of some vectors side by side, none of which waits for another; gives how many.
    #[inline(always)]
    fn vectors<S: Simd, const VECTORS: usize>(&mut self, simd: S, first: usize) -> usize {
        let (values, _) = Adjacent::<VECTORS>::new(&self.copy[first * LANES..], self.taps).groups::<1>();
        let mut totals = [simd.splat(0.0); VECTORS];
        for (&weight, [values]) in self.weights.iter().zip(values) {
            let weight = simd.splat(weight);
            for vector in 0..VECTORS {
                totals[vector] = simd.fused(weight, simd.load(&values[vector]), totals[vector]);
            }
        }
        let sums = &mut self.sums[first..][..VECTORS];
        for vector in 0..VECTORS {
            simd.store(self.finish.clamped(simd, totals[vector]), &mut sums[vector]);
        }
        VECTORS
    }
}
