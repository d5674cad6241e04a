//! Copies, side by side, of the inputs that strided windows of one tap read. Tiles then find consecutive windows at one distance, across
//! the ends of rows, too, and read no cache line of which no window reads the other half.

use std::ops::Range;

use super::{CHANNEL_BLOCK, planes::is_inside, tile::Values};
use crate::{
    places::KeptPlaces,
    scratch::{Scratch, scratch},
    simd::{Layout, LinePlaces, Lines, Within},
    window::{self, WindowAxis},
};

/// What some windows of a group of channels read: `[blocks, windows, 8]`.
pub(super) struct CopiedWindows<'a> {
    values: Scratch,
    places: &'a LinePlaces,
    layout: Layout,
}

impl<'a> CopiedWindows<'a> {
    /// Whether windows have one tap each, which is in no padding, and are apart along the last axis.
    pub(super) fn fits(axes: &[WindowAxis]) -> bool {
        axes.iter().all(|axis| axis.kernel == 1 && is_inside(*axis))
            && axes.last().is_some_and(|columns| columns.stride > 1)
    }

    /// Those of windows that [`CopiedWindows::fits`], over so many blocks of channels.
    #[inline(always)]
    pub(super) fn new(
        axes: &[WindowAxis],
        blocks: usize,
        image: &[f32],
        windows: Range<usize>,
        kept: &'a KeptPlaces,
    ) -> Self {
        let (count, plane) = (windows.len(), window::inputs(axes));
        let mut values = scratch(blocks * count * CHANNEL_BLOCK);
        let (outer, columns) = axes.split_at(axes.len().saturating_sub(1));
        let columns = columns.first().copied().unwrap_or(WindowAxis::POINT);
        let image = image.as_chunks::<CHANNEL_BLOCK>().0;
        let mut window = windows.start;
        while window < windows.end {
            let (row, first) = (window / columns.output, window % columns.output);
            let end = windows.end.min((row + 1) * columns.output);
            let begin = row_seen(outer, row) * columns.input + first * columns.stride;
            let own = window - windows.start..end - windows.start;
            let copies = values.as_chunks_mut::<CHANNEL_BLOCK>().0.chunks_exact_mut(count);
            for (lines, copies) in image.chunks_exact(plane).zip(copies) {
                let seen = lines[begin..].iter().step_by(columns.stride);
                copies[own.clone()].iter_mut().zip(seen).for_each(|(copy, line)| *copy = *line);
            }
            window = end;
        }
        let places = kept.of_copies(|| {
            let places = (0..count).map(|window| (window * CHANNEL_BLOCK) as u32).collect();
            LinePlaces::new(places, count, CHANNEL_BLOCK)
        });
        Self { values, places, layout: Layout { blocks, block_distance: count * CHANNEL_BLOCK, length: CHANNEL_BLOCK } }
    }

    /// The values that windows read.
    pub(super) fn values(&self) -> Values<'_> {
        Values { lines: Lines::new(&self.values, self.places, self.layout), taps: 1, within: Within::Taps }
    }
}

/// The row of positions that a row of windows sees, both counted over all axes but the last.
fn row_seen(outer: &[WindowAxis], row: usize) -> usize {
    let (mut rest, mut rows, mut seen) = (row, 1, 0);
    for axis in outer.iter().rev() {
        seen += rest % axis.output * axis.stride * rows;
        rest /= axis.output;
        rows *= axis.input;
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(input: usize, output: usize, stride: usize) -> WindowAxis {
        WindowAxis { input, output, stride, ..WindowAxis::POINT }
    }

    #[test]
    fn windows_apart_lie_side_by_side() {
        // Every third of 5 rows, every second of 4 columns, of 2 images deep.
        let axes = [axis(2, 2, 1), axis(5, 2, 3), axis(4, 2, 2)];
        assert!(CopiedWindows::fits(&axes));
        let image: Vec<f32> = (0..2 * 40 * CHANNEL_BLOCK).map(|place| place as f32).collect();
        let kept = KeptPlaces::default();
        let copied = CopiedWindows::new(&axes, 2, &image, 1..8, &kept);
        let seen = [2, 12, 14, 20, 22, 32, 34];
        let expected = [0, 40].into_iter().flat_map(|block| seen.map(|place| block + place));
        let lines = copied.values.as_chunks::<CHANNEL_BLOCK>().0;
        assert_eq!(lines.len(), 14);
        for (line, place) in lines.iter().zip(expected) {
            assert_eq!(line[..], image[place * CHANNEL_BLOCK..][..CHANNEL_BLOCK]);
        }
    }

    #[test]
    fn what_is_not_copied() {
        let columns = axis(8, 4, 2);
        assert!(CopiedWindows::fits(&[columns, columns]) && CopiedWindows::fits(&[axis(8, 8, 1), columns]));
        for other in [
            axis(8, 8, 1),
            WindowAxis { kernel: 2, ..columns },
            WindowAxis { output: 5, pad_end: 1, ..columns },
            WindowAxis { pad_begin: 1, ..columns },
        ] {
            assert!(!CopiedWindows::fits(&[columns, other]), "{other:?}");
        }
        assert!(!CopiedWindows::fits(&[]));
    }
}
