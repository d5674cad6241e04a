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

// Loops count instead of mapping arrays: a closure would not be compiled for the instructions.
impl<const ROWS: usize, const PANELS: usize> Routine for ExactTile<'_, '_, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.chunk.in_blocks { self.blocks(simd) } else { self.whole(simd) }
    }
}

impl<const ROWS: usize, const PANELS: usize> ExactTile<'_, '_, ROWS, PANELS> {
    /// Adds scaled sums of blocks, in f32.
    #[inline(always)]
    fn blocks<S: Simd>(self, simd: S) {
        let mut values: Lanes<f32, ROWS, PANELS> = [[[0.0; LANES]; PANELS]; ROWS];
        if self.chunk.inputs.start > 0 {
            for row in 0..ROWS {
                for (value, output) in
                    values[row].as_flattened_mut().iter_mut().zip(&self.out[row][self.first_output..])
                {
                    *value = *output as f32;
                }
            }
        }
        let (mut sums, mut lower) = ([[[0; LANES]; PANELS]; ROWS], [[[0; LANES]; PANELS]; ROWS]);
        let has_lower = self.x.digits().len() == 2;
        for segment in 0..self.chunk.numbers.len() {
            self.pair(simd, segment, (0, 0), &mut sums);
            if has_lower {
                self.pair(simd, segment, (1, 0), &mut lower);
            }
            let scales = self.chunk.scales(segment);
            for row in 0..ROWS {
                for panel in 0..PANELS {
                    let mut sum = simd.convert(simd.load_integers(&sums[row][panel]));
                    if has_lower {
                        // Sums of 256 products of bytes are numbers of f32, so that this rounds once.
                        let below = simd.convert(simd.load_integers(&lower[row][panel]));
                        sum = simd.fused_exactly(sum, simd.splat(256.0), below);
                    }
                    let value = &mut values[row][panel];
                    simd.store(simd.fused_exactly(sum, simd.load(&scales[panel]), simd.load(value)), value);
                }
            }
        }
        for row in 0..ROWS {
            for (value, output) in values[row].as_flattened().iter().zip(&mut self.out[row][self.first_output..]) {
                *output = f64::from(*value);
            }
        }
    }

    /// Adds to whole sums, in f64.
    #[inline(always)]
    fn whole<S: Simd>(self, simd: S) {
        let mut totals: Lanes<f64, ROWS, PANELS> = [[[0.0; LANES]; PANELS]; ROWS];
        if self.chunk.inputs.start > 0 {
            for row in 0..ROWS {
                for (total, output) in
                    totals[row].as_flattened_mut().iter_mut().zip(&self.out[row][self.first_output..])
                {
                    *total = *output;
                }
            }
        }
        let mut sums = [[[0; LANES]; PANELS]; ROWS];
        let digits = [self.x.digits().len(), self.chunk.digits];
        for segment in 0..self.chunk.numbers.len() {
            for of_rows in 0..digits[0] {
                for own in 0..digits[1] {
                    self.pair(simd, segment, (of_rows, own), &mut sums);
                    let below = digits[0] - 1 - of_rows + digits[1] - 1 - own;
                    let weight = f64::from(1_u32 << (8 * below));
                    for row in 0..ROWS {
                        for panel in 0..PANELS {
                            for lane in 0..LANES {
                                totals[row][panel][lane] += f64::from(sums[row][panel][lane]) * weight;
                            }
                        }
                    }
                }
            }
        }
        for row in 0..ROWS {
            for (total, output) in totals[row].as_flattened().iter().zip(&mut self.out[row][self.first_output..]) {
                *output = *total;
            }
        }
    }

    /// The exact sums of a segment of a digit of activations times a digit of the weight.
    #[inline(always)]
    fn pair<S: Simd>(
        &self,
        simd: S,
        segment: usize,
        (of_rows, own): (usize, usize),
        found: &mut Lanes<i32, ROWS, PANELS>,
    ) {
        let Self { x, rows: BlockRows { block: first_row, skipped }, chunk, sums, .. } = self;
        let SegmentSums { inputs: range, digits } = &sums[chunk.numbers.start + segment];
        let block = x.digits()[of_rows].rows.block(*first_row);
        let begin = range.start / LINE_INPUTS * block.rows + *skipped;
        let left = Left { codes: &block.codes[begin..], stride: block.rows };
        let first_line = (range.start - chunk.inputs.start) / LINE_INPUTS;
        let mut lines: [&[IntegerLine]; PANELS] = [&[]; PANELS];
        for panel in 0..PANELS {
            lines[panel] = &chunk.lines(own, panel)[first_line..][..range.len().div_ceil(LINE_INPUTS)];
        }
        simd.run(Tile { left, lines, signed: false, later: &[], sums: found });
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
    }
}
