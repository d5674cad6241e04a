//! Convolutions of 3 × 3 taps with fewer multiplications over blocks of channels (see [`crate::convolution::winograd`], which has the
//! transforms and what they cost in precision): two tiles side by side, or 16 output channels of one, are a vector.

use super::{
    CHANNEL_BLOCK,
    panel_tiles::{Finish, PanelTiles, Start},
    plane,
    tile::{Inputs, Operands, Values, panels_together},
};
use crate::{
    convolution::{
        ConvolutionEpilogue, ConvolutionShape,
        winograd::{
            Block, INPUT_COST, INPUTS, MOST_CHANNELS, MOST_INPUTS, OUTPUT_COST, OUTPUTS, POINTS, Plan, TAPS,
            Transformed, WEIGHT_COST, ask_for, input_points, is_plain, outputs, store_points, transform_weights,
        },
    },
    product::{PANEL_OUTPUTS, PanelPiece, Panels},
    scratch::scratch,
    simd::{Instructions, LANES, Layout, LinePlaces, Lines, PanelLines, Routine, Simd, Within},
    threads,
};

/// Tiles of a block: the sums of a panel stay in the second-level cache.
const MOST_TILES: usize = 98;

/// Fewest tiles of a block, so that weights are not transformed too often.
const FEWEST_TILES: usize = 16;

/// Input channels that are multiplied before the next ones: their weights stay in the first-level cache.
const RUN: usize = 256;

/// Input channels up to which the transformed weights of two panels stay near.
const MOST_CHANNELS_OF_TWO: usize = 256;

/// Whether a convolution of these windows is faster so. It depends on nothing else, as results have other bits.
pub(super) fn fits(convolution: &ConvolutionShape) -> bool {
    let [rows, columns] = convolution.axes.as_slice() else { return false };
    let inputs = convolution.group_inputs;
    let is_empty = inputs == 0 || plane(convolution) == 0;
    if convolution.groups != 1 || is_empty || !(is_plain(rows) && is_plain(columns)) {
        return false;
    }
    let panels = convolution.group_outputs.div_ceil(PANEL_OUTPUTS);
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    let tiles = tile_rows * tile_columns;
    let pairs = inputs.saturating_mul(panels);
    let direct = pairs.saturating_mul(TAPS * rows.output * columns.output);
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
    let plan = Plan::new(shape, epilogue, rows_each, CHANNEL_BLOCK);
    for piece in pieces {
        let tasks = plan.blocks(x, piece, out);
        threads::each_with(tasks, Transformed::default, |transformed, block| {
            instructions.run(Channels(block, transformed))
        });
    }
}

/// The inputs of a block of tiles at all points: `[36, blocks, tiles, 8]`, with room behind the tiles of a block and behind a point.
#[derive(Clone, Copy)]
struct Points<'a> {
    data: &'a [f32],
    /// From a block of channels, and from a point, to the next one.
    pitch: usize,
    point_inputs: usize,
    /// Of the tiles, within a block of channels.
    places: &'a LinePlaces,
    /// The channels that are multiplied at a time.
    runs: &'a [Inputs],
}

/// A block of tiles over blocks of channels.
struct Channels<'b, 'a>(&'b mut Block<'a>, &'b mut Transformed);

impl Routine for Channels<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (tiles, inputs) = (self.0.tiles(), self.0.plan.shape.group_inputs);
        let blocks = inputs / CHANNEL_BLOCK;
        // Tiles come in pairs. Points a line further apart than channels reach: they do not fall on the same cache sets.
        let pitch = tiles.next_multiple_of(2) * CHANNEL_BLOCK;
        let point_inputs = blocks * pitch + LANES;
        if let Some(data) = self.1.room(self.0, POINTS * point_inputs) {
            transform_inputs(simd, self.0, data, (pitch, point_inputs));
        }
        let places = (0..tiles).map(|tile| (tile * CHANNEL_BLOCK) as u32).collect();
        let places = LinePlaces::new(places, tiles, CHANNEL_BLOCK);
        let runs: Vec<Inputs> = (0..blocks)
            .step_by(RUN / CHANNEL_BLOCK)
            .map(|first| Inputs::Blocks(first..blocks.min(first + RUN / CHANNEL_BLOCK)))
            .collect();
        let mut out = std::mem::take(&mut self.0.out);
        let all = Panels::new(self.0.elements, self.0.plan.shape.depth());
        let are_two = const { panels_together::<S>() > 1 } && inputs <= MOST_CHANNELS_OF_TWO;
        let points = Points { data: self.1.data(), pitch, point_inputs, places: &places, runs: &runs };
        let mut panel = 0;
        for out in out.chunks_mut((1 + usize::from(are_two)) * PANEL_OUTPUTS / CHANNEL_BLOCK) {
            // The constant first: other instruction sets have no code for two.
            let is_two = out.len() > PANEL_OUTPUTS / CHANNEL_BLOCK;
            panel += if const { panels_together::<S>() > 1 } && are_two && is_two {
                self.panels::<S, 2>(simd, all, points, panel, out)
            } else {
                self.panels::<S, 1>(simd, all, points, panel, out)
            };
        }
        self.0.out = out;
    }
}

impl Channels<'_, '_> {
    /// `PANELS` panels from `first` on with the outputs of their blocks; gives how many.
    #[inline(always)]
    fn panels<S: Simd, const PANELS: usize>(
        &self,
        simd: S,
        all: Panels<'_>,
        points: Points<'_>,
        first: usize,
        out: &mut [&mut [f32]],
    ) -> usize {
        let Points { data, pitch, point_inputs, places, runs } = points;
        let (tiles, inputs) = (self.0.tiles(), self.0.plan.shape.group_inputs);
        let point_sums = (PANELS * tiles + 1) * LANES;
        let mut sums = scratch(POINTS * point_sums);
        let own = POINTS * (inputs + 1) * LANES;
        let mut weights = scratch(PANELS * own);
        for (panel, weights) in weights.chunks_mut(own).enumerate() {
            transform_weights(simd, all, first + panel, weights);
        }
        let weights = weights.as_chunks::<LANES>().0;
        let layout = Layout { blocks: inputs / CHANNEL_BLOCK, block_distance: pitch, length: CHANNEL_BLOCK };
        for (point, (data, sums)) in data.chunks_exact(point_inputs).zip(sums.chunks_exact_mut(point_sums)).enumerate()
        {
            for panel in 0..PANELS {
                ask_for(simd, all, first + PANELS + panel, point);
            }
            let lines = Lines::new(data, places, layout);
            for (run, inputs_of_run) in runs.iter().enumerate() {
                let mut panels = [&[][..]; PANELS];
                for panel in 0..PANELS {
                    panels[panel] = &weights[(panel * POINTS + point) * (inputs + 1) + run * RUN..];
                }
                let operands = Operands {
                    values: Values { lines, taps: 1, within: Within::Taps },
                    windows: tiles,
                    inputs: inputs_of_run,
                    panels,
                    next: [&[]; PANELS],
                    asks: false,
                    is_wide: false,
                };
                let start = if run == 0 { Start::Zero } else { Start::Waiting };
                let finish = [Finish::default(); PANELS];
                simd.run(PanelTiles { operands, start, ends: false, waiting: &mut *sums, finish, out: &mut [] });
            }
        }
        for (panel, out) in out.chunks_mut(PANEL_OUTPUTS / CHANNEL_BLOCK).enumerate() {
            self.transform_sums(simd, &sums[panel * tiles * LANES..], point_sums, first + panel, out);
        }
        PANELS
    }

    /// The outputs of a panel from its sums at all points, `[36, tiles, 16]`.
    #[inline(always)]
    fn transform_sums<S: Simd>(&self, simd: S, sums: &[f32], point_sums: usize, panel: usize, out: &mut [&mut [f32]]) {
        let Plan { rows, columns, tile_columns, epilogue, .. } = *self.0.plan;
        let first = panel * (PANEL_OUTPUTS / CHANNEL_BLOCK);
        let place = |index: usize| self.0.place(first + index);
        let block = self.0.first_panel * (PANEL_OUTPUTS / CHANNEL_BLOCK) + first;
        let finish = Finish::of(epilogue, block, [place(0), place(out.len() - 1)]);
        let row_count = rows.output - self.0.tile_rows.start * OUTPUTS;
        let positions = out[0].len() / CHANNEL_BLOCK;
        let mut lines = PanelLines::<1>::new(out, positions);
        for tile in 0..self.0.tiles() {
            let (row, column) = (tile / tile_columns * OUTPUTS, tile % tile_columns * OUTPUTS);
            let results = tile_outputs(simd, &sums[tile * LANES..], point_sums);
            let count = OUTPUTS.min(columns.output - column);
            for (line, results) in results.iter().enumerate().take(row_count - row) {
                let first = (row + line) * columns.output + column;
                if count == OUTPUTS {
                    finish.end(simd, first, *results, &mut lines.rows(first)[0]);
                    continue;
                }
                for (result, position) in results.iter().take(count).zip(first..) {
                    finish.end(simd, position, [*result], &mut lines.rows(position)[0]);
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

/// The tiles of all blocks at all points: `[36, blocks, tiles, 8]`.
#[inline(always)]
fn transform_inputs<S: Simd>(simd: S, task: &Block<'_>, data: &mut [f32], (pitch, point_inputs): (usize, usize)) {
    let plan = task.plan;
    let plane = plane(plan.shape) * CHANNEL_BLOCK;
    let tiles = task.tiles();
    for (block, x) in task.x.chunks_exact(plane).enumerate() {
        let x = x.as_chunks::<CHANNEL_BLOCK>().0;
        for tile in (0..tiles).step_by(2) {
            let place = |tile: usize| (task.tile_rows.start + tile / plan.tile_columns, tile % plan.tile_columns);
            let tiles = [place(tile), place((tile + 1).min(tiles - 1))];
            let to = &mut data[block * pitch + tile * CHANNEL_BLOCK..];
            transform_pair(simd, plan, x, tiles, to, point_inputs);
        }
    }
}

/// Two tiles of a block at all points.
#[inline(always)]
fn transform_pair<S: Simd>(
    simd: S,
    plan: &Plan<'_>,
    x: &[[f32; CHANNEL_BLOCK]],
    tiles: [(usize, usize); 2],
    data: &mut [f32],
    point_inputs: usize,
) {
    let mut half = [[simd.splat(0.0); INPUTS]; INPUTS];
    for row in 0..INPUTS {
        let low = line(plan, x, tiles[0], row);
        let high = line(plan, x, tiles[1], row);
        let mut inputs = [simd.splat(0.0); INPUTS];
        for column in 0..INPUTS {
            inputs[column] = simd.load_halves(low[column], high[column]);
        }
        half[row] = input_points(simd, inputs);
    }
    store_points(simd, half, data, point_inputs);
}

/// The inputs of a row of a tile, zeros in the padding.
#[inline(always)]
fn line<'x>(
    &Plan { rows, columns, .. }: &Plan<'_>,
    x: &'x [[f32; CHANNEL_BLOCK]],
    (tile_row, tile_column): (usize, usize),
    row: usize,
) -> [&'x [f32; CHANNEL_BLOCK]; INPUTS] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowAxis;

    fn shape([group_inputs, group_outputs]: [usize; 2], axes: [WindowAxis; 2]) -> ConvolutionShape {
        ConvolutionShape { batch: 1, groups: 1, group_inputs, group_outputs, axes: axes.to_vec() }
    }

    /// The shapes with which `kernels/tests/convolution/blocked.rs` compares this algorithm with others.
    #[test]
    fn nine_taps_of_many_windows_fit() {
        let axis = |extent, pad_begin| WindowAxis {
            input: extent,
            output: extent + pad_begin - 1,
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_begin,
            pad_end: 1,
        };
        for (channels, axes) in [
            ([24, 40], [axis(30, 1), axis(26, 0)]),
            ([8, 40], [axis(58, 1), axis(50, 0)]),
            ([16, 16], [axis(24, 1), axis(24, 1)]),
            ([16, 40], [axis(24, 1), axis(24, 1)]),
        ] {
            assert!(fits(&shape(channels, axes)), "{channels:?} {axes:?}");
        }
        let apart = WindowAxis { output: 12, stride: 2, ..axis(24, 1) };
        let grouped = ConvolutionShape { groups: 2, ..shape([16, 16], [axis(24, 1); 2]) };
        for other in [shape([16, 16], [axis(2, 1); 2]), shape([16, 16], [apart; 2]), grouped] {
            assert!(!fits(&other), "{other:?}");
        }
    }

    #[test]
    fn windows_of_padding_alone_do_not_fit() {
        let rows = WindowAxis { input: 14, output: 16, kernel: 3, stride: 1, dilation: 1, pad_begin: 2, pad_end: 2 };
        let outside = WindowAxis { input: 1, output: 4, pad_begin: 4, pad_end: 1, ..rows };
        let seeing = WindowAxis { input: 2, pad_begin: 2, pad_end: 2, ..outside };
        assert!(fits(&shape([24, 24], [rows, seeing])));
        assert!(!fits(&shape([24, 24], [rows, outside])));
    }
}
