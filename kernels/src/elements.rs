//! Functions of elements over slices: one, two or three operands, with broadcasting, in place where asked.
//!
//! A function comes as a loop over blocks ([`map_block`], [`zip_block`]), compiled for each instruction set, so that closures
//! of arithmetic come out as vector code. What walks over shapes is compiled once a type and sees that loop through a
//! pointer. Every element is computed alone, so that threads and cuts change no bits.

use crate::simd::{Instructions, Routine, Simd};
use crate::threads::{MOVE_OPERATIONS, chunks, parts};
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

    /// One run of so many elements, along which these operands move.
    #[must_use]
    pub fn flat(length: usize, moves: [bool; N]) -> Self {
        Runs { extents: Vec::new(), strides: Vec::new(), length, moves }
    }

    /// Calls `visit` with the length of each run of output elements in `range`, where each operand begins in it, and which
    /// operands move along it.
    pub fn visit_runs(&self, range: Range<usize>, mut visit: impl FnMut(usize, [usize; N], [bool; N])) {
        self.visit(range, |run, starts| visit(run.len(), starts, self.moves));
    }

    /// Output elements of a run: one begins at each multiple.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether any operand moves along the innermost axis.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.moves.contains(&true)
    }

    /// Where each operand begins, and which move, if the output elements in `range` are one run.
    #[must_use]
    pub fn single(&self, range: &Range<usize>) -> Option<([usize; N], [bool; N])> {
        let row = range.start.checked_div(self.length)?;
        let mut found = [0; N];
        (range.end <= (row + 1) * self.length).then(|| self.visit(range.clone(), |_, starts| found = starts))?;
        Some((found, self.moves))
    }

    /// Calls `visit` with each run of output elements in `range` and where each operand begins in it.
    #[inline(always)]
    fn visit(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>, [usize; N])) {
        let (mut at, mut starts) = (range.start, [0; N]);
        // Runs to the end of the last axis: each begins where the one before says, without divisions.
        let mut left = 0;
        while at < range.end {
            let column = if at == range.start { at % self.length } else { 0 };
            if left == 0 {
                let mut rest = at / self.length;
                left = self.extents.last().map_or(1, |extent| extent - rest % extent);
                starts = [0; N];
                for (extent, strides) in self.extents.iter().zip(&self.strides).rev() {
                    let index = rest % extent;
                    rest /= extent;
                    for (start, stride) in starts.iter_mut().zip(strides) {
                        *start += index * stride;
                    }
                }
            }
            let end = (at - column + self.length).min(range.end);
            let mut own = starts;
            for (start, moves) in own.iter_mut().zip(self.moves) {
                *start += if moves { column } else { 0 };
            }
            visit(at..end, own);
            (at, left) = (end, left - 1);
            for (start, stride) in starts.iter_mut().zip(self.strides.last().unwrap_or(&[0; N])) {
                *start += stride;
            }
        }
    }
}

/// A function of elements over blocks of one length: the results and the operands.
pub type MapBlock<'f, T, X> = dyn Fn(&mut [T], &[X]) + Sync + 'f;

/// A function of two operands' elements over blocks of one length: the results and the operands.
pub type ZipBlock<'f, T, X, Y> = dyn Fn(&mut [T], &[X], &[Y]) + Sync + 'f;

/// Elements of a block: operands of one that are repeated or copied stay in the first-level cache.
const BLOCK: usize = 1024;

/// Calls `run(first, part)` with parts of `out`, side by side; `cost` is about the number of operations of an element.
pub fn in_parts<T: Send>(out: &mut [T], cost: usize, run: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let count = parts(out.len().saturating_mul(cost.max(MOVE_OPERATIONS)), out.len());
    if count == 1 {
        return run(0, out);
    }
    let size = out.len().div_ceil(count);
    chunks(out, size, |index, out| run(index * size, out));
}

struct MapLoop<'a, T, X, F> {
    out: &'a mut [T],
    x: &'a [X],
    function: &'a F,
}

impl<T, X: Copy, F: Fn(X) -> T> Routine for MapLoop<'_, T, X, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = (self.function)(x);
        }
    }
}

/// A function of one operand over blocks.
pub fn map_block<T, X: Copy>(function: impl Fn(X) -> T + Sync) -> impl Fn(&mut [T], &[X]) + Sync {
    let instructions = Instructions::best();
    move |out: &mut [T], x: &[X]| instructions.run(MapLoop { out, x, function: &function })
}

/// `out[i] = function(x[i])`.
///
/// # Panics
/// If `x` is shorter than `out`.
pub fn map<X: Sync, T: Send>(out: &mut [T], x: &[X], cost: usize, function: &MapBlock<'_, T, X>) {
    in_parts(out, cost, &|first, out| function(out, &x[first..first + out.len()]));
}

/// `out[i] = function(out[i])`.
pub fn map_in_place<T: Copy + Send>(out: &mut [T], cost: usize, function: &MapBlock<'_, T, T>) {
    in_parts(out, cost, &|_, out| {
        let mut own = Vec::new();
        for out in out.chunks_mut(BLOCK) {
            own.clear();
            own.extend_from_slice(out);
            function(out, &own);
        }
    });
}

struct ZipLoop<'a, T, X, Y, F> {
    out: &'a mut [T],
    x: &'a [X],
    y: &'a [Y],
    function: &'a F,
}

impl<T, X: Copy, Y: Copy, F: Fn(X, Y) -> T> Routine for ZipLoop<'_, T, X, Y, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for ((out, &x), &y) in self.out.iter_mut().zip(self.x).zip(self.y) {
            *out = (self.function)(x, y);
        }
    }
}

/// A function of two operands over blocks.
pub fn zip_block<T, X: Copy, Y: Copy>(function: impl Fn(X, Y) -> T + Sync) -> impl Fn(&mut [T], &[X], &[Y]) + Sync {
    let instructions = Instructions::best();
    move |out: &mut [T], x: &[X], y: &[Y]| instructions.run(ZipLoop { out, x, y, function: &function })
}

/// An operand that is read in blocks, or one element of it again and again.
struct Blocks<'a, X> {
    elements: &'a [X],
    moves: bool,
    repeated: Vec<X>,
}

impl<'a, X: Copy> Blocks<'a, X> {
    fn new(elements: &'a [X], moves: bool) -> Self {
        Blocks { elements, moves, repeated: Vec::new() }
    }

    /// Begins a run of `length` elements at `start`.
    fn begin(&mut self, start: usize, length: usize) {
        if !self.moves {
            self.repeated.clear();
            self.repeated.resize(length.min(BLOCK), self.elements[start]);
        }
    }

    /// `length` elements from `offset` on in the run that begins at `start`.
    fn block(&self, start: usize, offset: usize, length: usize) -> &[X] {
        if self.moves { &self.elements[start + offset..][..length] } else { &self.repeated[..length] }
    }
}

/// `out[i] = function(x[..], y[..])` as `runs` say.
///
/// # Panics
/// If an operand is shorter than `runs` read.
pub fn zip<X: Copy + Sync, Y: Copy + Sync, T: Send>(
    out: &mut [T],
    x: &[X],
    y: &[Y],
    runs: &Runs<2>,
    cost: usize,
    function: &ZipBlock<'_, T, X, Y>,
) {
    let [x_moves, y_moves] = runs.moves;
    let size = if x_moves && y_moves { usize::MAX } else { BLOCK };
    in_parts(out, cost, &|first, out| {
        let (mut x, mut y) = (Blocks::new(x, x_moves), Blocks::new(y, y_moves));
        runs.visit(first..first + out.len(), |range, [x_start, y_start]| {
            let out = &mut out[range.start - first..range.end - first];
            x.begin(x_start, out.len());
            y.begin(y_start, out.len());
            let mut offset = 0;
            for out in out.chunks_mut(size) {
                let length = out.len();
                function(out, x.block(x_start, offset, length), y.block(y_start, offset, length));
                offset += length;
            }
        });
    });
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
    function: &ZipBlock<'_, T, T, Y>,
) {
    in_parts(out, cost, &|first, out| {
        let mut y = Blocks::new(y, runs.moves[0]);
        let mut own = Vec::new();
        runs.visit(first..first + out.len(), |range, [y_start]| {
            let out = &mut out[range.start - first..range.end - first];
            y.begin(y_start, out.len());
            for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                own.clear();
                own.extend_from_slice(out);
                function(out, &own, y.block(y_start, index * BLOCK, own.len()));
            }
        });
    });
}

struct Choose<'a, T> {
    first: usize,
    out: &'a mut [T],
    condition: &'a [u8],
    x: &'a [T],
    y: &'a [T],
    runs: &'a Runs<3>,
}

impl<T: Copy> Routine for Choose<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (first, out) = (self.first, self.out);
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
    let instructions = Instructions::best();
    in_parts(out, 1, &|first, out| instructions.run(Choose { first, out, condition, x, y, runs }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_threads;

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
                zip(&mut out, &x, &y, &runs, 1, &zip_block(|x, y| x * 1000 + y));
                assert_eq!(out, expected, "{x_shape:?} {y_shape:?}");
                let condition: Vec<u8> = x.iter().map(|x| (x % 2) as u8).collect();
                let runs = Runs::new(&target, [&x_strides, &x_strides, &y_strides]);
                choose(&mut out, &condition, &x, &y, &runs);
                for (flat, out) in out.iter().enumerate() {
                    let (at_x, at_y) = (index(&target, &x_strides, flat), index(&target, &y_strides, flat));
                    assert_eq!(*out, if condition[at_x] != 0 { x[at_x] } else { y[at_y] });
                }
                // From any element on, to any other.
                for range in [0..120, 1..120, 7..61, 59..62, 119..120, 40..40] {
                    let (mut at, both) = (range.start, Runs::new(&target, [&x_strides, &y_strides]));
                    both.visit_runs(range.clone(), |count, starts, moves| {
                        for step in 0..count {
                            let place = |own: usize| starts[own] + if moves[own] { step } else { 0 };
                            let expected = [index(&target, &x_strides, at), index(&target, &y_strides, at)];
                            assert_eq!([place(0), place(1)], expected, "{x_shape:?} {y_shape:?} {range:?} {at}");
                            at += 1;
                        }
                    });
                    assert_eq!(at, range.end);
                }
                if x_shape == target {
                    let mut out = x.clone();
                    let runs = Runs::new(&target, [&y_strides]);
                    zip_in_place(&mut out, &y, &runs, 1, &zip_block(|x, y| x * 1000 + y));
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
            map(&mut out, &x, 4, &map_block(|x: f32| x + 1.0));
            assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 1.0));
            map_in_place(&mut out, 4, &map_block(|x: f32| x * 2.0));
            let runs = Runs::new(&[x.len()], [&[1]]);
            zip_in_place(&mut out, &x, &runs, 4, &zip_block(|out: f32, x: f32| out - x));
            assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 2.0));
            let none: &[f32] = &[];
            map(&mut [0f32; 0], none, 1, &map_block(|x: f32| x));
            let runs = Runs::new(&[0, 3], [&[3, 1], &[0, 1]]);
            zip(&mut [0f32; 0], none, none, &runs, 1, &zip_block(|x: f32, y: f32| x + y));
        });
    }
}
