//! Inputs of windows over channels in the order of ONNX, copied so that each input of all windows is a line, in the order of a
//! weight: channels and within them taps.

use std::ops::Range;

use crate::{
    places::rows_of_taps,
    scratch::scratch,
    simd::{LANES, OUTSIDE, Simd},
    window::{self, WindowAxis},
};

/// Positions that a row with its padding may be longer than twice as long as the one without.
const SHORT_REACH: usize = 64;

/// Distance of the lines of so many windows: a vector may be written behind the last ones.
pub(super) fn distance(windows: usize) -> usize {
    windows.next_multiple_of(LANES) + LANES
}

/// Copies the inputs of some windows to `gathered`, `[inputs, distance]`; what lies behind the windows is anything.
#[inline(always)]
pub(super) fn gather<S: Simd>(
    simd: S,
    axes: &[WindowAxis],
    image: &[f32],
    windows: Range<usize>,
    gathered: &mut [f32],
) {
    let Some((columns, outer)) = axes.split_last() else { return };
    let plane = window::inputs(axes);
    if plane == 0 {
        return gathered.fill(0.0);
    }
    let distance = distance(windows.len());
    let rows = windows.start / columns.output..windows.end.div_ceil(columns.output);
    let rows_of_taps = rows_of_taps(outer, rows.clone());
    // Windows far apart, or of taps far apart, may reach anywhere: a copy with the padding would be mostly padding.
    let reach = (columns.output - 1) * columns.stride + (columns.kernel.max(1) - 1) * columns.dilation + 1;
    let is_padded = reach <= 2 * columns.input + SHORT_REACH;
    // Even values are read by vectors, the last of which may reach behind the row.
    let mut line = scratch(if is_padded { reach + 4 * LANES } else { 0 });
    // Rows in order: what is written behind the windows of one is overwritten by the next.
    for (index, row) in rows.clone().enumerate() {
        let begin = (row * columns.output).max(windows.start);
        let end = ((row + 1) * columns.output).min(windows.end);
        let own = begin - row * columns.output..end - row * columns.output;
        let mut lines = gathered.chunks_exact_mut(distance).map(|line| &mut line[begin - windows.start..]);
        for channel in image.chunks_exact(plane) {
            for tap in rows_of_taps.chunks_exact(rows.len()) {
                let input = if tap[index] == OUTSIDE { &[] } else { &channel[tap[index] as usize * columns.input..] };
                let input = &input[..input.len().min(columns.input)];
                let lines = lines.by_ref().take(columns.kernel);
                if is_padded {
                    pad(input, columns.start(own.start), &mut line);
                    for (tap, to) in lines.enumerate() {
                        copy(simd, &line[tap * columns.dilation..], columns.stride, own.len(), to);
                    }
                } else {
                    let columns = WindowAxis { input: input.len(), ..*columns };
                    for (tap, to) in lines.enumerate() {
                        for (window, to) in own.clone().zip(to) {
                            *to = columns.position(window, tap).map_or(0.0, |position| input[position]);
                        }
                    }
                }
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

/// Copies `count` values that are `stride` apart, with some behind them up to a whole vector.
#[inline(always)]
fn copy<S: Simd>(simd: S, from: &[f32], stride: usize, count: usize, to: &mut [f32]) {
    match stride {
        1 => to[..count].copy_from_slice(&from[..count]),
        2 => {
            let to = &mut to.as_chunks_mut().0[..count.div_ceil(LANES)];
            for (to, from) in to.iter_mut().zip(from.as_chunks::<{ 2 * LANES }>().0) {
                simd.store(simd.load_even(from), to);
            }
        }
        _ => to[..count].iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = *from),
    }
}
