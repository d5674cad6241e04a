//! Inputs of windows over channels in the order of ONNX: a line of each channel for each row of taps, side by side where they lie or
//! in copies of rows with their padding.

use std::ops::Range;

use super::tile::Values;
use crate::{
    places::{KeptPlaces, places},
    scratch::{Scratch, scratch},
    simd::{Layout, LinePlaces, Lines, Within},
    window::{self, WindowAxis},
};

/// Values that images with their padding may have more than four times those without.
const MOST_PADDING: usize = 1 << 16;

/// What some windows of a group of channels read.
pub(super) struct Planes<'a> {
    image: &'a [f32],
    /// Rows of all channels with their padding, where there is any.
    copied: Option<Scratch>,
    places: &'a LinePlaces,
    taps: usize,
    within: Within,
    layout: Layout,
}

impl<'a> Planes<'a> {
    /// Of so many channels; `kept` is for the places of these windows. Which lines are read, and so the order of sums, does not depend on
    /// the windows.
    pub(super) fn new(
        axes: &[WindowAxis],
        channels: usize,
        image: &'a [f32],
        windows: Range<usize>,
        kept: &'a KeptPlaces,
    ) -> Self {
        let (plane, count) = (window::inputs(axes), windows.len());
        let stride = axes.last().map_or(0, |columns| columns.stride);
        let of_windows = |axes: &[WindowAxis], windows: Range<usize>| {
            kept.get_or_make(|| LinePlaces::new(places(axes, windows, 1), count, stride))
        };
        let Some((rows, columns)) = read_in_lines(axes, channels) else {
            // Lines of one position: of windows over many axes, of taps or windows that are far apart, or of images that are mostly padding.
            let layout = Layout { blocks: channels, block_distance: plane, length: 1 };
            let places = of_windows(axes, windows);
            return Self { image, copied: None, places, taps: window::taps(axes), within: Within::Taps, layout };
        };
        let is_padded = !is_inside(rows) || !is_inside(columns);
        // Lines begin where the first taps of rows do.
        let starts = WindowAxis { kernel: 1, ..columns };
        let (copied, places) = if is_padded {
            let part = Part::of(rows, columns, windows);
            (Some(part.copy(rows, columns, image)), of_windows(&part.axes(rows, starts), part.windows.clone()))
        } else {
            (None, of_windows(&[rows, starts], windows))
        };
        let distance = copied.as_ref().map_or(plane, |copied| copied.len() / channels.max(1));
        let layout = Layout { blocks: channels, block_distance: distance, length: columns.kernel };
        Self { image, copied, places, taps: rows.kernel, within: Within::Lines, layout }
    }

    /// The values that windows read.
    pub(super) fn values(&self) -> Values<'_> {
        let source = self.copied.as_deref().unwrap_or(self.image);
        let &Self { taps, within, .. } = self;
        Values { lines: Lines::new(source, self.places, self.layout), taps, within }
    }
}

/// Rows and columns of windows that read positions side by side, of so many channels; `None` where they read them one by one.
fn read_in_lines(axes: &[WindowAxis], channels: usize) -> Option<(WindowAxis, WindowAxis)> {
    let (rows, columns) = match axes {
        [columns] => (WindowAxis::POINT, *columns),
        [rows, columns] => (*rows, *columns),
        _ => return None,
    };
    let plane = window::inputs(axes);
    let is_dense = |axis: WindowAxis| axis.stride <= reach(axis, 1);
    let [height, width] = [rows, columns].map(|axis| reach(axis, axis.output));
    let values = channels.saturating_mul(plane);
    let is_small =
        channels.saturating_mul(height).saturating_mul(width) <= values.saturating_mul(4).saturating_add(MOST_PADDING);
    let is_padded = !is_inside(rows) || !is_inside(columns);
    let copies = is_small && is_dense(rows) && is_dense(columns);
    let in_lines = plane > 0 && (columns.dilation == 1 || columns.kernel <= 1) && (!is_padded || copies);
    in_lines.then_some((rows, columns))
}

/// Places of each window over so many channels: of lines, or of taps where positions are read one by one.
pub(super) fn places_of_window(axes: &[WindowAxis], channels: usize) -> usize {
    read_in_lines(axes, channels).map_or_else(|| window::taps(axes), |(rows, _)| rows.kernel)
}

/// Positions from the first tap of the first to the last of the last of so many windows.
fn reach(axis: WindowAxis, windows: usize) -> usize {
    windows.saturating_sub(1) * axis.stride + axis.kernel.saturating_sub(1) * axis.dilation + 1
}

/// Whether no window sees padding.
pub(super) fn is_inside(axis: WindowAxis) -> bool {
    axis.pad_begin == 0 && reach(axis, axis.output) <= axis.input
}

/// A rectangle of positions, counted from the beginning of the padding, which some windows see.
struct Part {
    first_row: usize,
    first_column: usize,
    rows: usize,
    /// Positions of a row.
    line: usize,
    /// Rows and columns of windows that see no others.
    outputs: [usize; 2],
    /// Which of these.
    windows: Range<usize>,
}

impl Part {
    /// What some windows see: whole rows, but of a single row of windows.
    fn of(rows: WindowAxis, columns: WindowAxis, windows: Range<usize>) -> Part {
        let first = windows.start / columns.output;
        let count = windows.end.div_ceil(columns.output) - first;
        let own = windows.start - first * columns.output..windows.end - first * columns.output;
        let (skipped, outputs) = if count == 1 { (own.start, own.len()) } else { (0, columns.output) };
        Part {
            first_row: first * rows.stride,
            first_column: skipped * columns.stride,
            rows: reach(rows, count),
            line: reach(columns, outputs),
            outputs: [count, outputs],
            windows: own.start - skipped..own.end - skipped,
        }
    }

    /// The windows of the rectangle.
    fn axes(&self, rows: WindowAxis, columns: WindowAxis) -> [WindowAxis; 2] {
        let inside = |axis: WindowAxis, input: usize, output: usize| WindowAxis {
            input,
            output,
            pad_begin: 0,
            pad_end: 0,
            ..axis
        };
        [inside(rows, self.rows, self.outputs[0]), inside(columns, self.line, self.outputs[1])]
    }

    /// The rectangle of each channel, with zeros for padding.
    fn copy(&self, rows: WindowAxis, columns: WindowAxis, image: &[f32]) -> Scratch {
        let channels = image.chunks_exact(rows.input * columns.input);
        let mut copied = scratch(channels.len() * self.rows * self.line);
        let before = columns.pad_begin.saturating_sub(self.first_column).min(self.line);
        let from = self.first_column.saturating_sub(columns.pad_begin).min(columns.input);
        let count = (columns.input - from).min(self.line - before);
        for (channel, copied) in channels.zip(copied.chunks_exact_mut(self.rows * self.line)) {
            for (row, line) in copied.chunks_exact_mut(self.line).enumerate() {
                let own = (self.first_row + row).checked_sub(rows.pad_begin).filter(|row| *row < rows.input);
                let Some(own) = own else {
                    line.fill(0.0);
                    continue;
                };
                line[..before].fill(0.0);
                line[before..before + count].copy_from_slice(&channel[own * columns.input + from..][..count]);
                line[before + count..].fill(0.0);
            }
        }
        copied
    }
}
