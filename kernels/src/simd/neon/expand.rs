//! Spreads bytes by look-ups whose places come from a table.

use std::arch::aarch64::*;

use crate::simd::expand::{LINE, bytes_at, portably, sources};

/// Of 8 elements of a byte.
static BYTES: [[u8; 8]; 256] = sources(1);

/// See `Simd::expand`.
#[inline]
#[target_feature(enable = "neon")]
pub fn expand<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    if WIDTH != 1 {
        return portably::<WIDTH>(masks, values, lines);
    }
    let (mut at, mut end) = (0, [0; LINE]);
    for (masks, line) in masks.as_chunks::<8>().0.iter().zip(lines) {
        at += bytes(masks, bytes_at(values, at, &mut end), line);
    }
}

/// Spreads elements of a byte; gives how many bytes that took.
#[inline]
#[target_feature(enable = "neon")]
fn bytes(masks: &[u8; 8], from: &[u8; LINE], line: &mut [u8; LINE]) -> usize {
    let mut at = 0;
    for (&mask, to) in masks.iter().zip(line.as_chunks_mut::<8>().0) {
        // SAFETY: each of the masks before this one takes at most 8 bytes, so that 8 are left; the other references cover theirs.
        unsafe {
            // A place behind the values gives zero.
            let places = vld1_u8(BYTES[mask as usize].as_ptr());
            vst1_u8(to.as_mut_ptr(), vtbl1_u8(vld1_u8(from.as_ptr().add(at)), places));
        }
        at += mask.count_ones() as usize;
    }
    at
}
