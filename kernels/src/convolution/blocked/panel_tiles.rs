//! All windows of a task by some panels: what sums begin with, and what becomes of them.

use super::{
    CHANNEL_BLOCK,
    tile::{Operands, WIDE_ROWS, WeightedInputs},
};
use crate::{
    ahead::LinesAhead,
    convolution::ConvolutionEpilogue,
    product::all_clamped,
    simd::{LANES, PanelLines, Routine, Simd},
};

/// Windows of the least tile whose sums are as many as two units have in flight.
pub(super) const TILE_ROWS: usize = 4;

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
    fn outputs<S: Simd, const ROWS: usize>(
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
        all_clamped(simd, self.clamp, sums)
    }

    /// Stores what the sums of `ROWS` windows become, in the lines of both blocks of their panel.
    #[inline(always)]
    pub(super) fn end<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        window: usize,
        sums: [S::Vector; ROWS],
        lines: &mut [Option<&mut [[f32; CHANNEL_BLOCK]; ROWS]>; 2],
    ) {
        let outputs = self.outputs::<S, ROWS>(simd, window, sums);
        match lines {
            [Some(low), Some(high)] => {
                for row in 0..ROWS {
                    simd.store_halves(outputs[row], &mut low[row], &mut high[row]);
                }
            }
            [Some(low), None] => {
                for row in 0..ROWS {
                    simd.store_halves(outputs[row], &mut low[row], &mut [0.0; CHANNEL_BLOCK]);
                }
            }
            [None, _] => {}
        }
    }
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
    fn run<S: Simd>(self, simd: S) {
        let windows = self.operands.windows;
        let most_rows = match PANELS {
            2 if self.operands.has_wide_tiles() => WIDE_ROWS,
            2 => 8,
            1 if const { S::TILE_VECTORS == 3 } => 8,
            _ => 6,
        };
        let mut tiles = Tiles {
            operands: self.operands,
            inputs: self.operands.weighted_inputs(),
            ahead: self.operands.weights_ahead(most_rows),
            start: self.start,
            ends: self.ends,
            waiting: self.waiting,
            finish: self.finish,
        };
        let mut window = 0;
        // Of a panel of one block half of each vector would be empty: two windows share one.
        if const { PANELS == 1 }
            && let [out] = self.out
        {
            while window < windows {
                window += match windows - window {
                    8.. => tiles.pairs::<S, 8, 4>(simd, window, out),
                    4.. => tiles.pairs::<S, 4, 2>(simd, window, out),
                    2.. => tiles.pairs::<S, 2, 1>(simd, window, out),
                    _ => tiles.tile::<S, 1>(simd, window, &mut PanelLines::new(&mut [out], windows)),
                };
            }
            return;
        }
        let mut out = PanelLines::new(self.out, windows);
        while window < windows {
            window += match tiles.rows_together(window) {
                WIDE_ROWS.. if const { PANELS == 2 } => tiles.tile::<S, WIDE_ROWS>(simd, window, &mut out),
                8.. if const { PANELS == 2 || PANELS == 1 && S::TILE_VECTORS == 3 } => {
                    tiles.tile::<S, 8>(simd, window, &mut out)
                }
                7 if const { PANELS == 2 } => tiles.tile::<S, 7>(simd, window, &mut out),
                8 | 7 if const { PANELS == 1 } => break,
                6.. if const { PANELS == 4 || S::TILE_VECTORS < 3 } => tiles.tile::<S, 6>(simd, window, &mut out),
                _ => break,
            };
        }
        if window < windows {
            simd.run(ShortTiles { tiles, window, out });
        }
    }
}

/// The windows from one on, in tiles of few, as a function of its own: one of all tiles takes long to compile.
struct ShortTiles<'a, 'o, 'r, const PANELS: usize> {
    tiles: Tiles<'a, 'o, PANELS>,
    window: usize,
    out: PanelLines<'r, PANELS>,
}

impl<const PANELS: usize> Routine for ShortTiles<'_, '_, '_, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut tiles, mut window, mut out } = self;
        while window < tiles.operands.windows {
            window += match tiles.rows_together(window) {
                // Sums of four are as few as the two units have in flight.
                8 | 7 | 5 if const { PANELS == 1 } => tiles.tile::<S, 4>(simd, window, &mut out),
                6.. if const { PANELS < 4 && S::TILE_VECTORS == 3 } => tiles.tile::<S, 6>(simd, window, &mut out),
                5 => tiles.tile::<S, 5>(simd, window, &mut out),
                4 => tiles.tile::<S, 4>(simd, window, &mut out),
                3 => tiles.tile::<S, 3>(simd, window, &mut out),
                2 => tiles.tile::<S, 2>(simd, window, &mut out),
                _ => tiles.tile::<S, 1>(simd, window, &mut out),
            };
        }
    }
}

/// What is the same for all tiles of [`PanelTiles`].
struct Tiles<'a, 'o, const PANELS: usize> {
    operands: Operands<'a, PANELS>,
    inputs: WeightedInputs<'a, PANELS>,
    ahead: LinesAhead<'a, PANELS>,
    start: Start,
    ends: bool,
    waiting: &'o mut [f32],
    finish: [Finish<'a>; PANELS],
}

impl<const PANELS: usize> Tiles<'_, '_, PANELS> {
    /// Windows of the next tile of several panels; all that are left for one panel.
    fn rows_together(&self, window: usize) -> usize {
        let left = self.operands.windows - window;
        if const { PANELS == 1 } {
            return left;
        }
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
    fn tile<S: Simd, const ROWS: usize>(&mut self, simd: S, window: usize, out: &mut PanelLines<'_, PANELS>) -> usize {
        let windows = self.operands.windows;
        let mut sums = [[simd.splat(0.0); ROWS]; PANELS];
        match self.start {
            Start::Zero => {}
            Start::Outputs => {
                let lines = out.rows::<ROWS>(window);
                for panel in 0..PANELS {
                    for row in 0..ROWS {
                        let line = |block: usize| {
                            lines[panel][block].as_ref().map_or_else(Default::default, |lines| lines[row])
                        };
                        sums[panel][row] = simd.load_halves(&line(0), &line(1));
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
        let sums = self.operands.add::<S, ROWS, ROWS>(simd, window, &self.inputs, &mut self.ahead, sums);
        if !self.ends {
            for panel in 0..PANELS {
                let waiting = &mut self.waiting.as_chunks_mut::<LANES>().0[panel * windows + window..][..ROWS];
                for row in 0..ROWS {
                    simd.store(sums[panel][row], &mut waiting[row]);
                }
            }
            return ROWS;
        }
        const { assert!(matches!(PANELS, 1 | 2 | 4), "panels that end below") };
        // One call for each: sums of a panel that a loop counts would go through memory.
        let mut lines = out.rows::<ROWS>(window);
        self.finish[0].end(simd, window, sums[0], &mut lines[0]);
        if const { PANELS > 1 } {
            self.finish[1 % PANELS].end(simd, window, sums[1 % PANELS], &mut lines[1 % PANELS]);
        }
        if const { PANELS > 2 } {
            self.finish[2 % PANELS].end(simd, window, sums[2 % PANELS], &mut lines[2 % PANELS]);
            self.finish[3 % PANELS].end(simd, window, sums[3 % PANELS], &mut lines[3 % PANELS]);
        }
        ROWS
    }

    /// `ROWS` windows of panels of one block, two to a vector; gives how many.
    #[inline(always)]
    fn pairs<S: Simd, const ROWS: usize, const PAIRS: usize>(
        &mut self,
        simd: S,
        window: usize,
        out: &mut [f32],
    ) -> usize {
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
        let mut sums = self.operands.add::<S, ROWS, PAIRS>(simd, window, &self.inputs, &mut self.ahead, sums)[0];
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
        let outputs = all_clamped(simd, clamp, sums);
        for (pair, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let [low, high] = out;
            simd.store_halves(outputs[pair], low, high);
        }
        ROWS
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
        let operands = Operands { values, windows, inputs: &inputs, panels, next, asks: false, is_wide };
        let (start, finish) = (Start::Zero, [Finish::default(); 2]);
        let (inputs, ahead) = (WeightedInputs::Single(0..0), operands.weights_ahead(WIDE_ROWS));
        let tiles = Tiles { operands, inputs, ahead, start, ends: true, waiting: &mut [], finish };
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
