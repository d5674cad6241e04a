//! Codes of four channels side by side: in a word, or in two of two halves of 16 bits.

use crate::simd::{Instructions, LANES, Simd};

/// Channels of a word of bytes, or of two words of halves.
pub(super) const WORD_CHANNELS: usize = 4;

/// What words hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// Codes of four channels.
    Bytes,
    /// Codes of channels 0 and 2 of four with 16 bits each, then those of channels 1 and 3 in a word of their own.
    Halves,
}

impl Words {
    /// What tiles of vectors multiply; `None` where these instructions have none.
    pub(super) fn of_tiles(instructions: Instructions) -> Option<Words> {
        if instructions.sum_halves() {
            return Some(Words::Halves);
        }
        instructions.are_wide().then_some(Words::Bytes)
    }

    /// Words that hold four channels.
    pub(super) const fn of_group(self) -> usize {
        match self {
            Words::Bytes => 1,
            Words::Halves => 2,
        }
    }

    /// Channels of so many words.
    pub(super) fn channels(self, words: usize) -> usize {
        words / self.of_group() * WORD_CHANNELS
    }

    /// Words of so many channels: whole groups of four.
    pub(super) fn words(self, channels: usize) -> usize {
        channels.div_ceil(WORD_CHANNELS) * self.of_group()
    }

    /// Four channels whose codes, without signs, are `code`.
    pub(super) fn repeated(self, code: u8) -> Vec<u8> {
        match self {
            Words::Bytes => vec![code; WORD_CHANNELS],
            Words::Halves => [code, 0].repeat(WORD_CHANNELS),
        }
    }

    /// Word `word` of so many channels whose codes are 1 each, behind which there are zeros.
    pub(super) fn ones(self, word: usize, channels: usize) -> i32 {
        let here = channels.saturating_sub(word / self.of_group() * WORD_CHANNELS);
        match self {
            Words::Bytes => i32::from_le_bytes(std::array::from_fn(|channel| u8::from(channel < here))),
            Words::Halves => i32::from(word % 2 < here) | i32::from(word % 2 + 2 < here) << 16,
        }
    }
}

/// Four codes with signs as two words of halves.
#[inline(always)]
pub(super) fn signed_halves<S: Simd>(simd: S, word: S::Integers) -> [S::Integers; 2] {
    let low = simd.splat_integer(0xffff);
    let mut halves = [word; 2];
    for (half, first) in halves.iter_mut().zip(0..) {
        let upper = simd.shift_left(simd.signed_byte(word, first + 2), 16);
        *half = simd.exclusive_or(simd.and(simd.signed_byte(word, first), low), upper);
    }
    halves
}

/// Codes without signs, four in a word, as two lines of words of halves: those of `line` and of `other`.
#[inline(always)]
pub(super) fn split<S: Simd>(simd: S, line: &mut [i32], other: &mut [i32]) {
    let even = simd.splat_integer(EVEN_BYTES);
    let words = line.as_chunks_mut::<LANES>().0.iter_mut();
    for (line, other) in words.zip(other.as_chunks_mut::<LANES>().0) {
        let word = simd.load_integers(line);
        simd.store_integers(simd.and(word, even), line);
        simd.store_integers(simd.and(simd.shift_right(word, 8), even), other);
    }
}

/// Bytes 0 and 2 of a word.
pub(super) const EVEN_BYTES: i32 = 0x00ff_00ff;

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
