//! Register tiles: some windows by the 16 output channels of a panel.

use std::ops::Range;

use super::CHANNEL_BLOCK;
use crate::simd::{LANES, Lines, Simd};

/// Blocks of input channels with their weights.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// Of all blocks of the group: `[taps, windows]`.
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
    /// How many there are.
    pub(super) fn count(&self, taps: usize) -> usize {
        match self {
            Inputs::Blocks(blocks) => blocks.len() * CHANNEL_BLOCK * taps,
            Inputs::Single(inputs) => inputs.len(),
        }
    }
}

impl Operands<'_> {
    /// Adds the products of `ROWS` windows from `window` on.
    #[inline(always)]
    pub(super) fn add<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        window: usize,
        sums: [S::Vector; ROWS],
    ) -> [S::Vector; ROWS] {
        match self.inputs {
            Inputs::Blocks(blocks) => {
                self.ask_weights(simd, window, ROWS);
                self.add_blocks(simd, window, blocks, sums)
            }
            Inputs::Single(inputs) => self.add_single(simd, window, inputs, sums),
        }
    }

    /// Asks for the share of some windows in the weights that come behind those of all blocks.
    #[inline(always)]
    fn ask_weights<S: Simd>(&self, simd: S, window: usize, rows: usize) {
        let count = self.inputs.count(self.taps);
        for input in (window * self.asked..(window + rows) * self.asked).take_while(|input| *input < count) {
            simd.prefetch_far(self.panel, count + input);
        }
    }

    #[inline(always)]
    fn add_blocks<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        window: usize,
        blocks: &Range<usize>,
        mut sums: [S::Vector; ROWS],
    ) -> [S::Vector; ROWS] {
        let Operands { lines, windows, taps, panel, asks, .. } = *self;
        for tap in 0..taps {
            let rows = lines.rows::<ROWS>(tap * windows + window);
            for (block, weights) in blocks.clone().zip(panel.chunks_exact(CHANNEL_BLOCK * taps)) {
                if asks {
                    rows.ask(simd, block, ROWS * CHANNEL_BLOCK);
                }
                let mut terms = rows.terms(block, weights, (tap, taps));
                while let Some((weights, values)) = terms.next() {
                    let weights = simd.load(weights);
                    for row in 0..ROWS {
                        sums[row] = simd.fused(simd.splat(values[row]), weights, sums[row]);
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn add_single<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        window: usize,
        inputs: &Range<usize>,
        mut sums: [S::Vector; ROWS],
    ) -> [S::Vector; ROWS] {
        let Operands { lines, windows, taps, panel, .. } = *self;
        for (input, weights) in inputs.clone().zip(panel) {
            let (channel, tap) = (input / taps, input % taps);
            let rows = lines.rows::<ROWS>(tap * windows + window);
            let values = rows.values(channel / CHANNEL_BLOCK, channel % CHANNEL_BLOCK);
            let weights = simd.load(weights);
            for row in 0..ROWS {
                sums[row] = simd.fused(simd.splat(values[row]), weights, sums[row]);
            }
        }
        sums
    }
}
