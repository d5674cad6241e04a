//! Tiles of 16 output channels and neighbouring positions, in vectors that sum products of four bytes in each lane.

use crate::{
    product::PANEL_OUTPUTS,
    simd::{LANES, Simd},
};
use std::ops::Range;

/// Words of four bytes of a left tile.
pub(super) const TILE_WORDS: usize = PANEL_OUTPUTS * LANES;

/// The weights of 16 outputs and 64 channels at a tap: here `[channels / 4][outputs]`.
pub(super) type TileWords = [i32; TILE_WORDS];

/// Outputs whose sums are in registers, for two vectors of positions.
const OUTPUTS: usize = 8;

/// Codes of all channels, four side by side.
pub(super) struct Lines<'a> {
    /// `[channels / 4][pitch]`.
    pub words: &'a [i32],
    /// Words of a line.
    pub pitch: usize,
    /// Where the first line of each step begins, in bytes.
    pub steps: &'a [usize],
    /// Lines of all channels.
    pub groups: usize,
}

/// `sums[output][position]` of the signed weights of a panel, `[steps]`, and unsigned codes. Rows of sums are `pitch` apart; what lies
/// behind their last position, up to a multiple of 32, is anything.
#[inline(always)]
pub(super) fn multiply<S: Simd>(
    simd: S,
    tiles: &[TileWords],
    lines: &Lines<'_>,
    positions: Range<usize>,
    sums: &mut [i32],
    pitch: usize,
) {
    let mut place = 0;
    while place < positions.len() {
        let vectors = if positions.len() - place > LANES { 2 } else { 1 };
        for first in (0..PANEL_OUTPUTS).step_by(OUTPUTS) {
            let sums = &mut sums[first * pitch + place..];
            match vectors {
                2 => tile::<S, 2>(simd, tiles, lines, (first, positions.start + place), sums, pitch),
                _ => tile::<S, 1>(simd, tiles, lines, (first, positions.start + place), sums, pitch),
            }
        }
        place += vectors * LANES;
    }
}

/// Eight outputs and some vectors of positions.
#[inline(always)]
fn tile<S: Simd, const VECTORS: usize>(
    simd: S,
    tiles: &[TileWords],
    lines: &Lines<'_>,
    (output, position): (usize, usize),
    sums: &mut [i32],
    pitch: usize,
) {
    let mut totals = [[simd.splat_integer(0); VECTORS]; OUTPUTS];
    let blocks = lines.groups.div_ceil(LANES);
    for (step, (tile, start)) in tiles.iter().zip(lines.steps).enumerate() {
        let groups = (lines.groups - step % blocks * LANES).min(LANES);
        let mut words = &lines.words[start / size_of::<i32>() + position..];
        for (group, weights) in tile.as_chunks::<PANEL_OUTPUTS>().0[..groups].iter().enumerate() {
            let weights = &weights.as_chunks::<OUTPUTS>().0[output / OUTPUTS];
            let inputs = &words.as_chunks::<LANES>().0[..VECTORS];
            for vector in 0..VECTORS {
                let codes = simd.load_integers(&inputs[vector]);
                for row in 0..OUTPUTS {
                    totals[row][vector] = simd.dot(totals[row][vector], codes, simd.splat_integer(weights[row]));
                }
            }
            if group + 1 < groups {
                words = &words[lines.pitch..];
            }
        }
    }
    // Loops of a known length keep totals in registers.
    for row in 0..OUTPUTS {
        let sums = &mut sums[row * pitch..].as_chunks_mut::<LANES>().0[..VECTORS];
        for vector in 0..VECTORS {
            simd.store_integers(totals[row][vector], &mut sums[vector]);
        }
    }
}
