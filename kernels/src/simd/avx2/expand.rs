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
#[target_feature(enable = "avx2,popcnt")]
pub fn expand<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    let (mut at, mut end) = (0, [0; LINE]);
    // A line takes at most as many bytes as it has, so that only the end of the values is looked at apart.
    match WIDTH {
        1 => {
            for (masks, line) in masks.as_chunks::<8>().0.iter().zip(lines) {
                at += bytes(masks, bytes_at(values, at, &mut end), line);
            }
        }
        2 => {
            for (masks, line) in masks.as_chunks::<4>().0.iter().zip(lines) {
                at += pairs(masks, bytes_at(values, at, &mut end), line);
            }
        }
        4 => {
            for (masks, line) in masks.as_chunks::<2>().0.iter().zip(lines) {
                at += words(masks, bytes_at(values, at, &mut end), line);
            }
        }
        _ => portably::<WIDTH>(masks, values, lines),
    }
}

/// Spreads elements of a byte; gives how many bytes that took.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn bytes(masks: &[u8; 8], from: &[u8; LINE], line: &mut [u8; LINE]) -> usize {
    let mut at = 0;
    for (&mask, to) in masks.iter().zip(line.as_chunks_mut::<8>().0) {
        // SAFETY: each of the masks before this one takes at most 8 bytes, so that 8 are left; the other references cover theirs.
        unsafe {
            let shuffle = _mm_loadl_epi64(BYTES[mask as usize].as_ptr().cast());
            let spread = _mm_shuffle_epi8(_mm_loadl_epi64(from.as_ptr().add(at).cast()), shuffle);
            _mm_storel_epi64(to.as_mut_ptr().cast(), spread);
        }
        at += mask.count_ones() as usize;
    }
    at
}

/// The same of elements of two bytes.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn pairs(masks: &[u8; 4], from: &[u8; LINE], line: &mut [u8; LINE]) -> usize {
    let mut at = 0;
    for (&mask, to) in masks.iter().zip(line.as_chunks_mut::<16>().0) {
        // SAFETY: each of the masks before this one takes at most 16 bytes, so that 16 are left.
        unsafe { shuffle(from.as_ptr().add(at), &PAIRS[mask as usize], to) };
        at += 2 * mask.count_ones() as usize;
    }
    at
}

/// The same of elements of four bytes.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn words(masks: &[u8; 2], from: &[u8; LINE], line: &mut [u8; LINE]) -> usize {
    let mut at = 0;
    let halves = [masks[0] & 15, masks[0] >> 4, masks[1] & 15, masks[1] >> 4];
    for (mask, to) in halves.into_iter().zip(line.as_chunks_mut::<16>().0) {
        // SAFETY: each of the masks before this one takes at most 16 bytes, so that 16 are left.
        unsafe { shuffle(from.as_ptr().add(at), &WORDS[mask as usize], to) };
        at += 4 * mask.count_ones() as usize;
    }
    at
}

/// # Safety
/// 16 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn shuffle(from: *const u8, places: &[u8; 16], to: &mut [u8; 16]) {
    // SAFETY: the caller vouches for `from`; the references cover the bytes.
    unsafe {
        let (from, places) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(places.as_ptr().cast()));
        _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_shuffle_epi8(from, places));
    }
}
