//! Short lines of values at places that are known to lie inside of a slice, without a check of each.

use std::ops::Range;

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

    /// Vectors of panels for lines of some blocks: each has `of_block` in each panel.
    ///
    /// # Panics
    /// If there are no such blocks, or not as many vectors.
    #[inline(always)]
    pub(crate) fn with_vectors<const PANELS: usize>(
        self,
        blocks: &Range<usize>,
        panels: [&'a [[f32; LANES]]; PANELS],
        of_block: usize,
    ) -> WithVectors<'a, PANELS> {
        assert!(blocks.start <= blocks.end && blocks.end <= self.layout.blocks, "blocks of lines");
        let Some(count) = blocks.len().checked_mul(of_block) else { panic!("vectors of blocks") };
        for panel in 0..PANELS {
            // Checked, since vectors are read without a check of each.
            assert!(count <= panels[panel].len(), "as many vectors as values");
        }
        WithVectors { lines: self, first_block: blocks.start, blocks: blocks.len(), panels, of_block }
    }
}

/// Lines of some blocks, and vectors of panels for their values.
#[derive(Clone, Copy)]
pub(crate) struct WithVectors<'a, const PANELS: usize> {
    lines: Lines<'a>,
    first_block: usize,
    blocks: usize,
    panels: [&'a [[f32; LANES]]; PANELS],
    /// Vectors of a block, of each panel.
    of_block: usize,
}

impl<'a, const PANELS: usize> WithVectors<'a, PANELS> {
    /// The lines of `ROWS` windows at a tap, whose values have every `distance`-th vector of a block from `first` on.
    ///
    /// # Panics
    /// If a block has not as many, there are no such places, or they are not as these lines lie.
    #[inline(always)]
    pub(crate) fn tap<const ROWS: usize, L: Neighbours<'a, ROWS>>(
        self,
        (tap, window): (usize, usize),
        (first, distance): (usize, usize),
    ) -> Tap<'a, L, PANELS> {
        let length = self.lines.layout.length;
        let reach = length.checked_mul(distance).and_then(|reach| reach.checked_add(first));
        let fits = |reach: &usize| length == 0 || reach - distance < self.of_block;
        let Some(reach) = reach.filter(|_| distance > 0).filter(fits) else { panic!("vectors at a distance") };
        Tap { rows: L::at(self.lines, tap, window), with: self, first, distance, reach }
    }
}

/// Lines of windows at a tap, with their vectors.
#[derive(Clone, Copy)]
pub(crate) struct Tap<'a, L, const PANELS: usize> {
    rows: L,
    with: WithVectors<'a, PANELS>,
    first: usize,
    distance: usize,
    /// Behind the last vector of a block, by the distance.
    reach: usize,
}

impl<'a, L, const PANELS: usize> Tap<'a, L, PANELS> {
    /// The values of the lines of the block at `index`, with the vector of each panel for each.
    ///
    /// # Panics
    /// If there is no such block.
    #[inline(always)]
    pub(crate) fn terms<const ROWS: usize>(&self, index: usize) -> L::Terms<PANELS>
    where
        L: Neighbours<'a, ROWS>,
    {
        let &Self { rows, with, first, distance, reach } = self;
        assert!(index < with.blocks, "a block of lines");
        let begin = index * with.of_block;
        let vectors = VectorsOfBlock { panels: with.panels, place: begin + first, end: begin + reach, distance };
        // SAFETY: the block is one of those that were checked, as were their vectors; the lines are of the same rows.
        unsafe { rows.terms(with.first_block + index, vectors) }
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

/// The vectors of each panel for the values of a line: every `distance`-th from `place` to before `end`.
pub(crate) struct VectorsOfBlock<'a, const PANELS: usize> {
    panels: [&'a [[f32; LANES]]; PANELS],
    place: usize,
    end: usize,
    distance: usize,
}

impl<'a, const PANELS: usize> VectorsOfBlock<'a, PANELS> {
    /// The next one of each panel.
    ///
    /// # Safety
    /// Each panel has a vector at each place before the end.
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<[&'a [f32; LANES]; PANELS]> {
        if self.place == self.end {
            return None;
        }
        let mut vectors = [&[0.0; LANES]; PANELS];
        for panel in 0..PANELS {
            // SAFETY: the caller says that there is one.
            vectors[panel] = unsafe { self.panels[panel].get_unchecked(self.place) };
        }
        self.place += self.distance;
        Some(vectors)
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
    /// Their values with vectors.
    type Terms<const PANELS: usize>: NextTerm<'a, ROWS, PANELS>;

    /// Those from a window on.
    ///
    /// # Panics
    /// If there are no such places, or they are not as these lines lie.
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self;

    /// The values of the lines of a block, with a vector of each panel for each.
    ///
    /// # Safety
    /// There is such a block, each panel has a vector at each place before the end, and there are as many of them as values of a line.
    unsafe fn terms<const PANELS: usize>(
        &self,
        block: usize,
        vectors: VectorsOfBlock<'a, PANELS>,
    ) -> Self::Terms<PANELS>;

    /// Asks for what lies `ahead` values behind the lines of a block.
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize);
}

/// The values of some lines at the same place, with a vector of each panel for each place.
pub(crate) trait NextTerm<'a, const ROWS: usize, const PANELS: usize> {
    /// The next vector of each panel, and the value of each line.
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])>;
}

impl<'a, const ROWS: usize, const STEP: usize> Neighbours<'a, ROWS> for Steps<'a, ROWS, STEP> {
    type Terms<const PANELS: usize> = StepTerms<'a, ROWS, STEP, PANELS>;

    #[inline(always)]
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self {
        assert!(lines.are_steps::<ROWS, STEP>(window), "lines at one distance");
        Self { lines, place: lines.neighbours::<ROWS>(tap, window)[0] as usize }
    }

    #[inline(always)]
    unsafe fn terms<const PANELS: usize>(
        &self,
        block: usize,
        vectors: VectorsOfBlock<'a, PANELS>,
    ) -> StepTerms<'a, ROWS, STEP, PANELS> {
        let begin = self.lines.values.as_ptr().wrapping_add(block * self.lines.layout.block_distance + self.place);
        StepTerms { begin, vectors }
    }

    #[inline(always)]
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize) {
        let place = block * self.lines.layout.block_distance + self.place + ahead;
        for row in 0..ROWS {
            simd.prefetch(self.lines.values, place + row * STEP);
        }
    }
}

/// As [`Terms`], of lines that are `STEP` values from one to the next.
pub(crate) struct StepTerms<'a, const ROWS: usize, const STEP: usize, const PANELS: usize> {
    /// The next value of the first line.
    begin: *const f32,
    vectors: VectorsOfBlock<'a, PANELS>,
}

impl<'a, const ROWS: usize, const STEP: usize, const PANELS: usize> NextTerm<'a, ROWS, PANELS>
    for StepTerms<'a, ROWS, STEP, PANELS>
{
    #[inline(always)]
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])> {
        // SAFETY: `terms` was told so.
        let vectors = unsafe { self.vectors.next()? };
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: there are as many vectors as values of each line, which begins at a place that is not beyond the largest, from which
            // on the last block has so many; the run of the first window says that the line of each row is at its step.
            values[row] = unsafe { *self.begin.wrapping_add(row * STEP) };
        }
        self.begin = self.begin.wrapping_add(1);
        Some((vectors, values))
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
    type Terms<const PANELS: usize> = Terms<'a, ROWS, PANELS>;

    #[inline(always)]
    fn at(lines: Lines<'a>, tap: usize, window: usize) -> Self {
        lines.rows(tap, window)
    }

    #[inline(always)]
    unsafe fn terms<const PANELS: usize>(
        &self,
        block: usize,
        vectors: VectorsOfBlock<'a, PANELS>,
    ) -> Terms<'a, ROWS, PANELS> {
        let index = block * self.lines.layout.block_distance;
        let mut begins = self.begins;
        if !self.are_inside {
            for row in 0..ROWS {
                if self.places[row] == OUTSIDE {
                    begins[row] = self.lines.zeros.as_ptr().wrapping_sub(index);
                }
            }
        }
        Terms { begins, index, vectors }
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

/// The values of some lines at the same place, with a vector of each panel for each place.
///
/// A loop over them is none of a known length: unrolled, it would load the values of all places first, which registers have no
/// room for.
pub(crate) struct Terms<'a, const ROWS: usize, const PANELS: usize> {
    /// Each line has its next value `index` behind its begin.
    begins: [*const f32; ROWS],
    index: usize,
    vectors: VectorsOfBlock<'a, PANELS>,
}

impl<'a, const ROWS: usize, const PANELS: usize> NextTerm<'a, ROWS, PANELS> for Terms<'a, ROWS, PANELS> {
    #[inline(always)]
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])> {
        // SAFETY: `terms` was told so.
        let vectors = unsafe { self.vectors.next()? };
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: there are as many vectors as values of each line from the first `index` on: of a line of zeros, or at a place
            // that is not beyond the largest, from which on the last block has so many.
            values[row] = unsafe { *self.begins[row].wrapping_add(self.index) };
        }
        self.index += 1;
        Some((vectors, values))
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

    /// The values of all lines of a block.
    fn lines<const ROWS: usize>(lines: Lines<'_>, block: usize, window: usize) -> Vec<[f32; ROWS]> {
        let vectors = [[0.0; LANES]; 8];
        let tap = lines.with_vectors(&(0..2), [&vectors], 4).tap::<ROWS, Rows<'_, ROWS>>((0, window), (0, 1));
        let mut terms = tap.terms(block);
        std::iter::from_fn(|| Some(terms.next()?.1)).collect()
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
        let vectors: Vec<[f32; LANES]> = (0..12u8).map(|index| [f32::from(index); LANES]).collect();
        let with = all.with_vectors(&(0..2), [&vectors], 6);
        let tap = with.tap::<3, Steps<'_, 3, 2>>((0, 0), (4, 1));
        let mut terms = tap.terms(1);
        assert_eq!(terms.next(), Some(([&[10.0; LANES]], [23.0, 25.0, 27.0])));
        assert_eq!(terms.next(), Some(([&[11.0; LANES]], [24.0, 26.0, 28.0])));
        assert_eq!(terms.next(), None);
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
        let _ = all.with_vectors(&(0..1), [&[[0.0; LANES]; 2]], 2).tap::<3, Steps<'_, 3, 2>>((0, 0), (0, 1));
    }

    #[test]
    #[should_panic(expected = "vectors at a distance")]
    fn blocks_without_enough_vectors_are_refused() {
        let (values, places) = (values(), places(&[3, 5], 2));
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let _ = all.with_vectors(&(0..1), [&[[0.0; LANES]; 4]], 4).tap::<2, Steps<'_, 2, 2>>((0, 0), (3, 1));
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
        let _ = Lines::new(&values, &places, LAYOUT).with_vectors(&(1..3), [&[[0.0; LANES]; 8]], 4);
    }

    #[test]
    fn each_value_has_a_vector() {
        let vectors: Vec<[f32; LANES]> = (0..6u8).map(|index| [f32::from(index); LANES]).collect();
        let (values, places) = (values(), places(&[1, 3], 1));
        let lines = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let with = lines.with_vectors(&(0..1), [&vectors, &vectors[1..]], 5);
        let tap = with.tap::<2, Rows<'_, 2>>((0, 0), (1, 3));
        let mut terms = tap.terms(0);
        assert_eq!(terms.next(), Some(([&[1.0; LANES], &[2.0; LANES]], [1.0, 3.0])));
        assert_eq!(terms.next(), Some(([&[4.0; LANES], &[5.0; LANES]], [2.0, 4.0])));
        assert_eq!(terms.next(), None);
    }

    #[test]
    #[should_panic(expected = "as many vectors as values")]
    fn missing_vectors_are_refused() {
        let (values, places) = (values(), places(&[1], 1));
        let _ =
            Lines::new(&values, &places, LAYOUT).with_vectors(&(0..1), [&[[0.0; LANES]; 11], &[[0.0; LANES]; 10]], 11);
    }
}
