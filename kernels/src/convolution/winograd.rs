//! Convolutions of 3 × 3 taps with fewer multiplications: tiles of 4 × 4 outputs from tiles of 6 × 6 inputs, F(4 × 4, 3 × 3) of
//! Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
//!
//! Inputs and weights are transformed to 36 points; at each point, channels are multiplied as in a product (`tiles`), with tiles side by
//! side in vectors; sums are transformed back. That takes 36 multiplications for 16 outputs in place of 144. Weights are
//! transformed in every call, panel by panel for each block of tiles: in a file or in a far cache they would be four times as long.
//!
//! Rounding errors are those of the largest inputs of a tile rather than of a window, about ten times as large as those of the
//! sums that [`super::convolution`] computes otherwise. Inputs that are not finite, or so large that transforms could overflow,
//! are left to these: they would spread over a tile.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    ConvolutionEpilogue, ConvolutionShape,
    finish::Finish,
    gather::copy_row,
    tiles::{Data, Operands, columns},
};
use crate::{
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece, Weight, tile},
    scratch::scratch,
    simd::{Instructions, LANES, Places, Routine, Simd},
    team, threads,
    window::{self, WindowAxis},
};

/// Outputs of a tile along an axis.
pub(super) const OUTPUTS: usize = 4;

/// Inputs of a tile along an axis, and points that they are transformed to.
pub(super) const INPUTS: usize = 6;

/// Points of a tile.
pub(super) const POINTS: usize = INPUTS * INPUTS;

/// Tiles of a block: the sums of a panel stay in the second-level cache.
const MOST_TILES: usize = 96;

/// Transformed inputs of a block, which stay in the second-level cache.
const MOST_INPUTS: usize = 96 << 10;

/// Input channels up to which the transformed weights of a panel stay near.
pub(super) const MOST_CHANNELS: usize = 512;

/// The largest magnitude of an input: transforms multiply by less than 2^10, products of weights below 2^64 stay finite.
const LARGEST: f32 = (1u128 << 40) as f32;

/// Operations on vectors that transforms take: of the weights of a channel and a panel, of a vector of tiles of an input channel
/// and of an output channel.
const WEIGHT_COST: usize = 160;
const INPUT_COST: usize = 230;
const OUTPUT_COST: usize = 200;

/// Whether a convolution of these windows is faster so. It depends on nothing else, as results have other bits.
pub(super) fn fits(shape: &ConvolutionShape) -> bool {
    let [rows, columns] = shape.axes.as_slice() else { return false };
    let plain = |axis: &WindowAxis| axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.output > 0;
    if shape.groups != 1 || shape.group_inputs == 0 || !(plain(rows) && plain(columns)) {
        return false;
    }
    let panels = shape.group_outputs.div_ceil(PANEL_OUTPUTS);
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    let pairs = shape.group_inputs.saturating_mul(panels * PANEL_OUTPUTS);
    let direct = pairs.saturating_mul(9 * (rows.output * (columns.output + 2)).div_ceil(LANES));
    let products = pairs.saturating_mul(POINTS * (tile_rows * tile_columns).div_ceil(LANES));
    let vectors = tile_rows * tile_columns.div_ceil(LANES);
    let blocks = tile_rows.div_ceil(rows_each(shape.group_inputs, tile_rows, tile_columns));
    let transforms = (blocks * panels * WEIGHT_COST + vectors * INPUT_COST) * shape.group_inputs
        + vectors * OUTPUT_COST * shape.group_outputs;
    shape.group_inputs <= MOST_CHANNELS && products.saturating_add(transforms) < direct / 10 * 8
}

/// Rows of tiles of a block: as many as fill vectors best.
fn rows_each(inputs: usize, tile_rows: usize, tile_columns: usize) -> usize {
    let most_tiles = (MOST_INPUTS / (POINTS * inputs)).clamp(LANES, MOST_TILES);
    let fill = |rows: usize| {
        let tiles = rows * tile_columns;
        (tiles * 64 / tiles.next_multiple_of(LANES), rows)
    };
    (1..=(most_tiles / tile_columns).clamp(1, tile_rows)).max_by_key(|&rows| fill(rows)).unwrap_or(1)
}

/// Threads that share so many operations. No bits depend on it.
pub(super) fn threads(operations: usize) -> usize {
    threads::parts(operations, team::count())
}

/// Whether all inputs are so small that a tile stays finite.
pub(super) fn are_small(instructions: Instructions, x: &[f32]) -> bool {
    instructions.run(AreSmall(x))
}

struct AreSmall<'a>(&'a [f32]);

impl Routine for AreSmall<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        // Several at a time, so that none waits for the one before. NaN stays.
        let mut largest = [simd.splat(0.0); 4];
        let (chunks, rest) = self.0.as_chunks::<{ 4 * LANES }>();
        for values in chunks {
            for (largest, values) in largest.iter_mut().zip(values.as_chunks::<LANES>().0) {
                *largest = simd.maximum(*largest, simd.absolute(simd.load(values)));
            }
        }
        for values in rest.chunks(LANES) {
            largest[0] = simd.maximum(largest[0], simd.absolute(simd.load_partial(values)));
        }
        let largest = simd.maximum(simd.maximum(largest[0], largest[1]), simd.maximum(largest[2], largest[3]));
        let mut lanes = [0.0; LANES];
        simd.store(largest, &mut lanes);
        lanes.iter().all(|&lane| lane <= LARGEST)
    }
}

/// How tiles are cut into blocks.
struct Plan<'a> {
    shape: &'a ConvolutionShape,
    rows: WindowAxis,
    columns: WindowAxis,
    /// Tiles of a row of tiles.
    tile_columns: usize,
    /// Rows of tiles.
    tile_rows: usize,
    /// Rows of tiles of a block.
    rows_each: usize,
    epilogue: ConvolutionEpilogue<'a>,
}

/// The convolution with whole panels of a weight: a shape that [`fits`], inputs that [`are_small`].
pub(super) fn convolution(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[&PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let &[rows, columns] = shape.axes.as_slice() else { return };
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    // As many blocks for each thread, where there are several.
    let blocks = tile_rows.div_ceil(rows_each(shape.group_inputs, tile_rows, tile_columns));
    let blocks = if blocks > 1 { blocks.next_multiple_of(threads(shape.outputs() * shape.depth())) } else { 1 };
    let rows_each = tile_rows.div_ceil(blocks);
    let plan = Plan { shape, rows, columns, tile_columns, tile_rows, rows_each, epilogue };
    for piece in pieces {
        threads::each(plan.blocks(x, piece, out), |block| instructions.run(block));
    }
}

/// The weights of a panel, `[channels, 9 taps, 16]`, to `[36, channels + 1, 16]`: points a line further apart than channels reach.
#[inline(always)]
pub(super) fn transform_weights<S: Simd, W: Weight>(simd: S, elements: &[W], inputs: usize, transformed: &mut [f32]) {
    let groups = W::groups(elements);
    let mut wide = scratch(if W::as_f32(groups).is_some() { 0 } else { 9 * inputs * LANES });
    let taps = tile::panel_in_f32::<S, W>(simd, groups, 9 * inputs, &mut wide);
    let (transformed, _) = transformed.as_chunks_mut::<LANES>();
    for (channel, taps) in taps.chunks_exact(9).enumerate() {
        let mut half = [[simd.splat(0.0); INPUTS]; 3];
        for row in 0..3 {
            let [first, second, third] = [&taps[3 * row], &taps[3 * row + 1], &taps[3 * row + 2]];
            half[row] = weight_points(simd, [simd.load(first), simd.load(second), simd.load(third)]);
        }
        for column in 0..INPUTS {
            let points = weight_points(simd, [half[0][column], half[1][column], half[2][column]]);
            for row in 0..INPUTS {
                simd.store(points[row], &mut transformed[(row * INPUTS + column) * (inputs + 1) + channel]);
            }
        }
    }
}

/// Three taps at the points 0, 1, -1, 2, -2 and infinity.
#[inline(always)]
fn weight_points<S: Simd>(simd: S, [first, second, third]: [S::Vector; 3]) -> [S::Vector; INPUTS] {
    let sixth = |value| simd.multiply(value, simd.splat(1.0 / 6.0));
    let even = simd.subtract(simd.splat(0.0), sixth(simd.add(first, third)));
    let odd = sixth(second);
    let outer = simd.fused(first, simd.splat(1.0 / 24.0), sixth(third));
    let half = simd.multiply(odd, simd.splat(0.5));
    [
        simd.multiply(first, simd.splat(0.25)),
        simd.subtract(even, odd),
        simd.add(even, odd),
        simd.add(outer, half),
        simd.subtract(outer, half),
        third,
    ]
}

/// Six inputs at the points of the weights.
#[inline(always)]
pub(super) fn input_points<S: Simd>(simd: S, d: [S::Vector; INPUTS]) -> [S::Vector; INPUTS] {
    let (two, four, minus_four, minus_five) = (simd.splat(2.0), simd.splat(4.0), simd.splat(-4.0), simd.splat(-5.0));
    let even = simd.fused(minus_four, d[2], d[4]);
    let odd = simd.fused(minus_four, d[1], d[3]);
    let outer_even = simd.subtract(d[4], d[2]);
    let outer_odd = simd.multiply(two, simd.subtract(d[3], d[1]));
    [
        simd.fused(four, d[0], simd.fused(minus_five, d[2], d[4])),
        simd.add(even, odd),
        simd.subtract(even, odd),
        simd.add(outer_even, outer_odd),
        simd.subtract(outer_even, outer_odd),
        simd.fused(four, d[1], simd.fused(minus_five, d[3], d[5])),
    ]
}

/// Four outputs from the sums at six points.
#[inline(always)]
pub(super) fn outputs<S: Simd>(simd: S, m: [S::Vector; INPUTS]) -> [S::Vector; OUTPUTS] {
    let (near, far) = (simd.add(m[1], m[2]), simd.add(m[3], m[4]));
    let (near_odd, far_odd) = (simd.subtract(m[1], m[2]), simd.subtract(m[3], m[4]));
    [
        simd.add(simd.add(m[0], near), far),
        simd.fused(simd.splat(2.0), far_odd, near_odd),
        simd.fused(simd.splat(4.0), far, near),
        simd.add(simd.fused(simd.splat(8.0), far_odd, near_odd), m[5]),
    ]
}

/// Some rows of tiles of an image by some panels.
struct Block<'a> {
    plan: &'a Plan<'a>,
    image: usize,
    /// All channels of the image.
    x: &'a [f32],
    tile_rows: Range<usize>,
    /// The first output channel.
    first_channel: usize,
    /// The weights of the panels.
    elements: PanelElements<'a>,
    /// The outputs of each channel, rows of outputs side by side.
    out: Vec<&'a mut [f32]>,
}

impl<'a> Plan<'a> {
    /// The tasks of a piece of the weight, with outputs of their own.
    fn blocks<'b>(&'b self, x: &'b [f32], piece: &PanelPiece<'b>, out: &'b mut [f32]) -> Vec<Block<'b>> {
        let shape = self.shape;
        let (channels, positions) = (shape.group_outputs, window::outputs(&shape.axes));
        let panels = &piece.panels;
        let (first, end) = (panels.start * PANEL_OUTPUTS, channels.min(panels.end * PANEL_OUTPUTS));
        let operations = shape.batch * positions * 9 * shape.group_inputs * (end - first);
        let blocks = self.tile_rows.div_ceil(self.rows_each);
        // Each part of the panels transforms the inputs anew: there are no more than threads want.
        let parts = threads(operations).div_ceil(shape.batch * blocks);
        let panels_each = panels.len().div_ceil(parts);
        let channels_each = panels_each * PANEL_OUTPUTS;
        let image_inputs = shape.group_inputs * window::inputs(&shape.axes);
        let mut tasks = Vec::new();
        for (image, out) in out.chunks_mut(channels * positions).enumerate() {
            let out = &mut out[first * positions..end * positions];
            for (part, out) in out.chunks_mut(channels_each * positions).enumerate() {
                let begin = tasks.len();
                let own = panels.start + part * panels_each;
                let own = own..panels.end.min(own + panels_each);
                tasks.extend((0..blocks).map(|block| Block {
                    plan: self,
                    image,
                    x: &x[image * image_inputs..][..image_inputs],
                    tile_rows: block * self.rows_each..self.tile_rows.min((block + 1) * self.rows_each),
                    first_channel: first + part * channels_each,
                    elements: piece.elements_of(own.clone()),
                    out: Vec::with_capacity(channels_each),
                }));
                for channel in out.chunks_mut(positions) {
                    let rows = channel.chunks_mut(self.rows_each * OUTPUTS * self.columns.output);
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
        // Vectors of the last row of tiles may reach behind it.
        let pitch = tiles.next_multiple_of(LANES) + LANES;
        // Points a line further apart than channels reach: they do not fall on the same cache sets.
        let point_inputs = inputs * pitch + LANES;
        let point_sums = PANEL_OUTPUTS * pitch + LANES;
        let mut data = scratch(POINTS * point_inputs);
        let mut sums = scratch(POINTS * point_sums);
        let mut weights = scratch(POINTS * (inputs + 1) * PANEL_OUTPUTS);
        self.transform_inputs(simd, &mut data, (pitch, point_inputs));
        let offsets: Vec<usize> = (0..inputs).map(|channel| channel * pitch).collect();
        let mut out = std::mem::take(&mut self.out);
        let panel_length = elements.len() / out.len().div_ceil(PANEL_OUTPUTS);
        for (panel, out) in out.chunks_mut(PANEL_OUTPUTS).enumerate() {
            transform_weights::<S, W>(simd, &elements[panel * panel_length..][..panel_length], inputs, &mut weights);
            for (point, weights) in weights.as_chunks::<LANES>().0.chunks_exact(inputs + 1).enumerate() {
                let data = Data { values: &data[point * point_inputs..][..point_inputs], distance: LANES };
                let operands =
                    Operands { panel: &weights[..inputs], data, offsets: Places::new(&offsets), fresh: true };
                let sums = &mut sums[point * point_sums..][..point_sums];
                for column in columns::<S>(tiles) {
                    operands.column(simd, (column, out.len()), (&mut *sums, column.first, pitch), (&[], 0));
                }
            }
            for (row, out) in out.iter_mut().enumerate() {
                let finish = self.finish(panel * PANEL_OUTPUTS + row);
                self.transform_sums(simd, &sums[row * pitch..], point_sums, &finish, out);
                if let Some((change, start)) = finish.change {
                    change.apply(start, out);
                }
            }
        }
    }

    /// The tiles of all channels at all points: `[36, channels, pitch]`.
    #[inline(always)]
    fn transform_inputs<S: Simd>(&self, simd: S, data: &mut [f32], (pitch, point_inputs): (usize, usize)) {
        let Plan { rows, columns, tile_columns, .. } = *self.plan;
        let plane = rows.input * columns.input;
        let lines = self.tile_rows.len() * OUTPUTS + INPUTS - OUTPUTS;
        // Each line in quarters: columns of tiles side by side, and one tile more for the last inputs of each.
        let quarter = (tile_columns + 1).next_multiple_of(LANES) + LANES;
        let mut line = scratch(4 * quarter);
        let mut quarters = scratch(lines * 4 * quarter);
        for channel in 0..self.plan.shape.group_inputs {
            let x = &self.x[channel * plane..][..plane];
            for (index, quarters) in quarters.chunks_exact_mut(4 * quarter).enumerate() {
                let row = rows.start(self.tile_rows.start * OUTPUTS + index);
                match usize::try_from(row).ok().filter(|&row| row < rows.input) {
                    None => quarters.fill(0.0),
                    Some(row) => {
                        copy_row(simd, &x[row * columns.input..][..columns.input], columns.start(0), 1, &mut line);
                        for (place, values) in line.as_chunks::<{ 4 * LANES }>().0.iter().enumerate() {
                            let vectors = simd.load_quarters(values);
                            for (vector, quarter) in vectors.into_iter().zip(quarters.chunks_exact_mut(quarter)) {
                                simd.store_partial(vector, &mut quarter[place * LANES..][..LANES]);
                            }
                        }
                    }
                }
            }
            let data = &mut data[channel * pitch..];
            for row in 0..self.tile_rows.len() {
                let quarters = &quarters[row * OUTPUTS * 4 * quarter..][..INPUTS * 4 * quarter];
                for first in (0..tile_columns).step_by(LANES) {
                    let data = &mut data[row * tile_columns + first..];
                    transform_tiles(simd, &quarters[first..], quarter, data, point_inputs);
                }
            }
        }
    }

    /// The outputs of a channel from its sums at all points, `[36, pitch]`, all but the change.
    #[inline(always)]
    fn transform_sums<S: Simd>(&self, simd: S, sums: &[f32], point_sums: usize, finish: &Finish<'_>, out: &mut [f32]) {
        let Plan { columns, tile_columns, .. } = *self.plan;
        for (row, out) in out.chunks_mut(OUTPUTS * columns.output).enumerate() {
            for first in (0..tile_columns).step_by(LANES) {
                let sums = &sums[row * tile_columns + first..];
                let mut half = [[simd.splat(0.0); INPUTS]; OUTPUTS];
                for column in 0..INPUTS {
                    let mut points = [simd.splat(0.0); INPUTS];
                    for (row, point) in points.iter_mut().enumerate() {
                        *point = simd.load_partial(&sums[(row * INPUTS + column) * point_sums..][..LANES]);
                    }
                    let results = outputs(simd, points);
                    for row in 0..OUTPUTS {
                        half[row][column] = results[row];
                    }
                }
                let begin = first * OUTPUTS;
                let end = columns.output.min(begin + OUTPUTS * LANES);
                for (line, (out, half)) in out.chunks_mut(columns.output).zip(half).enumerate() {
                    let mut values = [0.0; OUTPUTS * LANES];
                    simd.store_quarters(outputs(simd, half), &mut values);
                    let place = (row * OUTPUTS + line) * columns.output;
                    let addend = finish.addend.map(|addend| &addend[place + begin..place + end]);
                    finish.row(simd, &values[..end - begin], addend, &mut out[begin..end]);
                }
            }
        }
    }

    /// What follows for an output channel of the task.
    fn finish(&self, row: usize) -> Finish<'_> {
        let Plan { shape, columns, epilogue, .. } = self.plan;
        let channel = self.first_channel + row;
        let place = (self.image * shape.group_outputs + channel) * window::outputs(&shape.axes)
            + self.tile_rows.start * OUTPUTS * columns.output;
        Finish::of(*epilogue, channel, place)
    }
}

/// 16 tiles side by side, from six lines in quarters, at all points.
#[inline(always)]
fn transform_tiles<S: Simd>(simd: S, quarters: &[f32], quarter: usize, data: &mut [f32], point_inputs: usize) {
    let mut half = [[simd.splat(0.0); INPUTS]; INPUTS];
    for row in 0..INPUTS {
        let mut inputs = [simd.splat(0.0); INPUTS];
        for (column, input) in inputs.iter_mut().enumerate() {
            let place = (4 * row + column % 4) * quarter + column / 4;
            *input = simd.load_partial(&quarters[place..][..LANES]);
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
            simd.store_partial(points[row], &mut data[(row * INPUTS + column) * point_inputs..][..LANES]);
        }
    }
}
