//! Activations as codes of 8 bits.

use std::ops::Range;

use ipuc_codes::dynamic_row;

use super::layout::FINEST_BLOCK;
use crate::{
    matrix::Matrix,
    product::integer_rows::{IntegerRows, LINE_INPUTS},
    simd::{Instructions, Routine, Simd},
    threads,
};

/// Rows `[m, k]` of activations in codes from -127 to 127 (see [`dynamic_row`]), or of integers, which may be -128.
#[derive(Debug)]
pub struct DynamicRows {
    rows: usize,
    inputs: usize,
    /// Inputs that share a scale, or 0.
    block: usize,
    /// Four codes each, the first the lowest: `[m][k rounded up to 16]`; those that are missing are 0.
    codes: Vec<i32>,
    /// `[m][k / block rounded up]`, or `[m]`.
    scales: Vec<f32>,
    /// The sum of all codes before each 16th of a row, and of all: `[m][k / 16 rounded up + 1]`. They wrap around.
    sums: Vec<i32>,
}

/// Rounds one row.
struct Round<'a> {
    x: &'a [f32],
    block: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Routine for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, _simd: S) {
        match self.block {
            16 => self.round::<16>(),
            32 => self.round::<32>(),
            64 => self.round::<64>(),
            128 => self.round::<128>(),
            0 => self.scales[0] = dynamic_row(self.x, self.codes),
            block => self.round_blocks(0, block),
        }
        sum_up(self.codes, self.sums);
    }
}

impl Round<'_> {
    /// Blocks of a length that is known while this is compiled: loops over short ones of any length would take two to three times as long.
    #[inline(always)]
    fn round<const BLOCK: usize>(&mut self) {
        let whole = self.x.as_chunks::<BLOCK>().0.iter().zip(self.codes.as_chunks_mut::<BLOCK>().0);
        for ((x, codes), scale) in whole.zip(&mut *self.scales) {
            *scale = dynamic_row(x, codes);
        }
        self.round_blocks(self.x.len() / BLOCK, BLOCK);
    }

    /// Blocks from one on.
    #[inline(always)]
    fn round_blocks(&mut self, first: usize, block: usize) {
        let (x, codes) = (&self.x[first * block..], &mut self.codes[first * block..]);
        let blocks = x.chunks(block).zip(codes.chunks_mut(block));
        for ((x, codes), scale) in blocks.zip(&mut self.scales[first..]) {
            *scale = dynamic_row(x, codes);
        }
    }
}

/// Sums of the codes of a row before each 16th, and of all; the first is there.
#[inline(always)]
fn sum_up(codes: &[i8], sums: &mut [i32]) {
    let mut total = 0_i32;
    // Rows are padded to whole sixteenths.
    for (sum, codes) in sums[1..].iter_mut().zip(codes.as_chunks::<FINEST_BLOCK>().0) {
        total = total.wrapping_add(codes.iter().map(|&code| i32::from(code)).sum());
        *sum = total;
    }
}

impl DynamicRows {
    /// Rounds `x` with one scale for each row, or one for each `block` inputs of it.
    ///
    /// # Panics
    /// If `block` is neither 0 nor a power of two from 16 on.
    #[must_use]
    pub fn new(instructions: Instructions, x: Matrix<'_>, block: usize) -> Self {
        assert!(block == 0 || block.is_power_of_two() && block >= FINEST_BLOCK, "a block of {block} activations");
        let (rows, inputs) = (x.rows(), x.columns());
        let sixteenths = inputs.div_ceil(FINEST_BLOCK);
        let blocks = if block == 0 { 1 } else { inputs.div_ceil(block) };
        let mut codes = vec![0; rows * sixteenths * FINEST_BLOCK / size_of::<i32>()];
        let mut sums = vec![0; rows * (sixteenths + 1)];
        let mut scales = vec![0.0; rows * blocks];
        let of_rows = bytemuck::cast_slice_mut::<i32, i8>(&mut codes).chunks_mut((sixteenths * FINEST_BLOCK).max(1));
        let of_rows = of_rows.zip(scales.chunks_mut(blocks.max(1)));
        let of_rows = of_rows.zip(sums.chunks_mut(sixteenths + 1)).enumerate();
        let round = |(row, ((codes, scales), sums))| Round { x: x.row(row), block, codes, scales, sums };
        let (rounds, run) = (of_rows.map(round), |task| instructions.run(task));
        if threads::parts(rows * inputs, rows) > 1 {
            threads::each(rounds.collect(), run)
        } else {
            rounds.for_each(run)
        }
        Self { rows, inputs, block, codes, scales, sums }
    }

    /// Integers of 8 bits as they are multiplied, with scales of 1, and a row of ones behind them if they are `with_ones`.
    pub(super) fn of_integers(x: &IntegerRows<'_>, with_ones: bool) -> Self {
        let (rows, inputs) = (x.rows() + usize::from(with_ones), x.inputs());
        let sixteenths = inputs.div_ceil(FINEST_BLOCK);
        let length = sixteenths * FINEST_BLOCK / LINE_INPUTS;
        let mut codes = vec![0; rows * length];
        let mut row = 0;
        while row < x.rows() {
            let block = x.block(row);
            for (index, own) in codes[row * length..][..block.rows * length].chunks_mut(length.max(1)).enumerate() {
                let lines = block.codes.iter().skip(index).step_by(block.rows);
                own.iter_mut().zip(lines).for_each(|(word, line)| *word = bytemuck::cast(*line));
            }
            row += block.rows;
        }
        if with_ones {
            let ones = &mut codes[x.rows() * length..];
            bytemuck::cast_slice_mut::<i32, i8>(ones)[..inputs].fill(1);
        }
        let mut sums = vec![0; rows * (sixteenths + 1)];
        let of_rows = bytemuck::cast_slice::<i32, i8>(&codes).chunks((sixteenths * FINEST_BLOCK).max(1));
        of_rows.zip(sums.chunks_mut(sixteenths + 1)).for_each(|(codes, sums)| sum_up(codes, sums));
        Self { rows, inputs, block: 0, codes, scales: vec![1.0; rows], sums }
    }

    /// The number of rows: m.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a row: k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Inputs that share a scale, or 0 where all of a row do.
    pub(in crate::product) fn block(&self) -> usize {
        self.block
    }

    /// The codes of a row, padded with zeros to a multiple of 16.
    #[inline(always)]
    pub(in crate::product) fn codes(&self, row: usize) -> &[i8] {
        bytemuck::cast_slice(self.words(row))
    }

    /// The codes of a row, four in a word as they lie in memory.
    #[inline(always)]
    pub(super) fn words(&self, row: usize) -> &[i32] {
        let length = self.inputs.next_multiple_of(FINEST_BLOCK) / size_of::<i32>();
        &self.codes[row * length..][..length]
    }

    /// The scale of a row.
    #[inline(always)]
    pub(in crate::product) fn scale(&self, row: usize) -> f32 {
        self.scales[row]
    }

    /// The scale of the block of a row that `input` is in.
    #[inline(always)]
    pub(super) fn block_scale(&self, row: usize, input: usize) -> f32 {
        self.block_scales(row)[input / self.block]
    }

    /// The scales of the blocks of a row.
    #[inline(always)]
    pub(super) fn block_scales(&self, row: usize) -> &[f32] {
        let blocks = self.inputs.div_ceil(self.block);
        &self.scales[row * blocks..][..blocks]
    }

    /// The sum of codes of a row; `inputs` begin at a multiple of 16 and end at one or with the row. Wraps around.
    #[inline(always)]
    pub(in crate::product) fn sum(&self, row: usize, inputs: Range<usize>) -> i32 {
        let sums = &self.sums[row * (self.inputs.div_ceil(FINEST_BLOCK) + 1)..];
        sums[inputs.end.div_ceil(FINEST_BLOCK)].wrapping_sub(sums[inputs.start / FINEST_BLOCK])
    }
}
