//! Register tiles: some windows by the 16 output channels of each of some panels.

use std::ops::Range;

use bytemuck::cast_slice;

use super::CHANNEL_BLOCK;
use crate::{
    ahead::LinesAhead,
    product::tile::each,
    simd::{LANES, Lines, Neighbours, Rows, Simd, Steps, Terms, WithVectors, Within},
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
    /// Whether windows ask for the lines of those behind them.
    pub asks: bool,
    /// Whether tiles of [`WIDE_ROWS`], and halves of them, fill rows of windows.
    pub is_wide: bool,
}

/// The values that windows read: a line of each block of channels at each of `[taps, windows]` places.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub lines: Lines<'a>,
    pub taps: usize,
    pub within: Within,
}

impl Values<'_> {
    /// Inputs of a block.
    pub(super) fn block(&self) -> usize {
        self.lines.length() * self.taps
    }

    /// The tap of an input of a block, and its place in the line.
    fn place(&self, input: usize) -> (usize, usize) {
        match self.within {
            Within::Taps => (input % self.taps, input / self.taps),
            Within::Lines => (input / self.lines.length(), input % self.lines.length()),
        }
    }
}

/// Some inputs of a group, in the order of a panel: blocks and, within, as [`Within`] says of their vectors.
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

/// Windows of the largest tile of two panels, whose sums fill the registers. Rows of images often have a multiple of so many.
pub(super) const WIDE_ROWS: usize = 14;

/// Channels of images, whose lines have code of their own.
const IMAGE_CHANNELS: usize = 3;

/// Blocks of inputs from one time that memory is asked for to the next.
const STRETCH: usize = 4;

/// Panels that are multiplied together at most: where registers hold the sums of six windows of four, or 14 of two, each value is
/// read for all of them.
#[inline(always)]
pub(super) const fn panels_together<S: Simd>() -> usize {
    if S::TILE_VECTORS == 3 { 4 } else { 1 }
}

/// Whether a tile of so many windows and panels is one of the largest, which most windows are in.
const fn is_largest<S: Simd, const ROWS: usize, const PANELS: usize>() -> bool {
    match panels_together::<S>() {
        1 => ROWS == 8 || ROWS == S::TILE_ROWS && S::HAS_OWN_LOOPS,
        _ => ROWS == 8 || ROWS == WIDE_ROWS || ROWS * PANELS == 24,
    }
}

/// Inputs with their weights.
pub(super) enum WeightedInputs<'a, const PANELS: usize> {
    /// All of some blocks.
    Blocks(WithVectors<'a, PANELS>),
    /// Some of a block.
    Single(Range<usize>),
}

impl<'a, const PANELS: usize> Operands<'a, PANELS> {
    /// The inputs with their weights, the same for all windows.
    #[inline(always)]
    pub(super) fn weighted_inputs(&self) -> WeightedInputs<'a, PANELS> {
        let Values { lines, taps, within } = self.values;
        match self.inputs {
            Inputs::Blocks(blocks) => WeightedInputs::Blocks(lines.with_vectors(blocks, self.panels, (taps, within))),
            Inputs::Single(inputs) => WeightedInputs::Single(inputs.clone()),
        }
    }

    /// The weights that come next, which tiles of at most so many windows ask for together.
    #[inline(always)]
    pub(super) fn weights_ahead(&self, most_rows: usize) -> LinesAhead<'a, PANELS> {
        let stretches = match self.inputs {
            Inputs::Blocks(blocks) => self.values.taps * blocks.len().div_ceil(STRETCH),
            Inputs::Single(_) => 0,
        };
        let mut next = [&[][..]; PANELS];
        for panel in 0..PANELS {
            next[panel] = cast_slice(self.next[panel]);
        }
        LinesAhead::new(next, self.windows.div_ceil(most_rows) * stretches)
    }

    /// Adds the products of `ROWS` windows from `window` on: by 16 output channels of each panel, or two in a vector by the first 8.
    #[inline(always)]
    pub(super) fn add<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        inputs: &WeightedInputs<'a, PANELS>,
        ahead: &mut LinesAhead<'_, PANELS>,
        sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        let with = match inputs {
            WeightedInputs::Blocks(with) => with,
            WeightedInputs::Single(inputs) => return self.add_single::<S, ROWS, SUMS>(simd, window, inputs, sums),
        };
        // The largest tiles have code of their own for the distances and lengths of lines that are common: every second window over an
        // image, and each or every second one over blocks. Other lines are read from a place for each window.
        if const { is_largest::<S, ROWS, PANELS>() } {
            let lines = self.values.lines;
            match (lines.step(), lines.length()) {
                (2, IMAGE_CHANNELS) if lines.are_steps::<ROWS, 2>(window) => {
                    return self.add_blocks::<S, ROWS, SUMS, IMAGE_CHANNELS, Steps<'a, ROWS, 2>>(
                        simd, window, with, ahead, sums,
                    );
                }
                (2, _) if lines.are_steps::<ROWS, 2>(window) => {
                    return self.add_blocks::<S, ROWS, SUMS, 0, Steps<'a, ROWS, 2>>(simd, window, with, ahead, sums);
                }
                (8, 8) if lines.are_steps::<ROWS, 8>(window) => {
                    return self.add_blocks::<S, ROWS, SUMS, 8, Steps<'a, ROWS, 8>>(simd, window, with, ahead, sums);
                }
                (16, 8) if lines.are_steps::<ROWS, 16>(window) => {
                    return self.add_blocks::<S, ROWS, SUMS, 8, Steps<'a, ROWS, 16>>(simd, window, with, ahead, sums);
                }
                _ => {}
            }
        }
        assert!(const { ROWS < WIDE_ROWS }, "lines of a wide tile at one distance");
        self.add_blocks::<S, ROWS, SUMS, 0, Rows<'a, ROWS>>(simd, window, with, ahead, sums)
    }

    /// Whether wide tiles have code for lines like these, as [`Operands::add`] tells them.
    #[inline(always)]
    pub(super) fn has_wide_tiles(&self) -> bool {
        let lines = self.values.lines;
        let has_code = matches!((lines.step(), lines.length()), (2, _) | (8 | 16, 8));
        self.is_wide && has_code && matches!(self.inputs, Inputs::Blocks(_))
    }

    /// Whether the lines of windows from this one on are at one distance as far as a wide tile reaches.
    #[inline(always)]
    pub(super) fn fill_wide_tile(&self, window: usize) -> bool {
        let lines = self.values.lines;
        match lines.step() {
            2 => lines.are_steps::<WIDE_ROWS, 2>(window),
            8 => lines.are_steps::<WIDE_ROWS, 8>(window),
            _ => lines.are_steps::<WIDE_ROWS, 16>(window),
        }
    }

    #[inline(always)]
    fn add_blocks<S: Simd, const ROWS: usize, const SUMS: usize, const LENGTH: usize, L: Neighbours<'a, ROWS>>(
        &self,
        simd: S,
        window: usize,
        with_weights: &WithVectors<'a, PANELS>,
        ahead: &mut LinesAhead<'_, PANELS>,
        sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        let with_weights = *with_weights;
        let (asks, length, count) = (self.asks, self.values.lines.length(), with_weights.blocks());
        let mut sums = Sums { simd, sums };
        for tap in 0..self.values.taps {
            let of_tap = with_weights.tap::<ROWS, L>(tap, window);
            let mut next = 0;
            while next < count {
                let first_block = next;
                next += STRETCH;
                // Images have few channels, and so few weights; what short lines take is too little to ask beside it.
                if const { LENGTH != IMAGE_CHANNELS } {
                    ahead.ask(simd);
                }
                for index in first_block..count.min(next) {
                    if asks {
                        of_tap.ask(simd, index, ROWS * length);
                    }
                    of_tap.add::<ROWS, LENGTH>(index, &mut sums);
                }
            }
        }
        sums.sums
    }

    #[inline(always)]
    fn add_single<S: Simd, const ROWS: usize, const SUMS: usize>(
        &self,
        simd: S,
        window: usize,
        inputs: &Range<usize>,
        mut sums: [[S::Vector; SUMS]; PANELS],
    ) -> [[S::Vector; SUMS]; PANELS] {
        let Operands { panels, values, .. } = *self;
        let block = values.block();
        for (index, input) in inputs.clone().enumerate() {
            let (tap, place) = values.place(input % block);
            let rows = values.lines.rows::<ROWS>(tap, window);
            let values = rows.values(input / block, place);
            add_input(simd, each(&panels, index), values, &mut sums);
        }
        sums
    }
}

/// The sums of some windows: by 16 output channels of each panel, or of two in a vector by the first 8.
struct Sums<S: Simd, const SUMS: usize, const PANELS: usize> {
    simd: S,
    sums: [[S::Vector; SUMS]; PANELS],
}

impl<S: Simd, const ROWS: usize, const SUMS: usize, const PANELS: usize> Terms<ROWS, PANELS> for Sums<S, SUMS, PANELS> {
    #[inline(always)]
    fn add(&mut self, weights: [&[f32; LANES]; PANELS], values: [f32; ROWS]) {
        add_input(self.simd, weights, values, &mut self.sums);
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
