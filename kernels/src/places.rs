//! Where the taps of windows lie.

use std::ops::Range;

use crate::{simd::OUTSIDE, window::WindowAxis};

/// Where each tap of some windows lies in a channel whose positions are `unit` values apart: `[taps, windows]`, [`OUTSIDE`] in the
/// padding.
pub(crate) fn places(axes: &[WindowAxis], windows: Range<usize>, unit: usize) -> Vec<u32> {
    let count = windows.len();
    let taps: usize = axes.iter().map(|axis| axis.kernel).product();
    let mut places = vec![0; taps * count];
    let mut lines = 1;
    let mut inner: usize = axes.iter().map(|axis| axis.output).product();
    // One axis after another, the outermost first: each line so far becomes one for each tap of the next axis, the last one first, so
    // that none is overwritten before it is read.
    for axis in axes {
        inner /= axis.output.max(1);
        for line in (0..lines).rev() {
            for tap in (0..axis.kernel).rev() {
                let (from, to) = (line * count, (line * axis.kernel + tap) * count);
                let (mut output, mut step) =
                    (windows.start / inner.max(1) % axis.output.max(1), windows.start % inner.max(1));
                for window in 0..count {
                    let position = output * axis.stride + tap * axis.dilation;
                    let before = places[from + window];
                    let inside = (axis.pad_begin..axis.pad_begin + axis.input).contains(&position) && before != OUTSIDE;
                    places[to + window] =
                        if inside { before * axis.input as u32 + (position - axis.pad_begin) as u32 } else { OUTSIDE };
                    step += 1;
                    if step == inner {
                        step = 0;
                        output += 1;
                        if output == axis.output {
                            output = 0;
                        }
                    }
                }
            }
        }
        lines *= axis.kernel;
    }
    for place in places.iter_mut().filter(|place| **place != OUTSIDE) {
        *place *= unit as u32;
    }
    places
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
