//! Spreads values by the instructions for that, a line at a time.

use std::arch::{asm, x86_64::*};

use crate::simd::{
    avx2::expand::expand as expand_by_shuffles,
    expand::{LINE, bytes_at, portably},
};

/// See `Simd::expand`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt")]
pub fn expand<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    // Detection is a load and a comparison, once for a record. Not every processor with the other instructions has these.
    if Expander::new().is_some() {
        // SAFETY: the processor has the instructions.
        unsafe { expand_lines::<WIDTH>(masks, values, lines) }
    } else {
        expand_by_shuffles::<WIDTH>(masks, values, lines);
    }
}

/// The token of AVX-512 VBMI2: a value exists only on processors with it.
#[derive(Clone, Copy)]
pub struct Expander(());

impl Expander {
    pub fn new() -> Option<Self> {
        is_x86_feature_detected!("avx512vbmi2").then_some(Self(()))
    }

    /// See `ExpandBytes`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn expand(self, mask: u64, values: &[u8]) -> __m512i {
        let from = match values.first_chunk() {
            Some(line) => load(line),
            // SAFETY: only bytes that the slice has are read.
            None => unsafe { _mm512_maskz_loadu_epi8((1 << values.len()) - 1, values.as_ptr().cast()) },
        };
        let spread;
        // The intrinsic would be called, not inlined, by a function that is not compiled for it.
        // SAFETY: the processor has the instruction, since `self` exists; it reads and writes registers.
        unsafe {
            asm!("vpexpandb {spread}{{{mask}}}{{z}}, {from}", spread = lateout(zmm_reg) spread, from = in(zmm_reg) from,
                mask = in(kreg) mask, options(pure, nomem, nostack, preserves_flags));
        }
        spread
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
fn expand_lines<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    let (mut at, mut end) = (0, [0; LINE]);
    match WIDTH {
        1 => {
            for (mask, line) in masks.as_chunks::<8>().0.iter().zip(lines) {
                let (mask, from) = (u64::from_le_bytes(*mask), bytes_at(values, at, &mut end));
                store(_mm512_maskz_expand_epi8(mask, load(from)), line);
                at += mask.count_ones() as usize;
            }
        }
        2 => {
            for (mask, line) in masks.as_chunks::<4>().0.iter().zip(lines) {
                let (mask, from) = (u32::from_le_bytes(*mask), bytes_at(values, at, &mut end));
                store(_mm512_maskz_expand_epi16(mask, load(from)), line);
                at += 2 * mask.count_ones() as usize;
            }
        }
        4 => {
            for (mask, line) in masks.as_chunks::<2>().0.iter().zip(lines) {
                let (mask, from) = (u16::from_le_bytes(*mask), bytes_at(values, at, &mut end));
                store(_mm512_maskz_expand_epi32(mask, load(from)), line);
                at += 4 * mask.count_ones() as usize;
            }
        }
        _ => portably::<WIDTH>(masks, values, lines),
    }
}

#[target_feature(enable = "avx512f")]
fn load(line: &[u8; LINE]) -> __m512i {
    // SAFETY: the reference covers the bytes.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, line: &mut [u8; LINE]) {
    // SAFETY: the reference covers the bytes.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), vector) }
}
