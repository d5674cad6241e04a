//! Convolutions of integers of 8 bits by tiles, of matrices (AMX) or of vectors: exact sums that wrap around in 32 bits.
//!
//! Left tiles are 16 output channels by 64 input channels at a tap, right tiles the same inputs at 32 neighbouring positions, which
//! lie side by side on padded copies of channels (`direct`) at every tap. Since `(x - a) * (w - b)` sums to
//! `x * w - a * w - b * x + a * b`, zero points cost the sum of each output's weights and, where weights have any, of each window.
//! Matrix tiles multiply codes as they are; vectors take inputs as unsigned and weights as signed, so that others have
//! their highest bit flipped, which moves codes and zero points by 128. Vectors that sum products of 16 bits have half as many
//! channels in a tile.

use std::ops::Range;

use super::{
    ConvolutionShape,
    byte_tiles::{Lines, TILE_WORDS, TileWords, multiply},
    completion::{Codes, Complete, Correction, Handed, Run},
    direct::Block,
    filter_tiles::{FLIP, FilterTiles, Layout},
    terms::Terms,
    words::{FLIPPED, WORD_CHANNELS, Words, interleave, split},
};
use crate::{
    product::{IntegerPiece, IntegerWeight, PANEL_OUTPUTS, Requantize, Zero},
    scratch::{Scratch, scratch},
    simd::{
        Instructions, LANES, Routine, Simd,
        amx::{Amx, Right, SUM_COLUMNS, Signs, Tile, Tiles},
    },
    threads,
};

/// Output channels that are multiplied together.
const PAIR_OUTPUTS: usize = 2 * PANEL_OUTPUTS;

/// Positions whose sums stay in the first-level cache with those of a pair of panels.
const RUN_POSITIONS: usize = 256;

/// A convolution whose filters come whole.
pub struct TiledConvolution {
    instructions: Instructions,
    unit: Unit,
    terms: Terms,
    /// What padding holds: the zero point of the input.
    pad: Zero,
    /// What the code of `pad` is as it is multiplied.
    zero: i32,
}

/// What multiplies tiles.
#[derive(Clone, Copy)]
enum Unit {
    Matrices(Amx),
    Vectors(Words),
}

/// Input channels of a tile of bytes; so many taps and channels may be copies for one of halves, too.
const TILE_CHANNELS: usize = WORD_CHANNELS * LANES;

/// The filters of a group, or some of them.
#[derive(Clone, Copy, Debug)]
pub struct Filters<'a> {
    /// The type of their codes, and the zero point of each filter of the group.
    pub weight: IntegerWeight<'a>,
    /// What is added to the sums of each filter of the group.
    pub bias: Option<&'a [i32]>,
    /// Whole panels.
    pub pieces: &'a [IntegerPiece<'a>],
}

/// Some positions of a group of channels of an image: `image` is `[channels, positions..]`.
#[derive(Clone, Debug)]
pub struct Positions<'a> {
    /// The channels of the group.
    pub image: &'a [u8],
    /// From a multiple of [`TiledConvolution::unit`] to another or to the last.
    pub range: Range<usize>,
}

/// Positions as they are multiplied by the filters of their group, by all of them or by some at a time.
pub struct PositionTiles {
    block: Block,
    runs: Vec<Run>,
    count: usize,
    inputs: Inputs,
    /// The sum of the codes of each window, where filters have zero points.
    windows: Option<Scratch>,
}

impl TiledConvolution {
    /// `None` where these instructions have no tiles, or tiles would be mostly zeros.
    #[must_use]
    pub fn new(instructions: Instructions, shape: &ConvolutionShape, pad: Zero) -> Option<Self> {
        let unit = match instructions.tiles() {
            Some(amx) => Unit::Matrices(amx),
            None => Unit::Vectors(Words::of_tiles(instructions)?),
        };
        let (most_copied, least_channels) = match unit {
            Unit::Matrices(_) => (TILE_CHANNELS, TILE_CHANNELS / 4),
            // Only lines are to be full.
            Unit::Vectors(_) if shape.group_inputs.is_multiple_of(WORD_CHANNELS) => (0, WORD_CHANNELS),
            Unit::Vectors(_) => (TILE_CHANNELS, WORD_CHANNELS - 1),
        };
        let terms = Terms::new(shape, most_copied)?;
        let fits = terms.channels() >= least_channels && shape.group_outputs >= PANEL_OUTPUTS / 2;
        let zero = if pad.kind.signed { i32::from(pad.code.cast_signed()) } else { i32::from(pad.code) };
        let mut tiled = Self { instructions, unit, terms, pad, zero };
        if tiled.flips_inputs() {
            tiled.zero += FLIPPED;
        }
        fits.then_some(tiled)
    }

    fn flips_inputs(&self) -> bool {
        matches!(self.unit, Unit::Vectors(_)) && self.pad.kind.signed
    }

    fn words(&self) -> Words {
        match self.unit {
            Unit::Matrices(_) => Words::Bytes,
            Unit::Vectors(words) => words,
        }
    }

    /// Sums come for positions from a multiple of so many to another or to the last.
    #[must_use]
    pub fn unit(&self) -> usize {
        if self.terms.row() == 1 { SUM_COLUMNS } else { self.terms.row() }
    }

    /// Positions of a row of outputs.
    #[cfg(test)]
    fn row(&self) -> usize {
        self.terms.row()
    }

    /// Bytes that a position takes while it is multiplied: its codes, and the sums of a pair of panels.
    #[must_use]
    pub fn position_bytes(&self) -> usize {
        self.terms.channels() * self.words().of_group() + PAIR_OUTPUTS * size_of::<i32>()
    }

    /// Filters as they are multiplied.
    ///
    /// # Panics
    /// If a piece is not of whole panels.
    #[must_use]
    pub fn tiles<'a>(&self, filters: Filters<'a>) -> FilterTiles<'a> {
        let outputs_outer = matches!(self.unit, Unit::Matrices(_));
        let flips = !outputs_outer && !filters.weight.kind.signed;
        let layout = Layout { terms: &self.terms, words: self.words(), outputs_outer, flips };
        FilterTiles::new(self.instructions, layout, (filters.weight, filters.bias), filters.pieces)
    }

    /// Bytes that the tiles of a panel take.
    #[must_use]
    pub fn panel_bytes(&self) -> usize {
        let steps = self.terms.taps() * self.terms.channels().div_ceil(self.words().channels(LANES));
        steps.max(1) * size_of::<TileWords>()
    }

    /// Positions as they are multiplied. `weight` is the type and the zero points of all filters of the group.
    ///
    /// # Panics
    /// If lengths disagree, there are no positions, or they are not whole rows.
    #[must_use]
    pub fn positions(&self, positions: Positions<'_>, weight: IntegerWeight<'_>) -> PositionTiles {
        let Positions { image, range } = positions;
        let row = self.terms.row().max(1);
        assert!(range.start.is_multiple_of(row) && range.end.is_multiple_of(row), "rows of {row}: {range:?}");
        assert!(!range.is_empty(), "no positions");
        let block = self.terms.block(range.start / row..range.end / row);
        let runs = runs(&block);
        let inputs = Inputs::new(self, &block, image);
        let mut tiles = PositionTiles { block, runs, count: range.len(), inputs, windows: None };
        if (0..weight.zeros.len()).any(|filter| self.weight_zero(weight, filter) != 0) {
            tiles.windows = Some(self.instructions.run(WindowSums { convolution: self, tiles: &tiles }));
        }
        tiles
    }

    /// The zero point of a filter as its codes are multiplied.
    fn weight_zero(&self, weight: IntegerWeight<'_>, filter: usize) -> i32 {
        weight.zeros[filter].wrapping_sub(if self.flips_weights(weight) { FLIPPED } else { 0 })
    }

    fn flips_weights(&self, weight: IntegerWeight<'_>) -> bool {
        matches!(self.unit, Unit::Vectors(_)) && !weight.kind.signed
    }

    /// Calls `visit` with the number of each filter of some of the panels that are there, counted from their first, a place among the
    /// positions, and the filter's sums from there on, until all places of all filters have come.
    pub fn sums(
        &self,
        positions: &PositionTiles,
        (filters, panels): (&FilterTiles<'_>, Range<usize>),
        visit: impl FnMut(usize, usize, &[i32]),
    ) {
        self.complete(positions, filters, panels, Handed(visit));
    }

    /// Writes the codes of each filter of some of the panels that are there at all positions to its part of `results`. `by` says what
    /// makes them of the sums of a filter, counted from their first.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn codes<'a>(
        &self,
        positions: &PositionTiles,
        (filters, panels): (&FilterTiles<'_>, Range<usize>),
        by: impl Fn(usize) -> Requantize<'a>,
        results: &mut [&mut [u8]],
    ) {
        assert!(results.iter().all(|own| own.len() == positions.count), "codes of {} positions", positions.count);
        self.complete(positions, filters, panels, Codes { by, results });
    }

    fn complete(
        &self,
        positions: &PositionTiles,
        filters: &FilterTiles<'_>,
        panels: Range<usize>,
        complete: impl Complete,
    ) {
        self.instructions.run(BlockSums { convolution: self, positions, filters, panels, complete });
    }

    /// Some positions by two columns of left tiles.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        simd: S,
        tiles: Option<&Tiles>,
        inputs: &Inputs,
        left: Left<'_>,
        positions: Range<usize>,
        (sums, pitch): (&mut [i32], usize),
    ) {
        let Some(tiles) = tiles else {
            let lines = Lines {
                words: bytemuck::cast_slice(&inputs.lines),
                pitch: inputs.pitch,
                steps: &inputs.steps,
                count: self.words().words(self.terms.channels()),
            };
            for (panel, tiles) in left.panels[..left.count].iter().enumerate() {
                multiply(simd, tiles, &lines, positions.clone(), &mut sums[panel * PANEL_OUTPUTS * pitch..], pitch);
            }
            return;
        };
        let right = Right {
            bytes: bytemuck::cast_slice(&inputs.lines),
            steps: &inputs.steps,
            pitch: inputs.pitch * size_of::<i32>(),
        };
        let signs = Signs { left: left.signed, right: self.pad.kind.signed };
        let left: [&[Tile]; 2] = left.panels.map(bytemuck::cast_slice);
        for place in (0..positions.len()).step_by(SUM_COLUMNS) {
            let base = (positions.start + place) * size_of::<i32>();
            tiles.multiply_bytes(signs, left, right, base, (&mut sums[place..], pitch));
        }
    }

    fn matrices(&self) -> Option<Tiles> {
        match self.unit {
            Unit::Matrices(amx) => Some(amx.tiles()),
            Unit::Vectors(_) => None,
        }
    }
}

/// The sums of a block.
struct BlockSums<'a, C> {
    convolution: &'a TiledConvolution,
    positions: &'a PositionTiles,
    filters: &'a FilterTiles<'a>,
    panels: Range<usize>,
    complete: C,
}

/// The codes of a block, in words of some channels.
struct Inputs {
    /// `[words of the channels][pitch]`.
    lines: Scratch,
    /// Words of a line.
    pitch: usize,
    /// Where the lines of each step begin.
    steps: Vec<usize>,
}

impl<C: Complete> Routine for BlockSums<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let tiles = self.convolution.matrices();
        let tiles = tiles.as_ref();
        let PositionTiles { block, runs, inputs, windows, .. } = self.positions;
        let windows: Option<&[i32]> = windows.as_ref().map(|windows| bytemuck::cast_slice(windows));
        // Vectors at the end of a row may reach behind it.
        let mut sums = scratch(PAIR_OUTPUTS * block.positions.next_multiple_of(SUM_COLUMNS) + LANES);
        let sums: &mut [i32] = bytemuck::cast_slice_mut(&mut sums);
        let filters = self.filters;
        let mut index = 0;
        for first in self.panels.clone().step_by(2) {
            let count = (self.panels.end - first).min(2);
            let ((one, _), (other, _)) = (filters.panel(first), filters.panel(first + count - 1));
            let left = Left { panels: [one, other], count, signed: filters.weight.kind.signed };
            for run in runs {
                let pitch = run.positions.len().next_multiple_of(SUM_COLUMNS);
                self.convolution.multiply(simd, tiles, inputs, left, run.positions.clone(), (sums, pitch));
                let mut index = index;
                for panel in 0..count {
                    let (_, weight_sums) = filters.panel(first + panel);
                    for (own, filter) in filters.filters(first + panel).enumerate() {
                        let zero = self.convolution.weight_zero(filters.weight, filter);
                        let windows = windows.filter(|_| zero != 0);
                        let correction = Correction {
                            constant: self.constant(filter, weight_sums[own]),
                            windows: windows.map(|windows| (zero, &windows[run.positions.start..])),
                        };
                        let sums = &mut sums[(panel * PANEL_OUTPUTS + own) * pitch..];
                        self.complete.complete(simd, index, run, correction, sums);
                        index += 1;
                    }
                }
            }
            index += (first..first + count).map(|panel| filters.filters(panel).len()).sum::<usize>();
        }
    }
}

/// Left tiles of two panels of outputs, or of one, which is then there twice.
#[derive(Clone, Copy)]
struct Left<'a> {
    panels: [&'a [TileWords]; 2],
    count: usize,
    signed: bool,
}

impl<C> BlockSums<'_, C> {
    /// What is added to the products of a filter whose weights, as they are, have this sum.
    fn constant(&self, filter: usize, weight_sum: i32) -> i32 {
        let TiledConvolution { zero, terms, .. } = self.convolution;
        // Flipping moves weights and their zero point alike.
        let terms = (terms.depth() as i32).wrapping_mul(self.filters.weight.zeros[filter]);
        let bias = self.filters.bias.map_or(0, |bias| bias[filter]);
        bias.wrapping_sub(zero.wrapping_mul(weight_sum.wrapping_sub(terms)))
    }
}

/// A block in runs.
fn runs(block: &Block) -> Vec<Run> {
    let Block { rows, row_length, .. } = block;
    if let [start] = rows[..] {
        let run = |first: usize| {
            let row_length = RUN_POSITIONS.min(row_length - first);
            let positions = start + first..start + first + row_length;
            Run { positions, first, rows: 1, row_length, distance: row_length }
        };
        return (0..*row_length).step_by(RUN_POSITIONS).map(run).collect();
    }
    let mut runs: Vec<Run> = Vec::new();
    for (row, &start) in rows.iter().enumerate() {
        let end = start + row_length;
        // Rows of a run are as far apart from each other; where another axis begins they are not.
        if let Some(run) = runs.last_mut()
            && end - run.positions.start <= RUN_POSITIONS
            && (run.rows == 1 || start == run.positions.start + run.rows * run.distance)
        {
            run.distance = (start - run.positions.start) / run.rows;
            run.rows += 1;
            run.positions.end = end;
            continue;
        }
        let first = row * row_length;
        runs.push(Run { positions: start..end, first, rows: 1, row_length: *row_length, distance: *row_length });
    }
    runs
}

/// The sum of the codes of each window of a block: products with ones.
struct WindowSums<'a> {
    convolution: &'a TiledConvolution,
    tiles: &'a PositionTiles,
}

impl Routine for WindowSums<'_> {
    type Output = Scratch;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Scratch {
        let matrices = self.convolution.matrices();
        let PositionTiles { block, inputs, .. } = self.tiles;
        let channels = self.convolution.terms.channels();
        let words = self.convolution.words();
        let blocks = channels.div_ceil(words.channels(LANES));
        let mut left = scratch(inputs.steps.len() * TILE_WORDS);
        let left = bytemuck::cast_slice_mut::<f32, i32>(&mut left).as_chunks_mut::<TILE_WORDS>().0;
        for (step, tile) in left.iter_mut().enumerate() {
            let first = step % blocks * LANES;
            for (index, word) in tile.iter_mut().enumerate() {
                let place = if matrices.is_some() { index % LANES } else { index / LANES };
                *word = words.ones(first + place, channels);
            }
        }
        let left = Left { panels: [&*left; 2], count: 1, signed: false };
        let pitch = block.positions.next_multiple_of(SUM_COLUMNS);
        let (mut sums, mut windows) = (scratch(PAIR_OUTPUTS * pitch + LANES), scratch(pitch + LANES));
        let whole = (bytemuck::cast_slice_mut(&mut sums), pitch);
        self.convolution.multiply(simd, matrices.as_ref(), inputs, left, 0..pitch, whole);
        windows[..pitch].copy_from_slice(&sums[..pitch]);
        windows
    }
}

impl Inputs {
    /// The codes of all channels on their grids.
    fn new(convolution: &TiledConvolution, block: &Block, image: &[u8]) -> Self {
        let channels = convolution.terms.channels();
        let of_group = convolution.words().of_group();
        let blocks = channels.div_ceil(convolution.words().channels(LANES));
        let reach = block.taps.iter().copied().max().unwrap_or(0);
        // The last tap reads whole vectors. An odd number of cache lines keeps the lines of a tile in different sets of a cache.
        let used = (reach + block.positions + SUM_COLUMNS).max(block.channel).next_multiple_of(LANES);
        let pitch = ((used / LANES) | 1) * LANES;
        let mut lines = scratch(blocks * LANES * pitch);
        let words: &mut [i32] = bytemuck::cast_slice_mut(&mut lines);
        let groups = words.len() / (of_group * pitch);
        let each = groups.div_ceil(threads::parts(words.len() * WORD_CHANNELS, groups)).max(1);
        threads::chunks(words, each * of_group * pitch, |index, words| {
            let part = LinesOf { convolution, block, image, first_group: index * each, pitch, used, words };
            convolution.instructions.run(part);
        });
        let line = pitch * size_of::<i32>();
        let step = |tap: usize| (0..blocks).map(move |block| block * LANES * line + tap * size_of::<i32>());
        Inputs { pitch, steps: block.taps.iter().flat_map(|&tap| step(tap)).collect(), lines }
    }
}

/// Some lines of inputs: `[words of the channels][pitch]`.
struct LinesOf<'a> {
    convolution: &'a TiledConvolution,
    block: &'a Block,
    image: &'a [u8],
    first_group: usize,
    pitch: usize,
    /// Words of a line that are read.
    used: usize,
    words: &'a mut [i32],
}

impl Routine for LinesOf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { convolution, block, image, first_group, pitch, used, words } = self;
        let channels = convolution.terms.channels();
        let flip = if convolution.flips_inputs() { FLIP } else { 0 };
        let mut own = vec![0; WORD_CHANNELS * used];
        let zeros = vec![0; used];
        for (group, lines) in (first_group..).zip(words.chunks_mut(pitch * convolution.words().of_group())) {
            if group * WORD_CHANNELS >= channels {
                lines.fill(0);
                continue;
            }
            let (line, other) = lines.split_at_mut(pitch);
            let line = &mut line[..used];
            let mut rows = [&zeros[..]; WORD_CHANNELS];
            for (index, (row, own)) in rows.iter_mut().zip(own.chunks_mut(used)).enumerate() {
                let channel = group * WORD_CHANNELS + index;
                if channel < channels {
                    *row = channel_on_grid(convolution, block, image, channel, own);
                }
            }
            interleave(simd, rows, flip, line);
            match convolution.words() {
                Words::Bytes => {}
                Words::Halves => split(simd, line, other),
            }
        }
    }
}

/// A channel on its grid: where it lies, or in `row`.
#[inline(always)]
fn channel_on_grid<'r>(
    convolution: &TiledConvolution,
    block: &Block,
    image: &'r [u8],
    channel: usize,
    row: &'r mut [u8],
) -> &'r [u8] {
    let (source, shift) = convolution.terms.source(channel);
    let plane = convolution.terms.plane();
    let values = &image[source * plane..][..plane];
    if let Some(first) = block.in_place {
        return &values[first..][..block.positions];
    }
    block.fill_bytes(values, shift, convolution.pad.code, &mut row[..block.channel]);
    &row[..block.channel]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        product::{ByteType, Parameter, SumScale, pack_integers, requantize},
        simd::Instructions,
        testing::numbers,
        window::{self, WindowAxis},
    };

    fn codes(seed: u32, count: usize) -> Vec<u8> {
        numbers(seed, count).into_iter().map(|value| (value * 128.0) as i32 as u8).collect()
    }

    fn value(kind: ByteType, code: u8) -> i32 {
        if kind.signed { i32::from(code.cast_signed()) } else { i32::from(code) }
    }

    /// One group of one image, in the order of the definition: `[filters, positions]`.
    fn naive(shape: &ConvolutionShape, x: (&[u8], Zero), w: (&[u8], IntegerWeight<'_>), bias: &[i32]) -> Vec<i32> {
        let [rows, columns] = shape.axes[..] else { panic!("two axes") };
        let ((x, pad), (w, weight)) = (x, w);
        let zero = value(pad.kind, pad.code);
        let mut sums = Vec::new();
        for filter in 0..shape.group_outputs {
            for position in 0..rows.output * columns.output {
                let mut sum = bias[filter];
                for input in 0..shape.depth() {
                    let (channel, tap) = (input / window::taps(&shape.axes), input % window::taps(&shape.axes));
                    let row = rows.position(position / columns.output, tap / columns.kernel);
                    let column = columns.position(position % columns.output, tap % columns.kernel);
                    let (Some(row), Some(column)) = (row, column) else { continue };
                    let x = value(pad.kind, x[(channel * rows.input + row) * columns.input + column]) - zero;
                    let w = value(weight.kind, w[filter * shape.depth() + input]) - weight.zeros[filter];
                    sum = sum.wrapping_add(x * w);
                }
                sums.push(sum);
            }
        }
        sums
    }

    /// Codes by scales within a quarter and beyond, of filters in turn.
    fn scaled(filter: usize) -> Requantize<'static> {
        let scale = Parameter::All(if filter.is_multiple_of(2) { 0.01 } else { 0.3 });
        let offset = filter.is_multiple_of(3).then_some(Parameter::All(0.5));
        let kind = ByteType { signed: filter.is_multiple_of(5) };
        Requantize { by: SumScale { scale, offset }, zero: 3, kind }
    }

    fn axis() -> impl Strategy<Value = WindowAxis> {
        (1_usize..24, 1_usize..5, 1_usize..4, 1_usize..3, 0_usize..3, 0_usize..3).prop_filter_map(
            "a window fits",
            |(input, kernel, stride, dilation, pad_begin, pad_end)| {
                let span = (kernel - 1) * dilation + 1;
                let output = (input + pad_begin + pad_end).checked_sub(span)? / stride + 1;
                Some(WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end })
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Codes of all types and zero points, at the ends of their ranges too; parts of positions; pieces of panels.
        #[test]
        fn sums_are_exact(
            // Some have several tiles of channels, and several pairs of panels; the definition is slow where both are many.
            channels in prop_oneof![4 => 1_usize..40, 1 => 60_usize..150],
            filters in prop_oneof![4 => 8_usize..36, 1 => 36_usize..70],
            axes in prop::array::uniform2(axis()),
            (x_signed, w_signed) in any::<(bool, bool)>(),
            (pad, zero, cut) in (any::<u8>(), -300_i32..300, any::<usize>()),
        ) {
            check([channels, filters], axes, [x_signed, w_signed], (pad, zero, cut));
        }
    }

    /// Rows of outputs that have several vectors, and all parts of the panels.
    #[test]
    fn long_rows_and_parts_of_panels() {
        let axis =
            |input| WindowAxis { input, output: input, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
        for (columns, cut) in [(64, 0), (100, 1), (150, 2)] {
            check([12, 40], [axis(3), axis(columns)], [cut == 1, true], (7, 90, cut));
        }
    }

    /// Sums and codes against the definition. The positions, the pieces and the panels that are multiplied at a time are `cut`.
    fn check(
        [channels, filters]: [usize; 2],
        axes: [WindowAxis; 2],
        [x_signed, w_signed]: [bool; 2],
        (pad, zero, cut): (u8, i32, usize),
    ) {
        let shape = ConvolutionShape {
            batch: 1,
            groups: 1,
            group_inputs: channels,
            group_outputs: filters,
            axes: axes.to_vec(),
        };
        let (mut x, mut w) = (codes(1, shape.inputs()), codes(2, shape.depth() * filters));
        x.iter_mut().step_by(7).for_each(|code| *code = 0x80);
        w.iter_mut().step_by(5).for_each(|code| *code = 0xff);
        let zeros: Vec<i32> = (0..filters as i32).map(|filter| if filter % 3 == 0 { zero } else { 0 }).collect();
        let bias: Vec<i32> = (0..filters as i32).map(|filter| filter * 1_000_003).collect();
        let pad = Zero { code: pad, kind: ByteType { signed: x_signed } };
        let weight = IntegerWeight { kind: ByteType { signed: w_signed }, zeros: &zeros };
        let panels = filters.div_ceil(PANEL_OUTPUTS);
        let lines = pack_integers(&w, [shape.depth(), filters], [1, shape.depth()]);
        let (first, second) = lines.split_at(lines.len() / panels * (cut % panels));
        let piece = |panels, lines| IntegerPiece { panels, inputs: 0..shape.depth(), lines };
        let pieces = [piece(0..cut % panels, first), piece(cut % panels..panels, second)];
        let positions = window::outputs(&shape.axes);
        let expected = naive(&shape, (&x, pad), (&w, weight), &bias);
        for instructions in Instructions::available() {
            let Some(tiled) = TiledConvolution::new(instructions, &shape, pad) else { continue };
            let middle = cut % (positions / tiled.row() + 1) * tiled.row();
            let mut sums = vec![0; filters * positions];
            let mut codes = vec![0; filters * positions];
            let tiles = tiled.tiles(Filters { weight, bias: Some(&bias), pieces: &pieces });
            for part in [0..middle, middle..positions].into_iter().filter(|part| !part.is_empty()) {
                let own = tiled.positions(Positions { image: &x, range: part.clone() }, weight);
                for panels in [0..cut % panels, cut % panels..panels].into_iter().filter(|panels| !panels.is_empty()) {
                    let before = panels.start * PANEL_OUTPUTS;
                    tiled.sums(&own, (&tiles, panels.clone()), |filter, first, own| {
                        sums[(before + filter) * positions + part.start + first..][..own.len()].copy_from_slice(own);
                    });
                    let of_panels = before * positions..filters.min(panels.end * PANEL_OUTPUTS) * positions;
                    let mut results: Vec<&mut [u8]> =
                        codes[of_panels].chunks_mut(positions).map(|codes| &mut codes[part.clone()]).collect();
                    tiled.codes(&own, (&tiles, panels), |filter| scaled(before + filter), &mut results);
                }
            }
            assert_eq!(sums, expected, "{}, {shape:?}", instructions.name());
            let mut expected_codes = vec![0; codes.len()];
            let filters = sums.chunks(positions).zip(expected_codes.chunks_mut(positions)).enumerate();
            filters.for_each(|(filter, (sums, codes))| requantize(instructions, sums, scaled(filter), codes));
            assert_eq!(codes, expected_codes, "{}, {shape:?}", instructions.name());
        }
    }

    #[test]
    fn few_channels_and_other_instructions_have_no_tiles() {
        let axis = WindowAxis { input: 5, output: 5, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let shape = |group_inputs, group_outputs| ConvolutionShape {
            batch: 1,
            groups: 1,
            group_inputs,
            group_outputs,
            axes: vec![axis],
        };
        let pad = Zero { code: 0, kind: ByteType { signed: true } };
        for instructions in Instructions::available() {
            let tiled = |inputs, outputs| TiledConvolution::new(instructions, &shape(inputs, outputs), pad).is_some();
            let (matrices, name) = (instructions.tiles().is_some(), instructions.name());
            let vectors = Words::of_tiles(instructions).is_some();
            assert_eq!(tiled(16, 8), vectors, "{name}");
            assert_eq!((tiled(15, 8), tiled(2, 8)), (vectors && !matrices, false), "{name}");
            assert!(!tiled(16, 7), "{name}");
        }
    }
}
