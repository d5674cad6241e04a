//! The types of codes: how many inputs a line of codes has, and the value of each.

use super::layout::{CodeType, LINE};
use crate::simd::{LANES, Simd};

/// A type of codes.
pub(super) trait Code {
    /// Inputs of an output in a line.
    const INPUTS: usize;

    /// Whether weights of this type of codes have zero points as often as not.
    const HAS_ZERO_POINTS: bool;

    /// A line as [`Code::code`] takes it.
    type Line<S: Simd>: Copy;

    /// Reads a line.
    fn line<S: Simd>(simd: S, bytes: &[u8; LINE]) -> Self::Line<S>;

    /// [`table`] as [`Code::code`] takes it.
    #[inline(always)]
    fn table<S: Simd>(simd: S, table: &[f32; LANES]) -> S::Vector {
        simd.load(table)
    }

    /// The code of input `input` of each output of a line.
    fn code<S: Simd>(simd: S, table: S::Vector, line: Self::Line<S>, input: usize) -> S::Vector;
}

pub(super) struct Signed8;
pub(super) struct Unsigned8;
/// Floats of 8 bits, of which f8e5m2 has one more bit of exponent than f8e4m3fn.
pub(super) struct Float8<const E5M2: bool>;
/// Integers of 4 or 2 bits, whose values come from a table where [`Simd::LOOKS_UP`].
pub(super) struct Narrow<const BITS: usize>;
/// Floats of 4 bits, whose values come from a table.
pub(super) struct Float4;

/// The value of each code of at most 4 bits; those of 2 bits are there four times.
pub(super) fn table(code: CodeType) -> [f32; LANES] {
    let integers = |bits: usize, offset: i32| {
        let mut table = [0.0; LANES];
        for (place, value) in table.iter_mut().enumerate() {
            *value = ((place & ((1 << bits) - 1)) as i32 - offset) as f32;
        }
        table
    };
    match code {
        CodeType::I8 | CodeType::U8 | CodeType::E4m3 | CodeType::E5m2 => [0.0; LANES],
        CodeType::I4 => integers(4, 8),
        CodeType::U4 => integers(4, 0),
        CodeType::I2 => integers(2, 2),
        CodeType::U2 => integers(2, 0),
        CodeType::E2m1 => [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0],
    }
}

/// Lines are taken as they are stored.
macro_rules! lines_of_integers {
    () => {
        type Line<S: Simd> = S::Integers;

        #[inline(always)]
        fn line<S: Simd>(simd: S, bytes: &[u8; LINE]) -> S::Integers {
            simd.load_bytes(bytes)
        }
    };
}

impl Code for Signed8 {
    const INPUTS: usize = 4;
    const HAS_ZERO_POINTS: bool = true;
    lines_of_integers!();

    #[inline(always)]
    fn code<S: Simd>(simd: S, _table: S::Vector, line: S::Integers, input: usize) -> S::Vector {
        simd.convert(simd.signed_byte(line, input as u32))
    }
}

impl Code for Unsigned8 {
    const INPUTS: usize = 4;
    const HAS_ZERO_POINTS: bool = true;
    lines_of_integers!();

    #[inline(always)]
    fn code<S: Simd>(simd: S, _table: S::Vector, line: S::Integers, input: usize) -> S::Vector {
        simd.convert(simd.and(simd.shift_right(line, 8 * input as u32), simd.splat_integer(255)))
    }
}

impl<const BITS: usize> Code for Narrow<BITS> {
    const INPUTS: usize = 32 / BITS;
    const HAS_ZERO_POINTS: bool = true;
    lines_of_integers!();

    /// The value of code 0 alone, where values do not come from a table.
    #[inline(always)]
    fn table<S: Simd>(simd: S, table: &[f32; LANES]) -> S::Vector {
        if const { S::LOOKS_UP } { simd.load(table) } else { simd.splat(table[0]) }
    }

    #[inline(always)]
    fn code<S: Simd>(simd: S, table: S::Vector, line: S::Integers, input: usize) -> S::Vector {
        let code = simd.shift_right(line, (input % 4 * 8 + input / 4 * BITS) as u32);
        if const { S::LOOKS_UP } {
            return simd.lookup(table, code);
        }
        simd.add(simd.convert(simd.and(code, simd.splat_integer((1 << BITS) - 1))), table)
    }
}

impl Code for Float4 {
    const INPUTS: usize = 8;
    const HAS_ZERO_POINTS: bool = false;
    lines_of_integers!();

    #[inline(always)]
    fn code<S: Simd>(simd: S, table: S::Vector, line: S::Integers, input: usize) -> S::Vector {
        simd.lookup(table, simd.shift_right(line, (input % 4 * 8 + input / 4 * 4) as u32))
    }
}

impl<const E5M2: bool> Code for Float8<E5M2> {
    const INPUTS: usize = 4;
    const HAS_ZERO_POINTS: bool = false;
    /// The values of each input: the whole line is widened at once, by way of f16.
    type Line<S: Simd> = [S::Vector; 4];

    #[inline(always)]
    fn line<S: Simd>(simd: S, bytes: &[u8; LINE]) -> [S::Vector; 4] {
        if E5M2 { simd.load_e5m2(bytes) } else { simd.load_e4m3(bytes) }
    }

    #[inline(always)]
    fn code<S: Simd>(_simd: S, _table: S::Vector, line: [S::Vector; 4], input: usize) -> S::Vector {
        line[input]
    }
}

/// Runs `$body` with `$C` bound to the type of codes.
macro_rules! with_code {
    ($code:expr, $C:ident => $body:expr) => {
        match $code {
            CodeType::I8 => {
                type $C = Signed8;
                $body
            }
            CodeType::U8 => {
                type $C = Unsigned8;
                $body
            }
            CodeType::E2m1 => {
                type $C = Float4;
                $body
            }
            CodeType::I4 | CodeType::U4 => {
                type $C = Narrow<4>;
                $body
            }
            CodeType::I2 | CodeType::U2 => {
                type $C = Narrow<2>;
                $body
            }
            CodeType::E4m3 => {
                type $C = Float8<false>;
                $body
            }
            CodeType::E5m2 => {
                type $C = Float8<true>;
                $body
            }
        }
    };
}
pub(super) use with_code;
