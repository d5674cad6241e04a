//! Spreads values by the instructions for that, a line at a time.

use std::arch::x86_64::*;

use crate::simd::{
    avx2::expand::expand as expand_by_shuffles,
    expand::{LINE, bytes_at, portably},
};

/// See `Simd::expand`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub fn expand<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    // Detection is a load and a comparison, once for a record. Not every processor with the other instructions has these.
    if is_x86_feature_detected!("avx512vbmi2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has the instructions.
        unsafe { expand_lines::<WIDTH>(masks, values, lines) }
    } else {
        expand_by_shuffles::<WIDTH>(masks, values, lines);
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
