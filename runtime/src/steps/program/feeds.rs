//! What chains read: registers, and operands where they lie.

use super::registers::{Direct, Register};
use ipuc_kernels::simd::{HALF, LANES, Simd};
use std::ops::Range;

/// The most registers that a chain reads: the first slots.
pub(super) const MOST_FEEDS: usize = 8;

/// Slots of what is read and of the results of steps.
pub(super) const SLOTS: usize = 24;

/// A register that a chain reads.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Feed {
    pub(super) register: usize,
    /// What makes f32 of its integers.
    pub(super) widened: Option<Widened>,
}

/// `(x - zero) * scale`; without a scale x itself.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Widened {
    pub(super) zero: i32,
    pub(super) scale: Option<f32>,
}

/// The elements of a feed.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// What the results are written over, of f32.
    Own,
    One(f32),
    OneInteger(i32),
    /// The same elements for each line of as many.
    Line(&'a [f32; HALF]),
    Floats(&'a [f32]),
    Integers(&'a [i32]),
    Unsigned(&'a [u8]),
    Signed(&'a [i8]),
}

impl<'a> Input<'a> {
    pub(super) fn of_operand(direct: Direct<'a>) -> Input<'a> {
        match direct {
            Direct::Line(line) => Input::Line(line),
            Direct::Floats([one], false) => Input::One(*one),
            Direct::Floats(values, _) => Input::Floats(values),
            Direct::Integers([one], false) => Input::OneInteger(*one),
            Direct::Integers(values, _) => Input::Integers(values),
            Direct::Unsigned([one], false) => Input::OneInteger(i32::from(*one)),
            Direct::Unsigned(values, _) => Input::Unsigned(values),
            Direct::Signed([one], false) => Input::OneInteger(i32::from(*one)),
            Direct::Signed(values, _) => Input::Signed(values),
        }
    }

    /// So many bytes from an element on, and whether they are signed, where it has bytes.
    #[inline(always)]
    pub(super) fn bytes<const COUNT: usize>(&self, start: usize) -> Option<(&'a [u8; COUNT], bool)> {
        match self {
            Input::Unsigned(values) => Some((values[start..].first_chunk()?, false)),
            Input::Signed(values) => Some((bytemuck::cast_slice::<i8, u8>(&values[start..]).first_chunk()?, true)),
            Input::Own
            | Input::One(_)
            | Input::OneInteger(_)
            | Input::Line(_)
            | Input::Floats(_)
            | Input::Integers(_) => None,
        }
    }

    /// The vector that is the same from every second line on.
    #[inline(always)]
    pub(super) fn repeated<S: Simd>(&self, simd: S) -> Option<S::Vector> {
        match self {
            Input::One(value) => Some(simd.splat(*value)),
            Input::Line(line) => Some(simd.load_halves(line, line)),
            Input::Own
            | Input::OneInteger(_)
            | Input::Floats(_)
            | Input::Integers(_)
            | Input::Unsigned(_)
            | Input::Signed(_) => None,
        }
    }

    pub(super) fn of_register(register: &'a Register, count: usize) -> Input<'a> {
        match register {
            Register::Float(values) => Input::Floats(&values[..count]),
            Register::Integer(values) => Input::Integers(&values[..count]),
            Register::General(_) => unreachable!("feeds are f32 or integers that an i32 holds"),
        }
    }
}

/// A vector of the elements `range` of a feed.
#[inline(always)]
pub(super) fn widened<S: Simd>(simd: S, input: Input<'_>, range: Range<usize>, widened: Option<Widened>) -> S::Vector {
    let mut lanes = [0; LANES];
    match input {
        // What is written over is read as f32 that lie side by side.
        Input::Own => {}
        Input::One(value) => return simd.splat(value),
        Input::Line(line) => return simd.load_halves(line, line),
        Input::Floats(values) => return simd.load_partial(&values[range]),
        Input::OneInteger(value) => lanes = [value; LANES],
        Input::Integers(values) => match values[range.clone()].first_chunk() {
            Some(values) => lanes = *values,
            None => lanes[..range.len()].copy_from_slice(&values[range]),
        },
        Input::Unsigned(values) => widen(&values[range], &mut lanes),
        Input::Signed(values) => widen(&values[range], &mut lanes),
    }
    let Widened { zero, scale } = widened.unwrap_or(Widened { zero: 0, scale: None });
    let values = simd.convert(simd.subtract_integers(simd.load_integers(&lanes), simd.splat_integer(zero)));
    match scale {
        Some(scale) => simd.multiply(values, simd.splat(scale)),
        None => values,
    }
}

#[inline(always)]
fn widen<T: Copy + Into<i32>>(values: &[T], lanes: &mut [i32; LANES]) {
    if let Some(values) = values.first_chunk::<LANES>() {
        for lane in 0..LANES {
            lanes[lane] = values[lane].into();
        }
        return;
    }
    for (lane, &value) in lanes.iter_mut().zip(values) {
        *lane = value.into();
    }
}
