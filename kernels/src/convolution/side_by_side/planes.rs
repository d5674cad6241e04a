//! Images whose channels come one after another, and filters for them: both are copied into words of channels. Images are copied with their
//! padding, so that the taps of a row lie side by side.

use super::{FLIP, Geometry, SideBySide};
use crate::{
    convolution::words::{WORD_CHANNELS, interleave},
    product::IntegerLine,
    scratch::{Scratch, scratch},
    simd::{Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Codes that images with their padding may have more than so many times those without.
pub(super) const MOST_PADDING: usize = 1 << 18;
const MOST_GROWTH: usize = 16;

/// Positions from the first tap of the first window to the last of the last.
fn reach(axis: &WindowAxis) -> usize {
    axis.output.saturating_sub(1) * axis.stride + axis.kernel.saturating_sub(1) * axis.dilation + 1
}

/// Rows and columns.
fn two_axes(axes: &[WindowAxis]) -> Option<[WindowAxis; 2]> {
    match *axes {
        [columns] => Some([WindowAxis::POINT, columns]),
        [rows, columns] => Some([rows, columns]),
        _ => None,
    }
}

/// Where windows over images with their padding lie; `None` where there are too many axes, taps of a row do not follow each other, or
/// images are mostly padding.
pub(super) fn geometry(axes: &[WindowAxis], channels: usize) -> Option<Geometry> {
    let [rows, columns] = two_axes(axes)?;
    let unit = channels.next_multiple_of(WORD_CHANNELS);
    let [height, width] = [reach(&rows), reach(&columns)];
    let codes = height.checked_mul(width)?.checked_mul(unit)?;
    let most = window::inputs(axes).saturating_mul(channels).saturating_mul(MOST_GROWTH).saturating_add(MOST_PADDING);
    if codes > most || columns.kernel > 1 && columns.dilation != 1 {
        return None;
    }
    let inside = |axis: WindowAxis, input: usize| WindowAxis { input, pad_begin: 0, pad_end: 0, ..axis };
    let axes = vec![inside(rows, height), WindowAxis { kernel: 1, ..inside(columns, width) }];
    Some(Geometry { axes, unit, groups: columns.kernel * unit / WORD_CHANNELS, padded: Some([rows, columns]) })
}

/// The row of an image that a row of it with its padding is; `None` where that is padding.
pub(super) fn row_inside(down: WindowAxis, row: usize) -> Option<usize> {
    row.checked_sub(down.pad_begin).filter(|row| *row < down.input)
}

/// Of so many columns of an image with its padding, those before it, and those of the image.
pub(super) fn columns_inside(across: WindowAxis, columns: usize) -> (usize, usize) {
    let before = across.pad_begin.min(columns);
    (before, across.input.min(columns - before))
}

/// Lines of inputs `[channels, taps]` as lines of `[taps, channels]`, with some bits flipped; zeros fill up words.
pub(super) fn relaid(lines: &[IntegerLine], (channels, taps): (usize, usize), flip: u8) -> Vec<IntegerLine> {
    let words = channels.div_ceil(WORD_CHANNELS);
    let mut relaid = vec![[0; size_of::<IntegerLine>()]; taps * words];
    for (index, line) in relaid.iter_mut().enumerate() {
        let (tap, first) = (index / words, index % words * WORD_CHANNELS);
        for channel in first..channels.min(first + WORD_CHANNELS) {
            let input = channel * taps + tap;
            let from = lines[input / WORD_CHANNELS].as_chunks::<WORD_CHANNELS>().0;
            for (to, from) in line.as_chunks_mut::<WORD_CHANNELS>().0.iter_mut().zip(from) {
                to[channel - first] = from[input % WORD_CHANNELS] ^ flip;
            }
        }
    }
    relaid
}

impl SideBySide<'_> {
    /// An image `[channels, positions..]` in words, with its padding.
    pub(super) fn padded(&self, planes: &[u8]) -> Scratch {
        let geometry = &self.geometry;
        let line = geometry.axes[1].input * geometry.unit / WORD_CHANNELS;
        let mut words = scratch(geometry.axes[0].input * line);
        let rows: &mut [i32] = bytemuck::cast_slice_mut(&mut words);
        let parts = threads::parts(rows.len(), geometry.axes[0].input);
        let each = geometry.axes[0].input.div_ceil(parts).max(1);
        threads::chunks(rows, each * line.max(1), |part, rows| {
            let part = PaddedRows { convolution: self, planes, unit: geometry.unit, first: part * each, line, rows };
            self.instructions.run(part);
        });
        words
    }
}

/// Some rows of an image with its padding.
struct PaddedRows<'a> {
    convolution: &'a SideBySide<'a>,
    planes: &'a [u8],
    /// Codes of a position.
    unit: usize,
    first: usize,
    /// Words of a row.
    line: usize,
    rows: &'a mut [i32],
}

impl Routine for PaddedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { convolution, planes, unit, first, line, rows } = self;
        let Some([down, across]) = convolution.geometry.padded else { return };
        let (zero, flip) = (convolution.zero() as u8, if convolution.own.pad.kind.signed { FLIP } else { 0 });
        let (plane, groups) = (down.input * across.input, unit / WORD_CHANNELS);
        let positions = line / groups.max(1);
        let (before, count) = columns_inside(across, positions);
        let none = vec![0; count];
        // A group's own words, where there are several.
        let mut own = vec![0; if groups == 1 { 0 } else { count }];
        for (row, words) in (first..).zip(rows.chunks_exact_mut(line.max(1))) {
            let source = row_inside(down, row);
            for group in 0..groups {
                let channels = group * WORD_CHANNELS..convolution.own.channels.min((group + 1) * WORD_CHANNELS);
                let mut codes = [0; WORD_CHANNELS];
                codes[..channels.len()].fill(zero);
                let padding = i32::from_le_bytes(codes);
                let mut of_group = words.iter_mut().skip(group).step_by(groups);
                let Some(source) = source else {
                    of_group.for_each(|word| *word = padding);
                    continue;
                };
                // Channels that fill up a word stay 0.
                codes[..channels.len()].fill(flip);
                let flip = i32::from_le_bytes(codes);
                let mut sources = [&none[..]; WORD_CHANNELS];
                for (source_row, channel) in sources.iter_mut().zip(channels) {
                    *source_row = &planes[channel * plane + source * across.input..][..count];
                }
                of_group.by_ref().take(before).for_each(|word| *word = padding);
                if groups == 1 {
                    interleave(simd, sources, flip, &mut words[before..before + count]);
                    words[before + count..].fill(padding);
                } else {
                    interleave(simd, sources, flip, &mut own);
                    of_group.by_ref().zip(&own).for_each(|(word, own)| *word = *own);
                    of_group.for_each(|word| *word = padding);
                }
            }
        }
    }
}
