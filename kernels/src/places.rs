//! Where the taps of windows lie.

use std::{ops::Range, sync::OnceLock};

use crate::{
    simd::{LinePlaces, OUTSIDE},
    window::WindowAxis,
};

/// Where each tap of some windows lies in a channel whose positions are `unit` values apart: `[taps, windows]`, [`OUTSIDE`] in the
/// padding. The windows of a row follow from those of its first one.
pub(crate) fn places(axes: &[WindowAxis], windows: Range<usize>, unit: usize) -> Vec<u32> {
    let count = windows.len();
    let Some((last, outer)) = axes.split_last() else { return vec![0; count] };
    let columns = last.output.max(1);
    let first_row = windows.start / columns;
    let rows = if count == 0 { 0 } else { (windows.end - 1) / columns + 1 - first_row };
    let rows_of_taps = rows_of_taps(outer, first_row..first_row + rows);
    let mut places = Vec::with_capacity(rows_of_taps.len() / rows.max(1) * last.kernel * count);
    // Of a single row, which may be long, no more than the windows' own columns.
    let first_column = if rows == 1 { windows.start % columns } else { 0 };
    let mut line = vec![OUTSIDE; if rows == 1 { count } else { columns }];
    for rows in rows_of_taps.chunks(rows.max(1)) {
        for tap in 0..last.kernel {
            line.fill(OUTSIDE);
            let inner = last.outputs_of(tap, first_column..first_column + line.len());
            let inside = &mut line[inner.start - first_column..inner.end - first_column];
            if let Some(first) = last.position(inner.start, tap).filter(|_| !inside.is_empty()) {
                let (first, distance) = ((first * unit) as u32, (last.stride * unit) as u32);
                (0..).zip(inside).for_each(|(index, place)| *place = first + index * distance);
            }
            for (index, &row) in rows.iter().enumerate() {
                let begin = ((first_row + index) * columns).max(windows.start);
                let end = ((first_row + index + 1) * columns).min(windows.end);
                let line = &line[begin - (first_row + index) * columns - first_column..][..end - begin];
                if row == OUTSIDE {
                    places.resize(places.len() + line.len(), OUTSIDE);
                    continue;
                }
                let row = row * (last.input * unit) as u32;
                places.extend(line.iter().map(|&place| if place == OUTSIDE { OUTSIDE } else { row + place }));
            }
        }
    }
    places
}

/// The places of the windows of a task, and those of copies of what they read, from whichever task was first.
#[derive(Debug, Default)]
pub(crate) struct KeptPlaces {
    own: OnceLock<LinePlaces>,
    of_copies: OnceLock<LinePlaces>,
}

impl KeptPlaces {
    /// What an earlier task has left here, or else what `make` gives. A task that begins at the same time as another one does not sleep
    /// until that is done: to wake it would take longer.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> LinePlaces) -> &LinePlaces {
        kept_or_made(&self.own, make)
    }

    /// As [`KeptPlaces::get_or_make`], of copies.
    pub(crate) fn of_copies(&self, make: impl FnOnce() -> LinePlaces) -> &LinePlaces {
        kept_or_made(&self.of_copies, make)
    }
}

fn kept_or_made(kept: &OnceLock<LinePlaces>, make: impl FnOnce() -> LinePlaces) -> &LinePlaces {
    if let Some(places) = kept.get() {
        return places;
    }
    let own = make();
    kept.get_or_init(|| own)
}

/// Which row of positions each tap along the axes but the last is in, `[taps, rows]`, [`OUTSIDE`] in the padding.
fn rows_of_taps(outer: &[WindowAxis], rows: Range<usize>) -> Vec<u32> {
    let mut places = vec![0; rows.len()];
    let mut inner: usize = outer.iter().map(|axis| axis.output).product();
    for axis in outer {
        inner /= axis.output.max(1);
        let known = std::mem::take(&mut places);
        for known in known.chunks(rows.len().max(1)) {
            for tap in 0..axis.kernel {
                places.extend(known.iter().zip(rows.clone()).map(|(&before, row)| {
                    let position = axis.position(row / inner.max(1) % axis.output.max(1), tap);
                    match position {
                        Some(position) if before != OUTSIDE => before * axis.input as u32 + position as u32,
                        Some(_) | None => OUTSIDE,
                    }
                }));
            }
        }
    }
    places
}

/// Rows that lists have room for from the beginning, at most.
const MOST_RESERVED: usize = 1 << 10;

/// Which rows of positions the windows of each row of outputs see.
#[derive(Debug)]
pub(crate) struct SeenRows {
    /// Rows that are no padding, and which tap of the axes but the last each is: of one row of outputs after another.
    pub rows: Vec<usize>,
    pub taps: Vec<usize>,
    /// Where those of each row of outputs end.
    pub ends: Vec<usize>,
}

impl SeenRows {
    /// Of all axes but the last.
    pub(crate) fn new(outer: &[WindowAxis]) -> Self {
        let mut seen = Self { rows: vec![0], taps: vec![0], ends: vec![1] };
        for axis in outer {
            let ends = seen.ends.len().saturating_mul(axis.output);
            let rows = ends.saturating_mul(axis.kernel);
            let list = |count: usize| Vec::with_capacity(count.min(MOST_RESERVED));
            let mut next = Self { rows: list(rows), taps: list(rows), ends: list(ends) };
            for index in 0..seen.ends.len() {
                for output in 0..axis.output {
                    let (rows, taps) = seen.of(index);
                    for (row, taps) in rows.iter().zip(taps) {
                        for tap in axis.taps(output) {
                            let Some(position) = axis.position(output, tap) else { continue };
                            next.rows.push(row * axis.input + position);
                            // Windows of pools may have more taps than there are weights.
                            next.taps.push(taps.saturating_mul(axis.kernel).saturating_add(tap));
                        }
                    }
                    next.ends.push(next.rows.len());
                }
            }
            seen = next;
        }
        seen
    }

    /// Rows and taps of a row of outputs.
    pub(crate) fn of(&self, index: usize) -> (&[usize], &[usize]) {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        (&self.rows[begin..self.ends[index]], &self.taps[begin..self.ends[index]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_lie_where_windows_say() {
        let axis = |input, output, kernel, stride, dilation, pad_begin| WindowAxis {
            input,
            output,
            kernel,
            stride,
            dilation,
            pad_begin,
            pad_end: pad_begin,
        };
        let axes = [axis(5, 3, 3, 2, 1, 1), axis(2, 2, 1, 1, 1, 0), axis(6, 5, 2, 1, 3, 1)];
        let place = |window: usize, tap: usize| {
            let rows = axes[0].position(window / 10, tap / 2)?;
            let columns = axes[2].position(window % 5, tap % 2)?;
            Some((((rows * 2 + window / 5 % 2) * 6 + columns) * 8) as u32)
        };
        for windows in [0..30, 7..30, 11..12] {
            let found = places(&axes, windows.clone(), 8);
            let expected = (0..6).flat_map(|tap| windows.clone().map(move |window| (window, tap)));
            let expected: Vec<u32> = expected.map(|(window, tap)| place(window, tap).unwrap_or(OUTSIDE)).collect();
            assert_eq!(found, expected);
        }
    }
}
