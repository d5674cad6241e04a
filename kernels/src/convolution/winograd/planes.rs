//! Convolutions with fewer multiplications over channels one after another: tiles side by side are vectors, multiplied as in a
//! product (`tiles`).

use super::{
    Block, INPUT_COST, INPUTS, MOST_CHANNELS, MOST_INPUTS, OUTPUT_COST, OUTPUTS, POINTS, Plan, TAPS, Transformed,
    WEIGHT_COST, ask_for, input_points, is_plain, outputs, store_points, transform_weights,
};
use crate::{
    convolution::{
        ConvolutionEpilogue, ConvolutionShape,
        finish::Finish,
        gather::copy_row,
        tiles::{Data, Operands, columns},
    },
    product::{PANEL_OUTPUTS, PanelPiece, Panels},
    scratch::scratch,
    simd::{Instructions, LANES, Places, Routine, Simd},
    threads,
};

/// Tiles of a block: the sums of a panel stay in the second-level cache.
const MOST_TILES: usize = 96;

/// Whether a convolution of these windows is faster so. It depends on nothing else, as results have other bits.
pub(in crate::convolution) fn fits(shape: &ConvolutionShape) -> bool {
    let [rows, columns] = shape.axes.as_slice() else { return false };
    if shape.groups != 1 || shape.group_inputs == 0 || !(is_plain(rows) && is_plain(columns)) {
        return false;
    }
    let panels = shape.group_outputs.div_ceil(PANEL_OUTPUTS);
    let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
    let pairs = shape.group_inputs.saturating_mul(panels * PANEL_OUTPUTS);
    let direct = pairs.saturating_mul(TAPS * (rows.output * (columns.output + 2)).div_ceil(LANES));
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

/// The convolution with whole panels of a weight: a shape that [`fits`], inputs that [`are_small`](super::are_small).
pub(in crate::convolution) fn convolution(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[&PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let plan = Plan::new(shape, epilogue, rows_each, 1);
    for piece in pieces {
        let tasks = plan.blocks(x, piece, out);
        threads::each_with(tasks, Transformed::default, |transformed, block| {
            instructions.run(Planes(block, transformed))
        });
    }
}

/// A block over channels one after another.
struct Planes<'b, 'a>(&'b mut Block<'a>, &'b mut Transformed);

impl Routine for Planes<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (tiles, inputs) = (self.0.tiles(), self.0.plan.shape.group_inputs);
        // Vectors of the last row of tiles may reach behind it.
        let pitch = tiles.next_multiple_of(LANES) + LANES;
        // Points a line further apart than channels reach: they do not fall on the same cache sets.
        let point_inputs = inputs * pitch + LANES;
        let point_sums = PANEL_OUTPUTS * pitch + LANES;
        let mut sums = scratch(POINTS * point_sums);
        let mut weights = scratch(POINTS * (inputs + 1) * PANEL_OUTPUTS);
        if let Some(data) = self.1.room(self.0, POINTS * point_inputs) {
            Self::transform_inputs(simd, self.0, data, (pitch, point_inputs));
        }
        let data = self.1.data();
        let offsets: Vec<usize> = (0..inputs).map(|channel| channel * pitch).collect();
        let mut out = std::mem::take(&mut self.0.out);
        let panels = Panels::new(self.0.elements, self.0.plan.shape.depth());
        for (panel, out) in out.chunks_mut(PANEL_OUTPUTS).enumerate() {
            transform_weights(simd, panels, panel, &mut weights);
            for (point, weights) in weights.as_chunks::<LANES>().0.chunks_exact(inputs + 1).enumerate() {
                ask_for(simd, panels, panel + 1, point);
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
        self.0.out = out;
    }
}

impl Planes<'_, '_> {
    /// The tiles of all channels at all points: `[36, channels, pitch]`.
    #[inline(always)]
    fn transform_inputs<S: Simd>(simd: S, block: &Block<'_>, data: &mut [f32], (pitch, point_inputs): (usize, usize)) {
        let Plan { rows, columns, tile_columns, .. } = *block.plan;
        let plane = rows.input * columns.input;
        let lines = block.tile_rows.len() * OUTPUTS + INPUTS - OUTPUTS;
        // Each line in quarters: columns of tiles side by side, and one tile more for the last inputs of each.
        let quarter = (tile_columns + 1).next_multiple_of(LANES) + LANES;
        let mut line = scratch(4 * quarter);
        let mut quarters = scratch(lines * 4 * quarter);
        for channel in 0..block.plan.shape.group_inputs {
            let x = &block.x[channel * plane..][..plane];
            for (index, quarters) in quarters.chunks_exact_mut(4 * quarter).enumerate() {
                let row = rows.start(block.tile_rows.start * OUTPUTS + index);
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
            for row in 0..block.tile_rows.len() {
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
        let Plan { columns, tile_columns, .. } = *self.0.plan;
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
        let channel = self.0.first_panel * PANEL_OUTPUTS + row;
        Finish::of(self.0.plan.epilogue, channel, self.0.place(row))
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
    store_points(simd, half, data, point_inputs);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowAxis;

    /// The shapes with which `kernels/tests/convolution` compares this algorithm with others.
    #[test]
    fn nine_taps_of_many_channels_fit() {
        let shape = |[group_inputs, group_outputs]: [usize; 2], sizes: [(usize, usize); 2]| {
            let axes = sizes.map(|(input, pad)| WindowAxis {
                input,
                output: input + 2 * pad - 2,
                kernel: 3,
                stride: 1,
                dilation: 1,
                pad_begin: pad,
                pad_end: pad,
            });
            ConvolutionShape { batch: 1, groups: 1, group_inputs, group_outputs, axes: axes.to_vec() }
        };
        for (channels, sizes) in [
            ([48, 33], [(14, 1), (14, 1)]),
            ([47, 33], [(14, 1), (14, 1)]),
            ([32, 32], [(16, 1), (16, 1)]),
            ([20, 40], [(30, 0), (71, 1)]),
            ([130, 64], [(23, 2), (30, 1)]),
            ([32, 70], [(57, 1), (18, 1)]),
        ] {
            assert!(fits(&shape(channels, sizes)), "{channels:?} {sizes:?}");
        }
        let dense = shape([48, 33], [(14, 1), (14, 1)]);
        let mut apart = dense.clone();
        apart.axes[0].stride = 2;
        for other in [shape([2, 2], [(14, 1), (14, 1)]), apart, ConvolutionShape { groups: 3, ..dense }] {
            assert!(!fits(&other), "{other:?}");
        }
    }
}
