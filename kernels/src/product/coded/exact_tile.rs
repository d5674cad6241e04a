//! The register tile of exact products: rows × panels by a chunk of inputs.

use super::{
    exact_chunk::{Chunk, SegmentSums},
    exact_rows::ExactRows,
};
use crate::{
    product::{
        integer::{IntegerLine, Left, Tile},
        integer_rows::LINE_INPUTS,
    },
    simd::{LANES, Routine, Simd},
};

/// Rows of a block of activations from one on.
#[derive(Clone, Copy)]
pub(super) struct BlockRows {
    /// The first row of the block.
    pub block: usize,
    /// Rows before, in the block.
    pub skipped: usize,
}

/// The products of some rows with a chunk of the inputs of some panels.
pub(super) struct ExactTile<'a, 'o, const ROWS: usize, const PANELS: usize> {
    pub x: &'a ExactRows<'a>,
    pub rows: BlockRows,
    pub chunk: &'a Chunk<'a, PANELS>,
    pub sums: &'a [SegmentSums],
    pub out: &'a mut [&'o mut [f64]],
    pub first_output: usize,
}

/// Lanes of some rows and panels.
type Lanes<T, const ROWS: usize, const PANELS: usize> = [[[T; LANES]; PANELS]; ROWS];

impl<const ROWS: usize, const PANELS: usize> Routine for ExactTile<'_, '_, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let chunk = self.chunk;
        let mut totals: Lanes<f64, ROWS, PANELS> = [[[0.0; LANES]; PANELS]; ROWS];
        if chunk.inputs.start > 0 {
            for (outputs, totals) in self.out.iter().zip(&mut totals) {
                let own = totals.as_flattened_mut().iter_mut().zip(&outputs[self.first_output..]);
                own.for_each(|(total, output)| *total = *output);
            }
        }
        let is_single = chunk.digits * self.x.digits().len() == 1;
        let mut values: Lanes<f32, ROWS, PANELS> = [[[0.0; LANES]; PANELS]; ROWS];
        if chunk.in_blocks {
            let pairs = values.as_flattened_mut().as_flattened_mut().iter_mut();
            pairs.zip(totals.as_flattened().as_flattened()).for_each(|(value, total)| *value = *total as f32);
        }
        for segment in 0..chunk.numbers.len() {
            if is_single {
                let sums = self.pair(simd, segment, 0, 0);
                if chunk.in_blocks {
                    add_scaled(
                        simd,
                        chunk.scales(segment),
                        &sums.map(|sums| sums.map(|sums| sums.map(|sum| sum as f32))),
                        &mut values,
                    );
                } else {
                    add_wide(&mut totals, &sums, 0);
                }
                continue;
            }
            let mut whole: Lanes<f64, ROWS, PANELS> = [[[0.0; LANES]; PANELS]; ROWS];
            for of_rows in 0..self.x.digits().len() {
                for own in 0..chunk.digits {
                    let sums = self.pair(simd, segment, of_rows, own);
                    let below = self.x.digits().len() - 1 - of_rows + chunk.digits - 1 - own;
                    add_wide(if chunk.in_blocks { &mut whole } else { &mut totals }, &sums, below);
                }
            }
            if chunk.in_blocks {
                add_scaled(
                    simd,
                    chunk.scales(segment),
                    &whole.map(|sums| sums.map(|sums| sums.map(|sum| sum as f32))),
                    &mut values,
                );
            }
        }
        if chunk.in_blocks {
            let pairs = totals.as_flattened_mut().as_flattened_mut().iter_mut();
            pairs.zip(values.as_flattened().as_flattened()).for_each(|(total, value)| *total = f64::from(*value));
        }
        for (outputs, totals) in self.out.iter_mut().zip(&totals) {
            let own = outputs[self.first_output..].iter_mut().zip(totals.as_flattened());
            own.for_each(|(output, total)| *output = *total);
        }
    }
}

impl<const ROWS: usize, const PANELS: usize> ExactTile<'_, '_, ROWS, PANELS> {
    /// The exact sums of a segment of a digit of activations times a digit of the weight.
    #[inline(always)]
    fn pair<S: Simd>(&self, simd: S, segment: usize, of_rows: usize, own: usize) -> Lanes<i32, ROWS, PANELS> {
        let Self { x, rows: BlockRows { block: first_row, skipped }, chunk, sums, .. } = self;
        let SegmentSums { inputs: range, digits } = &sums[chunk.numbers.start + segment];
        let block = x.digits()[of_rows].rows.block(*first_row);
        let begin = range.start / LINE_INPUTS * block.rows + *skipped;
        let left = Left { codes: block.codes.get(begin..).unwrap_or_default(), stride: block.rows };
        let first_line = (range.start - chunk.inputs.start) / LINE_INPUTS;
        let mut lines: [&[IntegerLine]; PANELS] = [&[]; PANELS];
        for panel in 0..PANELS {
            lines[panel] = &chunk.lines(own, panel)[first_line..][..range.len().div_ceil(LINE_INPUTS)];
        }
        let mut found = [[[0; LANES]; PANELS]; ROWS];
        simd.run(Tile { left, lines, signed: false, sums: &mut found });
        let of_digit = &digits[of_rows][*first_row + *skipped..][..ROWS];
        let (zeros, columns) = (chunk.zeros(own, segment), chunk.columns(of_rows, own, segment));
        for row in 0..ROWS {
            let of_row = simd.splat_integer(of_digit[row]);
            for panel in 0..PANELS {
                let zeros = simd.multiply_integers(simd.load_integers(&zeros[panel]), of_row);
                let sum = simd.subtract_integers(simd.load_integers(&found[row][panel]), zeros);
                let sum = simd.subtract_integers(sum, simd.load_integers(&columns[panel]));
                simd.store_integers(sum, &mut found[row][panel]);
            }
        }
        found
    }
}

/// Adds sums times `2^(8 * below)`, which is exact.
#[inline(always)]
fn add_wide<const ROWS: usize, const PANELS: usize>(
    totals: &mut Lanes<f64, ROWS, PANELS>,
    sums: &Lanes<i32, ROWS, PANELS>,
    below: usize,
) {
    let weight = f64::from(1_u32 << (8 * below));
    let pairs = totals.as_flattened_mut().as_flattened_mut().iter_mut().zip(sums.as_flattened().as_flattened());
    pairs.for_each(|(total, sum)| *total += f64::from(*sum) * weight);
}

/// `value = fma(sum, scale, value)` of a block.
#[inline(always)]
fn add_scaled<S: Simd, const ROWS: usize, const PANELS: usize>(
    simd: S,
    scales: &[[f32; LANES]],
    sums: &Lanes<f32, ROWS, PANELS>,
    values: &mut Lanes<f32, ROWS, PANELS>,
) {
    for row in 0..ROWS {
        for panel in 0..PANELS {
            let value = &mut values[row][panel];
            let scale = simd.load(&scales[panel]);
            let sum = simd.load(&sums[row][panel]);
            simd.store(simd.fused_exactly(sum, scale, simd.load(value)), value);
        }
    }
}
