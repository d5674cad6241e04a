//! The largest of windows of integers of 8 bits.
//!
//! For each row of outputs the largest of the rows of the input that its windows have are found side by side, then those of
//! neighbouring positions, then every so manieth of these is a result.

use super::rows::Rows;
use crate::{
    simd::{Instructions, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Elements that one operation of a vector takes, about: how much less a tap of bytes costs than one of floats.
const BYTES_OF_OPERATION: usize = 16;

/// An integer of 8 bits.
pub trait Byte: Copy + Ord + Send + Sync {
    /// What a window without elements has.
    const LEAST: Self;
}

impl Byte for i8 {
    const LEAST: Self = Self::MIN;
}

impl Byte for u8 {
    const LEAST: Self = Self::MIN;
}

/// How much longer than rows of the input and of outputs a row with its padding may be.
const MOST_PADDING: usize = 4;

/// The largest of each window, `out: [planes, outputs..]` from `x: [planes, inputs..]`; the least integer for one without elements.
/// Gives whether it is done: not where windows are far apart, or wide, for the rows that they are in.
///
/// # Panics
/// If lengths disagree with the axes.
#[must_use]
pub fn largest_bytes<T: Byte>(axes: &[WindowAxis], x: &[T], out: &mut [T]) -> bool {
    let (inputs, outputs) = (window::inputs(axes), window::outputs(axes));
    if out.is_empty() {
        return true;
    }
    let planes = out.len() / outputs;
    assert_eq!((x.len(), out.len()), (planes * inputs, planes * outputs), "elements of {planes} planes of {axes:?}");
    // Channels side by side are no positions: those of a row go together.
    let (outer, mut last, unit) = match axes {
        [outer @ .., last, channels] if channels.is_identity() => (outer, *last, channels.input),
        [outer @ .., last] => (outer, *last, 1),
        [] => (&[][..], WindowAxis::POINT, 1),
    };
    if last.output == 1 {
        // A single window is at no distance from others, however large the model says that it is.
        last.stride = 1;
    }
    if padded(&last).is_none_or(|length| length > MOST_PADDING.saturating_mul(last.input + last.output)) {
        return false;
    }
    let rows = Rows::new(outer, last, Vec::new());
    let operations = rows.seen.rows.len().saturating_mul(last.input + last.output * last.stride * last.kernel);
    let operations = operations.saturating_mul(planes).saturating_mul(unit) / BYTES_OF_OPERATION;
    let row = last.output * unit;
    let all = out.len() / row;
    let rows_each = all.div_ceil(threads::parts(operations, all));
    threads::chunks(out, rows_each * row, |part, out| {
        Instructions::best().run(RowsOfOutputs { rows: &rows, unit, x, first: part * rows_each, out });
    });
    true
}

/// Positions of a row that windows reach, with the padding.
fn padded(last: &WindowAxis) -> Option<usize> {
    let begins = (last.output - 1).checked_mul(last.stride)?.checked_add(1)?;
    begins.checked_add(last.kernel.saturating_sub(1).checked_mul(last.dilation)?)
}

/// Some rows of outputs.
struct RowsOfOutputs<'a, T> {
    rows: &'a Rows,
    /// Elements of a position.
    unit: usize,
    /// All planes.
    x: &'a [T],
    /// The first row, counted over all planes.
    first: usize,
    out: &'a mut [T],
}

impl<T: Byte> Routine for RowsOfOutputs<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let RowsOfOutputs { rows, unit, x, first, out } = self;
        let last = rows.last;
        let (input, plane_rows) = (last.input * unit, rows.seen.ends.len());
        let plane_inputs = rows.inputs * input;
        if plane_inputs == 0 {
            return out.fill(T::LEAST);
        }
        // Positions of all windows' first taps, and with the padding those of all taps.
        let begins = ((last.output - 1) * last.stride + 1) * unit;
        let reach = last.kernel.saturating_sub(1) * last.dilation * unit;
        let mut line = vec![T::LEAST; begins + reach];
        let mut largest = vec![T::LEAST; begins];
        let begin = (last.pad_begin * unit).min(line.len());
        let count = input.min(line.len() - begin);
        for (row, out) in (first..).zip(out.chunks_exact_mut(last.output * unit)) {
            let x = &x[row / plane_rows * plane_inputs..][..plane_inputs];
            let inner = &mut line[begin..][..count];
            inner.fill(T::LEAST);
            for row in rows.seen.of(row % plane_rows).0 {
                raise(inner, &x[row * input..][..count]);
            }
            largest.copy_from_slice(&line[..begins]);
            for tap in 1..last.kernel {
                raise(&mut largest, &line[tap * last.dilation * unit..][..begins]);
            }
            match last.stride {
                1 => out.copy_from_slice(&largest),
                2 if unit == 1 => every_second(&largest, out),
                stride => {
                    let own = largest.chunks(unit).step_by(stride);
                    out.chunks_exact_mut(unit).zip(own).for_each(|(out, own)| out.copy_from_slice(own));
                }
            }
        }
    }
}

/// Raises elements to those of another row.
#[inline(always)]
fn raise<T: Byte>(values: &mut [T], others: &[T]) {
    for (value, &other) in values.iter_mut().zip(others) {
        *value = other.max(*value);
    }
}

/// Elements 0, 2, 4 and so on.
#[inline(always)]
fn every_second<T: Byte>(values: &[T], out: &mut [T]) {
    let (pairs, rest) = values.as_chunks::<2>();
    for (out, pair) in out.iter_mut().zip(pairs) {
        *out = pair[0];
    }
    if let ([last], Some(out)) = (rest, out.last_mut()) {
        *out = *last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis() -> impl Strategy<Value = WindowAxis> {
        (1_usize..9, 1_usize..4, 1_usize..4, 1_usize..3, 0_usize..4, 0_usize..9).prop_map(
            |(input, kernel, stride, dilation, pad_begin, windows)| {
                // Windows may lie in the padding alone.
                let output = windows + 1;
                WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end: 0 }
            },
        )
    }

    fn by_definition<T: Byte>(axes: &[WindowAxis], x: &[T]) -> Vec<T> {
        let places = |axis: &WindowAxis, output: usize| -> Vec<usize> {
            (0..axis.kernel).filter_map(|tap| axis.position(output, tap)).collect()
        };
        let mut windows = vec![vec![0]];
        for axis in axes {
            let of_axis = |window: &Vec<usize>, output: usize| {
                let places = places(axis, output);
                window.iter().flat_map(|row| places.iter().map(move |place| row * axis.input + place)).collect()
            };
            windows =
                windows.iter().flat_map(|window| (0..axis.output).map(move |output| of_axis(window, output))).collect();
        }
        let plane = window::inputs(axes);
        let planes = x.chunks(plane);
        planes
            .flat_map(|x| windows.iter().map(|window| window.iter().map(|&place| x[place]).max().unwrap_or(T::LEAST)))
            .collect()
    }

    #[test]
    fn windows_without_elements_have_the_least() {
        let axis = WindowAxis { input: 0, output: 3, kernel: 2, stride: 1, dilation: 1, pad_begin: 2, pad_end: 2 };
        let mut out = [1_i8; 6];
        assert!(largest_bytes(&[axis], &[], &mut out));
        assert_eq!(out, [i8::MIN; 6]);
    }

    #[test]
    fn windows_that_are_wide_for_their_rows_are_left_to_others() {
        let axis = WindowAxis { input: 3, output: 2, kernel: 2, stride: 1, dilation: 90, pad_begin: 90, pad_end: 90 };
        assert!(!largest_bytes(&[axis], &[1_u8, 2, 3], &mut [0; 2]));
    }

    #[test]
    fn a_single_window_may_have_any_stride() {
        let (stride, dilation) = (usize::MAX / 2, 1);
        let axis = WindowAxis { input: 3, output: 1, kernel: 2, stride, dilation, pad_begin: 0, pad_end: 0 };
        let mut out = [0_u8];
        assert!(largest_bytes(&[axis], &[1, 2, 3], &mut out));
        assert_eq!(out, [2]);
    }

    proptest! {
        #[test]
        fn largest_are_those_of_the_definition(
            mut axes in prop::collection::vec(axis(), 0..4),
            channels in prop_oneof![Just(0_usize), 1_usize..40],
            seed in any::<u8>(),
        ) {
            if channels > 0 {
                axes.push(WindowAxis { input: channels, output: channels, ..WindowAxis::POINT });
            }
            let count = 3 * window::inputs(&axes);
            let codes: Vec<u8> = (0..count).map(|index| (index as u8).wrapping_mul(seed | 1) ^ seed).collect();
            let mut out = vec![0; 3 * window::outputs(&axes)];
            if !largest_bytes(&axes, &codes, &mut out) {
                return Ok(());
            }
            prop_assert_eq!(&out, &by_definition(&axes, &codes));
            let codes: Vec<i8> = codes.into_iter().map(u8::cast_signed).collect();
            let mut out = vec![0; out.len()];
            prop_assert!(largest_bytes(&axes, &codes, &mut out));
            prop_assert_eq!(&out, &by_definition(&axes, &codes));
        }
    }
}
