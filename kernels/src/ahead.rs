//! Memory that is asked for ahead of its use.

use crate::simd::Simd;

/// Bytes that a prefetch brings.
const CACHE_LINE_BYTES: usize = 64;

/// What a prefetch brings.
pub(crate) type CacheLine = [u8; CACHE_LINE_BYTES];

/// Slices of one length that are asked for a little at a time while something else is computed: a processor remembers few lines that it
/// waits for. A call takes few instructions, which are not hidden behind what is computed.
pub(crate) struct LinesAhead<'a, const SLICES: usize> {
    slices: [&'a [CacheLine]; SLICES],
    /// How many of them there are.
    count: usize,
    next: usize,
    each: usize,
}

impl<'a, const SLICES: usize> LinesAhead<'a, SLICES> {
    /// Slices that so many calls ask for. Those behind the first one that is shorter than the first of all are left out.
    #[inline(always)]
    pub(crate) fn new(slices: [&'a [CacheLine]; SLICES], calls: usize) -> Self {
        let length = slices.first().map_or(0, |slice| slice.len());
        let mut count = 0;
        while count < SLICES && slices[count].len() >= length {
            count += 1;
        }
        Self { slices, count, next: 0, each: length.div_ceil(calls.max(1)) }
    }

    /// Asks for some lines of each, as far as the second-level cache.
    #[inline(always)]
    pub(crate) fn ask<S: Simd>(&mut self, simd: S) {
        let end = self.slices[0].len().min(self.next + self.each);
        while self.next < end {
            for slice in &self.slices[..self.count] {
                simd.prefetch_far(slice, self.next);
            }
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn calls_ask_for_all_lines_and_no_others() {
        let lines = [[0; CACHE_LINE_BYTES]; 10];
        let mut ahead = LinesAhead::<3>::new([&lines, &lines, &lines[..4]], 4);
        assert_eq!((ahead.count, ahead.each), (2, 3));
        let asked: Vec<usize> = (0..5)
            .map(|_| {
                ahead.ask(Portable);
                ahead.next
            })
            .collect();
        assert_eq!(asked, [3, 6, 9, 10, 10]);
        let nothing = LinesAhead::<2>::new([&[], &[]], 0);
        assert_eq!((nothing.each, nothing.next), (0, 0));
    }
}
