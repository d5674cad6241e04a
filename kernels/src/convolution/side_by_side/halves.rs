//! Copies of images and filters in words of halves: two codes of 16 bits each. Images whose windows have several taps in a row are copied
//! with their padding, so that these taps lie side by side and are multiplied as one.

use super::{
    Geometry, SideBySide,
    planes::{self, MOST_PADDING},
};
use crate::{
    convolution::words::{EVEN_BYTES, WORD_CHANNELS, Words, signed_halves},
    product::IntegerLine,
    scratch::{Scratch, scratch},
    simd::{LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Words of halves of four codes, and lines of them of a line of codes.
pub(super) const OF_GROUP: usize = Words::Halves.of_group();

/// Where windows lie over images `[positions.., channels]` with their padding; `None` where images are copied without: those whose windows
/// have one tap in a row, and those that would be mostly padding.
pub(super) fn geometry(axes: &[WindowAxis], channels: usize) -> Option<Geometry> {
    if axes.last()?.kernel == 1 {
        return None;
    }
    let codes = window::inputs(axes).saturating_mul(channels);
    planes::geometry(axes, channels)
        .filter(|padded| window::inputs(&padded.axes) * padded.unit <= 2 * codes + MOST_PADDING)
}

impl SideBySide<'_> {
    /// Codes in words of halves, with some bits flipped.
    pub(super) fn halves(&self, codes: &[u8], flip: u8) -> Scratch {
        let codes = codes.as_chunks::<WORD_CHANNELS>().0;
        let mut words = scratch(codes.len() * OF_GROUP);
        let parts = threads::parts(words.len(), usize::MAX);
        let each = codes.len().div_ceil(parts).max(1);
        threads::chunks(bytemuck::cast_slice_mut(&mut words), each * OF_GROUP, |part, words| {
            let codes = &codes[part * each..][..words.len() / OF_GROUP];
            self.instructions.run(CopyCodes { codes, flip, words });
        });
        words
    }

    /// An image `[rows, columns, channels]` in words of halves, with its padding and some bits flipped.
    pub(super) fn padded_halves(&self, codes: &[u8], [down, across]: [WindowAxis; 2], flip: u8) -> Scratch {
        let codes = codes.as_chunks::<WORD_CHANNELS>().0;
        let geometry = &self.geometry;
        let (height, groups) = (geometry.axes[0].input, geometry.unit / WORD_CHANNELS);
        let line = geometry.axes[1].input * groups * OF_GROUP;
        let mut words = scratch(height * line);
        let rows: &mut [i32] = bytemuck::cast_slice_mut(&mut words);
        let padding = self.zero() | self.zero() << 16;
        let (before, count) = planes::columns_inside(across, geometry.axes[1].input);
        let parts = threads::parts(rows.len(), height);
        let each = height.div_ceil(parts).max(1);
        threads::chunks(rows, each * line.max(1), |part, rows| {
            for (row, words) in (part * each..).zip(rows.chunks_mut(line.max(1))) {
                let Some(source) = planes::row_inside(down, row) else {
                    words.fill(padding);
                    continue;
                };
                let (begin, words) = words.split_at_mut(before * groups * OF_GROUP);
                let (words, end) = words.split_at_mut(count * groups * OF_GROUP);
                begin.fill(padding);
                end.fill(padding);
                let codes = &codes[source * across.input * groups..][..count * groups];
                self.instructions.run(CopyCodes { codes, flip, words });
            }
        });
        words
    }
}

/// Writes codes as words of halves.
struct CopyCodes<'a> {
    codes: &'a [[u8; WORD_CHANNELS]],
    flip: u8,
    words: &'a mut [i32],
}

impl Routine for CopyCodes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let flip = i32::from_le_bytes([self.flip; WORD_CHANNELS]);
        for ([even, odd], codes) in self.words.as_chunks_mut().0.iter_mut().zip(self.codes) {
            let word = i32::from_le_bytes(*codes) ^ flip;
            (*even, *odd) = (word & EVEN_BYTES, word >> 8 & EVEN_BYTES);
        }
    }
}

/// Writes lines of a panel, whose codes have signs, as lines of words of halves.
pub(super) struct WidenLines<'a> {
    pub lines: &'a [IntegerLine],
    /// Two of each line.
    pub halves: &'a mut [IntegerLine],
}

impl Routine for WidenLines<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (line, [even, odd]) in self.lines.iter().zip(self.halves.as_chunks_mut().0) {
            let [one, other] = signed_halves(simd, simd.load_bytes(line));
            let (mut lanes, mut others) = ([0; LANES], [0; LANES]);
            simd.store_integers(one, &mut lanes);
            simd.store_integers(other, &mut others);
            (*even, *odd) = (bytemuck::cast(lanes), bytemuck::cast(others));
        }
    }
}
