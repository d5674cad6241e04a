//! All windows of a task by some panels: what sums begin with, and what becomes of them.

use super::{
    CHANNEL_BLOCK,
    tile::{Operands, WIDE_ROWS},
};
use crate::{
    convolution::ConvolutionEpilogue,
    product::clamped,
    simd::{LANES, Routine, Simd},
};

/// Windows of the least tile whose sums are as many as two units have in flight.
pub(super) const TILE_ROWS: usize = 4;

/// Blocks of the outputs of a panel.
const PANEL_BLOCKS: usize = LANES / CHANNEL_BLOCK;

/// What sums begin with.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Start {
    Zero,
    /// What earlier pieces have added up.
    Outputs,
    /// What earlier inputs have added up.
    Waiting,
}

/// What becomes of complete sums, all but the change.
#[derive(Clone, Copy, Default)]
pub(super) struct Finish<'a> {
    /// Of the channels of the panel.
    pub bias: Option<[f32; LANES]>,
    /// From the first window of the first and of the last block of the panel on.
    pub addend: Option<[&'a [f32]; 2]>,
    pub clamp: Option<(f32, f32)>,
}

impl<'a> Finish<'a> {
    /// What an epilogue does to the outputs of a panel whose first block of channels (of all groups) is `block`, and whose first
    /// and last block begin at these places of the whole output.
    pub(super) fn of(epilogue: ConvolutionEpilogue<'a>, block: usize, places: [usize; 2]) -> Self {
        let bias = epilogue.bias.map(|bias| {
            let mut lanes = [0.0; LANES];
            lanes.iter_mut().zip(&bias[block * CHANNEL_BLOCK..]).for_each(|(lane, bias)| *lane = *bias);
            lanes
        });
        let addend = epilogue.addend.map(|addend| places.map(|place| &addend[place..]));
        Self { bias, addend, clamp: epilogue.clamp }
    }

    /// The outputs of `ROWS` windows from their sums.
    #[inline(always)]
    pub(super) fn outputs<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        window: usize,
        mut sums: [S::Vector; ROWS],
    ) -> [S::Vector; ROWS] {
        if let Some(bias) = &self.bias {
            let bias = simd.load(bias);
            for row in 0..ROWS {
                sums[row] = simd.add(sums[row], bias);
            }
        }
        if let Some([low, high]) = self.addend {
            let (low, high) = (low.as_chunks::<CHANNEL_BLOCK>().0, high.as_chunks::<CHANNEL_BLOCK>().0);
            let (low, high) = (&low[window..][..ROWS], &high[window..][..ROWS]);
            for row in 0..ROWS {
                sums[row] = simd.add(sums[row], simd.load_halves(&low[row], &high[row]));
            }
        }
        for row in 0..ROWS {
            sums[row] = clamped(simd, self.clamp, sums[row]);
        }
        sums
    }
}

/// Panels that are multiplied together at most: where registers hold the sums of six windows of four, or 14 of two, each value is
/// read for all of them.
#[inline(always)]
pub(super) const fn panels_together<S: Simd>() -> usize {
    if S::TILE_VECTORS == 3 { 4 } else { 1 }
}

/// All windows of a task by some panels, over some of their inputs.
pub(super) struct PanelTiles<'a, 'o, 'r, const PANELS: usize> {
    pub operands: Operands<'a, PANELS>,
    pub start: Start,
    /// Whether these are the last inputs: sums go to the outputs.
    pub ends: bool,
    /// Sums of each panel and window: `[PANELS, windows, 16]`.
    pub waiting: &'o mut [f32],
    pub finish: [Finish<'a>; PANELS],
    /// The outputs of the blocks of the panels: two of each, but the last one may have one.
    pub out: &'o mut [&'r mut [f32]],
}

impl<const PANELS: usize> Routine for PanelTiles<'_, '_, '_, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let windows = self.operands.windows;
        let mut window = 0;
        if const { PANELS > 1 } {
            while window < windows {
                window += match self.rows_together(window) {
                    WIDE_ROWS.. if const { PANELS == 2 } => self.tile::<S, WIDE_ROWS>(simd, window),
                    8.. if const { PANELS == 2 } => self.tile::<S, 8>(simd, window),
                    7 if const { PANELS == 2 } => self.tile::<S, 7>(simd, window),
                    6.. => self.tile::<S, 6>(simd, window),
                    5 => self.tile::<S, 5>(simd, window),
                    4 => self.tile::<S, 4>(simd, window),
                    3 => self.tile::<S, 3>(simd, window),
                    2 => self.tile::<S, 2>(simd, window),
                    _ => self.tile::<S, 1>(simd, window),
                };
            }
            return;
        }
        // Of a panel of one block half of each vector would be empty: two windows share one.
        if let [_] = self.out {
            while window < windows {
                window += match windows - window {
                    8.. => self.pairs::<S, 8, 4>(simd, window),
                    4.. => self.pairs::<S, 4, 2>(simd, window),
                    2.. => self.pairs::<S, 2, 1>(simd, window),
                    _ => self.tile::<S, 1>(simd, window),
                };
            }
            return;
        }
        while window < windows {
            window += match windows - window {
                8.. if const { S::TILE_VECTORS == 3 } => self.tile::<S, 8>(simd, window),
                // Sums of four are as few as the two units have in flight.
                8 | 7 | 5 | 4 => self.tile::<S, 4>(simd, window),
                6.. => self.tile::<S, 6>(simd, window),
                3 => self.tile::<S, 3>(simd, window),
                2 => self.tile::<S, 2>(simd, window),
                _ => self.tile::<S, 1>(simd, window),
            };
        }
    }
}

impl<const PANELS: usize> PanelTiles<'_, '_, '_, PANELS> {
    /// Windows of the next tile of several panels.
    fn rows_together(&self, window: usize) -> usize {
        let left = self.operands.windows - window;
        // One that leaves a few is followed by a short one.
        let leaves_enough = left == WIDE_ROWS || left >= WIDE_ROWS + TILE_ROWS;
        if const { PANELS == 2 } && leaves_enough && self.operands.has_wide_tiles() {
            return if self.operands.fill_wide_tile(window) { WIDE_ROWS } else { WIDE_ROWS / 2 };
        }
        // About as many in each tile: sums of few windows are fewer than two units have in flight.
        let most = if const { PANELS == 2 } { 8 } else { 6 };
        left.div_ceil(left.div_ceil(most).max(1))
    }

    /// `ROWS` windows; gives how many.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(&mut self, simd: S, window: usize) -> usize {
        let windows = self.operands.windows;
        let mut nowhere = [[0.0; CHANNEL_BLOCK]; ROWS];
        let mut sums = [[simd.splat(0.0); ROWS]; PANELS];
        match self.start {
            Start::Zero => {}
            Start::Outputs => {
                for panel in 0..PANELS {
                    let [low, high] = lines(blocks(self.out, panel), window, &mut nowhere);
                    for row in 0..ROWS {
                        sums[panel][row] = simd.load_halves(&low[row], &high[row]);
                    }
                }
            }
            Start::Waiting => {
                for panel in 0..PANELS {
                    let waiting = &self.waiting.as_chunks::<LANES>().0[panel * windows + window..][..ROWS];
                    for row in 0..ROWS {
                        sums[panel][row] = simd.load(&waiting[row]);
                    }
                }
            }
        }
        let sums = self.operands.add::<S, ROWS, ROWS>(simd, window, sums);
        const { assert!(matches!(PANELS, 1 | 2 | 4), "panels that end below") };
        // One call for each: sums of a panel that a loop counts would go through memory.
        self.end::<S, ROWS>(simd, window, 0, sums[0]);
        if const { PANELS > 1 } {
            self.end::<S, ROWS>(simd, window, 1, sums[1 % PANELS]);
        }
        if const { PANELS > 2 } {
            self.end::<S, ROWS>(simd, window, 2, sums[2 % PANELS]);
            self.end::<S, ROWS>(simd, window, 3, sums[3 % PANELS]);
        }
        ROWS
    }

    /// Stores the sums of `ROWS` windows of a panel, or what they become.
    #[inline(always)]
    fn end<S: Simd, const ROWS: usize>(&mut self, simd: S, window: usize, panel: usize, sums: [S::Vector; ROWS]) {
        if !self.ends {
            let windows = self.operands.windows;
            let waiting = &mut self.waiting.as_chunks_mut::<LANES>().0[panel * windows + window..][..ROWS];
            for row in 0..ROWS {
                simd.store(sums[row], &mut waiting[row]);
            }
            return;
        }
        let outputs = self.finish[panel].outputs::<S, ROWS>(simd, window, sums);
        let mut nowhere = [[0.0; CHANNEL_BLOCK]; ROWS];
        let [low, high] = lines(blocks(self.out, panel), window, &mut nowhere);
        for row in 0..ROWS {
            simd.store_halves(outputs[row], &mut low[row], &mut high[row]);
        }
    }

    /// `ROWS` windows of panels of one block, two to a vector; gives how many.
    #[inline(always)]
    fn pairs<S: Simd, const ROWS: usize, const PAIRS: usize>(&mut self, simd: S, window: usize) -> usize {
        let [out] = self.out else { return ROWS };
        let out = &mut out.as_chunks_mut::<CHANNEL_BLOCK>().0[window..][..ROWS];
        let mut sums = [[simd.splat(0.0); PAIRS]; PANELS];
        match self.start {
            Start::Zero => {}
            Start::Outputs => {
                for pair in 0..PAIRS {
                    sums[0][pair] = simd.load_halves(&out[2 * pair], &out[2 * pair + 1]);
                }
            }
            Start::Waiting => {
                let waiting = &self.waiting.as_chunks::<LANES>().0[window..][..PAIRS];
                for pair in 0..PAIRS {
                    sums[0][pair] = simd.load(&waiting[pair]);
                }
            }
        }
        let mut sums = self.operands.add::<S, ROWS, PAIRS>(simd, window, sums)[0];
        if !self.ends {
            let waiting = &mut self.waiting.as_chunks_mut::<LANES>().0[window..][..PAIRS];
            for pair in 0..PAIRS {
                simd.store(sums[pair], &mut waiting[pair]);
            }
            return ROWS;
        }
        let Finish { bias, addend, clamp } = self.finish[0];
        if let Some(bias) = &bias {
            let bias: &[f32; CHANNEL_BLOCK] = &bias.as_chunks().0[0];
            let bias = simd.load_halves(bias, bias);
            for pair in 0..PAIRS {
                sums[pair] = simd.add(sums[pair], bias);
            }
        }
        if let Some([addend, _]) = addend {
            let addend = &addend.as_chunks::<CHANNEL_BLOCK>().0[window..][..ROWS];
            for pair in 0..PAIRS {
                sums[pair] = simd.add(sums[pair], simd.load_halves(&addend[2 * pair], &addend[2 * pair + 1]));
            }
        }
        for (pair, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let [low, high] = out;
            simd.store_halves(clamped(simd, clamp, sums[pair]), low, high);
        }
        ROWS
    }
}

/// The blocks of a panel.
#[inline(always)]
fn blocks<'l, 'r>(out: &'l mut [&'r mut [f32]], panel: usize) -> &'l mut [&'r mut [f32]] {
    let first = (panel * PANEL_BLOCKS).min(out.len());
    let end = (first + PANEL_BLOCKS).min(out.len());
    &mut out[first..end]
}

/// The outputs of some windows, of the first and of the second block of a panel; `nowhere` where there is no such block.
#[inline(always)]
pub(super) fn lines<'l, const ROWS: usize>(
    out: &'l mut [&mut [f32]],
    window: usize,
    nowhere: &'l mut [[f32; CHANNEL_BLOCK]; ROWS],
) -> [&'l mut [[f32; CHANNEL_BLOCK]]; 2] {
    let block = |block: &'l mut [f32]| &mut block.as_chunks_mut().0[window..][..ROWS];
    match out {
        [low, high, ..] => [block(low), block(high)],
        [low] => [block(low), nowhere],
        [] => [nowhere, &mut []],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convolution::blocked::tile::{Inputs, Values},
        places::places,
        simd::{Layout, LinePlaces, Lines, Within},
        window::WindowAxis,
    };

    /// The tiles of two panels over rows of so many windows of 3 x 3 taps.
    fn tiles((rows, columns): (usize, usize), pad: usize, is_wide: bool) -> Vec<usize> {
        let axis = |output: usize, pad: usize| WindowAxis {
            input: output + 2 - 2 * pad,
            output,
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_begin: pad,
            pad_end: pad,
        };
        let axes = [axis(rows, 0), axis(columns, pad)];
        let windows = rows * columns;
        let lines = LinePlaces::new(places(&axes, 0..windows, CHANNEL_BLOCK), windows, CHANNEL_BLOCK);
        let image = vec![0.0; axes[0].input * axes[1].input * CHANNEL_BLOCK];
        let layout = Layout { blocks: 1, block_distance: image.len(), length: CHANNEL_BLOCK };
        let values = Values { lines: Lines::new(&image, &lines, layout), taps: 9, within: Within::Taps };
        let inputs = Inputs::Blocks(0..1);
        let (panels, next) = ([&[][..]; 2], [&[][..]; 2]);
        let operands = Operands { values, windows, inputs: &inputs, panels, next, asked: 0, asks: false, is_wide };
        let (start, finish) = (Start::Zero, [Finish::default(); 2]);
        let tiles = PanelTiles { operands, start, ends: true, waiting: &mut [], finish, out: &mut [] };
        let (mut found, mut window) = (Vec::new(), 0);
        while window < windows {
            found.push(tiles.rows_together(window).min(windows - window));
            window += found[found.len() - 1];
        }
        found
    }

    #[test]
    fn wide_tiles_fill_rows_with_halves_where_there_is_padding() {
        assert_eq!(tiles((2, 28), 1, true), [7, 14, 7, 7, 14, 7]);
        assert_eq!(tiles((2, 42), 1, true), [7, 14, 14, 7, 7, 14, 14, 7]);
        assert_eq!(tiles((2, 28), 0, true), [14; 4]);
        assert_eq!(tiles((2, 28), 1, false), [8; 7]);
        assert_eq!(tiles((1, 17), 0, true), [6, 6, 5], "three would be left");
        assert_eq!(tiles((1, 18), 0, true), [14, 4]);
    }
}
