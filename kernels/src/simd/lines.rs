//! Short lines of values at places that are known to lie inside of a slice, without a check of each.

use std::{
    ops::Range,
    sync::atomic::{Ordering, compiler_fence},
};

use super::{LANES, Simd};

/// The place of a line of zeros, which is nowhere.
pub(crate) const OUTSIDE: u32 = u32::MAX;

/// Values of a line of zeros.
const ZEROS: usize = 8;

/// How lines lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Blocks, and values from one to the next.
    pub blocks: usize,
    pub block_distance: usize,
    /// Values of a line.
    pub length: usize,
}

/// Where the lines of windows lie at each of some taps, and how those of neighbouring windows follow each other.
#[derive(Debug)]
pub(crate) struct LinePlaces {
    /// `[taps, windows]`.
    places: Vec<u32>,
    windows: usize,
    step: usize,
    /// For each window, how many from it on (255 of more) have their lines `step` values behind those of the one before, at each tap:
    /// none where one of its own is a line of zeros.
    runs: Vec<u8>,
    /// One more than the largest place, 0 where all lines are zeros.
    end: u32,
    has_zeros: bool,
}

impl LinePlaces {
    /// `[taps, windows]`, [`OUTSIDE`] for lines of zeros. Along a row the lines of a window lie `step` values behind those of the one
    /// before.
    ///
    /// # Panics
    /// If there are not as many places for each tap.
    pub(crate) fn new(places: Vec<u32>, windows: usize, step: usize) -> Self {
        assert!(places.len().is_multiple_of(windows), "places of {windows} windows");
        let behind = |place: u32| u32::try_from(step).ok().and_then(|step| place.checked_add(step));
        // One more than each, so that lines of zeros come first.
        let end = places.iter().fold(0, |end: u32, place| end.max(place.wrapping_add(1)));
        let (mut are_inside, mut go_on) = (vec![true; windows], vec![true; windows]);
        for places in places.chunks_exact(windows.max(1)) {
            for (is_inside, place) in are_inside.iter_mut().zip(places) {
                *is_inside &= *place != OUTSIDE;
            }
            for ((goes_on, place), next) in go_on.iter_mut().zip(places).zip(&places[1..]) {
                *goes_on &= behind(*place) == Some(*next);
            }
        }
        let mut runs = vec![0u8; windows];
        let mut next: u8 = 0;
        for window in (0..windows).rev() {
            next = match (are_inside[window], go_on[window]) {
                (false, _) => 0,
                (true, true) => next.saturating_add(1),
                (true, false) => 1,
            };
            runs[window] = next;
        }
        let has_zeros = are_inside.contains(&false);
        Self { places, windows, step, runs, end, has_zeros }
    }

    /// Whether lines of `ROWS` windows from this one on are `STEP` values from one to the next at each tap.
    #[inline(always)]
    fn are_steps<const ROWS: usize, const STEP: usize>(&self, window: usize) -> bool {
        self.step == STEP && self.runs.get(window).is_some_and(|&run| usize::from(run) >= ROWS)
    }
}

/// Lines of some values: of each of some blocks one at each of some places, which are counted from where the block begins.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    values: &'a [f32],
    places: &'a LinePlaces,
    layout: Layout,
    zeros: &'static [f32; ZEROS],
}

impl<'a> Lines<'a> {
    /// # Panics
    /// If a line would reach behind the values, or lines of zeros are too long.
    #[inline(always)]
    pub(crate) fn new(values: &'a [f32], places: &'a LinePlaces, layout: Layout) -> Self {
        let Layout { blocks, block_distance, length } = layout;
        let last = blocks.saturating_sub(1) as u128 * block_distance as u128;
        let reach = last + u128::from(places.end.saturating_sub(1)) + length as u128;
        assert!(blocks == 0 || places.end == 0 || reach <= values.len() as u128, "lines inside of a slice");
        assert!(length <= ZEROS || !places.has_zeros, "lines of zeros");
        Self { values, places, layout, zeros: &[0.0; ZEROS] }
    }

    /// Values of a line.
    #[inline(always)]
    pub(crate) fn length(self) -> usize {
        self.layout.length
    }

    /// From the line of a window to that of the next one along a row.
    #[inline(always)]
    pub(crate) fn step(self) -> usize {
        self.places.step
    }

    /// Whether lines of `ROWS` windows from this one on are `STEP` values from one to the next at each tap.
    #[inline(always)]
    pub(crate) fn are_steps<const ROWS: usize, const STEP: usize>(self, window: usize) -> bool {
        self.places.are_steps::<ROWS, STEP>(window)
    }

    /// The places of `ROWS` windows at a tap.
    ///
    /// # Panics
    /// If there are no such places.
    #[inline(always)]
    fn neighbours<const ROWS: usize>(self, tap: usize, window: usize) -> &'a [u32; ROWS] {
        let LinePlaces { places, windows, .. } = self.places;
        let first = tap.checked_mul(*windows).and_then(|first| first.checked_add(window));
        let places = first.and_then(|first| places.get(first..)?.first_chunk());
        places.unwrap_or_else(|| panic!("places of lines"))
    }

    /// The lines of all blocks of `ROWS` windows at a tap.
    ///
    /// # Panics
    /// If there are no such places.
    #[inline(always)]
    pub(crate) fn rows<const ROWS: usize>(self, tap: usize, window: usize) -> Rows<'a, ROWS> {
        let places = self.neighbours::<ROWS>(tap, window);
        let mut rows = Rows { lines: self, places, begins: [self.zeros.as_ptr(); ROWS], are_inside: true };
        for row in 0..ROWS {
            let is_inside = places[row] != OUTSIDE;
            rows.are_inside &= is_inside;
            let begin = self.values.as_ptr().wrapping_add(places[row] as usize);
            rows.begins[row] = if is_inside { begin } else { rows.begins[row] };
        }
        rows
    }

    /// Vectors of panels for lines of some blocks at so many taps: each panel has one for each value of each line, block by block.
    ///
    /// # Panics
    /// If there are no such blocks, or not as many vectors.
    #[inline(always)]
    pub(crate) fn with_vectors<const PANELS: usize>(
        self,
        blocks: &Range<usize>,
        panels: [&'a [[f32; LANES]]; PANELS],
        (taps, within): (usize, Within),
    ) -> WithVectors<'a, PANELS> {
        assert!(blocks.start <= blocks.end && blocks.end <= self.layout.blocks, "blocks of lines");
        let of_block = self.layout.length.checked_mul(taps);
        let count = of_block.and_then(|of_block| of_block.checked_mul(blocks.len()));
        let (Some(of_block), Some(count)) = (of_block, count) else { panic!("vectors of blocks") };
        for panel in 0..PANELS {
            // Checked, since vectors are read without a check of each.
            assert!(count <= panels[panel].len(), "as many vectors as values");
        }
        let (of_tap, distance) = match within {
            Within::Taps => (1, taps),
            Within::Lines => (self.layout.length, 1),
        };
        WithVectors {
            lines: self,
            first_block: blocks.start,
            blocks: blocks.len(),
            panels,
            taps,
            of_block,
            of_tap,
            distance,
        }
    }
}

/// How the vectors of a block follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Within {
    /// Those of all taps for a value of a line, then those for the next.
    Taps,
    /// Those for all values of the line of a tap, then those of the next.
    Lines,
}

/// Lines of some blocks, and vectors of panels for their values.
#[derive(Clone, Copy)]
pub(crate) struct WithVectors<'a, const PANELS: usize> {
    lines: Lines<'a>,
    first_block: usize,
    blocks: usize,
    panels: [&'a [[f32; LANES]]; PANELS],
    taps: usize,
    /// Vectors of a block, of each panel.
    of_block: usize,
    /// From the first vector of a tap to that of the next, and between two for neighbouring values of a line.
    of_tap: usize,
    distance: usize,
}

impl<'a, const PANELS: usize> WithVectors<'a, PANELS> {
    /// Blocks of lines.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The lines of `ROWS` windows at a tap, with their vectors.
    ///
    /// # Panics
    /// If there is no such tap, or the lines are not as these lie.
    #[inline(always)]
    pub(crate) fn tap<const ROWS: usize, L: Neighbours<'a, ROWS>>(
        &self,
        tap: usize,
        window: usize,
    ) -> Tap<'_, 'a, L, PANELS> {
        assert!(tap < self.taps, "a tap of lines");
        Tap { rows: L::at(self.lines, tap, window), with: self, first: tap * self.of_tap }
    }
}

/// Lines of windows at a tap, with their vectors.
#[derive(Clone, Copy)]
pub(crate) struct Tap<'t, 'a, L, const PANELS: usize> {
    rows: L,
    with: &'t WithVectors<'a, PANELS>,
    /// Its first vector in a block.
    first: usize,
}

/// Takes the values of some lines at the same place, with the vector of each panel for them.
pub(crate) trait Terms<const ROWS: usize, const PANELS: usize> {
    fn add(&mut self, vectors: [&[f32; LANES]; PANELS], values: [f32; ROWS]);
}

impl<'a, L, const PANELS: usize> Tap<'_, 'a, L, PANELS> {
    /// Adds the values of the lines of the block at `index`, one place after another. `LENGTH` is how many there are, 0 where that is
    /// not known; where it is, each place is code of its own.
    ///
    /// # Panics
    /// If there is no such block, or lines have another length.
    #[inline(always)]
    pub(crate) fn add<const ROWS: usize, const LENGTH: usize>(&self, index: usize, terms: &mut impl Terms<ROWS, PANELS>)
    where
        L: Neighbours<'a, ROWS>,
    {
        let &Self { rows, with, first } = self;
        let length = with.lines.layout.length;
        assert!(index < with.blocks, "a block of lines");
        assert!(LENGTH == 0 || LENGTH == length, "lines of {LENGTH} values");
        let mut vector = index * with.of_block + first;
        let begins = rows.begins(with.first_block + index);
        let count = if const { LENGTH > 0 } { LENGTH } else { length };
        let mut place = 0;
        while place < count {
            let mut vectors = [&[0.0; LANES]; PANELS];
            for panel in 0..PANELS {
                // SAFETY: each panel was checked to have a vector for each value of each line of the blocks.
                vectors[panel] = unsafe { with.panels[panel].get_unchecked(vector) };
            }
            // SAFETY: the block is one of those of the lines, and the place is before their length.
            terms.add(vectors, unsafe { L::values(begins, place) });
            vector += with.distance;
            place += 1;
            // Values of the next places would be loaded first otherwise, for which registers have no room.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Asks for what lies `ahead` values behind the lines of the block at `index`.
    #[inline(always)]
    pub(crate) fn ask<S: Simd, const ROWS: usize>(&self, simd: S, index: usize, ahead: usize)
    where
        L: Neighbours<'a, ROWS>,
    {
        self.rows.ask(simd, self.with.first_block + index, ahead);
    }
}

/// Lines of all blocks of neighbouring windows at a tap, `STEP` values from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'a, const ROWS: usize, const STEP: usize> {
    lines: Lines<'a>,
    /// The first.
    place: usize,
}

/// Lines of all blocks of `ROWS` neighbouring windows at a tap.
pub(crate) trait Neighbours<'a, const ROWS: usize>: Copy {
    /// Where those of a block begin.
    type Begins: Copy;

    /// Those from a window on.
    ///
    /// # Panics
    /// If there are no such places, or they are not as these lines lie.
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self;

    fn begins(&self, block: usize) -> Self::Begins;

    /// The values at a place of the lines.
    ///
    /// # Safety
    /// [`Neighbours::begins`] gave the begins for a block of which there are lines, and the place is before their length.
    unsafe fn values(begins: Self::Begins, place: usize) -> [f32; ROWS];

    /// Asks for what lies `ahead` values behind the lines of a block.
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize);
}

impl<'a, const ROWS: usize, const STEP: usize> Neighbours<'a, ROWS> for Steps<'a, ROWS, STEP> {
    type Begins = *const f32;

    #[inline(always)]
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self {
        assert!(lines.are_steps::<ROWS, STEP>(window), "lines at one distance");
        Self { lines, place: lines.neighbours::<ROWS>(tap, window)[0] as usize }
    }

    #[inline(always)]
    fn begins(&self, block: usize) -> *const f32 {
        self.lines.values.as_ptr().wrapping_add(block * self.lines.layout.block_distance + self.place)
    }

    #[inline(always)]
    unsafe fn values(begin: *const f32, place: usize) -> [f32; ROWS] {
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: the line begins at a place that is not beyond the largest, from which on the last block has as many values; the run
            // of the first window says that the line of each row is at its step.
            values[row] = unsafe { *begin.wrapping_add(row * STEP + place) };
        }
        values
    }

    #[inline(always)]
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize) {
        let place = block * self.lines.layout.block_distance + self.place + ahead;
        // Two short lines share one of the cache.
        let lines = if const { STEP < LANES } { ROWS.div_ceil(2) } else { ROWS };
        for line in 0..lines {
            simd.prefetch(self.lines.values, place + line * STEP * ROWS.div_ceil(lines));
        }
    }
}

/// Lines of all blocks at neighbouring places.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, const ROWS: usize> {
    lines: Lines<'a>,
    places: &'a [u32; ROWS],
    /// Where the lines of the first block begin.
    begins: [*const f32; ROWS],
    /// Whether none is a line of zeros.
    are_inside: bool,
}

impl<'a, const ROWS: usize> Neighbours<'a, ROWS> for Rows<'a, ROWS> {
    /// And how far behind that each line lies.
    type Begins = ([*const f32; ROWS], usize);

    #[inline(always)]
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self {
        lines.rows(tap, window)
    }

    #[inline(always)]
    fn begins(&self, block: usize) -> Self::Begins {
        let index = block * self.lines.layout.block_distance;
        let mut begins = self.begins;
        if !self.are_inside {
            for row in 0..ROWS {
                if self.places[row] == OUTSIDE {
                    begins[row] = self.lines.zeros.as_ptr().wrapping_sub(index);
                }
            }
        }
        (begins, index)
    }

    #[inline(always)]
    unsafe fn values((begins, index): Self::Begins, place: usize) -> [f32; ROWS] {
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: each line is one of zeros, or begins at a place that is not beyond the largest, from which on the last block has as
            // many values.
            values[row] = unsafe { *begins[row].wrapping_add(index + place) };
        }
        values
    }

    #[inline(always)]
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize) {
        for row in 0..ROWS {
            let place = (block * self.lines.layout.block_distance).wrapping_add(self.places[row] as usize);
            simd.prefetch(self.lines.values, place.wrapping_add(ahead));
        }
    }
}

impl<const ROWS: usize> Rows<'_, ROWS> {
    /// The values at one place of the lines of a block.
    ///
    /// # Panics
    /// If there is no such block or place.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, place: usize) -> [f32; ROWS] {
        let Layout { blocks, block_distance, length } = self.lines.layout;
        let mut values = [0.0; ROWS];
        assert!(block < blocks && place < length, "a value of a line");
        for row in 0..ROWS {
            if self.places[row] != OUTSIDE {
                values[row] = self.lines.values[block * block_distance + self.places[row] as usize + place];
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<f32> {
        (0..50u8).map(f32::from).collect()
    }

    /// Lines of 4 values in two blocks.
    const LAYOUT: Layout = Layout { blocks: 2, block_distance: 20, length: 4 };

    /// Places of one tap.
    fn places(places: &[u32], step: usize) -> LinePlaces {
        LinePlaces::new(places.to_vec(), places.len(), step)
    }

    /// What is added: the first lane of the vector of each panel, and the values.
    struct Added<const ROWS: usize, const PANELS: usize>(Vec<([f32; PANELS], [f32; ROWS])>);

    impl<const ROWS: usize, const PANELS: usize> Terms<ROWS, PANELS> for Added<ROWS, PANELS> {
        fn add(&mut self, vectors: [&[f32; LANES]; PANELS], values: [f32; ROWS]) {
            self.0.push((vectors.map(|vector| vector[0]), values));
        }
    }

    /// Vectors that are told apart.
    fn vectors(count: u8) -> Vec<[f32; LANES]> {
        (0..count).map(|index| [f32::from(index); LANES]).collect()
    }

    /// The values of all lines of a block.
    fn lines<const ROWS: usize>(lines: Lines<'_>, block: usize, window: usize) -> Vec<[f32; ROWS]> {
        let vectors = vectors(8);
        let with = lines.with_vectors(&(0..2), [&vectors], (1, Within::Taps));
        let tap = with.tap::<ROWS, Rows<'_, ROWS>>(0, window);
        let mut added = Added(Vec::new());
        tap.add::<ROWS, 0>(block, &mut added);
        added.0.into_iter().map(|(_, values)| values).collect()
    }

    #[test]
    fn lines_begin_anywhere_up_to_the_last_place() {
        let (values, places) = (values(), places(&[18, 0, OUTSIDE, 26], 1));
        let all = Lines::new(&values, &places, LAYOUT);
        assert_eq!(lines::<2>(all, 1, 0), [[38.0, 20.0], [39.0, 21.0], [40.0, 22.0], [41.0, 23.0]]);
        assert_eq!(lines::<2>(all, 1, 2), [[0.0, 46.0], [0.0, 47.0], [0.0, 48.0], [0.0, 49.0]]);
        assert_eq!(lines::<1>(all, 0, 3), [[26.0], [27.0], [28.0], [29.0]]);
        assert_eq!(all.rows::<2>(0, 2).values(1, 3), [0.0, 49.0]);
    }

    #[test]
    fn steps_are_lines_at_one_distance() {
        let (values, places) = (values(), places(&[3, 5, 7, 10, OUTSIDE, 1], 2));
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let vectors = vectors(12);
        let with = all.with_vectors(&(0..2), [&vectors], (1, Within::Lines));
        let mut added = Added(Vec::new());
        with.tap::<3, Steps<'_, 3, 2>>(0, 0).add::<3, 2>(1, &mut added);
        assert_eq!(added.0, [([2.0], [23.0, 25.0, 27.0]), ([3.0], [24.0, 26.0, 28.0])]);
        assert!(all.are_steps::<3, 2>(0) && all.are_steps::<1, 2>(3) && all.are_steps::<1, 2>(5));
        assert!(!all.are_steps::<4, 2>(0) && !all.are_steps::<3, 2>(1), "7 and 10");
        assert!(!all.are_steps::<3, 1>(0));
        assert!(!all.are_steps::<1, 2>(4), "nowhere");
        assert!(!all.are_steps::<2, 2>(5) && !all.are_steps::<1, 2>(6), "the end");
    }

    #[test]
    fn windows_that_follow_each_other_do_so_at_each_tap() {
        let values = values();
        // The second tap is a line of zeros at the third window, the third one does not follow the second at the first.
        let places = LinePlaces::new(vec![0, 2, 5, 7, 9, 8, 10, OUTSIDE, 16, 18], 5, 2);
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        assert!(all.are_steps::<2, 2>(0) && all.are_steps::<1, 2>(1) && all.are_steps::<2, 2>(3));
        assert!(!all.are_steps::<3, 2>(0) && !all.are_steps::<2, 2>(1) && !all.are_steps::<1, 2>(2));
        assert_eq!(all.rows::<2>(1, 1).values(0, 1), [11.0, 0.0]);
    }

    #[test]
    fn places_at_the_end_of_what_is_counted_do_not_go_on() {
        let steps = LinePlaces::new(vec![u32::MAX - 1, 0], 2, 2);
        assert_eq!(steps.runs, [1, 1]);
        assert_eq!(LinePlaces::new(vec![0, 0], 2, 1 << 32).runs, [1, 1], "a step beyond 32 bits");
        assert_eq!(LinePlaces::new((0..300).collect(), 300, 1).runs[..2], [255, 255]);
        assert!(LinePlaces::new(vec![], 0, 1).runs.is_empty());
    }

    #[test]
    #[should_panic(expected = "places of 4 windows")]
    fn each_tap_has_a_place_for_each_window() {
        let _ = LinePlaces::new(vec![0; 7], 4, 1);
    }

    #[test]
    #[should_panic(expected = "places of 0 windows")]
    fn no_windows_have_no_places() {
        let _ = LinePlaces::new(vec![OUTSIDE], 0, 1);
    }

    #[test]
    #[should_panic(expected = "lines at one distance")]
    fn lines_at_other_distances_are_refused() {
        let (values, places) = (values(), places(&[3, 5, 8], 2));
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let _ = all.with_vectors(&(0..1), [&vectors(2)], (1, Within::Taps)).tap::<3, Steps<'_, 3, 2>>(0, 0);
    }

    #[test]
    #[should_panic(expected = "a tap of lines")]
    fn there_are_no_lines_of_a_missing_tap() {
        let (values, places) = (values(), LinePlaces::new(vec![3, 5, 4, 6], 2, 2));
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let _ = all.with_vectors(&(0..1), [&vectors(2)], (1, Within::Taps)).tap::<2, Steps<'_, 2, 2>>(1, 0);
    }

    #[test]
    #[should_panic(expected = "lines of 3 values")]
    fn lines_of_another_length_are_refused() {
        let (values, places) = (values(), places(&[3, 5], 2));
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let vectors = vectors(2);
        let with = all.with_vectors(&(0..1), [&vectors], (1, Within::Taps));
        with.tap::<2, Steps<'_, 2, 2>>(0, 0).add::<2, 3>(0, &mut Added(Vec::new()));
    }

    #[test]
    #[should_panic(expected = "lines inside of a slice")]
    fn lines_behind_the_end_are_refused() {
        let _ = Lines::new(&values(), &places(&[18, 27], 1), LAYOUT);
    }

    #[test]
    #[should_panic(expected = "lines of zeros")]
    fn lines_longer_than_zeros_are_refused() {
        let _ = Lines::new(&[0.0; 100], &places(&[0, OUTSIDE], 1), Layout { blocks: 1, length: 9, ..LAYOUT });
    }

    #[test]
    #[should_panic(expected = "a block of lines")]
    fn there_is_no_line_of_a_missing_block() {
        let _ = lines::<1>(Lines::new(&values(), &places(&[0], 1), LAYOUT), 2, 0);
    }

    #[test]
    #[should_panic(expected = "places of lines")]
    fn there_is_no_line_at_a_missing_place() {
        let _ = lines::<2>(Lines::new(&values(), &places(&[0, 1], 1), LAYOUT), 0, 1);
    }

    #[test]
    #[should_panic(expected = "blocks of lines")]
    fn missing_blocks_are_refused() {
        let (values, places) = (values(), places(&[0], 1));
        let _ = Lines::new(&values, &places, LAYOUT).with_vectors(&(1..3), [&vectors(8)], (1, Within::Taps));
    }

    /// What the second of three taps adds, of lines of two values in two blocks.
    fn second_of_three(within: Within) -> Vec<([f32; 2], [f32; 2])> {
        let (values, vectors) = (values(), vectors(13));
        let places = LinePlaces::new(vec![0, 0, 1, 3, 0, 0], 2, 1);
        let lines = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let with = lines.with_vectors(&(0..2), [&vectors, &vectors[1..]], (3, within));
        let mut added = Added(Vec::new());
        with.tap::<2, Rows<'_, 2>>(1, 0).add::<2, 2>(1, &mut added);
        added.0
    }

    #[test]
    fn each_value_has_a_vector() {
        assert_eq!(second_of_three(Within::Taps), [([7.0, 8.0], [21.0, 23.0]), ([10.0, 11.0], [22.0, 24.0])]);
        assert_eq!(second_of_three(Within::Lines), [([8.0, 9.0], [21.0, 23.0]), ([9.0, 10.0], [22.0, 24.0])]);
    }

    #[test]
    #[should_panic(expected = "as many vectors as values")]
    fn missing_vectors_are_refused() {
        let (values, places) = (values(), places(&[1], 1));
        let _ =
            Lines::new(&values, &places, LAYOUT).with_vectors(&(0..1), [&vectors(12), &vectors(11)], (3, Within::Taps));
    }
}
