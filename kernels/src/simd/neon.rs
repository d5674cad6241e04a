//! Vectors in four 128-bit registers.
//!
//! Every aarch64 processor has NEON, so that its instructions need no token; dot products of bytes came later, and are what this
//! one stands for. They and conversions of f16 have no stable functions, and are written as instructions.

mod expand;

mod arithmetic;

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::convert::Infallible;

use half::{bf16, f16};

use super::{LANES, Routine, Simd};

/// The token of NEON with dot products of bytes (`dotprod`): a value exists only on processors with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

impl Neon {
    /// The token, if this processor has the instructions.
    #[must_use]
    pub fn new() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")).then_some(Self(()))
    }
}

/// Runs `routine` with the instructions enabled, so that everything inlined into it uses them.
#[target_feature(enable = "neon,dotprod")]
fn run_enabled<R: Routine>(simd: Neon, routine: R) -> R::Output {
    routine.run(simd)
}

/// A vector: lanes 0 to 3, 4 to 7, and so on.
type Floats = [float32x4_t; 4];
type Words = [int32x4_t; 4];

#[inline(always)]
fn each<A: Copy, B>(a: [A; 4], function: impl Fn(A) -> B) -> [B; 4] {
    [function(a[0]), function(a[1]), function(a[2]), function(a[3])]
}

#[inline(always)]
fn both<A: Copy, B: Copy, C>(a: [A; 4], b: [B; 4], function: impl Fn(A, B) -> C) -> [C; 4] {
    [function(a[0], b[0]), function(a[1], b[1]), function(a[2], b[2]), function(a[3], b[3])]
}

/// Four f16 as f32, exactly.
#[inline(always)]
fn widened(halves: uint16x4_t) -> float32x4_t {
    let result: float32x4_t;
    // SAFETY: every processor has the instruction; it reads and writes registers alone.
    unsafe {
        asm!("fcvtl {result:v}.4s, {halves:v}.4h", result = lateout(vreg) result, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// Four f32 rounded to f16.
#[inline(always)]
fn narrowed(floats: float32x4_t) -> uint16x4_t {
    let result: uint16x4_t;
    // SAFETY: every processor has the instruction; it reads and writes registers alone.
    unsafe {
        asm!("fcvtn {result:v}.4h, {floats:v}.4s", result = lateout(vreg) result, floats = in(vreg) floats,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// Adds to each lane the products of its four pairs of signed bytes.
#[inline(always)]
fn signed_dot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut result = sum;
    // SAFETY: called by methods of the token only, so the processor has the instruction; it reads and writes registers alone.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) result, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// Eight values of f8e5m2, or of f8e4m3fn, in the lower bytes of words.
#[inline(always)]
fn float_bytes<const E5M2: bool>(words: uint16x8_t) -> [float32x4_t; 2] {
    // SAFETY: every processor has the instructions.
    unsafe {
        // An f8e5m2 is the upper half of an f16; an f8e4m3fn with a longer exponent is an f16 of a 256th of its value.
        let halves = if E5M2 {
            vshlq_n_u16::<8>(words)
        } else {
            let magnitude = vandq_u16(words, vdupq_n_u16(0x7f));
            let nan = vandq_u16(vceqq_u16(magnitude, vdupq_n_u16(0x7f)), vdupq_n_u16(0x7e00));
            let sign = vshlq_n_u16::<8>(vandq_u16(words, vdupq_n_u16(0x80)));
            vorrq_u16(vorrq_u16(sign, vshlq_n_u16::<7>(magnitude)), nan)
        };
        let floats = [widened(vget_low_u16(halves)), widened(vget_high_u16(halves))];
        if E5M2 { floats } else { [vmulq_n_f32(floats[0], 256.0), vmulq_n_f32(floats[1], 256.0)] }
    }
}

/// The values of floats of 8 bits: vector `i` has byte `i` of the 4 of each lane.
#[inline(always)]
fn load_f8<const E5M2: bool>(bytes: &[u8; 4 * LANES]) -> [Floats; 4] {
    // SAFETY: every processor has the instructions; the reference covers the bytes.
    unsafe {
        let uint8x16x4_t(first, second, third, fourth) = vld4q_u8(bytes.as_ptr());
        each([first, second, third, fourth], |bytes| {
            let low = float_bytes::<E5M2>(vmovl_u8(vget_low_u8(bytes)));
            let high = float_bytes::<E5M2>(vmovl_u8(vget_high_u8(bytes)));
            [low[0], low[1], high[0], high[1]]
        })
    }
}

/// The bytes at the same place of four rows side by side, of places 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
#[inline(always)]
fn interleaved(rows: Words) -> Words {
    // SAFETY: every processor has the instructions.
    unsafe {
        let [first, second, third, fourth] = each(rows, |row| vreinterpretq_u8_s32(row));
        let halves = |one, other| [vzip1q_u8(one, other), vzip2q_u8(one, other)];
        let [upper, lower] =
            [halves(first, second), halves(third, fourth)].map(|pairs| pairs.map(|bytes| vreinterpretq_u16_u8(bytes)));
        let words = |one, other| [vzip1q_u16(one, other), vzip2q_u16(one, other)];
        let [low, high] = [words(upper[0], lower[0]), words(upper[1], lower[1])]
            .map(|pairs| pairs.map(|words| vreinterpretq_s32_u16(words)));
        [low[0], low[1], high[0], high[1]]
    }
}

/// The columns of 4 rows of 4 lanes.
#[inline(always)]
fn transposed(rows: Floats) -> Floats {
    // SAFETY: every processor has the instructions.
    unsafe {
        let double = |vector| vreinterpretq_f64_f32(vector);
        let (first, second) = (vtrn1q_f32(rows[0], rows[1]), vtrn2q_f32(rows[0], rows[1]));
        let (third, fourth) = (vtrn1q_f32(rows[2], rows[3]), vtrn2q_f32(rows[2], rows[3]));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(double(first), double(third))),
            vreinterpretq_f32_f64(vtrn1q_f64(double(second), double(fourth))),
            vreinterpretq_f32_f64(vtrn2q_f64(double(first), double(third))),
            vreinterpretq_f32_f64(vtrn2q_f64(double(second), double(fourth))),
        ]
    }
}

impl Simd for Neon {
    type Integers = Words;
    type Expander = Infallible;

    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 1;
    const HAS_OWN_LOOPS: bool = true;
    const LOOKS_UP: bool = true;
    const SUMS_HALVES: bool = false;

    // As for AVX2.
    #[inline(never)]
    fn run<R: Routine>(self, routine: R) -> R::Output {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { run_enabled(self, routine) }
    }

    #[inline(always)]
    fn expand<const WIDTH: usize>(self, masks: &[u8], values: &[u8], lines: &mut [[u8; 4 * LANES]]) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { expand::expand::<WIDTH>(masks, values, lines) }
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe { each([0, 4, 8, 12], |first| vld1q_f32(values.as_ptr().add(first))) }
    }

    #[inline(always)]
    fn store(self, vector: Floats, values: &mut [f32; LANES]) {
        for (quarter, lanes) in vector.into_iter().zip(values.as_chunks_mut::<4>().0) {
            // SAFETY: every processor has the instructions; the reference covers the bytes.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), quarter) }
        }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe { each([0, 4, 8, 12], |first| widened(vld1_u16(values.as_ptr().add(first).cast()))) }
    }

    #[inline(always)]
    fn store_f16(self, vector: Floats, values: &mut [f16; LANES]) {
        for (quarter, lanes) in vector.into_iter().zip(values.as_chunks_mut::<4>().0) {
            // SAFETY: every processor has the instruction; the reference covers the bytes.
            unsafe { vst1_u16(lanes.as_mut_ptr().cast(), narrowed(quarter)) }
        }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe {
            each([0, 4, 8, 12], |first| {
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(values.as_ptr().add(first).cast())))
            })
        }
    }

    #[inline(always)]
    fn load_bf16_even(self, pairs: &[bf16; 2 * LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe {
            each([0, 8, 16, 24], |first| {
                let pairs = vreinterpretq_u32_u16(vld1q_u16(pairs.as_ptr().add(first).cast()));
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))
            })
        }
    }

    #[inline(always)]
    fn load_bf16_odd(self, pairs: &[bf16; 2 * LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe {
            each([0, 8, 16, 24], |first| {
                let pairs = vreinterpretq_u32_u16(vld1q_u16(pairs.as_ptr().add(first).cast()));
                vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))
            })
        }
    }

    #[inline(always)]
    fn fused_exactly(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        unsafe {
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3]),
            ]
        }
    }

    #[inline(always)]
    fn fused_wide(self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn load_even(self, values: &[f32; 2 * LANES]) -> Floats {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe {
            each([0, 8, 16, 24], |first| {
                let values = values.as_ptr().add(first);
                vuzp1q_f32(vld1q_f32(values), vld1q_f32(values.add(4)))
            })
        }
    }

    #[inline(always)]
    fn load_quarters(self, values: &[f32; 4 * LANES]) -> [Floats; 4] {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        let parts = unsafe { each([0, 16, 32, 48], |first| vld4q_f32(values.as_ptr().add(first))) };
        [each(parts, |part| part.0), each(parts, |part| part.1), each(parts, |part| part.2), each(parts, |part| part.3)]
    }

    #[inline(always)]
    fn store_quarters(self, quarters: [Floats; 4], values: &mut [f32; 4 * LANES]) {
        let [first, second, third, fourth] = quarters;
        for (part, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let lines = float32x4x4_t(first[part], second[part], third[part], fourth[part]);
            // SAFETY: every processor has the instructions; the reference covers the bytes.
            unsafe { vst4q_f32(values.as_mut_ptr(), lines) }
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [Floats; LANES]) -> [Floats; LANES] {
        let mut columns = rows;
        for down in 0..4 {
            for right in 0..4 {
                let block = each([0, 1, 2, 3], |row| rows[4 * down + row][right]);
                for (column, values) in transposed(block).into_iter().enumerate() {
                    columns[4 * right + column][down] = values;
                }
            }
        }
        columns
    }

    #[inline(always)]
    fn round_to_f16(self, a: Floats) -> Floats {
        each(a, |a| widened(narrowed(a)))
    }

    #[inline(always)]
    fn round_to_bf16(self, a: Floats) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe {
            let bits = vreinterpretq_u32_f32(a);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let nearest = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
            // A NaN stays one, quiet as others are.
            let nan = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let chosen = vbslq_u32(vceqq_f32(a, a), nearest, nan);
            vreinterpretq_f32_u32(vandq_u32(chosen, vdupq_n_u32(0xffff_0000)))
        })
    }

    #[inline(always)]
    fn lookup(self, table: Floats, places: Words) -> Floats {
        // SAFETY: every processor has the instructions.
        unsafe {
            let [first, second, third, fourth] = each(table, |table| vreinterpretq_u8_f32(table));
            let bytes = uint8x16x4_t(first, second, third, fourth);
            each(places, |places| {
                // The bytes of the place: four times it, and 0 to 3.
                let place = vandq_s32(places, vdupq_n_s32(15));
                let at = vmlaq_s32(vdupq_n_s32(0x0302_0100), place, vdupq_n_s32(0x0404_0404));
                vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_s32(at)))
            })
        }
    }

    #[inline(always)]
    fn lookup_bytes(self, table: Words, places: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(table, places, |table, places| unsafe {
            vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(places)))
        })
    }

    #[inline(always)]
    fn convert(self, a: Words) -> Floats {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vcvtq_f32_s32(a) })
    }

    #[inline(always)]
    fn nearest_integers(self, a: Floats) -> Words {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vcvtnq_s32_f32(a) })
    }

    #[inline(always)]
    fn splat_integer(self, value: i32) -> Words {
        // SAFETY: every processor has the instructions.
        unsafe { [vdupq_n_s32(value); 4] }
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> Words {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe { each([0, 4, 8, 12], |first| vld1q_s32(values.as_ptr().add(first))) }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Words {
        // SAFETY: every processor has the instructions; the reference covers the bytes.
        unsafe { each([0, 16, 32, 48], |first| vreinterpretq_s32_u8(vld1q_u8(bytes.as_ptr().add(first)))) }
    }

    #[inline(always)]
    fn load_e4m3(self, bytes: &[u8; 4 * LANES]) -> [Floats; 4] {
        load_f8::<false>(bytes)
    }

    #[inline(always)]
    fn load_e5m2(self, bytes: &[u8; 4 * LANES]) -> [Floats; 4] {
        load_f8::<true>(bytes)
    }

    #[inline(always)]
    fn bits(self, a: Floats) -> Words {
        // SAFETY: every processor has the instruction.
        each(a, |a| unsafe { vreinterpretq_s32_f32(a) })
    }

    #[inline(always)]
    fn of_bits(self, bits: Words) -> Floats {
        // SAFETY: every processor has the instruction.
        each(bits, |bits| unsafe { vreinterpretq_f32_s32(bits) })
    }

    #[inline(always)]
    fn interleave_bytes(self, rows: [Words; 4]) -> [Words; 4] {
        // Those of a quarter of each row: places 0 to 3 of it, 4 to 7, and so on.
        let quarters = each([0, 1, 2, 3], |quarter| interleaved(each(rows, |row| row[quarter])));
        each([0, 1, 2, 3], |part| each(quarters, |quarter: Words| quarter[part]))
    }

    #[inline(always)]
    fn store_integers(self, integers: Words, values: &mut [i32; LANES]) {
        for (quarter, lanes) in integers.into_iter().zip(values.as_chunks_mut::<4>().0) {
            // SAFETY: every processor has the instructions; the reference covers the bytes.
            unsafe { vst1q_s32(lanes.as_mut_ptr(), quarter) }
        }
    }

    #[inline(always)]
    fn add_integers(self, a: Words, b: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vaddq_s32(a, b) })
    }

    #[inline(always)]
    fn subtract_integers(self, a: Words, b: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vsubq_s32(a, b) })
    }

    #[inline(always)]
    fn multiply_integers(self, a: Words, b: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vmulq_s32(a, b) })
    }

    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { vandq_s32(a, b) })
    }

    #[inline(always)]
    fn exclusive_or(self, a: Words, b: Words) -> Words {
        // SAFETY: every processor has the instructions.
        both(a, b, |a, b| unsafe { veorq_s32(a, b) })
    }

    #[inline(always)]
    fn shift_left(self, a: Words, bits: u32) -> Words {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vshlq_s32(a, vdupq_n_s32(bits as i32)) })
    }

    #[inline(always)]
    fn shift_right(self, a: Words, bits: u32) -> Words {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-(bits as i32)))) })
    }

    #[inline(always)]
    fn shift_right_signed(self, a: Words, bits: u32) -> Words {
        // SAFETY: every processor has the instructions.
        each(a, |a| unsafe { vshlq_s32(a, vdupq_n_s32(-(bits as i32))) })
    }

    #[inline(always)]
    fn dot(self, sum: Words, unsigned: Words, signed: Words) -> Words {
        let pairs = both(unsigned, signed, |unsigned, signed| (unsigned, signed));
        both(sum, pairs, |sum, (unsigned, signed)| {
            // An unsigned byte is 128 more than it with its highest bit turned, as a signed one.
            // SAFETY: every processor has the instructions.
            unsafe {
                let turned = veorq_s8(vreinterpretq_s8_s32(unsigned), vdupq_n_s8(-128));
                let signed = vreinterpretq_s8_s32(signed);
                let alone = signed_dot(vdupq_n_s32(0), vdupq_n_s8(1), signed);
                vaddq_s32(signed_dot(sum, turned, signed), vshlq_n_s32::<7>(alone))
            }
        })
    }

    #[inline(always)]
    fn dot_narrow(self, sum: Words, unsigned: Words, signed: Words) -> Words {
        let pairs = both(unsigned, signed, |unsigned, signed| (unsigned, signed));
        both(sum, pairs, |sum, (unsigned, signed)| {
            // SAFETY: every processor has the instructions.
            let (unsigned, signed) = unsafe { (vreinterpretq_s8_s32(unsigned), vreinterpretq_s8_s32(signed)) };
            signed_dot(sum, unsigned, signed)
        })
    }

    #[inline(always)]
    fn add_pairs(self, sums: Words, unsigned: Words, signed: Words) -> Words {
        let pairs = both(unsigned, signed, |unsigned, signed| (unsigned, signed));
        both(sums, pairs, |sums, (unsigned, signed)| {
            // SAFETY: every processor has the instructions.
            unsafe {
                let (unsigned, signed) = (vreinterpretq_s8_s32(unsigned), vreinterpretq_s8_s32(signed));
                let low = vmull_s8(vget_low_s8(unsigned), vget_low_s8(signed));
                let pairs = vpaddq_s16(low, vmull_high_s8(unsigned, signed));
                vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(sums), pairs))
            }
        })
    }

    #[inline(always)]
    fn dot_halves(self, sum: Words, a: Words, b: Words) -> Words {
        let pairs = both(a, b, |a, b| (a, b));
        both(sum, pairs, |sum, (a, b)| {
            // SAFETY: every processor has the instructions.
            unsafe {
                let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
                let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
                vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(a, b)))
            }
        })
    }

    #[inline(always)]
    fn prefetch<T>(self, values: &[T], ahead: usize) {
        let address = values.as_ptr().wrapping_add(ahead);
        // SAFETY: a prefetch of any address is only a hint.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, values: &[T], ahead: usize) {
        let address = values.as_ptr().wrapping_add(ahead);
        // SAFETY: a prefetch of any address is only a hint.
        unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
    }
}
