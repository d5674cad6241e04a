//! Sums of products of codes with activations of a few rows.

use super::{
    digits::{Digits, LINES_IN_HALVES},
    layout::LINE,
    planes::ask,
};
use crate::simd::Simd;

/// The most rows that have two sums: registers do not hold those of more.
pub(super) const fn most_pairs<S: Simd>() -> usize {
    if S::TILE_VECTORS == 3 { 4 } else { 2 }
}

/// Two sums for each row, where one alone would wait for itself. Sums that come by 16 bits go to the first.
pub(super) struct PairOfSums<S: Simd, const ROWS: usize>(pub [[S::Integers; ROWS]; 2]);

impl<S: Simd, const ROWS: usize> PairOfSums<S, ROWS> {
    #[inline(always)]
    pub fn zero(simd: S) -> Self {
        Self([[simd.splat_integer(0); ROWS]; 2])
    }

    /// Both sums of each row added up.
    #[inline(always)]
    pub fn together(self, simd: S) -> [S::Integers; ROWS] {
        let [mut sums, others] = self.0;
        for row in 0..ROWS {
            sums[row] = simd.add_integers(sums[row], others[row]);
        }
        sums
    }

    /// Adds the products of some lines of codes with the activations of their inputs, and asks for the lines ahead.
    #[inline(always)]
    pub fn add_lines<const PARTS: usize, const LINES: usize>(
        &mut self,
        simd: S,
        lines: &[[u8; LINE]; LINES],
        inputs: [&[[i32; PARTS]; LINES]; ROWS],
        digits: Digits<S, PARTS>,
        ahead: bool,
    ) {
        // Where one instruction sums four products that would save nothing.
        if const { S::SUMS_HALVES && PARTS > 1 } && digits.fit_halves() {
            return self.add_lines_in_halves(simd, lines, inputs, digits, ahead);
        }
        for line in 0..LINES {
            if ahead {
                ask(simd, &lines[line]);
            }
            let mut own = [&[0; PARTS]; ROWS];
            for row in 0..ROWS {
                own[row] = &inputs[row][line];
            }
            self.add(simd, simd.load_bytes(&lines[line]), own, digits, line);
        }
    }

    /// The same by sums of 16 bits.
    #[inline(always)]
    fn add_lines_in_halves<const PARTS: usize, const LINES: usize>(
        &mut self,
        simd: S,
        lines: &[[u8; LINE]; LINES],
        inputs: [&[[i32; PARTS]; LINES]; ROWS],
        digits: Digits<S, PARTS>,
        ahead: bool,
    ) {
        const { assert!(LINES <= LINES_IN_HALVES) };
        let mut halves = [simd.splat_integer(0); ROWS];
        for line in 0..LINES {
            if ahead {
                ask(simd, &lines[line]);
            }
            let codes = simd.load_bytes(&lines[line]);
            for part in 0..PARTS {
                let unsigned = digits.of(simd, codes, part);
                for row in 0..ROWS {
                    let signed = simd.splat_integer(i32::from_le(inputs[row][line][part]));
                    halves[row] = simd.add_pairs(halves[row], unsigned, signed);
                }
            }
        }
        let ones = simd.splat_integer(0x0001_0001);
        for row in 0..ROWS {
            self.0[0][row] = simd.dot_halves(self.0[0][row], halves[row], ones);
        }
    }

    /// Adds those of a line of codes, the `index`th.
    #[inline(always)]
    pub fn add<const PARTS: usize>(
        &mut self,
        simd: S,
        codes: S::Integers,
        inputs: [&[i32; PARTS]; ROWS],
        digits: Digits<S, PARTS>,
        index: usize,
    ) {
        for part in 0..PARTS {
            let unsigned = digits.of(simd, codes, part);
            for row in 0..ROWS {
                let signed = simd.splat_integer(i32::from_le(inputs[row][part]));
                let sum = &mut self.0[if ROWS > most_pairs::<S>() { 0 } else { (index * PARTS + part) % 2 }][row];
                *sum = match PARTS {
                    1 => simd.dot(*sum, unsigned, signed),
                    _ => simd.dot_narrow(*sum, unsigned, signed),
                };
            }
        }
    }
}
