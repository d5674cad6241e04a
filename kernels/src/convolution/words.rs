//! Codes of four channels side by side in a word.

use crate::simd::{LANES, Simd};

/// Channels of a word.
pub(super) const WORD_CHANNELS: usize = 4;

/// By how much flipping its highest bit moves a code.
pub(super) const FLIPPED: i32 = 128;

/// Positions whose codes are interleaved at a time.
const TOGETHER: usize = WORD_CHANNELS * LANES;

/// Four channels side by side, some bits of which are flipped; what is behind their ends is anything.
#[inline(always)]
pub(super) fn interleave<S: Simd>(simd: S, rows: [&[u8]; WORD_CHANNELS], flip: i32, line: &mut [i32]) {
    let count = rows.iter().map(|row| row.len()).min().unwrap_or(0).min(line.len());
    let [a, b, c, d] = rows.map(|row| row[..count].as_chunks::<TOGETHER>());
    let (whole, rest) = line.as_chunks_mut::<TOGETHER>();
    for (index, words) in whole.iter_mut().enumerate().take(count / TOGETHER) {
        interleave_whole(simd, [&a.0[index], &b.0[index], &c.0[index], &d.0[index]], flip, words);
    }
    let last = count - count % TOGETHER;
    let mut own = [[0; TOGETHER]; WORD_CHANNELS];
    for (own, (_, rest)) in own.iter_mut().zip([a, b, c, d]) {
        own[..rest.len()].copy_from_slice(rest);
    }
    let mut words = [0; TOGETHER];
    let [a, b, c, d] = &own;
    interleave_whole(simd, [a, b, c, d], flip, &mut words);
    match whole.get_mut(last / TOGETHER) {
        Some(whole) => *whole = words,
        None => rest.copy_from_slice(&words[..rest.len()]),
    }
    let end = line.len().min(last + TOGETHER);
    line[end..].fill(0);
}

/// 64 positions of four channels.
#[inline(always)]
fn interleave_whole<S: Simd>(
    simd: S,
    [a, b, c, d]: [&[u8; TOGETHER]; WORD_CHANNELS],
    flip: i32,
    words: &mut [i32; TOGETHER],
) {
    let rows = [simd.load_bytes(a), simd.load_bytes(b), simd.load_bytes(c), simd.load_bytes(d)];
    let interleaved = simd.interleave_bytes(rows);
    for (index, &vector) in interleaved.iter().enumerate() {
        let mut lanes = [0; LANES];
        simd.store_integers(simd.exclusive_or(vector, simd.splat_integer(flip)), &mut lanes);
        // Four lanes of each of these vectors follow each other.
        for (quarter, lanes) in lanes.as_chunks::<WORD_CHANNELS>().0.iter().enumerate() {
            let place = LANES * quarter + WORD_CHANNELS * index;
            words[place..place + WORD_CHANNELS].copy_from_slice(lanes);
        }
    }
}
