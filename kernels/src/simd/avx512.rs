//! Vectors in one 512-bit register.

mod arithmetic;
mod expand;

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Arithmetic, ExpandBytes, HALF, LANES, Routine, Simd};

/// The token of AVX-512 F, BW, DQ, VL and VNNI (and AVX2, FMA, F16C): a value exists only on processors with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if this processor has the instructions.
    #[must_use]
    pub fn new() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt");
        all.then_some(Self(()))
    }
}

/// Runs `routine` with the instructions enabled, so that everything inlined into it uses them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt")]
fn run_enabled<R: Routine>(simd: Avx512, routine: R) -> R::Output {
    routine.run(simd)
}

impl ExpandBytes<Avx512> for expand::Expander {
    #[inline(always)]
    fn expand_bytes(self, _simd: Avx512, mask: u64, values: &[u8]) -> __m512i {
        // SAFETY: an `Avx512` exists, so the processor has the instructions.
        unsafe { self.expand(mask, values) }
    }
}

impl Simd for Avx512 {
    type Integers = __m512i;
    type Expander = expand::Expander;

    const TILE_ROWS: usize = 8;
    const TILE_VECTORS: usize = 3;
    const HAS_OWN_LOOPS: bool = true;
    const LOOKS_UP: bool = true;
    const SUMS_HALVES: bool = false;

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
    fn expander(self) -> Option<expand::Expander> {
        expand::Expander::new()
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, values: &mut [f32; LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32(words, 16))
        }
    }

    #[inline(always)]
    fn load_bf16_even(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs.as_ptr().cast()), 16)) }
    }

    #[inline(always)]
    fn load_bf16_odd(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs.as_ptr().cast()), high))
        }
    }

    #[inline(always)]
    fn store_f16(self, vector: Self::Vector, values: &mut [f16; LANES]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), _mm512_cvtps_ph::<NEAREST>(vector)) }
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
        unsafe {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(low.as_ptr()));
            let high = _mm256_castps_pd(_mm256_loadu_ps(high.as_ptr()));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castps_pd(low), high))
        }
    }

    #[inline(always)]
    fn store_halves(self, vector: Self::Vector, low: &mut [f32; HALF], high: &mut [f32; HALF]) {
        // SAFETY: `self` exists, so the processor has the instructions; the references cover the bytes.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), _mm512_castps512_ps256(vector));
            let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(vector));
            _mm256_storeu_ps(high.as_mut_ptr(), _mm256_castpd_ps(upper));
        }
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(low), _mm512_set1_ps(high)) }
    }

    #[inline(always)]
    fn load_even(self, values: &[f32; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let (low, high) = (_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(LANES)));
            _mm512_permutex2var_ps(low, even, high)
        }
    }

    #[inline(always)]
    fn load_quarters(self, values: &[f32; 4 * LANES]) -> [Self::Vector; 4] {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            let read = |vector: usize| _mm512_loadu_ps(values.as_ptr().add(vector * LANES));
            let vectors = [read(0), read(1), read(2), read(3)];
            // Places of the first quarter in two vectors, in the lower half.
            let first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
            let mut quarters = [_mm512_setzero_ps(); 4];
            for (quarter, result) in quarters.iter_mut().enumerate() {
                let places = _mm512_add_epi32(first, _mm512_set1_epi32(quarter as i32));
                let low = _mm512_permutex2var_ps(vectors[0], places, vectors[1]);
                let high = _mm512_permutex2var_ps(vectors[2], places, vectors[3]);
                *result = _mm512_shuffle_f32x4::<0b01_00_01_00>(low, high);
            }
            quarters
        }
    }

    #[inline(always)]
    fn store_quarters(self, quarters: [Self::Vector; 4], values: &mut [f32; 4 * LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe {
            // Lanes 0, 1, 2, 3 of two vectors by turns, at two of four places.
            let first = _mm512_setr_epi32(0, 16, 0, 16, 1, 17, 1, 17, 2, 18, 2, 18, 3, 19, 3, 19);
            for vector in 0..4 {
                let places = _mm512_add_epi32(first, _mm512_set1_epi32(4 * vector as i32));
                let low = _mm512_permutex2var_ps(quarters[0], places, quarters[1]);
                let high = _mm512_permutex2var_ps(quarters[2], places, quarters[3]);
                let joined = _mm512_mask_blend_ps(0b1100_1100_1100_1100, low, high);
                _mm512_storeu_ps(values.as_mut_ptr().add(vector * LANES), joined);
            }
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let zero = _mm512_setzero_ps();
            // Afterwards `quads[4 * i + j]` holds in its 128-bit lane L the column 4 * L + j of rows 4 * i to 4 * i + 3.
            let (mut pairs, mut quads, mut columns) = ([zero; LANES], [zero; LANES], [zero; LANES]);
            for pair in 0..LANES / 2 {
                pairs[2 * pair] = _mm512_unpacklo_ps(rows[2 * pair], rows[2 * pair + 1]);
                pairs[2 * pair + 1] = _mm512_unpackhi_ps(rows[2 * pair], rows[2 * pair + 1]);
            }
            for quad in (0..LANES).step_by(4) {
                for half in 0..2 {
                    let low = _mm512_castps_pd(pairs[quad + half]);
                    let high = _mm512_castps_pd(pairs[quad + half + 2]);
                    quads[quad + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    quads[quad + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            }
            for column in 0..4 {
                const EVEN: i32 = 0b10_00_10_00;
                const ODD: i32 = 0b11_01_11_01;
                let upper = (quads[column], quads[column + 4]);
                let lower = (quads[column + 8], quads[column + 12]);
                let even =
                    (_mm512_shuffle_f32x4::<EVEN>(upper.0, upper.1), _mm512_shuffle_f32x4::<EVEN>(lower.0, lower.1));
                let odd =
                    (_mm512_shuffle_f32x4::<ODD>(upper.0, upper.1), _mm512_shuffle_f32x4::<ODD>(lower.0, lower.1));
                columns[column] = _mm512_shuffle_f32x4::<EVEN>(even.0, even.1);
                columns[column + 4] = _mm512_shuffle_f32x4::<EVEN>(odd.0, odd.1);
                columns[column + 8] = _mm512_shuffle_f32x4::<ODD>(even.0, even.1);
                columns[column + 12] = _mm512_shuffle_f32x4::<ODD>(odd.0, odd.1);
            }
            columns
        }
    }

    #[inline(always)]
    fn round_to_f16(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            _mm512_cvtph_ps(_mm512_cvtps_ph::<NEAREST>(a))
        }
    }

    #[inline(always)]
    fn round_to_bf16(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let chosen = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
            _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }

    #[inline(always)]
    fn lookup(self, table: Self::Vector, places: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_permutexvar_ps(places, table) }
    }

    #[inline(always)]
    fn lookup_bytes(self, table: Self::Integers, places: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_shuffle_epi8(table, places) }
    }

    #[inline(always)]
    fn convert(self, a: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn nearest_integers(self, a: Self::Vector) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            // What no i32 holds comes out as the least one.
            let nearest = _mm512_cvtps_epi32(a);
            let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, _mm512_set1_ps(2_147_483_648.0));
            let nearest = _mm512_mask_mov_epi32(nearest, above, _mm512_set1_epi32(i32::MAX));
            _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a), nearest)
        }
    }

    #[inline(always)]
    fn nearest_of_near(self, a: Self::Vector) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
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
        unsafe { _mm512_castps_si512(a) }
    }

    #[inline(always)]
    fn of_bits(self, bits: Self::Integers) -> Self::Vector {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_castsi512_ps(bits) }
    }

    #[inline(always)]
    fn store_integers(self, integers: Self::Integers, values: &mut [i32; LANES]) {
        // SAFETY: `self` exists, so the processor has the instructions; the reference covers the bytes.
        unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), integers) }
    }

    #[inline(always)]
    fn add_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn subtract_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn multiply_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn and(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn exclusive_or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn shift_left(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)) }
    }

    #[inline(always)]
    fn shift_right(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits as i32)) }
    }

    #[inline(always)]
    fn shift_right_signed(self, a: Self::Integers, bits: u32) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(bits as i32)) }
    }

    #[inline(always)]
    fn signed_byte(self, a: Self::Integers, place: u32) -> Self::Integers {
        // One instruction in place of two shifts: 1 times this byte and 0 times the others.
        self.dot(self.splat_integer(0), self.splat_integer(1 << (8 * place)), a)
    }

    #[inline(always)]
    fn dot(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_dpbusd_epi32(sum, unsigned, signed) }
    }

    #[inline(always)]
    fn dot_narrow(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_dpbusd_epi32(sum, unsigned, signed) }
    }

    #[inline(always)]
    fn add_pairs(self, sums: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_add_epi16(sums, _mm512_maddubs_epi16(unsigned, signed)) }
    }

    #[inline(always)]
    fn dot_halves(self, sum: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn narrow(self, [a, b, c, d]: [Self::Integers; 4], added: i32, signed: bool) -> [u8; 4 * LANES] {
        // SAFETY: `self` exists, so the processor has the instructions; both types have 64 bytes, and any are values of them.
        unsafe {
            // 16 bits hold the sum of what they are limited to, or are limited where bytes are.
            let added = _mm512_set1_epi16(added as i16);
            let (first, second) = (_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            let (first, second) = (_mm512_adds_epi16(first, added), _mm512_adds_epi16(second, added));
            let bytes = if signed { _mm512_packs_epi16(first, second) } else { _mm512_packus_epi16(first, second) };
            // Each quarter has four lanes of all vectors.
            let places = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            std::mem::transmute(_mm512_permutexvar_epi32(places, bytes))
        }
    }

    #[inline(always)]
    fn narrow_quarters(self, [a, b, c, d]: [Self::Integers; 4], added: i32, signed: bool) -> [u8; 4 * LANES] {
        // SAFETY: `self` exists, so the processor has the instructions; both types have 64 bytes, and any are values of them.
        unsafe {
            // As `narrow`, whose last step is another: each quarter has its lanes of all vectors.
            let added = _mm512_set1_epi16(added as i16);
            let (first, second) = (_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            let (first, second) = (_mm512_adds_epi16(first, added), _mm512_adds_epi16(second, added));
            let bytes = if signed { _mm512_packs_epi16(first, second) } else { _mm512_packus_epi16(first, second) };
            let places = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            std::mem::transmute(_mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(places)))
        }
    }

    #[inline(always)]
    fn interleave_bytes(self, [a, b, c, d]: [Self::Integers; 4]) -> [Self::Integers; 4] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe {
            let (first, third) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
            let (second, fourth) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
            [
                _mm512_unpacklo_epi16(first, second),
                _mm512_unpackhi_epi16(first, second),
                _mm512_unpacklo_epi16(third, fourth),
                _mm512_unpackhi_epi16(third, fourth),
            ]
        }
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
        let mask = lane_mask(values.len());
        // SAFETY: `self` exists, so the processor has the instructions; lanes outside of the slice are masked.
        unsafe { _mm512_maskz_loadu_ps(mask, values.as_ptr()) }
    }

    #[inline(always)]
    fn store_partial(self, vector: Self::Vector, values: &mut [f32]) {
        let mask = lane_mask(values.len());
        // SAFETY: `self` exists, so the processor has the instructions; lanes outside of the slice are masked.
        unsafe { _mm512_mask_storeu_ps(values.as_mut_ptr(), mask, vector) }
    }
}

/// The first `count` lanes, at most 16.
#[inline(always)]
fn lane_mask(count: usize) -> __mmask16 {
    if count >= LANES { !0 } else { (1 << count) - 1 }
}

/// The values of floats of 8 bits, byte `i` of the 4 of each lane in vector `i`, by way of f16.
///
/// An f8e5m2 is the upper half of an f16. An f8e4m3fn moved down by one bit is an f16 of a 256th of its value, subnormal ones
/// included; its NaN has to be set.
#[inline(always)]
fn load_f8<const E5M2: bool>(bytes: &[u8; 4 * LANES]) -> [__m512; 4] {
    // SAFETY: called by methods of the token only, so the processor has the instructions; the reference covers the bytes.
    unsafe {
        let line = _mm512_loadu_si512(bytes.as_ptr().cast());
        let mut quarters = [_mm512_setzero_ps(); 4];
        for pair in 0..2 {
            // The bytes of two places as the upper halves of words, the first place of each 128 bits before the second.
            let first = _mm_setr_epi8(-1, 0, -1, 4, -1, 8, -1, 12, -1, 1, -1, 5, -1, 9, -1, 13);
            let places = _mm512_add_epi8(_mm512_broadcast_i32x4(first), _mm512_set1_epi16(512 * pair as i16));
            let mut words = _mm512_shuffle_epi8(line, places);
            if !E5M2 {
                words = _mm512_and_si512(_mm512_srai_epi16::<1>(words), _mm512_set1_epi16(0xbf80_u16 as i16));
                let largest = _mm512_set1_epi16(0x3f80);
                let nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, largest), largest);
                words = _mm512_mask_mov_epi16(words, nan, _mm512_set1_epi16(0x7e00));
            }
            let words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), words);
            let factor = _mm512_set1_ps(256.0);
            let low = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
            let high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(words));
            quarters[2 * pair] = if E5M2 { low } else { _mm512_mul_ps(low, factor) };
            quarters[2 * pair + 1] = if E5M2 { high } else { _mm512_mul_ps(high, factor) };
        }
        quarters
    }
}
