//! Register tiles: some windows by the 16 output channels of each of some panels.

use std::ops::Range;

use super::CHANNEL_BLOCK;
use crate::{
    product::tile::{self, each},
    simd::{LANES, Lines, Simd},
};

/// What windows read, with its weights.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, const PANELS: usize> {
    pub values: Values<'a>,
    pub windows: usize,
    /// Inputs that are multiplied.
    pub inputs: &'a Inputs,
    /// Their weights of each panel: `[inputs][16 output channels]`, with others behind them.
    pub panels: [&'a [[f32; LANES]]; PANELS],
    /// Weights of each panel that come next.
    pub next: [&'a [[f32; LANES]]; PANELS],
    /// Of these, how many a window asks for.
    pub asked: usize,
    /// Whether windows ask for the lines of those behind them.
    pub asks: bool,
}

/// The values that windows read.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    /// A line of each block of channels at each of `[taps, windows]` places.
    Blocks { lines: Lines<'a>, taps: usize },
    /// Each input of all windows side by side: `[inputs, distance]`, of which `Inputs::Single` are multiplied.
    Gathered { values: &'a [f32], distance: usize },
}

impl Values<'_> {
    /// Inputs of a block.
    pub(super) fn block(&self) -> usize {
        match self {
            Values::Blocks { lines, taps } => lines.length() * taps,
            Values::Gathered { .. } => 1,
        }
    }
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

/// Lines that are asked for at once.
const MOST_ASKED: usize = 16;

/// Blocks of inputs from one time that memory is asked for to the next.
const STRETCH: usize = 4;

impl<const PANELS: usize> Operands<'_, PANELS> {
    /// Adds the products of `ROWS` windows from `window` on: by 16 output channels of each panel, or two in a vector by the first 8.
    #[inline(always)]
    pub(super) fn add<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        match (self.values, self.inputs) {
            (Values::Blocks { lines, taps }, Inputs::Blocks(blocks)) => {
                self.add_blocks::<S, ROWS, SUMS>(simd, window, (lines, taps, blocks), sums)
            }
            (Values::Blocks { lines, taps }, Inputs::Single(inputs)) => {
                self.add_single::<S, ROWS, SUMS>(simd, window, (lines, taps, inputs), sums)
            }
            (Values::Gathered { values, distance }, Inputs::Single(inputs) | Inputs::Blocks(inputs)) => {
                self.ask_weights(simd, window * self.asked..(window + ROWS) * self.asked);
                let values = &values[inputs.start * distance..inputs.end * distance];
                self.add_gathered::<S, ROWS, SUMS>(simd, window, (values, distance), sums)
            }
        }
    }

    /// Asks for some of the weights that come next.
    #[inline(always)]
    fn ask_weights<S: Simd>(&self, simd: S, inputs: Range<usize>) {
        for next in self.next {
            (inputs.start..inputs.end.min(next.len())).for_each(|input| simd.prefetch_far(next, input));
        }
    }

    #[inline(always)]
    fn add_blocks<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        (lines, taps, blocks): (Lines<'_>, usize, &Range<usize>),
        mut sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        let Operands { windows, panels, asks, .. } = *self;
        let inputs = lines.length() * taps;
        // Many are asked for a little at a time: a processor remembers few lines that it waits for, and those of the values are
        // among them.
        let (first, asked) = (window * self.asked, ROWS * self.asked);
        let stretches = if PANELS * asked > MOST_ASKED { taps * blocks.len().div_ceil(STRETCH) } else { 1 };
        let each = asked.div_ceil(stretches.max(1));
        let mut stretch = 0;
        for tap in 0..taps {
            let rows = lines.rows::<ROWS>(tap * windows + window);
            let mut next = blocks.start;
            while next < blocks.end {
                let first_block = next;
                next += STRETCH;
                if stretch < stretches {
                    self.ask_weights(simd, first + stretch * each..first + (stretch + 1) * each);
                    stretch += 1;
                }
                for block in first_block..blocks.end.min(next) {
                    if asks {
                        rows.ask(simd, block, ROWS * lines.length());
                    }
                    let index = block - blocks.start;
                    let weights = tile::stretch(panels, index * inputs..(index + 1) * inputs);
                    let mut terms = rows.terms(block, weights, (tap, taps));
                    while let Some((weights, values)) = terms.next() {
                        add_input(simd, weights, values, &mut sums);
                    }
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
        (lines, taps, inputs): (Lines<'_>, usize, &Range<usize>),
        mut sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        let Operands { windows, panels, .. } = *self;
        for (index, input) in inputs.clone().enumerate() {
            let (channel, tap) = (input / taps, input % taps);
            let rows = lines.rows::<ROWS>(tap * windows + window);
            let values = rows.values(channel / lines.length(), channel % lines.length());
            add_input(simd, each(&panels, index), values, &mut sums);
        }
        sums
    }

    #[inline(always)]
    fn add_gathered<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        (values, distance): (&[f32], usize),
        mut sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        for (input, values) in values.chunks_exact(distance).enumerate() {
            let values: [f32; ROWS] = values[window..].as_chunks().0[0];
            add_input(simd, each(&self.panels, input), values, &mut sums);
        }
        sums
    }
}

/// Adds the products of an input of some windows.
#[inline(always)]
fn add_input<S: Simd, const ROWS: usize, const SUMS: usize, const PANELS: usize>(
    simd: S,
    weights: [&[f32; LANES]; PANELS],
    values: [f32; ROWS],
    sums: &mut [[S::Vector; SUMS]; PANELS],
) {
    let mut vectors = [simd.splat(0.0); PANELS];
    for panel in 0..PANELS {
        vectors[panel] = if const { SUMS == ROWS } {
            simd.load(weights[panel])
        } else {
            let first: &[f32; CHANNEL_BLOCK] = &weights[panel].as_chunks().0[0];
            simd.load_halves(first, first)
        };
    }
    for sum in 0..SUMS {
        let value = if const { SUMS == ROWS } {
            simd.splat(values[sum])
        } else {
            simd.splat_halves(values[sum * 2], values[sum * 2 + 1])
        };
        for panel in 0..PANELS {
            sums[panel][sum] = simd.fused(value, vectors[panel], sums[panel][sum]);
        }
    }
}
