//! Convolutions of 3 × 3 taps with fewer multiplications over blocks of channels (see [`crate::convolution::winograd`], which has the
//! transforms and what they cost in precision): two tiles side by side, or 16 output channels of one, are a vector.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    CHANNEL_BLOCK,
    panel_tiles::{Finish, PanelTiles, Start},
    plane,
    tile::{Inputs, Operands},
};
use crate::{
    convolution::{
        ConvolutionEpilogue, ConvolutionShape,
        winograd::{INPUTS, MOST_CHANNELS, OUTPUTS, POINTS, input_points, outputs, threads, transform_weights},
    },
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece, Weight, clamped},
    scratch::scratch,
    simd::{Instructions, LANES, Layout, Lines, Routine, Simd},
    threads,
    window::WindowAxis,
};

/// Tiles of a block: the sums of a panel stay in the second-level cache.
const MOST_TILES: usize = 98;

/// Fewest tiles of a block, so that weights are not transformed too often.
const FEWEST_TILES: usize = 16;

/// Transformed inputs of a block, which stay in the second-level cache.
const MOST_INPUTS: usize = 96 << 10;

/// Input channels that are multiplied before the next ones: their weights stay in the first-level cache.
const RUN: usize = 256;

/// Operations on vectors that transforms take: of the weights of a channel and a panel, of two tiles of a block of input channels
/// and of a tile of a panel.
const WEIGHT_COST: usize = 160;
const INPUT_COST: usize = 230;
const OUTPUT_COST: usize = 200;

/// Whether a convolution of these windows is faster so. It depends on nothing else, as results have other bits.
pub(super) fn fits(convolution: &ConvolutionShape) -> bool {
    let [rows, columns] = convolution.axes.as_slice() else { return false };
    let plain = |axis: &WindowAxis| axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.output > 0;
    let inputs = convolution.group_inputs;
    let is_empty = inputs == 0 || plane(convolution) == 0;
    if convolution.groups != 1 || is_empty || !(plain(rows) && plain(columns)) {
        return false;
    }
    let panels = convolution.group_outputs.div_ceil(PANEL_OUTPUTS);
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    let tiles = tile_rows * tile_columns;
    let pairs = inputs.saturating_mul(panels);
    let direct = pairs.saturating_mul(9 * rows.output * columns.output);
    let products = pairs.saturating_mul(POINTS * tiles);
    let blocks = tile_rows.div_ceil(rows_each(inputs, tile_rows, tile_columns));
    let transforms = pairs.saturating_mul(blocks * WEIGHT_COST)
        + inputs / CHANNEL_BLOCK * tiles.div_ceil(2) * INPUT_COST
        + panels * tiles * OUTPUT_COST;
    inputs <= MOST_CHANNELS && products.saturating_add(transforms) < direct / 20 * 13
}

/// Rows of tiles of a block.
fn rows_each(inputs: usize, tile_rows: usize, tile_columns: usize) -> usize {
    let most_tiles = (MOST_INPUTS / (POINTS * inputs)).clamp(FEWEST_TILES, MOST_TILES);
    let most = (most_tiles / tile_columns).clamp(1, tile_rows);
    // As many in each block.
    tile_rows.div_ceil(tile_rows.div_ceil(most))
}

/// The convolution with whole panels of a weight: a shape that [`fits`], inputs that are small.
pub(super) fn convolution(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let &[rows, columns] = shape.axes.as_slice() else { return };
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    // As many blocks for each thread, where there are several.
    let blocks = tile_rows.div_ceil(rows_each(shape.group_inputs, tile_rows, tile_columns));
    let blocks = if blocks > 1 { blocks.next_multiple_of(threads(shape.outputs() * shape.depth())) } else { 1 };
    let plan = Plan { shape, rows, columns, tile_columns, rows_each: tile_rows.div_ceil(blocks), epilogue };
    for piece in pieces {
        threads::each(plan.blocks(x, piece, out), |block| instructions.run(block));
    }
}

/// How tiles are cut into blocks.
struct Plan<'a> {
    shape: &'a ConvolutionShape,
    rows: WindowAxis,
    columns: WindowAxis,
    /// Tiles of a row of tiles.
    tile_columns: usize,
    /// Rows of tiles of a block.
    rows_each: usize,
    epilogue: ConvolutionEpilogue<'a>,
}

/// Some rows of tiles of an image by some panels.
struct Block<'a> {
    plan: &'a Plan<'a>,
    image: usize,
    /// All channels of the image.
    x: &'a [f32],
    tile_rows: Range<usize>,
    first_panel: usize,
    /// The weights of the panels.
    elements: PanelElements<'a>,
    panels: usize,
    /// The outputs of each block of channels.
    out: Vec<&'a mut [f32]>,
}

impl<'a> Plan<'a> {
    /// The tasks of a piece of the weight, with outputs of their own.
    fn blocks<'b>(&'b self, x: &'b [f32], piece: &PanelPiece<'b>, out: &'b mut [f32]) -> Vec<Block<'b>> {
        let Plan { shape, rows, columns, rows_each, .. } = *self;
        let positions = rows.output * columns.output;
        let tile_rows = rows.output.div_ceil(OUTPUTS);
        let blocks = tile_rows.div_ceil(rows_each);
        let operations = shape.batch * positions * shape.depth() * piece.panels.len() * PANEL_OUTPUTS;
        // Each part of the panels transforms the inputs anew: there are no more than threads want.
        let panels_each = piece.panels.len().div_ceil(threads(operations).div_ceil(shape.batch * blocks)).max(1);
        let image_inputs = shape.group_inputs * plane(shape);
        let mut tasks = Vec::new();
        for (image, out) in out.chunks_mut(shape.group_outputs * positions).enumerate() {
            let channel = piece.panels.start * PANEL_OUTPUTS;
            let end = shape.group_outputs.min(piece.panels.end * PANEL_OUTPUTS);
            let out = &mut out[channel * positions..end * positions];
            for (part, out) in out.chunks_mut(panels_each * PANEL_OUTPUTS * positions).enumerate() {
                let begin = tasks.len();
                let first = piece.panels.start + part * panels_each;
                let own = first..piece.panels.end.min(first + panels_each);
                tasks.extend((0..blocks).map(|block| Block {
                    plan: self,
                    image,
                    x: &x[image * image_inputs..][..image_inputs],
                    tile_rows: block * rows_each..tile_rows.min((block + 1) * rows_each),
                    first_panel: first,
                    elements: piece.elements_of(own.clone()),
                    panels: own.len(),
                    out: Vec::new(),
                }));
                for channels in out.chunks_mut(CHANNEL_BLOCK * positions) {
                    let rows = channels.chunks_mut(rows_each * OUTPUTS * columns.output * CHANNEL_BLOCK);
                    tasks[begin..].iter_mut().zip(rows).for_each(|(task, rows)| task.out.push(rows));
                }
            }
        }
        tasks
    }
}

impl Routine for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.elements {
            PanelElements::F32(elements) => self.multiply::<S, f32>(simd, elements),
            PanelElements::F16(elements) => self.multiply::<S, f16>(simd, elements),
            PanelElements::Bf16(elements) => self.multiply::<S, bf16>(simd, elements),
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn multiply<S: Simd, W: Weight>(mut self, simd: S, elements: &[W]) {
        let tiles = self.tile_rows.len() * self.plan.tile_columns;
        let inputs = self.plan.shape.group_inputs;
        let blocks = inputs / CHANNEL_BLOCK;
        // Tiles come in pairs. Points a line further apart than channels reach: they do not fall on the same cache sets.
        let pitch = tiles.next_multiple_of(2) * CHANNEL_BLOCK;
        let point_inputs = blocks * pitch + LANES;
        let point_sums = (tiles + 1) * LANES;
        let mut data = scratch(POINTS * point_inputs);
        let mut sums = scratch(POINTS * point_sums);
        let mut weights = scratch(POINTS * (inputs + 1) * PANEL_OUTPUTS);
        self.transform_inputs(simd, &mut data, (pitch, point_inputs));
        let places: Vec<u32> = (0..tiles).map(|tile| (tile * CHANNEL_BLOCK) as u32).collect();
        let runs: Vec<Inputs> = (0..blocks)
            .step_by(RUN / CHANNEL_BLOCK)
            .map(|first| Inputs::Blocks(first..blocks.min(first + RUN / CHANNEL_BLOCK)))
            .collect();
        let mut out = std::mem::take(&mut self.out);
        let panel_length = elements.len() / self.panels.max(1);
        for (panel, out) in out.chunks_mut(PANEL_OUTPUTS / CHANNEL_BLOCK).enumerate() {
            transform_weights::<S, W>(simd, &elements[panel * panel_length..][..panel_length], inputs, &mut weights);
            for (point, weights) in weights.as_chunks::<LANES>().0.chunks_exact(inputs + 1).enumerate() {
                let data = &data[point * point_inputs..][..point_inputs];
                let layout = Layout { blocks, block_distance: pitch, length: CHANNEL_BLOCK };
                let lines = Lines::new(data, &places, layout);
                for (run, inputs) in runs.iter().enumerate() {
                    let panel = &weights[run * RUN..];
                    let operands = Operands { lines, windows: tiles, taps: 1, inputs, panel, asked: 0, asks: false };
                    let start = if run == 0 { Start::Zero } else { Start::Waiting };
                    let waiting = &mut sums[point * point_sums..][..point_sums];
                    simd.run(PanelTiles {
                        operands,
                        start,
                        ends: false,
                        waiting,
                        finish: Finish::default(),
                        out: &mut [],
                    });
                }
            }
            self.transform_sums(simd, &sums, point_sums, self.first_panel + panel, out);
        }
    }

    /// The tiles of all blocks at all points: `[36, blocks, tiles, 8]`.
    #[inline(always)]
    fn transform_inputs<S: Simd>(&self, simd: S, data: &mut [f32], (pitch, point_inputs): (usize, usize)) {
        let tile_columns = self.plan.tile_columns;
        let plane = plane(self.plan.shape) * CHANNEL_BLOCK;
        let tiles = self.tile_rows.len() * tile_columns;
        for (block, x) in self.x.chunks_exact(plane).enumerate() {
            let x = x.as_chunks::<CHANNEL_BLOCK>().0;
            for tile in (0..tiles).step_by(2) {
                let place = |tile: usize| (self.tile_rows.start + tile / tile_columns, tile % tile_columns);
                let tiles = [place(tile), place((tile + 1).min(tiles - 1))];
                let to = &mut data[block * pitch + tile * CHANNEL_BLOCK..];
                self.transform_pair(simd, x, tiles, to, point_inputs);
            }
        }
    }

    /// Two tiles of a block at all points.
    #[inline(always)]
    fn transform_pair<S: Simd>(
        &self,
        simd: S,
        x: &[[f32; CHANNEL_BLOCK]],
        tiles: [(usize, usize); 2],
        data: &mut [f32],
        point_inputs: usize,
    ) {
        let mut half = [[simd.splat(0.0); INPUTS]; INPUTS];
        for row in 0..INPUTS {
            let low = self.line(x, tiles[0], row);
            let high = self.line(x, tiles[1], row);
            let mut inputs = [simd.splat(0.0); INPUTS];
            for column in 0..INPUTS {
                inputs[column] = simd.load_halves(low[column], high[column]);
            }
            half[row] = input_points(simd, inputs);
        }
        for column in 0..INPUTS {
            let mut inputs = [simd.splat(0.0); INPUTS];
            for row in 0..INPUTS {
                inputs[row] = half[row][column];
            }
            let points = input_points(simd, inputs);
            for row in 0..INPUTS {
                let to = &mut data[(row * INPUTS + column) * point_inputs..];
                simd.store(points[row], &mut to.as_chunks_mut().0[0]);
            }
        }
    }

    /// The inputs of a row of a tile, zeros in the padding.
    #[inline(always)]
    fn line<'x>(
        &self,
        x: &'x [[f32; CHANNEL_BLOCK]],
        (tile_row, tile_column): (usize, usize),
        row: usize,
    ) -> [&'x [f32; CHANNEL_BLOCK]; INPUTS] {
        let Plan { rows, columns, .. } = *self.plan;
        let mut line = [&[0.0; CHANNEL_BLOCK]; INPUTS];
        let y = rows.start(tile_row * OUTPUTS) + row as isize;
        if !(0..rows.input as isize).contains(&y) {
            return line;
        }
        let x = &x[y as usize * columns.input..][..columns.input];
        let first = columns.start(tile_column * OUTPUTS);
        for column in 0..INPUTS {
            if let Some(inside) = x.get((first + column as isize) as usize) {
                line[column] = inside;
            }
        }
        line
    }

    /// The outputs of a panel from its sums at all points, `[36, tiles, 16]`.
    #[inline(always)]
    fn transform_sums<S: Simd>(&self, simd: S, sums: &[f32], point_sums: usize, panel: usize, out: &mut [&mut [f32]]) {
        let Plan { shape, rows, columns, tile_columns, epilogue, .. } = *self.plan;
        let blocks = shape.group_outputs / CHANNEL_BLOCK;
        let block = panel * (PANEL_OUTPUTS / CHANNEL_BLOCK);
        let first_row = self.tile_rows.start * OUTPUTS;
        let place = |index: usize| {
            (((self.image * blocks + block + index) * rows.output + first_row) * columns.output) * CHANNEL_BLOCK
        };
        let bias = epilogue.bias.map(|bias| simd.load_partial(&bias[block * CHANNEL_BLOCK..]));
        let addend = epilogue
            .addend
            .map(|addend| [0, out.len() - 1].map(|index| addend[place(index)..].as_chunks::<CHANNEL_BLOCK>().0));
        for tile in 0..self.tile_rows.len() * tile_columns {
            let (row, column) = (tile / tile_columns * OUTPUTS, tile % tile_columns * OUTPUTS);
            let results = tile_outputs(simd, &sums[tile * LANES..], point_sums);
            let count = OUTPUTS.min(columns.output - column);
            for (line, results) in results.iter().enumerate().take(rows.output - first_row - row) {
                let first = (row + line) * columns.output + column;
                for (result, position) in results.iter().take(count).zip(first..) {
                    let mut value = *result;
                    if let Some(bias) = bias {
                        value = simd.add(value, bias);
                    }
                    if let Some([low, high]) = addend {
                        value = simd.add(value, simd.load_halves(&low[position], &high[position]));
                    }
                    let value = clamped(simd, epilogue.clamp, value);
                    match out {
                        [low, high] => {
                            let (low, high) = (low.as_chunks_mut().0, high.as_chunks_mut().0);
                            simd.store_halves(value, &mut low[position], &mut high[position]);
                        }
                        [low, ..] => {
                            let low = low.as_chunks_mut().0;
                            simd.store_halves(value, &mut low[position], &mut [0.0; CHANNEL_BLOCK]);
                        }
                        [] => {}
                    }
                }
            }
        }
        if let Some(change) = epilogue.change {
            for (index, out) in out.iter_mut().enumerate() {
                change.apply(place(index), out);
            }
        }
    }
}

/// The outputs of a tile from its sums at all points.
#[inline(always)]
fn tile_outputs<S: Simd>(simd: S, sums: &[f32], point_sums: usize) -> [[S::Vector; OUTPUTS]; OUTPUTS] {
    let mut half = [[simd.splat(0.0); INPUTS]; OUTPUTS];
    for column in 0..INPUTS {
        let mut points = [simd.splat(0.0); INPUTS];
        for row in 0..INPUTS {
            points[row] = simd.load(&sums[(row * INPUTS + column) * point_sums..].as_chunks().0[0]);
        }
        let results = outputs(simd, points);
        for row in 0..OUTPUTS {
            half[row][column] = results[row];
        }
    }
    let mut results = [[simd.splat(0.0); OUTPUTS]; OUTPUTS];
    for row in 0..OUTPUTS {
        results[row] = outputs(simd, half[row]);
    }
    results
}
