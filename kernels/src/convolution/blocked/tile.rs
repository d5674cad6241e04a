//! Register tiles: some windows by the 16 output channels of a panel.

use std::ops::Range;

use super::CHANNEL_BLOCK;
use crate::simd::{LANES, Lines, Simd};

/// Blocks of input channels, or the inputs of windows that were copied side by side, with their weights.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// Of all blocks of the group, `[taps, windows]`; or all inputs of each window, which are one block of one tap then.
    pub lines: Lines<'a>,
    pub windows: usize,
    pub taps: usize,
    /// Inputs that are multiplied.
    pub inputs: &'a Inputs,
    /// Their weights, and those behind them: `[inputs][16 output channels]`.
    pub panel: &'a [[f32; LANES]],
    /// Weights that a window asks for.
    pub asked: usize,
    /// Whether windows ask for the lines of those behind them.
    pub asks: bool,
}

/// Some inputs of a group, in the order of a panel: channels and, within, taps.
#[derive(Clone, Debug)]
pub(super) enum Inputs {
    /// All of some blocks.
    Blocks(Range<usize>),
    /// Some of a block that a piece of the weight begins or ends in.
    Single(Range<usize>),
}

impl Inputs {
    /// How many there are, where a block has `block` inputs.
    pub(super) fn count(&self, block: usize) -> usize {
        match self {
            Inputs::Blocks(blocks) => blocks.len() * block,
            Inputs::Single(inputs) => inputs.len(),
        }
    }
}

impl Operands<'_> {
    /// Adds the products of `ROWS` windows from `window` on: by 16 output channels each, or two in a vector by the first 8.
    #[inline(always)]
    pub(super) fn add<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        sums: [S::Vector; SUMS],
    ) -> [S::Vector; SUMS] {
        match self.inputs {
            Inputs::Blocks(blocks) => {
                self.ask_weights(simd, window, ROWS);
                self.add_blocks::<S, ROWS, SUMS>(simd, window, blocks, sums)
            }
            Inputs::Single(inputs) => self.add_single::<S, ROWS, SUMS>(simd, window, inputs, sums),
        }
    }

    /// Asks for the share of some windows in the weights that come behind those of all blocks.
    #[inline(always)]
    fn ask_weights<S: Simd>(&self, simd: S, window: usize, rows: usize) {
        let count = self.inputs.count(self.lines.length() * self.taps);
        for input in (window * self.asked..(window + rows) * self.asked).take_while(|input| *input < count) {
            simd.prefetch_far(self.panel, count + input);
        }
    }

    #[inline(always)]
    fn add_blocks<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        blocks: &Range<usize>,
        mut sums: [S::Vector; SUMS],
    ) -> [S::Vector; SUMS] {
        let Operands { lines, windows, taps, panel, asks, .. } = *self;
        for tap in 0..taps {
            let rows = lines.rows::<ROWS>(tap * windows + window);
            for (block, weights) in blocks.clone().zip(panel.chunks_exact(lines.length() * taps)) {
                if asks {
                    rows.ask(simd, block, ROWS * lines.length());
                }
                let mut terms = rows.terms(block, weights, (tap, taps));
                while let Some((weights, values)) = terms.next() {
                    add_input(simd, weights, values, &mut sums);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn add_single<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        inputs: &Range<usize>,
        mut sums: [S::Vector; SUMS],
    ) -> [S::Vector; SUMS] {
        let Operands { lines, windows, taps, panel, .. } = *self;
        for (input, weights) in inputs.clone().zip(panel) {
            let (channel, tap) = (input / taps, input % taps);
            let rows = lines.rows::<ROWS>(tap * windows + window);
            let values = rows.values(channel / lines.length(), channel % lines.length());
            add_input(simd, weights, values, &mut sums);
        }
        sums
    }
}

/// Adds the products of an input of some windows.
#[inline(always)]
fn add_input<S: Simd, const ROWS: usize, const SUMS: usize>(
    simd: S,
    weights: &[f32; LANES],
    values: [f32; ROWS],
    sums: &mut [S::Vector; SUMS],
) {
    if const { SUMS == ROWS } {
        let weights = simd.load(weights);
        for sum in 0..SUMS {
            sums[sum] = simd.fused(simd.splat(values[sum]), weights, sums[sum]);
        }
        return;
    }
    let first: &[f32; CHANNEL_BLOCK] = &weights.as_chunks().0[0];
    let weights = simd.load_halves(first, first);
    for sum in 0..SUMS {
        let value = simd.splat_halves(values[sum * 2], values[sum * 2 + 1]);
        sums[sum] = simd.fused(value, weights, sums[sum]);
    }
}
