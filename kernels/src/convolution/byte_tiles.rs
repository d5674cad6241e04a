//! Tiles of 16 output channels and neighbouring positions, in vectors that sum products of four bytes in each lane, or of two codes of 16
//! bits.

use crate::{
    product::PANEL_OUTPUTS,
    simd::{LANES, Simd},
};
use std::ops::Range;

/// Words of four bytes of a left tile.
pub(super) const TILE_WORDS: usize = PANEL_OUTPUTS * LANES;

/// The weights of 16 outputs and of 16 words of channels at a tap: here `[words][outputs]`.
pub(super) type TileWords = [i32; TILE_WORDS];

/// Outputs whose sums are in registers, for two vectors of positions.
const OUTPUTS: usize = 8;

/// The same for one vector of positions, where a vector takes two of only sixteen registers.
const FEW_OUTPUTS: usize = 4;

/// Codes of all channels in words.
pub(super) struct Lines<'a> {
    /// `[words of the channels][pitch]`.
    pub words: &'a [i32],
    /// Words of a line.
    pub pitch: usize,
    /// Where the first line of each step begins, in bytes.
    pub steps: &'a [usize],
    /// Lines of all channels.
    pub count: usize,
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
    if const { S::SUMS_HALVES } {
        for place in (0..positions.len()).step_by(LANES) {
            for first in (0..PANEL_OUTPUTS).step_by(FEW_OUTPUTS) {
                let sums = &mut sums[first * pitch + place..];
                tile::<S, FEW_OUTPUTS, 1>(simd, tiles, lines, (first, positions.start + place), sums, pitch);
            }
        }
        return;
    }
    let mut place = 0;
    while place < positions.len() {
        let vectors = if positions.len() - place > LANES { 2 } else { 1 };
        for first in (0..PANEL_OUTPUTS).step_by(OUTPUTS) {
            let sums = &mut sums[first * pitch + place..];
            match vectors {
                2 => tile::<S, OUTPUTS, 2>(simd, tiles, lines, (first, positions.start + place), sums, pitch),
                _ => tile::<S, OUTPUTS, 1>(simd, tiles, lines, (first, positions.start + place), sums, pitch),
            }
        }
        place += vectors * LANES;
    }
}

/// Some outputs and some vectors of positions.
#[inline(always)]
fn tile<S: Simd, const FILTERS: usize, const VECTORS: usize>(
    simd: S,
    tiles: &[TileWords],
    lines: &Lines<'_>,
    (output, position): (usize, usize),
    sums: &mut [i32],
    pitch: usize,
) {
    let mut totals = [[simd.splat_integer(0); VECTORS]; FILTERS];
    let blocks = lines.count.div_ceil(LANES);
    for (step, (tile, start)) in tiles.iter().zip(lines.steps).enumerate() {
        let count = (lines.count - step % blocks * LANES).min(LANES);
        let mut words = &lines.words[start / size_of::<i32>() + position..];
        for (word, weights) in tile.as_chunks::<PANEL_OUTPUTS>().0[..count].iter().enumerate() {
            let weights = &weights.as_chunks::<FILTERS>().0[output / FILTERS];
            let inputs = &words.as_chunks::<LANES>().0[..VECTORS];
            for vector in 0..VECTORS {
                let codes = simd.load_integers(&inputs[vector]);
                for row in 0..FILTERS {
                    let weights = simd.splat_integer(weights[row]);
                    totals[row][vector] = if const { S::SUMS_HALVES } {
                        simd.dot_halves(totals[row][vector], codes, weights)
                    } else {
                        simd.dot(totals[row][vector], codes, weights)
                    };
                }
            }
            if word + 1 < count {
                words = &words[lines.pitch..];
            }
        }
    }
    // Loops of a known length keep totals in registers.
    for row in 0..FILTERS {
        let sums = &mut sums[row * pitch..].as_chunks_mut::<LANES>().0[..VECTORS];
        for vector in 0..VECTORS {
            simd.store_integers(totals[row][vector], &mut sums[vector]);
        }
    }
}
