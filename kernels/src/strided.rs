//! Copies between row-major targets and sources that are walked by strides: transposes, slices, repetitions, blocks.
//!
//! Elements are words of their width. Axes that the source walks as one become one; what remains is rows that lie side
//! by side, rows of one repeated element, or matrices that are transposed tile by tile. Threads take parts of the target
//! along its outer axes, and every element is written once, so that cuts change nothing.

use crate::simd::{Instructions, LANES, Routine, Simd};
use crate::threads::{chunks, each, parts_of_moves};
use bytemuck::Pod;

/// Elements on a side of a tile of a transposed matrix: its lines of both sides stay in the first cache.
const TILE: usize = 32;

/// Rows and columns of a matrix that is transposed by vectors.
const FEWEST_ON_A_SIDE: usize = 4;

/// How the elements of a row-major target lie in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    extents: Vec<usize>,
    strides: Vec<isize>,
    base: usize,
}

impl Strided {
    /// A target of these extents; a step along an axis moves by its stride in the source, the first element is at `base`.
    ///
    /// # Panics
    /// If the lengths differ.
    #[must_use]
    pub fn new(extents: &[usize], strides: &[isize], base: usize) -> Strided {
        assert_eq!(extents.len(), strides.len(), "strides for another rank");
        let mut merged = Strided { extents: Vec::new(), strides: Vec::new(), base };
        if extents.contains(&0) {
            merged.extents.push(0);
            merged.strides.push(1);
            return merged;
        }
        for (&extent, &stride) in extents.iter().zip(strides) {
            if extent == 1 {
                continue;
            }
            match (merged.extents.last_mut(), merged.strides.last_mut()) {
                (Some(outer), Some(step)) if *step == stride * extent as isize => {
                    *outer *= extent;
                    *step = stride;
                }
                _ => {
                    merged.extents.push(extent);
                    merged.strides.push(stride);
                }
            }
        }
        merged
    }

    /// Fills the target.
    ///
    /// # Panics
    /// If the target has another number of elements, or the walk leaves the source.
    pub fn copy<T: Pod + Send + Sync>(&self, source: &[T], target: &mut [T]) {
        let count: usize = self.extents.iter().product();
        assert_eq!(target.len(), count, "a target of another size");
        if count > 0 {
            let walk = Walk { extents: &self.extents, strides: &self.strides, base: self.base as isize };
            walk.copy_in_parts(source, target, parts_of_moves(count, count));
        }
    }
}

/// The part of a [`Strided`] that one call fills; no extent is 0.
#[derive(Clone, Copy)]
struct Walk<'a> {
    extents: &'a [usize],
    strides: &'a [isize],
    base: isize,
}

impl Walk<'_> {
    fn copy_in_parts<T: Pod + Send + Sync>(self, source: &[T], target: &mut [T], parts: usize) {
        let Some((&extent, inner)) = self.extents.split_first().filter(|_| parts > 1) else {
            return self.copy(source, target);
        };
        let size = target.len() / extent;
        if extent >= parts || inner.is_empty() {
            let rows = extent.div_ceil(parts);
            chunks(target, rows * size, |part, target| {
                let mut extents = self.extents.to_vec();
                extents[0] = target.len() / size;
                let base = self.base + (part * rows) as isize * self.strides[0];
                Walk { extents: &extents, base, ..self }.copy(source, target);
            });
            return;
        }
        chunks(target, size, |row, target| {
            let base = self.base + row as isize * self.strides[0];
            let walk = Walk { extents: inner, strides: &self.strides[1..], base };
            walk.copy_in_parts(source, target, parts.div_ceil(extent));
        });
    }

    fn copy<T: Pod>(self, source: &[T], target: &mut [T]) {
        let (Some((&length, extents)), Some((&step, strides))) = (self.extents.split_last(), self.strides.split_last())
        else {
            target[0] = source[self.base as usize];
            return;
        };
        let unit = strides.iter().position(|&stride| stride == 1);
        match (step, unit) {
            (1, _) => match length {
                2 => self.short_rows::<T, 2>(source, target),
                4 => self.short_rows::<T, 4>(source, target),
                8 => self.short_rows::<T, 8>(source, target),
                _ => self.rows(target, |row, at| row.copy_from_slice(&source[at as usize..at as usize + length])),
            },
            (0, _) => self.rows(target, |row, at| row.fill(source[at as usize])),
            (_, Some(axis)) if extents[axis] > 1 => self.transpose(axis, source, target),
            (_, _) => self.rows(target, |row, at| {
                let places = (0..).map(|index| (at + index * step) as usize);
                row.iter_mut().zip(places).for_each(|(element, place)| *element = source[place]);
            }),
        }
    }

    /// Copies rows of a length for which a call would take longer than the copy.
    fn short_rows<T: Pod, const LENGTH: usize>(self, source: &[T], target: &mut [T]) {
        self.rows(target, |row, at| {
            row[..LENGTH].copy_from_slice(&source[at as usize..][..LENGTH]);
        });
    }

    /// Visits the rows along the last axis.
    #[inline(always)]
    fn rows<T>(self, target: &mut [T], mut visit: impl FnMut(&mut [T], isize)) {
        let last = self.extents.len() - 1;
        // The two axes before the last are loops: an odometer takes longer than a short row.
        let outer = last.saturating_sub(2);
        let axis = |at: Option<usize>| at.map_or((1, 0), |at| (self.extents[at], self.strides[at]));
        let ((planes, plane_step), (rows, row_step)) = (axis(last.checked_sub(2)), axis(last.checked_sub(1)));
        let length = self.extents[last];
        let mut odometer = Odometer::new(&self.extents[..outer], [&self.strides[..outer]]);
        for block in target.chunks_exact_mut(planes * rows * length) {
            let base = self.base + odometer.offsets[0];
            for (plane, block) in block.chunks_exact_mut(rows * length).enumerate() {
                let base = base + plane as isize * plane_step;
                for (row, target) in block.chunks_exact_mut(length).enumerate() {
                    visit(target, base + row as isize * row_step);
                }
            }
            odometer.advance();
        }
    }

    /// Matrices of the axis along which the source lies side by side and of the last axis, one tile after another.
    fn transpose<T: Pod>(self, axis: usize, source: &[T], target: &mut [T]) {
        let last = self.extents.len() - 1;
        let mut target_strides = vec![1isize; last + 1];
        for at in (0..last).rev() {
            target_strides[at] = target_strides[at + 1] * self.extents[at + 1] as isize;
        }
        let others: Vec<usize> = (0..last).filter(|&at| at != axis).collect();
        let pick = |strides: &[isize]| others.iter().map(|&at| strides[at]).collect::<Vec<_>>();
        let extents: Vec<usize> = others.iter().map(|&at| self.extents[at]).collect();
        let (from, to) = (pick(self.strides), pick(&target_strides));
        let matrix = Matrix {
            rows: self.extents[axis],
            columns: self.extents[last],
            row_step: target_strides[axis] as usize,
            column_step: self.strides[last],
        };
        let mut odometer = Odometer::new(&extents, [&from, &to]);
        for _ in 0..extents.iter().product() {
            let [from, to] = odometer.offsets;
            matrix.transpose(source, self.base + from, &mut target[to as usize..]);
            odometer.advance();
        }
    }
}

/// A matrix whose rows are side by side in the target and whose columns are in the source.
struct Matrix {
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: isize,
}

impl Matrix {
    fn transpose<T: Pod>(&self, source: &[T], base: isize, target: &mut [T]) {
        match size_of::<T>() {
            1 => {
                return self.transpose_in_words::<8>(
                    bytemuck::cast_slice(source),
                    base,
                    bytemuck::cast_slice_mut(target),
                );
            }
            2 => {
                return self.transpose_in_words::<4>(
                    bytemuck::cast_slice(source),
                    base,
                    bytemuck::cast_slice_mut(target),
                );
            }
            // Fewer would leave most of the vectors empty.
            4 if align_of::<T>() == 4 && self.rows.min(self.columns) >= FEWEST_ON_A_SIDE => {
                let (source, target) = (bytemuck::cast_slice(source), bytemuck::cast_slice_mut(target));
                return Instructions::best().run(Vectors { matrix: self, source, base, target });
            }
            _ => {}
        }
        for first_row in (0..self.rows).step_by(TILE) {
            let rows = first_row..(first_row + TILE).min(self.rows);
            for first_column in (0..self.columns).step_by(TILE) {
                let columns = TILE.min(self.columns - first_column);
                let begin = base + first_column as isize * self.column_step;
                for row in rows.clone() {
                    let start = row * self.row_step + first_column;
                    let places = (0..).map(|column| (begin + row as isize + column * self.column_step) as usize);
                    let elements = target[start..start + columns].iter_mut();
                    elements.zip(places).for_each(|(element, place)| *element = source[place]);
                }
            }
        }
    }
}

impl Matrix {
    /// Elements of `8 / SIDE` bytes, as many rows and columns at a time as a word of 8 bytes has elements.
    fn transpose_in_words<const SIDE: usize>(&self, source: &[u8], base: isize, target: &mut [u8]) {
        let width = 8 / SIDE;
        for first_row in (0..self.rows).step_by(TILE) {
            let rows = first_row..(first_row + TILE).min(self.rows);
            for column in (0..self.columns).step_by(SIDE) {
                let columns = SIDE.min(self.columns - column);
                let begin = base + column as isize * self.column_step;
                for row in rows.clone().step_by(SIDE) {
                    let count = SIDE.min(rows.end - row);
                    let mut words = [0u64; SIDE];
                    for (at, word) in words.iter_mut().enumerate().take(columns) {
                        let place = (begin + row as isize + at as isize * self.column_step) as usize * width;
                        *word = match source[place..].first_chunk() {
                            Some(bytes) if count == SIDE => u64::from_le_bytes(*bytes),
                            Some(_) | None => word_of(&source[place..place + count * width]),
                        };
                    }
                    transpose_words(&mut words);
                    for (at, word) in words.iter().enumerate().take(count) {
                        let place = ((row + at) * self.row_step + column) * width;
                        target[place..place + columns * width].copy_from_slice(&word.to_le_bytes()[..columns * width]);
                    }
                }
            }
        }
    }
}

/// A matrix of elements of 4 bytes, 16 rows and columns at a time: the lines of a tile are read and written once, as columns that
/// lie a power of two apart share cache sets.
struct Vectors<'a> {
    matrix: &'a Matrix,
    source: &'a [f32],
    base: isize,
    target: &'a mut [f32],
}

impl Routine for Vectors<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Matrix { rows, columns, .. } = *self.matrix;
        for first_row in (0..rows).step_by(TILE) {
            for first_column in (0..columns).step_by(TILE) {
                for row in (first_row..rows.min(first_row + TILE)).step_by(LANES) {
                    for column in (first_column..columns.min(first_column + TILE)).step_by(LANES) {
                        self.tile(simd, row, column);
                    }
                }
            }
        }
    }
}

impl Vectors<'_> {
    #[inline(always)]
    fn tile<S: Simd>(&mut self, simd: S, row: usize, column: usize) {
        let Matrix { rows, columns, row_step, column_step } = *self.matrix;
        let (rows, columns) = (LANES.min(rows - row), LANES.min(columns - column));
        let begin = self.base + row as isize;
        let mut vectors = [simd.splat(0.0); LANES];
        for lane in 0..LANES {
            if lane < columns {
                let place = (begin + (column + lane) as isize * column_step) as usize;
                vectors[lane] = simd.load_partial(&self.source[place..][..rows]);
            }
        }
        let vectors = simd.transpose(vectors);
        for lane in 0..LANES {
            if lane < rows {
                let place = (row + lane) * row_step + column;
                simd.store_partial(vectors[lane], &mut self.target[place..][..columns]);
            }
        }
    }
}

/// At most 8 bytes as a word, the first the lowest.
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Transposes a square of elements, of which each word has a row, the first element lowest.
#[inline(always)]
fn transpose_words<const SIDE: usize>(words: &mut [u64; SIDE]) {
    // Halves of squares change places, then quarters of these, down to single elements.
    let mut distance = SIDE / 2;
    while distance > 0 {
        let shift = distance * 64 / SIDE;
        // The lower of each two halves of as many bits.
        let lower = u64::MAX / ((1 << shift) + 1);
        for first in 0..SIDE {
            if first & distance == 0 {
                let moved = ((words[first] >> shift) ^ words[first + distance]) & lower;
                words[first + distance] ^= moved;
                words[first] ^= moved << shift;
            }
        }
        distance /= 2;
    }
}

/// Coordinates in row-major order, and where they lie by `N` sets of strides.
struct Odometer<'a, const N: usize> {
    extents: &'a [usize],
    strides: [&'a [isize]; N],
    coordinates: Vec<usize>,
    offsets: [isize; N],
}

impl<'a, const N: usize> Odometer<'a, N> {
    fn new(extents: &'a [usize], strides: [&'a [isize]; N]) -> Self {
        Odometer { extents, strides, coordinates: vec![0; extents.len()], offsets: [0; N] }
    }

    /// To the next coordinates; after the last ones come the first again.
    fn advance(&mut self) {
        for axis in (0..self.extents.len()).rev() {
            self.coordinates[axis] += 1;
            let rewinds = self.coordinates[axis] == self.extents[axis];
            let steps = if rewinds { 1 - self.extents[axis] as isize } else { 1 };
            for (offset, strides) in self.offsets.iter_mut().zip(self.strides) {
                *offset += strides[axis] * steps;
            }
            if !rewinds {
                return;
            }
            self.coordinates[axis] = 0;
        }
    }
}

/// The slices of `length` elements that begin at `starts`, one behind the other.
///
/// # Panics
/// If the target has another number of elements, or a slice leaves the source.
pub fn copy_slices<T: Copy + Send + Sync>(source: &[T], starts: &[usize], length: usize, target: &mut [T]) {
    assert_eq!(target.len(), starts.len() * length, "a target of another size");
    if target.is_empty() {
        return;
    }
    let fill = |starts: &[usize], target: &mut [T]| {
        if length == 1 {
            target.iter_mut().zip(starts).for_each(|(element, &start)| *element = source[start]);
            return;
        }
        for (slice, &start) in target.chunks_exact_mut(length).zip(starts) {
            slice.copy_from_slice(&source[start..start + length]);
        }
    };
    // Slices are copied by words, whatever their elements are.
    let moves = if length == 1 { target.len() } else { size_of_val(target) / size_of::<f32>() };
    let slices = starts.len().div_ceil(parts_of_moves(moves, starts.len()));
    let tasks = target.chunks_mut(slices * length).zip(starts.chunks(slices)).collect();
    each(tasks, |(target, starts)| fill(starts, target));
}

/// For each index below `outer` the run of that index of every source, one behind the other; the runs of a source have
/// equal lengths.
///
/// # Panics
/// If the target has another number of elements than the sources.
pub fn interleave<T: Pod + Send + Sync>(sources: &[(&[T], usize)], outer: usize, target: &mut [T]) {
    let total: usize = sources.iter().map(|(_, length)| length).sum();
    assert_eq!(target.len(), outer * total, "a target of another size");
    if target.is_empty() {
        return;
    }
    if outer == 1 {
        let mut rest = target;
        for (source, length) in sources {
            let (head, tail) = rest.split_at_mut(*length);
            Strided::new(&[*length], &[1], 0).copy(source, head);
            rest = tail;
        }
        return;
    }
    let rows = outer.div_ceil(parts_of_moves(target.len(), outer));
    chunks(target, rows * total, |part, target| {
        for (row, mut rest) in target.chunks_exact_mut(total).enumerate() {
            let index = part * rows + row;
            for (source, length) in sources {
                let (head, tail) = rest.split_at_mut(*length);
                head.copy_from_slice(&source[index * length..(index + 1) * length]);
                rest = tail;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_threads;

    /// Every element, one at a time.
    fn naive(extents: &[usize], strides: &[isize], base: usize, source: &[u32]) -> Vec<u32> {
        let mut odometer = Odometer::new(extents, [strides]);
        let mut target = Vec::new();
        for _ in 0..extents.iter().product() {
            target.push(source[(base as isize + odometer.offsets[0]) as usize]);
            odometer.advance();
        }
        target
    }

    fn check(extents: &[usize], strides: &[isize], base: usize) {
        let reach = |sign: isize| -> isize {
            let along = extents.iter().zip(strides).filter(|(_, stride)| stride.signum() == sign);
            along.map(|(&extent, &stride)| (extent.max(1) as isize - 1) * stride).sum()
        };
        let base = base + reach(-1).unsigned_abs();
        let source: Vec<u32> = (0..(base as isize + reach(1) + 1) as u32).collect();
        let expected = naive(extents, strides, base, &source);
        for threads in [1, 3] {
            let mut target = vec![u32::MAX; expected.len()];
            with_threads(threads, || Strided::new(extents, strides, base).copy(&source, &mut target));
            assert_eq!(target, expected, "{extents:?} by {strides:?}, {threads} threads");
        }
    }

    #[test]
    fn walks_agree_with_single_elements() {
        check(&[], &[], 3);
        check(&[5, 0, 2], &[1, 1, 1], 0);
        check(&[4, 1, 6], &[6, 99, 1], 0);
        check(&[3, 4, 5], &[5, 15, 1], 2);
        check(&[7, 45], &[1, 7], 0);
        check(&[2, 40, 70], &[2800, 1, 40], 0);
        check(&[70, 2, 40], &[1, 2800, 70], 0);
        check(&[6, 5], &[0, 1], 1);
        check(&[6, 5], &[1, 0], 1);
        check(&[4, 5], &[-10, -2], 0);
        check(&[4, 5, 3], &[1, -12, 4], 0);
        check(&[37, 50], &[1, -37], 0);
        check(&[3, 50, 21], &[1050, 1, -50], 0);
        check(&[5, 2], &[1, 5], 0);
        check(&[2, 300, 200], &[60_000, 1, 300], 0);
        check(&[3, 70_000], &[70_000, 1], 5);
        check(&[70_000, 3], &[1, 70_000], 0);
        check(&[2, 2, 2, 30_000], &[0, 30_000, 0, 1], 0);
        for length in [2, 3, 4, 8] {
            let row = length as isize;
            check(&[3, 2, 5, 4, length], &[40 * row, row, 2 * row, 10 * row, 1], 1);
            check(&[2000, 8, 2, length], &[16 * row, row, 8 * row, 1], 0);
            check(&[6, length], &[-2 * row, 1], 0);
        }
    }

    #[test]
    fn narrow_elements_are_transposed_in_words() {
        for (rows, columns) in [(1, 1), (8, 8), (7, 9), (33, 40), (64, 5), (100, 131)] {
            let bytes: Vec<u8> = (0..rows * columns).map(|at| (at * 7919 % 251) as u8).collect();
            let pairs: Vec<u16> = (0..rows * columns).map(|at| (at * 7919 % 65_521) as u16).collect();
            let walk = Strided::new(&[rows, columns], &[1, rows as isize], 0);
            let backwards = Strided::new(&[rows, columns], &[1, -(rows as isize)], rows * (columns - 1));
            let place =
                |at: usize, column: fn(usize, usize) -> usize| column(at % columns, columns) * rows + at / columns;
            for (walk, column) in [
                (walk, (|column, _| column) as fn(usize, usize) -> usize),
                (backwards, |column, columns| columns - 1 - column),
            ] {
                let (mut narrow, mut wide) = (vec![0; bytes.len()], vec![0; pairs.len()]);
                walk.copy(&bytes, &mut narrow);
                walk.copy(&pairs, &mut wide);
                assert_eq!(narrow, (0..bytes.len()).map(|at| bytes[place(at, column)]).collect::<Vec<u8>>());
                assert_eq!(wide, (0..pairs.len()).map(|at| pairs[place(at, column)]).collect::<Vec<u16>>());
            }
        }
    }

    #[test]
    fn axes_that_are_walked_as_one_become_one() {
        assert_eq!(Strided::new(&[2, 3, 1, 4], &[12, 4, 7, 1], 0).extents, [24]);
        assert_eq!(Strided::new(&[2, 3, 4], &[0, 0, 1], 0).extents, [6, 4]);
    }

    #[test]
    fn slices_and_runs_lie_behind_one_another() {
        let source: Vec<u16> = (0..60_000).map(|element| element as u16).collect();
        let starts: Vec<usize> = (0..9000).map(|slice| slice * 7919 % 59_990).collect();
        for (threads, length) in [(1, 1), (3, 1), (1, 8), (3, 8)] {
            let mut target = vec![0u16; starts.len() * length];
            with_threads(threads, || copy_slices(&source, &starts, length, &mut target));
            let expected: Vec<u16> = starts.iter().flat_map(|&at| source[at..at + length].to_vec()).collect();
            assert_eq!(target, expected);
        }
        for (threads, outer) in [(1, 1), (3, 1), (1, 3000), (3, 3000)] {
            let (first, second) = (&source[..30_000], &source[30_000..]);
            let (left, right) = (first.len() / outer, second.len() / outer);
            let mut target = vec![0u16; 60_000];
            with_threads(threads, || interleave(&[(first, left), (second, right)], outer, &mut target));
            let rows = first.chunks(left).zip(second.chunks(right));
            let expected: Vec<u16> = rows.flat_map(|(left, right)| [left, right].concat()).collect();
            assert_eq!(target, expected);
        }
    }
}
