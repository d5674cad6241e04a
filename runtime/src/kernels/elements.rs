//! Functions of elements over slices: one, two or three operands, with broadcasting, in place where asked.
//!
//! The loops are plain and generic; [`Instructions::run`] compiles them for each instruction set, and closures of
//! arithmetic come out as vector code. Every element is computed alone, so that threads and cuts change no bits.

use crate::kernels::simd::{Instructions, Routine, Simd};
use crate::kernels::threads::parts;
use rayon::prelude::*;
use std::ops::Range;

/// How `N` operands are read for the elements of a broadcast shape: axes merged as far as all operands allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs<const N: usize> {
    /// Extents of the outer axes, outermost first.
    extents: Vec<usize>,
    /// Elements that each operand moves by on a step along an outer axis.
    strides: Vec<[usize; N]>,
    /// Elements of the innermost axis.
    length: usize,
    /// Which operands move along the innermost axis; the others stay at one element.
    moves: [bool; N],
}

impl<const N: usize> Runs<N> {
    /// Runs over `shape` of operands with these strides (in elements; 0 along repeated axes). An operand's elements lie
    /// side by side, so that its stride along the innermost axis that it has is 1.
    ///
    /// # Panics
    /// If the lengths differ.
    #[must_use]
    pub fn new(shape: &[usize], operand_strides: [&[usize]; N]) -> Self {
        assert!(operand_strides.iter().all(|strides| strides.len() == shape.len()), "strides for another rank");
        let mut extents: Vec<usize> = Vec::new();
        let mut strides: Vec<[usize; N]> = Vec::new();
        for (axis, &extent) in shape.iter().enumerate() {
            if extent == 1 {
                continue;
            }
            let own = operand_strides.map(|strides| strides[axis]);
            // An outer axis continues this one where every operand steps over exactly this axis.
            let merges = strides.last().is_some_and(|outer| (0..N).all(|at| outer[at] == own[at] * extent));
            match (extents.last_mut(), strides.last_mut()) {
                (Some(outer_extent), Some(outer)) if merges => {
                    *outer_extent *= extent;
                    *outer = own;
                }
                _ => {
                    extents.push(extent);
                    strides.push(own);
                }
            }
        }
        let length = extents.pop().unwrap_or(1);
        let moves = strides.pop().map_or([false; N], |inner| inner.map(|stride| stride != 0));
        Runs { extents, strides, length, moves }
    }

    /// Calls `visit` with each run of output elements in `range` and where each operand begins in it.
    #[inline(always)]
    fn visit(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>, [usize; N])) {
        let mut at = range.start;
        while at < range.end {
            let (row, column) = (at / self.length, at % self.length);
            let end = (at - column + self.length).min(range.end);
            let mut starts = [0; N];
            let mut rest = row;
            for (extent, strides) in self.extents.iter().zip(&self.strides).rev() {
                let index = rest % extent;
                rest /= extent;
                for (start, stride) in starts.iter_mut().zip(strides) {
                    *start += index * stride;
                }
            }
            for (start, moves) in starts.iter_mut().zip(self.moves) {
                *start += if moves { column } else { 0 };
            }
            visit(at..end, starts);
            at = end;
        }
    }
}

/// A part of an output and the place of its first element, filled by one thread.
trait Part<T>: Sync {
    fn fill<S: Simd>(&self, simd: S, first: usize, out: &mut [T]);
}

struct Fill<'a, T, P> {
    part: &'a P,
    first: usize,
    out: &'a mut [T],
}

impl<T, P: Part<T>> Routine for Fill<'_, T, P> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.part.fill(simd, self.first, self.out);
    }
}

/// Fills `out` in parts; `cost` is about the number of operations of an element.
fn fill<T: Send, P: Part<T>>(out: &mut [T], cost: usize, part: &P) {
    let instructions = Instructions::best();
    let count = parts(out.len().saturating_mul(cost), out.len());
    if count == 1 {
        return instructions.run(Fill { part, first: 0, out });
    }
    let size = out.len().div_ceil(count);
    let chunks = out.par_chunks_mut(size).enumerate();
    chunks.for_each(|(index, out)| instructions.run(Fill { part, first: index * size, out }));
}

struct Map<'a, X, F> {
    x: &'a [X],
    function: F,
}

impl<X: Copy + Sync, T, F: Fn(X) -> T + Sync> Part<T> for Map<'_, X, F> {
    #[inline(always)]
    fn fill<S: Simd>(&self, _simd: S, first: usize, out: &mut [T]) {
        let x = &self.x[first..first + out.len()];
        for (out, &x) in out.iter_mut().zip(x) {
            *out = (self.function)(x);
        }
    }
}

/// `out[i] = function(x[i])`.
///
/// # Panics
/// If `x` is shorter than `out`.
pub fn map<X: Copy + Sync, T: Send>(out: &mut [T], x: &[X], cost: usize, function: impl Fn(X) -> T + Sync) {
    fill(out, cost, &Map { x, function });
}

struct MapInPlace<F> {
    function: F,
}

impl<T: Copy, F: Fn(T) -> T + Sync> Part<T> for MapInPlace<F> {
    #[inline(always)]
    fn fill<S: Simd>(&self, _simd: S, _first: usize, out: &mut [T]) {
        for out in out {
            *out = (self.function)(*out);
        }
    }
}

/// `out[i] = function(out[i])`.
pub fn map_in_place<T: Copy + Send>(out: &mut [T], cost: usize, function: impl Fn(T) -> T + Sync) {
    fill(out, cost, &MapInPlace { function });
}

struct Zip<'a, X, Y, F> {
    x: &'a [X],
    y: &'a [Y],
    runs: &'a Runs<2>,
    function: F,
}

impl<X: Copy + Sync, Y: Copy + Sync, T: Copy, F: Fn(X, Y) -> T + Sync> Part<T> for Zip<'_, X, Y, F> {
    #[inline(always)]
    fn fill<S: Simd>(&self, _simd: S, first: usize, out: &mut [T]) {
        let function = &self.function;
        self.runs.visit(first..first + out.len(), |range, [x, y]| {
            let out = &mut out[range.start - first..range.end - first];
            let length = out.len();
            match self.runs.moves {
                [true, true] => {
                    let operands = self.x[x..x + length].iter().zip(&self.y[y..y + length]);
                    out.iter_mut().zip(operands).for_each(|(out, (&x, &y))| *out = function(x, y));
                }
                [true, false] => {
                    let y = self.y[y];
                    out.iter_mut().zip(&self.x[x..x + length]).for_each(|(out, &x)| *out = function(x, y));
                }
                [false, true] => {
                    let x = self.x[x];
                    out.iter_mut().zip(&self.y[y..y + length]).for_each(|(out, &y)| *out = function(x, y));
                }
                [false, false] => out.fill(function(self.x[x], self.y[y])),
            }
        });
    }
}

/// `out[i] = function(x[..], y[..])` as `runs` say.
///
/// # Panics
/// If an operand is shorter than `runs` read.
pub fn zip<X: Copy + Sync, Y: Copy + Sync, T: Copy + Send>(
    out: &mut [T],
    x: &[X],
    y: &[Y],
    runs: &Runs<2>,
    cost: usize,
    function: impl Fn(X, Y) -> T + Sync,
) {
    fill(out, cost, &Zip { x, y, runs, function });
}

struct ZipInPlace<'a, Y, F> {
    y: &'a [Y],
    runs: &'a Runs<1>,
    function: F,
}

impl<Y: Copy + Sync, T: Copy, F: Fn(T, Y) -> T + Sync> Part<T> for ZipInPlace<'_, Y, F> {
    #[inline(always)]
    fn fill<S: Simd>(&self, _simd: S, first: usize, out: &mut [T]) {
        let function = &self.function;
        self.runs.visit(first..first + out.len(), |range, [y]| {
            let out = &mut out[range.start - first..range.end - first];
            if self.runs.moves[0] {
                let y = &self.y[y..y + out.len()];
                out.iter_mut().zip(y).for_each(|(out, &y)| *out = function(*out, y));
            } else {
                let y = self.y[y];
                out.iter_mut().for_each(|out| *out = function(*out, y));
            }
        });
    }
}

/// `out[i] = function(out[i], y[..])` as `runs` say.
///
/// # Panics
/// If `y` is shorter than `runs` read.
pub fn zip_in_place<Y: Copy + Sync, T: Copy + Send>(
    out: &mut [T],
    y: &[Y],
    runs: &Runs<1>,
    cost: usize,
    function: impl Fn(T, Y) -> T + Sync,
) {
    fill(out, cost, &ZipInPlace { y, runs, function });
}

struct Choose<'a, T> {
    condition: &'a [u8],
    x: &'a [T],
    y: &'a [T],
    runs: &'a Runs<3>,
}

impl<T: Copy + Sync> Part<T> for Choose<'_, T> {
    #[inline(always)]
    fn fill<S: Simd>(&self, _simd: S, first: usize, out: &mut [T]) {
        let [condition_moves, x_moves, y_moves] = self.runs.moves;
        self.runs.visit(first..first + out.len(), |range, [condition, x, y]| {
            let out = &mut out[range.start - first..range.end - first];
            let length = out.len();
            if !condition_moves {
                let (side, start, moves) =
                    if self.condition[condition] != 0 { (self.x, x, x_moves) } else { (self.y, y, y_moves) };
                return match moves {
                    true => out.copy_from_slice(&side[start..start + length]),
                    false => out.fill(side[start]),
                };
            }
            let out = out.iter_mut().zip(&self.condition[condition..condition + length]);
            match (x_moves, y_moves) {
                (true, true) => {
                    let sides = self.x[x..x + length].iter().zip(&self.y[y..y + length]);
                    out.zip(sides).for_each(|((out, &holds), (&x, &y))| *out = if holds != 0 { x } else { y });
                }
                (true, false) => {
                    let y = self.y[y];
                    let x = &self.x[x..x + length];
                    out.zip(x).for_each(|((out, &holds), &x)| *out = if holds != 0 { x } else { y });
                }
                (false, true) => {
                    let x = self.x[x];
                    let y = &self.y[y..y + length];
                    out.zip(y).for_each(|((out, &holds), &y)| *out = if holds != 0 { x } else { y });
                }
                (false, false) => {
                    let (x, y) = (self.x[x], self.y[y]);
                    out.for_each(|(out, &holds)| *out = if holds != 0 { x } else { y });
                }
            }
        });
    }
}

/// `out[i] = condition[..] ? x[..] : y[..]` as `runs` say; a condition is a byte that is 0 or not.
///
/// # Panics
/// If an operand is shorter than `runs` read.
pub fn choose<T: Copy + Send + Sync>(out: &mut [T], condition: &[u8], x: &[T], y: &[T], runs: &Runs<3>) {
    fill(out, 1, &Choose { condition, x, y, runs });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::with_threads;

    /// Strides of a row-major operand of `shape` under the broadcast `target`, by definition.
    fn strides(shape: &[usize], target: &[usize]) -> Vec<usize> {
        let offset = target.len() - shape.len();
        let own = |axis: usize| shape[axis + 1..].iter().product::<usize>();
        (0..target.len())
            .map(|axis| if axis < offset || shape[axis - offset] == 1 { 0 } else { own(axis - offset) })
            .collect()
    }

    /// The flat index of an operand for the output element at `flat`, by definition.
    fn index(target: &[usize], strides: &[usize], flat: usize) -> usize {
        let mut rest = flat;
        let mut index = 0;
        for axis in (0..target.len()).rev() {
            index += rest % target[axis] * strides[axis];
            rest /= target[axis];
        }
        index
    }

    #[test]
    fn every_kind_of_broadcast_is_read_in_order() {
        let target = [3, 4, 5, 2];
        let shapes: [&[usize]; 8] =
            [&[3, 4, 5, 2], &[2], &[], &[5, 1], &[4, 1, 2], &[3, 1, 1, 1], &[3, 4, 1, 1], &[1, 5, 2]];
        for x_shape in shapes {
            for y_shape in shapes {
                let (x_strides, y_strides) = (strides(x_shape, &target), strides(y_shape, &target));
                let x: Vec<i64> = (0..x_shape.iter().product::<usize>() as i64).collect();
                let y: Vec<i64> = (0..y_shape.iter().product::<usize>() as i64).collect();
                let expected: Vec<i64> = (0..120)
                    .map(|flat| x[index(&target, &x_strides, flat)] * 1000 + y[index(&target, &y_strides, flat)])
                    .collect();
                let runs = Runs::new(&target, [&x_strides, &y_strides]);
                let mut out = vec![0; 120];
                zip(&mut out, &x, &y, &runs, 1, |x, y| x * 1000 + y);
                assert_eq!(out, expected, "{x_shape:?} {y_shape:?}");
                let condition: Vec<u8> = x.iter().map(|x| (x % 2) as u8).collect();
                let runs = Runs::new(&target, [&x_strides, &x_strides, &y_strides]);
                choose(&mut out, &condition, &x, &y, &runs);
                for (flat, out) in out.iter().enumerate() {
                    let (at_x, at_y) = (index(&target, &x_strides, flat), index(&target, &y_strides, flat));
                    assert_eq!(*out, if condition[at_x] != 0 { x[at_x] } else { y[at_y] });
                }
                if x_shape == target {
                    let mut out = x.clone();
                    zip_in_place(&mut out, &y, &Runs::new(&target, [&y_strides]), 1, |x, y| x * 1000 + y);
                    assert_eq!(out, expected);
                }
            }
        }
    }

    #[test]
    fn axes_merge_where_operands_allow() {
        let runs = Runs::<2>::new(&[2, 1, 3, 4], [&[12, 12, 4, 1], &[0, 0, 0, 1]]);
        assert_eq!((runs.extents.as_slice(), runs.length, runs.moves), (&[6][..], 4, [true, true]));
        let runs = Runs::<2>::new(&[2, 3, 4], [&[12, 4, 1], &[0, 0, 0]]);
        assert_eq!((runs.extents.len(), runs.length, runs.moves), (0, 24, [true, false]));
    }

    #[test]
    fn threads_fill_everything_once() {
        with_threads(4, || {
            let x: Vec<f32> = (0..300_001).map(|index| index as f32).collect();
            let mut out = vec![0.0; x.len()];
            map(&mut out, &x, 4, |x| x + 1.0);
            assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 1.0));
            map_in_place(&mut out, 4, |x| x * 2.0);
            let runs = Runs::new(&[x.len()], [&[1]]);
            zip_in_place(&mut out, &x, &runs, 4, |out, x| out - x);
            assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 2.0));
            let none: &[f32] = &[];
            map(&mut [0f32; 0], none, 1, |x| x);
            zip(&mut [0f32; 0], none, none, &Runs::new(&[0, 3], [&[3, 1], &[0, 1]]), 1, |x, y| x + y);
        });
    }
}
