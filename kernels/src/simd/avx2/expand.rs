//! Spreads values by shuffles from a table.

use std::arch::x86_64::*;

use crate::simd::expand::{LINE, bytes_at, portably, sources};

/// Of 8 elements of a byte.
static BYTES: [[u8; 8]; 256] = sources(1);
/// Of 8 elements of two bytes.
static PAIRS: [[u8; 16]; 256] = sources(2);
/// Of 4 elements of four bytes.
static WORDS: [[u8; 16]; 16] = sources(4);

/// See `Simd::expand`.
#[inline]
#[target_feature(enable = "avx2")]
pub fn expand<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    let spread = lines.as_flattened_mut();
    let mut at = 0;
    match WIDTH {
        1 => {
            for (&mask, to) in masks.iter().zip(spread.as_chunks_mut::<8>().0) {
                let mut end = [0; 8];
                let from = bytes_at(values, at, &mut end);
                // SAFETY: the references cover the bytes.
                unsafe {
                    let shuffle = _mm_loadl_epi64(BYTES[mask as usize].as_ptr().cast());
                    let spread = _mm_shuffle_epi8(_mm_loadl_epi64(from.as_ptr().cast()), shuffle);
                    _mm_storel_epi64(to.as_mut_ptr().cast(), spread);
                }
                at += mask.count_ones() as usize;
            }
        }
        2 => {
            for (&mask, to) in masks.iter().zip(spread.as_chunks_mut::<16>().0) {
                shuffle(bytes_at(values, at, &mut [0; 16]), &PAIRS[mask as usize], to);
                at += 2 * mask.count_ones() as usize;
            }
        }
        4 => {
            let halves = masks.iter().flat_map(|mask| [mask & 15, mask >> 4]);
            for (mask, to) in halves.zip(spread.as_chunks_mut::<16>().0) {
                shuffle(bytes_at(values, at, &mut [0; 16]), &WORDS[mask as usize], to);
                at += 4 * mask.count_ones() as usize;
            }
        }
        _ => portably::<WIDTH>(masks, values, lines),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn shuffle(from: &[u8; 16], places: &[u8; 16], to: &mut [u8; 16]) {
    // SAFETY: the references cover the bytes.
    unsafe {
        let (from, places) = (_mm_loadu_si128(from.as_ptr().cast()), _mm_loadu_si128(places.as_ptr().cast()));
        _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_shuffle_epi8(from, places));
    }
}
