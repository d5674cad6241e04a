//! Vectors as arrays, for processors without a module of their own. The compiler vectorises the loops as it can.
//!
//! What takes more than a few instructions for each lane is a function that is called: inlined into every kernel it would be a
//! large part of the program, for processors that hardly anyone has.

mod arithmetic;

use std::convert::Infallible;

use half::{bf16, f16};

use super::{LANES, Routine, Simd};

/// The token of plain Rust: always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// Whether a fused multiply-add is an instruction of the baseline and not a slow library call.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Applies `function` to each lane.
#[inline(always)]
fn lanes(function: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut result = [0.0; LANES];
    for (lane, value) in result.iter_mut().enumerate() {
        *value = function(lane);
    }
    result
}

/// Applies `function` to each lane.
#[inline(always)]
fn integers(function: impl Fn(usize) -> i32) -> [i32; LANES] {
    let mut result = [0; LANES];
    for (lane, value) in result.iter_mut().enumerate() {
        *value = function(lane);
    }
    result
}

/// The values of byte `i` of the 4 of each lane.
#[inline(always)]
fn quarters(bytes: &[u8; 4 * LANES], value: impl Fn(u8) -> f32) -> [[f32; LANES]; 4] {
    let mut quarters = [[0.0; LANES]; 4];
    for lane in 0..LANES {
        for quarter in 0..4 {
            quarters[quarter][lane] = value(bytes[4 * lane + quarter]);
        }
    }
    quarters
}

impl Simd for Portable {
    type Integers = [i32; LANES];
    type Expander = Infallible;

    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;
    const HAS_OWN_LOOPS: bool = false;
    const LOOKS_UP: bool = true;
    const SUMS_HALVES: bool = false;

    // As on other instruction sets: a routine with all that it runs would become one function, which takes minutes to compile.
    #[inline(never)]
    fn run<R: Routine>(self, routine: R) -> R::Output {
        routine.run(self)
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::Vector {
        *values
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, values: &mut [f32; LANES]) {
        *values = vector;
    }

    #[inline(never)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::Vector {
        lanes(|lane| values[lane].to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Vector {
        lanes(|lane| values[lane].to_f32())
    }

    #[inline(never)]
    fn load_bf16_even(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        lanes(|lane| f32::from_bits(u32::from(pairs[2 * lane].to_bits()) << 16))
    }

    #[inline(never)]
    fn load_bf16_odd(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        lanes(|lane| f32::from_bits(u32::from(pairs[2 * lane + 1].to_bits()) << 16))
    }

    #[inline(never)]
    fn store_f16(self, vector: Self::Vector, values: &mut [f16; LANES]) {
        *values = vector.map(f16::from_f32);
    }

    #[inline(never)]
    fn fused_exactly(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn fused_wide(self, a: f64, b: f64, c: f64) -> f64 {
        if FUSED { a.mul_add(b, c) } else { a * b + c }
    }

    #[inline(never)]
    fn load_even(self, values: &[f32; 2 * LANES]) -> Self::Vector {
        lanes(|lane| values[2 * lane])
    }

    #[inline(never)]
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES] {
        let mut columns = rows;
        for (column, values) in columns.iter_mut().enumerate() {
            *values = lanes(|lane| rows[lane][column]);
        }
        columns
    }

    #[inline(never)]
    fn round_to_f16(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| f16::from_f32(a[lane]).to_f32())
    }

    #[inline(never)]
    fn round_to_bf16(self, a: Self::Vector) -> Self::Vector {
        lanes(|lane| bf16::from_f32(a[lane]).to_f32())
    }

    #[inline(never)]
    fn lookup(self, table: Self::Vector, places: Self::Integers) -> Self::Vector {
        lanes(|lane| table[(places[lane] & 15) as usize])
    }

    #[inline(never)]
    fn lookup_bytes(self, table: Self::Integers, places: Self::Integers) -> Self::Integers {
        let table: [[u8; 4]; LANES] = table.map(i32::to_le_bytes);
        integers(|lane| {
            let quarter = &table[lane / 4 * 4..][..4];
            let byte = |place: u8| quarter[usize::from(place / 4 % 4)][usize::from(place % 4)];
            i32::from_le_bytes(places[lane].to_le_bytes().map(byte))
        })
    }

    #[inline(never)]
    fn convert(self, a: Self::Integers) -> Self::Vector {
        lanes(|lane| a[lane] as f32)
    }

    #[inline(never)]
    fn nearest_integers(self, a: Self::Vector) -> Self::Integers {
        std::array::from_fn(|lane| a[lane].round_ties_even() as i32)
    }

    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        [value; LANES]
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> Self::Integers {
        *values
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Integers {
        let (words, _) = bytes.as_chunks();
        integers(|lane| i32::from_le_bytes(words[lane]))
    }

    #[inline(never)]
    fn load_e4m3(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4] {
        quarters(bytes, |byte| {
            let magnitude = u32::from(byte & 0x7f);
            // Exponent and mantissa where those of f32 are, with another bias.
            let value = f32::from_bits(magnitude << 20) * 2.0_f32.powi(127 - 7);
            let value = if magnitude == 0x7f { f32::NAN } else { value };
            if byte < 0x80 { value } else { -value }
        })
    }

    #[inline(never)]
    fn load_e5m2(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4] {
        quarters(bytes, |byte| f16::from_bits(u16::from(byte) << 8).to_f32())
    }

    #[inline(always)]
    fn bits(self, a: Self::Vector) -> Self::Integers {
        integers(|lane| a[lane].to_bits().cast_signed())
    }

    #[inline(always)]
    fn of_bits(self, bits: Self::Integers) -> Self::Vector {
        lanes(|lane| f32::from_bits(bits[lane].cast_unsigned()))
    }

    #[inline(always)]
    fn store_integers(self, integers: Self::Integers, values: &mut [i32; LANES]) {
        *values = integers;
    }

    #[inline(always)]
    fn add_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        integers(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn subtract_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        integers(|lane| a[lane].wrapping_sub(b[lane]))
    }

    #[inline(never)]
    fn multiply_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        integers(|lane| a[lane].wrapping_mul(b[lane]))
    }

    #[inline(always)]
    fn and(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        integers(|lane| a[lane] & b[lane])
    }

    #[inline(always)]
    fn exclusive_or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        integers(|lane| a[lane] ^ b[lane])
    }

    #[inline(always)]
    fn shift_left(self, a: Self::Integers, bits: u32) -> Self::Integers {
        integers(|lane| a[lane] << bits)
    }

    #[inline(always)]
    fn shift_right(self, a: Self::Integers, bits: u32) -> Self::Integers {
        integers(|lane| (a[lane] as u32 >> bits) as i32)
    }

    #[inline(always)]
    fn shift_right_signed(self, a: Self::Integers, bits: u32) -> Self::Integers {
        integers(|lane| a[lane] >> bits)
    }

    #[inline(never)]
    fn dot(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        let product =
            |lane: usize, byte: u32| (unsigned[lane] >> (8 * byte) & 255) * (signed[lane] << (24 - 8 * byte) >> 24);
        integers(|lane| (0..4).fold(sum[lane], |sum, byte| sum.wrapping_add(product(lane, byte))))
    }

    #[inline(never)]
    fn dot_narrow(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        self.dot(sum, unsigned, signed)
    }

    #[inline(never)]
    fn add_pairs(self, sums: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        let product =
            |lane: usize, byte: u32| (unsigned[lane] >> (8 * byte) & 255) * (signed[lane] << (24 - 8 * byte) >> 24);
        let half = |lane: usize, half: u32| {
            let sum = (sums[lane] >> (16 * half)) as i16;
            let pair = product(lane, 2 * half) + product(lane, 2 * half + 1);
            i32::from(sum.wrapping_add(pair as i16) as u16) << (16 * half)
        };
        integers(|lane| half(lane, 0) | half(lane, 1))
    }

    #[inline(never)]
    fn dot_halves(self, sum: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        let product =
            |lane: usize, half: u32| (a[lane] << (16 - 16 * half) >> 16) * (b[lane] << (16 - 16 * half) >> 16);
        integers(|lane| sum[lane].wrapping_add(product(lane, 0).wrapping_add(product(lane, 1))))
    }

    #[inline(never)]
    fn interleave_bytes(self, rows: [Self::Integers; 4]) -> [Self::Integers; 4] {
        let mut words = [[0; LANES]; 4];
        for (vector, lanes) in words.iter_mut().enumerate() {
            for (lane, word) in lanes.iter_mut().enumerate() {
                let place = 16 * (lane / 4) + 4 * vector + lane % 4;
                *word = i32::from_le_bytes(rows.map(|row| row[place / 4].to_le_bytes()[place % 4]));
            }
        }
        words
    }

    #[inline(always)]
    fn prefetch<T>(self, _values: &[T], _ahead: usize) {}

    #[inline(always)]
    fn prefetch_far<T>(self, _values: &[T], _ahead: usize) {}
}
