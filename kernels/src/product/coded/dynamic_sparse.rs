//! Sums of one panel of codes of 8 bits whose zeros are left out, for a few rows.

use super::{
    digits::{Digits, in_units},
    dynamic_few::subtract_shifts,
    layout::{CodedLayout, LINE},
    pair_of_sums::PairOfSums,
    planes::{Parameters, ask},
    rows::DynamicRows,
};
use crate::{
    product::tile,
    simd::{ExpandBytes, Simd},
};

/// Lines that are multiplied between two checks of bounds.
const LINES: usize = 4;

/// The sums of the rows of `x` with 16 outputs over the records so far.
pub(in crate::product) struct SparseSums<'a, S: Simd, const ROWS: usize> {
    x: &'a DynamicRows,
    layout: &'a CodedLayout,
    digits: Digits<S, 1>,
    sums: PairOfSums<S, ROWS>,
    expander: S::Expander,
}

/// A record: a bit for each byte or each line of its codes, and those that are not zero.
#[derive(Clone, Copy)]
pub(in crate::product) struct SparseCodes<'a> {
    /// In whole lines.
    pub mask: &'a [u8],
    pub values: &'a [u8],
    /// The first input, a multiple of 16.
    pub first: usize,
    pub inputs: usize,
}

impl<'a, S: Simd, const ROWS: usize> SparseSums<'a, S, ROWS> {
    /// Codes without planes of blocks, and all `ROWS` rows.
    #[inline(always)]
    pub fn new(simd: S, x: &'a DynamicRows, layout: &'a CodedLayout, expander: S::Expander) -> Self {
        Self { x, layout, digits: Digits::new(simd, layout.code()), sums: PairOfSums::zero(simd), expander }
    }

    /// Adds what a record gives; a bit of its mask stands for a whole line if `OF_LINES`.
    #[inline(always)]
    pub fn add<const OF_LINES: bool>(&mut self, simd: S, codes: SparseCodes<'_>) {
        let lines = codes.inputs.div_ceil(4);
        let (mut groups, mut rest): ([&[[i32; LINES]]; ROWS], [&[i32]; ROWS]) = ([&[]; ROWS], [&[]; ROWS]);
        for row in 0..ROWS {
            (groups[row], rest[row]) = self.x.words(row)[codes.first / 4..][..lines].as_chunks();
        }
        for line in codes.mask.as_chunks::<LINE>().0 {
            ask(simd, line);
        }
        let masks = codes.mask.as_chunks().0;
        // Bits of lines: a record has at most 64 of these.
        let mut bits = masks.first().map_or(0, |&bits| u64::from_le_bytes(bits));
        let (masks, last) = masks[..if OF_LINES { 0 } else { lines }].as_chunks::<LINES>();
        let mut at = 0;
        for index in 0..lines / LINES {
            let groups = tile::each(&groups, index);
            let masks = if OF_LINES { &[[0; 8]; LINES] } else { &masks[index] };
            for line in 0..LINES {
                let mask = next_mask::<OF_LINES>(&mut bits, masks[line]);
                let mut words = [&groups[0][line]; ROWS];
                for row in 1..ROWS {
                    words[row] = &groups[row][line];
                }
                self.add_line(simd, mask, codes.values, words, line, &mut at);
            }
        }
        for index in 0..lines % LINES {
            let mask = next_mask::<OF_LINES>(&mut bits, if OF_LINES { [0; 8] } else { last[index] });
            self.add_line(simd, mask, codes.values, tile::each(&rest, index), index, &mut at);
        }
    }

    /// Adds the next line, the `index`th, whose values begin `at`.
    #[inline(always)]
    fn add_line(&mut self, simd: S, mask: u64, values: &[u8], words: [&i32; ROWS], index: usize, at: &mut usize) {
        let values = values.get(*at..).unwrap_or_default();
        ask(simd, values);
        let spread = self.expander.expand_bytes(simd, mask, values);
        *at += mask.count_ones() as usize;
        let mut inputs = [&[0; 1]; ROWS];
        for row in 0..ROWS {
            inputs[row] = std::array::from_ref(words[row]);
        }
        self.sums.add(simd, spread, inputs, self.digits, index);
    }

    /// The products of all inputs, for the panel's parameters.
    #[inline(always)]
    pub fn products(self, simd: S, whole: &Parameters) -> [S::Vector; ROWS] {
        let mut sums = self.sums.together(simd);
        subtract_shifts(simd, self.x, 0, whole, &mut sums);
        let mut products = [simd.splat(0.0); ROWS];
        for row in 0..ROWS {
            let sum = in_units(simd, self.layout.code(), sums[row]);
            products[row] = simd.fused_exactly(sum, simd.load(&whole.scale), products[row]);
        }
        products
    }
}

/// The bytes of the next line that are stored.
#[inline(always)]
fn next_mask<const OF_LINES: bool>(bits: &mut u64, mask: [u8; 8]) -> u64 {
    if !OF_LINES {
        return u64::from_le_bytes(mask);
    }
    let is_stored = *bits & 1;
    *bits >>= 1;
    is_stored.wrapping_neg()
}
