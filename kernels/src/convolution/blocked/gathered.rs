//! Inputs of windows over channels in the order of ONNX, copied side by side: those of a window are one line, in the order of a
//! weight, channels and within them taps.

use std::ops::Range;

use crate::{
    places::rows_of_taps,
    scratch::scratch,
    simd::OUTSIDE,
    window::{self, WindowAxis},
};

/// Values that are copied at a time: a window's taps of a row may have some behind them that the next ones overwrite.
const WIDE: usize = 4;

/// Twice as many.
const TWICE_WIDE: usize = 2 * WIDE;

/// Distance of the lines of windows that have so many inputs.
pub(super) fn pitch(depth: usize) -> usize {
    depth.next_multiple_of(WIDE) + WIDE
}

/// Copies the inputs of some windows to `gathered`, `[windows, pitch]`; what lies behind the inputs of a window is anything.
#[inline(always)]
pub(super) fn gather(axes: &[WindowAxis], image: &[f32], windows: Range<usize>, pitch: usize, gathered: &mut [f32]) {
    let Some((columns, outer)) = axes.split_last() else { return };
    let plane = window::inputs(axes);
    if plane == 0 {
        return gathered.fill(0.0);
    }
    let rows = windows.start / columns.output..windows.end.div_ceil(columns.output);
    let rows_of_taps = rows_of_taps(outer, rows.clone());
    let is_near = columns.dilation == 1 && columns.kernel <= TWICE_WIDE && columns.stride <= TWICE_WIDE;
    let mut line = scratch(if is_near { columns.output * columns.stride + 2 * TWICE_WIDE } else { 0 });
    for (index, row) in rows.clone().enumerate() {
        let begin = (row * columns.output).max(windows.start);
        let end = ((row + 1) * columns.output).min(windows.end);
        let gathered = &mut gathered[(begin - windows.start) * pitch..(end - windows.start) * pitch];
        let own = begin - row * columns.output..end - row * columns.output;
        let mut place = 0;
        for channel in image.chunks_exact(plane) {
            for tap in rows_of_taps.chunks_exact(rows.len()) {
                let input = if tap[index] == OUTSIDE { &[] } else { &channel[tap[index] as usize * columns.input..] };
                let input = &input[..input.len().min(columns.input)];
                if is_near {
                    let line = &mut line[..own.len() * columns.stride + 2 * TWICE_WIDE];
                    pad(input, columns.start(own.start), line);
                    if columns.kernel <= WIDE {
                        copy_near::<WIDE>(columns.stride, line, gathered, (pitch, place));
                    } else {
                        copy_near::<TWICE_WIDE>(columns.stride, line, gathered, (pitch, place));
                    }
                } else {
                    copy_taps(
                        &WindowAxis { input: input.len(), ..*columns },
                        input,
                        own.clone(),
                        gathered,
                        (pitch, place),
                    );
                }
                place += columns.kernel;
            }
        }
    }
}

/// Copies a row from `start` on, zeros in the padding before and behind it.
#[inline(always)]
fn pad(input: &[f32], start: isize, line: &mut [f32]) {
    let before = start.min(0).unsigned_abs().min(line.len());
    let inside = &input[usize::try_from(start).unwrap_or(0).min(input.len())..];
    let inside = &inside[..inside.len().min(line.len() - before)];
    let (padding, rest) = line.split_at_mut(before);
    padding.fill(0.0);
    rest[..inside.len()].copy_from_slice(inside);
    rest[inside.len()..].fill(0.0);
}

/// Copies what windows near one another see of a row with its padding to `place` of their lines: `COUNT` values for each, of which
/// the last ones may not be its own.
#[inline(always)]
fn copy_near<const COUNT: usize>(stride: usize, row: &[f32], windows: &mut [f32], (pitch, place): (usize, usize)) {
    for (line, values) in windows.chunks_exact_mut(pitch).zip(row.windows(COUNT).step_by(stride)) {
        line[place..].as_chunks_mut::<COUNT>().0[0] = values.as_chunks().0[0];
    }
}

/// Copies each tap of windows, zeros in the padding.
#[inline(always)]
fn copy_taps(
    columns: &WindowAxis,
    row: &[f32],
    own: Range<usize>,
    windows: &mut [f32],
    (pitch, place): (usize, usize),
) {
    for (window, line) in own.zip(windows.chunks_exact_mut(pitch)) {
        for (tap, to) in line[place..][..columns.kernel].iter_mut().enumerate() {
            *to = columns.position(window, tap).map_or(0.0, |position| row[position]);
        }
    }
}
