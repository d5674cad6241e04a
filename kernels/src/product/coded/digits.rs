//! Codes of a line as the numbers from 0 to 255 that integer sums take.

use super::layout::CodeType;
use crate::simd::{LANES, Simd};

/// The values of f4e2m1 doubled, which makes them integers, and 12 higher, which makes them unsigned: sums of their
/// products are exact, and what was added is taken off as it is of integers.
const FLOATS_DOUBLED: [u8; LANES] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// How a line of codes of `8 / PARTS` bits becomes bytes.
#[derive(Clone, Copy)]
pub(super) struct Digits<S: Simd, const PARTS: usize> {
    /// What makes signed codes of 8 bits unsigned.
    flip: S::Integers,
    /// The lowest code of each byte.
    mask: S::Integers,
    /// What codes of 4 bits stand for, in each 16 bytes.
    table: S::Integers,
    /// Whether codes stand for floats, and are looked up.
    are_floats: bool,
}

/// Lines of integers of 4 or 2 bits whose products fit into sums of 16 bits: 8 pairs of at most 15 * 128 each, or 16 pairs of 3 * 128.
pub(super) const LINES_IN_HALVES: usize = 4;

const _: () = assert!(LINES_IN_HALVES * 2 * 2 * 15 * 128 <= i16::MAX as usize);

impl<S: Simd, const PARTS: usize> Digits<S, PARTS> {
    #[inline(always)]
    pub fn new(simd: S, code: CodeType) -> Self {
        let flip = simd.splat_integer(if code == CodeType::I8 { 0x8080_8080_u32 as i32 } else { 0 });
        let mask = simd.splat_integer(if PARTS == 2 { 0x0f0f_0f0f } else { 0x0303_0303 });
        let mut table = [0; 4 * LANES];
        for quarter in table.as_chunks_mut::<LANES>().0 {
            *quarter = FLOATS_DOUBLED;
        }
        Self { flip, mask, table: simd.load_bytes(&table), are_floats: code == CodeType::E2m1 }
    }

    /// Whether products of [`LINES_IN_HALVES`] lines fit into sums of 16 bits, of codes of less than 8 bits.
    #[inline(always)]
    pub fn fit_halves(self) -> bool {
        !self.are_floats
    }

    /// Those of part `part` of a line.
    #[inline(always)]
    pub fn of(self, simd: S, codes: S::Integers, part: usize) -> S::Integers {
        if PARTS == 1 {
            return simd.exclusive_or(codes, self.flip);
        }
        let codes = simd.and(simd.shift_right(codes, (part * 8 / PARTS) as u32), self.mask);
        if PARTS == 2 && self.are_floats { simd.lookup_bytes(self.table, codes) } else { codes }
    }
}

/// Integer sums as f32, in the unit of codes. Halving is exact: sums are integers.
#[inline(always)]
pub(super) fn in_units<S: Simd>(simd: S, code: CodeType, sum: S::Integers) -> S::Vector {
    let sum = simd.convert(sum);
    if code == CodeType::E2m1 { simd.multiply(sum, simd.splat(code.unit())) } else { sum }
}
