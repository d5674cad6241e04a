//! Functions of two operands, which broadcast by strides.

use rayon::prelude::*;

use super::map::block;
use crate::kernels::simd::{Instructions, LANES, Routine, Simd};

/// A function of two numbers over vectors.
pub trait BinaryFunction: Copy + Send + Sync {
    /// The function of each lane. Implementations are `#[inline(always)]`.
    fn apply<S: Simd>(self, simd: S, a: S::Vector, b: S::Vector) -> S::Vector;
}

macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident $method:ident;)+) => { $(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl BinaryFunction for $name {
            #[inline(always)]
            fn apply<S: Simd>(self, simd: S, a: S::Vector, b: S::Vector) -> S::Vector {
                simd.$method(a, b)
            }
        }
    )+ };
}

functions! {
    /// a + b.
    Add add;
    /// a - b.
    Subtract subtract;
    /// a * b.
    Multiply multiply;
    /// a / b.
    Divide divide;
    /// The larger; NaN where either is.
    Maximum maximum;
    /// The smaller; NaN where either is.
    Minimum minimum;
}

/// How two operands lie under a result: extents of the result's axes, and for each the distance of neighbours in either operand
/// (0 where it broadcasts). Axes that lie alike are joined.
#[derive(Clone, Debug)]
pub struct Broadcast {
    /// Outermost first; the last is the row.
    axes: Vec<Axis>,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    strides: [usize; 2],
}

impl Broadcast {
    /// From the extents of the result and the strides of both operands, outermost first.
    ///
    /// # Panics
    /// If their numbers differ.
    #[must_use]
    pub fn new(extents: &[usize], left: &[usize], right: &[usize]) -> Self {
        assert!(extents.len() == left.len() && left.len() == right.len(), "strides for each axis of {extents:?}");
        let mut axes: Vec<Axis> = Vec::with_capacity(extents.len());
        for ((&extent, &left), &right) in extents.iter().zip(left).zip(right) {
            if extent == 1 {
                continue;
            }
            let axis = Axis { extent, strides: [left, right] };
            match axes.last_mut() {
                Some(outer) if (0..2).all(|side| outer.strides[side] == axis.strides[side] * extent) => {
                    *outer = Axis { extent: outer.extent * extent, ..axis };
                }
                _ => axes.push(axis),
            }
        }
        if axes.is_empty() {
            axes.push(Axis { extent: 1, strides: [1, 1] });
        }
        Self { axes }
    }

    /// Of two dense operands, whose shapes broadcast (aligned at the last axis) to `extents`.
    ///
    /// # Panics
    /// If they do not.
    #[must_use]
    pub fn dense(extents: &[usize], left: &[usize], right: &[usize]) -> Self {
        let strides = |operand: &[usize]| {
            let mut strides = vec![0; extents.len()];
            let mut stride = 1;
            for (axis, &extent) in operand.iter().enumerate().rev() {
                let axis = (extents.len() + axis).checked_sub(operand.len());
                let axis = axis.filter(|&axis| extent == 1 || extent == extents[axis]);
                let Some(axis) = axis else { panic!("axes {operand:?} do not broadcast to {extents:?}") };
                strides[axis] = if extent == 1 { 0 } else { stride };
                stride *= extent;
            }
            strides
        };
        Self::new(extents, &strides(left), &strides(right))
    }

    /// The number of result elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// How many elements an operand must have: one more than the place of the last.
    fn needed(&self, side: usize) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        1 + self.axes.iter().map(|axis| (axis.extent - 1) * axis.strides[side]).sum::<usize>()
    }

    /// Where the row with number `row` begins in both operands.
    fn row_places(&self, mut row: usize) -> [usize; 2] {
        let mut places = [0, 0];
        for axis in self.axes[..self.axes.len() - 1].iter().rev() {
            let index = row % axis.extent;
            row /= axis.extent;
            places[0] += index * axis.strides[0];
            places[1] += index * axis.strides[1];
        }
        places
    }

    /// Calls `visit` with each run of a row below the result elements from `first` on: the place of the run in
    /// the part, its length and its begin in both operands.
    #[inline(always)]
    fn runs(&self, first: usize, count: usize, mut visit: impl FnMut(usize, usize, [usize; 2])) {
        let last = self.axes[self.axes.len() - 1];
        let mut done = 0;
        while done < count {
            let (row, column) = ((first + done) / last.extent, (first + done) % last.extent);
            let length = (last.extent - column).min(count - done);
            let [left, right] = self.row_places(row);
            visit(done, length, [left + column * last.strides[0], right + column * last.strides[1]]);
            done += length;
        }
    }
}

/// `out = function(a, b)`.
///
/// # Panics
/// If an operand is too short, or `out` has another length than the broadcast.
pub fn binary(
    instructions: Instructions,
    function: impl BinaryFunction,
    broadcast: &Broadcast,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    assert_eq!(out.len(), broadcast.elements(), "elements of {broadcast:?}");
    for (side, operand) in [a, b].into_iter().enumerate() {
        assert!(broadcast.needed(side) <= operand.len(), "operand {side} of {} for {broadcast:?}", operand.len());
    }
    let run = |(first, out)| instructions.run(Task { function, broadcast, a, b, first, out });
    match block(out.len(), 2) {
        Some(block) => out.par_chunks_mut(block).enumerate().for_each(|(index, out)| run((index * block, out))),
        None => run((0, out)),
    }
}

/// `values = function(values, b)`, or `function(b, values)` if `swapped`. `values` is the left operand of the broadcast, and dense.
///
/// # Panics
/// If `b` is too short, or `values` is not the dense left operand.
pub fn binary_in_place(
    instructions: Instructions,
    function: impl BinaryFunction,
    swapped: bool,
    broadcast: &Broadcast,
    values: &mut [f32],
    b: &[f32],
) {
    assert_eq!(values.len(), broadcast.elements(), "elements of {broadcast:?}");
    assert!(broadcast.needed(1) <= b.len(), "operand 1 of {} for {broadcast:?}", b.len());
    assert!(values.is_empty() || broadcast.needed(0) == values.len(), "a dense left operand in {broadcast:?}");
    let run = |(first, values)| instructions.run(InPlace { function, swapped, broadcast, b, first, values });
    match block(values.len(), 2) {
        Some(block) => values.par_chunks_mut(block).enumerate().for_each(|(index, out)| run((index * block, out))),
        None => run((0, values)),
    }
}

struct Task<'a, F> {
    function: F,
    broadcast: &'a Broadcast,
    a: &'a [f32],
    b: &'a [f32],
    first: usize,
    out: &'a mut [f32],
}

/// Up to 16 elements of a row that begins at `values[0]`; `stride` is the distance of neighbours.
#[inline(always)]
fn load<S: Simd>(simd: S, values: &[f32], stride: usize, index: usize, count: usize) -> S::Vector {
    match stride {
        0 => simd.splat(values[0]),
        1 => simd.load_partial(&values[index..][..count]),
        _ => {
            let mut lanes = [0.0; LANES];
            for (lane, value) in lanes.iter_mut().zip(values[index * stride..].iter().step_by(stride)).take(count) {
                *lane = *value;
            }
            simd.load(&lanes)
        }
    }
}

impl<F: BinaryFunction> Routine for Task<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, broadcast, a, b, first, out } = self;
        let strides = broadcast.axes[broadcast.axes.len() - 1].strides;
        broadcast.runs(first, out.len(), |place, length, [left, right]| {
            let (a, b, out) = (&a[left..], &b[right..], &mut out[place..][..length]);
            match strides {
                [1, 1] => {
                    let (a, b) = (&a[..length], &b[..length]);
                    each_vector(out, |index, out| {
                        let (a, b) = (simd.load_partial(&a[index..]), simd.load_partial(&b[index..]));
                        simd.store_partial(function.apply(simd, a, b), out);
                    });
                }
                [1, 0] => {
                    let (a, b) = (&a[..length], simd.splat(b[0]));
                    each_vector(out, |index, out| {
                        simd.store_partial(function.apply(simd, simd.load_partial(&a[index..]), b), out);
                    });
                }
                [0, 1] => {
                    let (a, b) = (simd.splat(a[0]), &b[..length]);
                    each_vector(out, |index, out| {
                        simd.store_partial(function.apply(simd, a, simd.load_partial(&b[index..])), out);
                    });
                }
                _ => each_vector(out, |index, out| {
                    let a = load(simd, a, strides[0], index, out.len());
                    let b = load(simd, b, strides[1], index, out.len());
                    simd.store_partial(function.apply(simd, a, b), out);
                }),
            }
        });
    }
}

struct InPlace<'a, F> {
    function: F,
    swapped: bool,
    broadcast: &'a Broadcast,
    b: &'a [f32],
    first: usize,
    values: &'a mut [f32],
}

impl<F: BinaryFunction> Routine for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, swapped, broadcast, b, first, values } = self;
        let stride = broadcast.axes[broadcast.axes.len() - 1].strides[1];
        broadcast.runs(first, values.len(), |place, length, [_, right]| {
            let b = &b[right..];
            each_vector(&mut values[place..][..length], |index, values| {
                let (a, b) = (simd.load_partial(values), load(simd, b, stride, index, values.len()));
                let result = if swapped { function.apply(simd, b, a) } else { function.apply(simd, a, b) };
                simd.store_partial(result, values);
            });
        });
    }
}

/// Calls `visit` with 16 values at a time, and the index of the first.
#[inline(always)]
fn each_vector(values: &mut [f32], mut visit: impl FnMut(usize, &mut [f32])) {
    for (index, values) in values.chunks_mut(LANES).enumerate() {
        visit(index * LANES, values);
    }
}
