//! Vectors in two 256-bit registers.

pub(super) mod expand;

mod arithmetic;

use std::{arch::x86_64::*, convert::Infallible};

use half::{bf16, f16};

use super::{Arithmetic, HALF, LANES, Routine, Simd};

/// The token of AVX2, FMA and F16C: a value exists only on processors with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this processor has the instructions.
    #[must_use]
    pub fn new() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt");
        all.then_some(Self(()))
    }
}

/// An expression for each half of a vector. It is no closure: that would be compiled without the instructions, and what it calls then
/// often stays a call.
macro_rules! both {
    ($half:ident in $halves:expr => $value:expr) => {{
        let [low, high] = $halves;
        [
            {
                let $half = low;
                $value
            },
            {
                let $half = high;
                $value
            },
        ]
    }};
}
pub(super) use both;

/// Runs `routine` with the instructions enabled, so that everything inlined into it uses them.
#[target_feature(enable = "avx2,fma,f16c,popcnt")]
fn run_enabled<R: Routine>(simd: Avx2, routine: R) -> R::Output {
    routine.run(simd)
}

impl Simd for Avx2 {
    type Integers = [__m256i; 2];
    type Expander = Infallible;

    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 1;
    const HAS_OWN_LOOPS: bool = true;
    const LOOKS_UP: bool = false;
    const SUMS_HALVES: bool = true;

    // Or a routine with all that it runs would become one function, too large to keep the sums of inner loops in registers.
    // `inline(never)` on a function with `target_feature` has no effect.
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
    fn load(self, values: &[f32; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, values: &mut [f32; LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), vector[0]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), vector[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            both!(first in [0, 8] => {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(values.as_ptr().add(first).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32(words, 16))
            })
        }
    }

    #[inline(always)]
    fn load_bf16_even(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let pairs = pairs.as_ptr().cast::<__m256i>();
            [
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs.add(1)), 16)),
            ]
        }
    }

    #[inline(always)]
    fn load_bf16_odd(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let pairs = pairs.as_ptr().cast::<__m256i>();
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs), high)),
                _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs.add(1)), high)),
            ]
        }
    }

    #[inline(always)]
    fn store_f16(self, vector: Self::Vector, values: &mut [f16; LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let [low, high] = both!(half in vector => _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half));
            _mm_storeu_si128(values.as_mut_ptr().cast(), low);
            _mm_storeu_si128(values.as_mut_ptr().add(8).cast(), high);
        }
    }

    #[inline(always)]
    fn fused_exactly(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.fused(a, b, c)
    }

    #[inline(always)]
    fn fused_wide(self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn load_halves(self, low: &[f32; HALF], high: &[f32; HALF]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the references cover the bytes.
        unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] }
    }

    #[inline(always)]
    fn store_halves(self, vector: Self::Vector, low: &mut [f32; HALF], high: &mut [f32; HALF]) {
        // SAFETY: `self` exists, so the processor has the instructions; the references cover the bytes.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), vector[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), vector[1]);
        }
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_set1_ps(low), _mm256_set1_ps(high)] }
    }

    #[inline(always)]
    fn load_even(self, values: &[f32; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            both!(first in [0, LANES] => {
                let low = _mm256_loadu_ps(values.as_ptr().add(first));
                let high = _mm256_loadu_ps(values.as_ptr().add(first + 8));
                let halves = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(halves))
            })
        }
    }

    #[inline(always)]
    fn load_quarters(self, values: &[f32; 4 * LANES]) -> [Self::Vector; 4] {
        let mut quarters = [[self.splat(0.0)[0]; 2]; 4];
        for (half, values) in values.as_chunks::<32>().0.iter().enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|place| values.as_chunks::<8>().0[place].as_ptr());
            // SAFETY: `self` exists, so the processor has the instructions; each pointer is that of 8 values.
            let [a, b, c, d] = unsafe {
                let (a, b, c, d) = (_mm256_loadu_ps(a), _mm256_loadu_ps(b), _mm256_loadu_ps(c), _mm256_loadu_ps(d));
                // Lanes 0 and 4, 1 and 5, 2 and 6, 3 and 7 of the four vectors.
                transpose_quads([
                    _mm256_permute2f128_ps::<0x20>(a, c),
                    _mm256_permute2f128_ps::<0x31>(a, c),
                    _mm256_permute2f128_ps::<0x20>(b, d),
                    _mm256_permute2f128_ps::<0x31>(b, d),
                ])
            };
            (quarters[0][half], quarters[1][half], quarters[2][half], quarters[3][half]) = (a, b, c, d);
        }
        quarters
    }

    #[inline(always)]
    fn store_quarters(self, quarters: [Self::Vector; 4], values: &mut [f32; 4 * LANES]) {
        let [a, b, c, d] = quarters;
        for (half, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // SAFETY: `self` exists, so the processor has the instructions.
            let lanes = unsafe {
                let [a, b, c, d] = transpose_quads([a[half], b[half], c[half], d[half]]);
                [
                    _mm256_permute2f128_ps::<0x20>(a, b),
                    _mm256_permute2f128_ps::<0x20>(c, d),
                    _mm256_permute2f128_ps::<0x31>(a, b),
                    _mm256_permute2f128_ps::<0x31>(c, d),
                ]
            };
            for (lanes, values) in lanes.into_iter().zip(values.as_chunks_mut::<8>().0) {
                // SAFETY: as above; there are 8 values.
                unsafe { _mm256_storeu_ps(values.as_mut_ptr(), lanes) };
            }
        }
    }

    #[inline(always)]
    fn narrow(self, [a, b, c, d]: [Self::Integers; 4], added: i32, signed: bool) -> [u8; 4 * LANES] {
        // SAFETY: `self` exists, so the processor has the instructions; both types have 64 bytes, and any are values of them.
        unsafe {
            // 16 bits hold the sum of what they are limited to, or are limited where bytes are.
            let added = _mm256_set1_epi16(added as i16);
            let [ab, cd] = both!(pair in [[a, b], [c, d]] => {
                both!(vector in pair => _mm256_adds_epi16(_mm256_packs_epi32(vector[0], vector[1]), added))
            });
            // Each half has four lanes of each vector's halves in turn.
            let places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            std::mem::transmute(both!(words in [ab, cd] => {
                let [a, b] = words;
                let bytes = if signed { _mm256_packs_epi16(a, b) } else { _mm256_packus_epi16(a, b) };
                _mm256_permutevar8x32_epi32(bytes, places)
            }))
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES] {
        let mut columns = rows;
        for half in 0..2 {
            let (mut upper, mut lower) = ([rows[0][0]; 8], [rows[0][0]; 8]);
            for row in 0..8 {
                upper[row] = rows[row][half];
                lower[row] = rows[row + 8][half];
            }
            let (upper, lower) = (transpose_half(upper), transpose_half(lower));
            for column in 0..8 {
                columns[8 * half + column] = [upper[column], lower[column]];
            }
        }
        columns
    }

    #[inline(always)]
    fn round_to_f16(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { both!(half in a => _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half))) }
    }

    #[inline(always)]
    fn round_to_bf16(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let (least, one) = (_mm256_set1_epi32(0x7fff), _mm256_set1_epi32(1));
            let (high, quiet) = (_mm256_set1_epi32(0xffff_0000_u32 as i32), _mm256_set1_epi32(0x0040_0000));
            both!(half in a => {
                let bits = _mm256_castps_si256(half);
                let odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
                let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, least), odd);
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(half, half);
                let quieted = _mm256_castsi256_ps(_mm256_or_si256(bits, quiet));
                let chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quieted, nan);
                _mm256_and_ps(chosen, _mm256_castsi256_ps(high))
            })
        }
    }

    #[inline(always)]
    fn lookup(self, table: Self::Vector, places: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            both!(places in places => {
                let low = _mm256_permutevar8x32_ps(table[0], places);
                let high = _mm256_permutevar8x32_ps(table[1], places);
                _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28)))
            })
        }
    }

    #[inline(always)]
    fn lookup_bytes(self, table: Self::Integers, places: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_shuffle_epi8(table[0], places[0]), _mm256_shuffle_epi8(table[1], places[1])] }
    }

    #[inline(always)]
    fn convert(self, a: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn nearest_integers(self, a: Self::Vector) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            both!(half in a => {
                // What no i32 holds comes out as the least one.
                let nearest = _mm256_castsi256_ps(_mm256_cvtps_epi32(half));
                let above = _mm256_cmp_ps::<_CMP_GE_OQ>(half, _mm256_set1_ps(2_147_483_648.0));
                let greatest = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
                let nearest = _mm256_blendv_ps(nearest, greatest, above);
                _mm256_castps_si256(_mm256_and_ps(nearest, _mm256_cmp_ps::<_CMP_ORD_Q>(half, half)))
            })
        }
    }

    #[inline(always)]
    fn nearest_of_near(self, a: Self::Vector) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { both!(half in a => _mm256_cvtps_epi32(half)) }
    }

    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { [_mm256_loadu_si256(values.as_ptr().cast()), _mm256_loadu_si256(values.as_ptr().add(8).cast())] }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { [_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn load_e4m3(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4] {
        load_f8::<false>(bytes)
    }

    #[inline(always)]
    fn load_e5m2(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4] {
        load_f8::<true>(bytes)
    }

    #[inline(always)]
    fn bits(self, a: Self::Vector) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_castps_si256(a[0]), _mm256_castps_si256(a[1])] }
    }

    #[inline(always)]
    fn of_bits(self, bits: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_castsi256_ps(bits[0]), _mm256_castsi256_ps(bits[1])] }
    }

    #[inline(always)]
    fn store_integers(self, integers: Self::Integers, values: &mut [i32; LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            _mm256_storeu_si256(values.as_mut_ptr().cast(), integers[0]);
            _mm256_storeu_si256(values.as_mut_ptr().add(8).cast(), integers[1]);
        }
    }

    #[inline(always)]
    fn add_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn subtract_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn multiply_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn and(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn exclusive_or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_left(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bits = _mm_cvtsi32_si128(bits as i32);
            [_mm256_sll_epi32(a[0], bits), _mm256_sll_epi32(a[1], bits)]
        }
    }

    #[inline(always)]
    fn shift_right(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bits = _mm_cvtsi32_si128(bits as i32);
            [_mm256_srl_epi32(a[0], bits), _mm256_srl_epi32(a[1], bits)]
        }
    }

    #[inline(always)]
    fn shift_right_signed(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bits = _mm_cvtsi32_si128(bits as i32);
            [_mm256_sra_epi32(a[0], bits), _mm256_sra_epi32(a[1], bits)]
        }
    }

    #[inline(always)]
    fn dot(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            // Sums of two products of bytes would saturate at 16 bits: even and odd bytes are multiplied as 16 bits. What is made of an
            // operand is made once for all products that it is part of.
            both!(half in [0, 1] => {
                let (sum, unsigned, signed) = (sum[half], unsigned[half], signed[half]);
                let even = _mm256_and_si256(unsigned, _mm256_set1_epi16(0xff));
                let even_signed = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed));
                let (odd, odd_signed) = (_mm256_srli_epi16::<8>(unsigned), _mm256_srai_epi16::<8>(signed));
                let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, even_signed));
                _mm256_add_epi32(sum, _mm256_madd_epi16(odd, odd_signed))
            })
        }
    }

    #[inline(always)]
    fn dot_narrow(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            both!(half in [0, 1] => {
                let pairs = _mm256_maddubs_epi16(unsigned[half], signed[half]);
                _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, ones))
            })
        }
    }

    #[inline(always)]
    fn add_pairs(self, sums: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            // Sums fit, so that saturating changes nothing. Those that wrap around are reordered by the compiler, which then keeps all
            // products in registers until it adds them.
            both!(half in [0, 1] => _mm256_adds_epi16(sums[half], _mm256_maddubs_epi16(unsigned[half], signed[half])))
        }
    }

    #[inline(always)]
    fn dot_halves(self, sum: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { both!(half in [0, 1] => _mm256_add_epi32(sum[half], _mm256_madd_epi16(a[half], b[half]))) }
    }

    #[inline(always)]
    fn interleave_bytes(self, [a, b, c, d]: [Self::Integers; 4]) -> [Self::Integers; 4] {
        let mut words = [[a[0]; 2]; 4];
        for half in 0..2 {
            // SAFETY: `self` exists, so the processor has the instructions.
            unsafe {
                let (a, b, c, d) = (a[half], b[half], c[half], d[half]);
                let (first, third) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let (second, fourth) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
                words[0][half] = _mm256_unpacklo_epi16(first, second);
                words[1][half] = _mm256_unpackhi_epi16(first, second);
                words[2][half] = _mm256_unpacklo_epi16(third, fourth);
                words[3][half] = _mm256_unpackhi_epi16(third, fourth);
            }
        }
        words
    }

    #[inline(always)]
    fn prefetch<T>(self, values: &[T], ahead: usize) {
        // SAFETY: a prefetch of any address is only a hint.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(ahead).cast()) }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, values: &[T], ahead: usize) {
        // SAFETY: a prefetch of any address is only a hint.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(values.as_ptr().wrapping_add(ahead).cast()) }
    }

    #[inline(always)]
    fn load_partial(self, values: &[f32]) -> Self::Vector {
        if let Some(whole) = values.first_chunk() {
            return self.load(whole);
        }
        let (low, high) = lane_masks(values.len());
        // SAFETY: `self` exists, so the processor has the instructions; lanes outside of the slice are masked.
        unsafe {
            let start = values.as_ptr();
            [_mm256_maskload_ps(start, load_mask(low)), _mm256_maskload_ps(start.wrapping_add(8), load_mask(high))]
        }
    }

    #[inline(always)]
    fn store_partial(self, vector: Self::Vector, values: &mut [f32]) {
        if let Some(whole) = values.first_chunk_mut() {
            return self.store(vector, whole);
        }
        // A masked store takes as long as forty others on some processors (Fog, "Instruction tables", Zen 3).
        let (halves, rest) = values.as_chunks_mut::<8>();
        let last = vector[halves.len() % 2];
        for (half, vector) in halves.iter_mut().zip(vector) {
            // SAFETY: `self` exists, so the processor has the instructions; there are 8 values.
            unsafe { _mm256_storeu_ps(half.as_mut_ptr(), vector) };
        }
        // SAFETY: `self` exists, so the processor has the instructions.
        let [mut four, others] = unsafe { [_mm256_castps256_ps128(last), _mm256_extractf128_ps(last, 1)] };
        let (quarters, rest) = rest.as_chunks_mut::<4>();
        for quarter in quarters {
            // SAFETY: as above; there are 4 values.
            unsafe { _mm_storeu_ps(quarter.as_mut_ptr(), four) };
            four = others;
        }
        let (pairs, rest) = rest.as_chunks_mut::<2>();
        for pair in pairs {
            // SAFETY: as above; there are 2 values, and their address may be any.
            unsafe {
                _mm_storel_epi64(pair.as_mut_ptr().cast(), _mm_castps_si128(four));
                four = _mm_movehl_ps(four, four);
            }
        }
        for value in rest {
            // SAFETY: as above.
            *value = unsafe { _mm_cvtss_f32(four) };
        }
    }
}

/// The mask of a first half and of a second half of the first `count` lanes.
#[inline(always)]
fn lane_masks(count: usize) -> (&'static [i32; 8], &'static [i32; 8]) {
    static ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let first = |count: usize| {
        let mask = ONES_THEN_ZEROS[8 - count.min(8)..].first_chunk();
        mask.unwrap_or(&[0; 8])
    };
    (first(count), first(count.saturating_sub(8)))
}

/// A mask in a register.
#[inline(always)]
fn load_mask(mask: &[i32; 8]) -> __m256i {
    // SAFETY: called by methods of the token only; the reference covers the bytes.
    unsafe { _mm256_loadu_si256(mask.as_ptr().cast()) }
}

/// The columns of each half of four rows: the first half of row `r` of the result has the values at place `r` of the first halves,
/// the second half those at place `r` of the second halves.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn transpose_quads([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: as the caller promises.
    unsafe {
        let (first, third) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (second, fourth) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(first, second),
            _mm256_shuffle_ps::<0xee>(first, second),
            _mm256_shuffle_ps::<0x44>(third, fourth),
            _mm256_shuffle_ps::<0xee>(third, fourth),
        ]
    }
}

/// The columns of 8 rows of 8 lanes.
#[inline(always)]
fn transpose_half(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: called by methods of the token only, so the processor has the instructions.
    unsafe {
        // Afterwards `quads[4 * i + j]` holds in its 128-bit lane L the column 4 * L + j of rows 4 * i to 4 * i + 3.
        let (mut pairs, mut quads, mut columns) = (rows, rows, rows);
        for pair in 0..4 {
            pairs[2 * pair] = _mm256_unpacklo_ps(rows[2 * pair], rows[2 * pair + 1]);
            pairs[2 * pair + 1] = _mm256_unpackhi_ps(rows[2 * pair], rows[2 * pair + 1]);
        }
        for quad in [0, 4] {
            for half in 0..2 {
                let low = _mm256_castps_pd(pairs[quad + half]);
                let high = _mm256_castps_pd(pairs[quad + half + 2]);
                quads[quad + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
                quads[quad + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
            }
        }
        for column in 0..4 {
            columns[column] = _mm256_permute2f128_ps::<0x20>(quads[column], quads[column + 4]);
            columns[column + 4] = _mm256_permute2f128_ps::<0x31>(quads[column], quads[column + 4]);
        }
        columns
    }
}

/// The values of floats of 8 bits, byte `i` of the 4 of each lane in vector `i`, by way of f16.
///
/// An f8e5m2 is the upper half of an f16. An f8e4m3fn moved down by one bit is an f16 of a 256th of its value, subnormal ones
/// included; its NaN has to be set.
#[inline(always)]
fn load_f8<const E5M2: bool>(bytes: &[u8; 4 * LANES]) -> [[__m256; 2]; 4] {
    // SAFETY: called by methods of the token only, so the processor has the instructions; the reference covers the bytes.
    unsafe {
        let mut quarters = [[_mm256_setzero_ps(); 2]; 4];
        for half in 0..2 {
            let line = _mm256_loadu_si256(bytes.as_ptr().add(32 * half).cast());
            for pair in 0..2 {
                // The bytes of two places as the upper halves of words, the first place of each 128 bits before the second.
                let first = _mm_setr_epi8(-1, 0, -1, 4, -1, 8, -1, 12, -1, 1, -1, 5, -1, 9, -1, 13);
                let places = _mm256_add_epi8(_mm256_broadcastsi128_si256(first), _mm256_set1_epi16(512 * pair as i16));
                let mut words = _mm256_shuffle_epi8(line, places);
                if !E5M2 {
                    words = _mm256_and_si256(_mm256_srai_epi16::<1>(words), _mm256_set1_epi16(0xbf80_u16 as i16));
                    let largest = _mm256_set1_epi16(0x3f80);
                    let nan = _mm256_cmpeq_epi16(_mm256_and_si256(words, largest), largest);
                    words = _mm256_or_si256(words, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
                }
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                let factor = _mm256_set1_ps(256.0);
                let low = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
                let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(words));
                quarters[2 * pair][half] = if E5M2 { low } else { _mm256_mul_ps(low, factor) };
                quarters[2 * pair + 1][half] = if E5M2 { high } else { _mm256_mul_ps(high, factor) };
            }
        }
        quarters
    }
}
