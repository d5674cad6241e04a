//! Short lines of values at places that are known to lie inside of a slice, without a check of each.

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

/// Lines of some values: of each of some blocks one at each of some places, which are counted from where the block begins.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    values: &'a [f32],
    places: &'a [u32],
    layout: Layout,
    zeros: &'static [f32; ZEROS],
}

impl<'a> Lines<'a> {
    /// [`OUTSIDE`] is the place of a line of zeros.
    ///
    /// # Panics
    /// If a line would reach behind the values, or lines of zeros are too long.
    #[inline(always)]
    pub(crate) fn new(values: &'a [f32], places: &'a [u32], layout: Layout) -> Self {
        let Layout { blocks, block_distance, length } = layout;
        // One more than each, so that lines of zeros come first.
        let largest = places.iter().fold(0, |largest: u32, place| largest.max(place.wrapping_add(1)));
        let last = blocks.saturating_sub(1) as u128 * block_distance as u128;
        let reach = last + u128::from(largest.saturating_sub(1)) + length as u128;
        assert!(blocks == 0 || largest == 0 || reach <= values.len() as u128, "lines inside of a slice");
        assert!(length <= ZEROS || !places.contains(&OUTSIDE), "lines of zeros");
        Self { values, places, layout, zeros: &[0.0; ZEROS] }
    }

    /// Values of a line.
    #[inline(always)]
    pub(crate) fn length(self) -> usize {
        self.layout.length
    }

    /// `ROWS` neighbouring places from `first` on.
    ///
    /// # Panics
    /// If there are no such places.
    #[inline(always)]
    fn neighbours<const ROWS: usize>(self, first: usize) -> &'a [u32; ROWS] {
        self.places[first..].first_chunk().unwrap_or_else(|| panic!("places of lines"))
    }

    /// The lines of all blocks at `ROWS` neighbouring places from `first` on.
    ///
    /// # Panics
    /// If there are no such places.
    #[inline(always)]
    pub(crate) fn rows<const ROWS: usize>(self, first: usize) -> Rows<'a, ROWS> {
        let places = self.neighbours::<ROWS>(first);
        let mut rows = Rows { lines: self, places, begins: [self.zeros.as_ptr(); ROWS], are_inside: true };
        for row in 0..ROWS {
            let is_inside = places[row] != OUTSIDE;
            rows.are_inside &= is_inside;
            let begin = self.values.as_ptr().wrapping_add(places[row] as usize);
            rows.begins[row] = if is_inside { begin } else { rows.begins[row] };
        }
        rows
    }

    /// The lines of all blocks at `ROWS` neighbouring places from `first` on, where each is `STEP` values behind the one before.
    ///
    /// # Panics
    /// If there are no such places.
    #[inline(always)]
    pub(crate) fn steps<const ROWS: usize, const STEP: usize>(self, first: usize) -> Option<Steps<'a, ROWS, STEP>> {
        let places = self.neighbours::<ROWS>(first);
        let mut steps = [places[0]; ROWS];
        for row in 0..ROWS {
            steps[row] = places[0].wrapping_add((row * STEP) as u32);
        }
        let are_inside = places[0] < OUTSIDE - (ROWS * STEP) as u32;
        (are_inside && *places == steps).then_some(Steps { lines: self, place: places[0] as usize })
    }
}

/// Lines of all blocks at neighbouring places, `STEP` values from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'a, const ROWS: usize, const STEP: usize> {
    lines: Lines<'a>,
    /// The first.
    place: usize,
}

/// Lines of all blocks at `ROWS` neighbouring places.
pub(crate) trait Neighbours<'a, const ROWS: usize>: Copy {
    /// Their values with vectors.
    type Terms<const PANELS: usize>: NextTerm<'a, ROWS, PANELS>;

    /// Those from place `first` on.
    ///
    /// # Panics
    /// If there are no such places, or they are not as these lines lie.
    fn at(lines: Lines<'a>, first: usize) -> Self;

    /// The values of the lines of a block, with a vector of each panel for each place: every `distance`-th from `first` on.
    ///
    /// # Panics
    /// If there is no such block, or not as many vectors at that distance.
    fn terms<const PANELS: usize>(
        &self,
        block: usize,
        panels: [&'a [[f32; LANES]]; PANELS],
        inputs: (usize, usize),
    ) -> Self::Terms<PANELS>;

    /// Asks for what lies `ahead` values behind the lines of a block.
    fn ask<S: Simd>(&self, simd: S, block: usize, ahead: usize);
}

/// The values of some lines at the same place, with a vector of each panel for each place.
pub(crate) trait NextTerm<'a, const ROWS: usize, const PANELS: usize> {
    /// The next vector of each panel, and the value of each line.
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])>;
}

/// The end of vectors of panels for so many values: every `distance`-th from `first` on.
///
/// # Panics
/// If there are not as many vectors.
#[inline(always)]
fn end_of_vectors<const PANELS: usize>(
    panels: [&[[f32; LANES]]; PANELS],
    length: usize,
    (first, distance): (usize, usize),
) -> usize {
    // Checked, since vectors are read without a check of each.
    let end = length.checked_mul(distance).and_then(|reach| reach.checked_add(first));
    let Some(end) = end.filter(|_| distance > 0) else { panic!("vectors at a distance") };
    for panel in 0..PANELS {
        assert!(length == 0 || end - distance < panels[panel].len(), "as many vectors as values");
    }
    end
}

/// The vector of each panel at a place.
///
/// # Safety
/// Each panel has a vector there.
#[inline(always)]
unsafe fn vectors_at<const PANELS: usize>(panels: [&[[f32; LANES]]; PANELS], place: usize) -> [&[f32; LANES]; PANELS] {
    let mut vectors = [&[0.0; LANES]; PANELS];
    for panel in 0..PANELS {
        // SAFETY: the caller says that there is one.
        vectors[panel] = unsafe { panels[panel].get_unchecked(place) };
    }
    vectors
}

impl<'a, const ROWS: usize, const STEP: usize> Neighbours<'a, ROWS> for Steps<'a, ROWS, STEP> {
    type Terms<const PANELS: usize> = StepTerms<'a, ROWS, STEP, PANELS>;

    #[inline(always)]
    fn at(lines: Lines<'a>, first: usize) -> Self {
        lines.steps(first).unwrap_or_else(|| panic!("lines at one distance"))
    }

    #[inline(always)]
    fn terms<const PANELS: usize>(
        &self,
        block: usize,
        panels: [&'a [[f32; LANES]]; PANELS],
        inputs: (usize, usize),
    ) -> StepTerms<'a, ROWS, STEP, PANELS> {
        let Layout { blocks, block_distance, length } = self.lines.layout;
        assert!(block < blocks, "a block of lines");
        let end = end_of_vectors(panels, length, inputs);
        let begin = self.lines.values.as_ptr().wrapping_add(block * block_distance + self.place);
        StepTerms { begin, panels, place: inputs.0, end, distance: inputs.1 }
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
    panels: [&'a [[f32; LANES]]; PANELS],
    /// Of the next vector, behind the last, and the distance of two.
    place: usize,
    end: usize,
    distance: usize,
}

impl<'a, const ROWS: usize, const STEP: usize, const PANELS: usize> NextTerm<'a, ROWS, PANELS>
    for StepTerms<'a, ROWS, STEP, PANELS>
{
    #[inline(always)]
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])> {
        if self.place == self.end {
            return None;
        }
        // SAFETY: places go from the first to the last before the end in steps of the distance, and each panel has a vector there.
        let vectors = unsafe { vectors_at(self.panels, self.place) };
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: there are as many vectors as values of each line, which begins at a place that is not beyond the largest, from which
            // on the last block has so many; `steps` has found the line of each row at its step.
            values[row] = unsafe { *self.begin.wrapping_add(row * STEP) };
        }
        self.place += self.distance;
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
    fn at(lines: Lines<'a>, first: usize) -> Self {
        lines.rows(first)
    }

    #[inline(always)]
    fn terms<const PANELS: usize>(
        &self,
        block: usize,
        panels: [&'a [[f32; LANES]]; PANELS],
        inputs: (usize, usize),
    ) -> Terms<'a, ROWS, PANELS> {
        let Layout { blocks, block_distance, length } = self.lines.layout;
        assert!(block < blocks, "a block of lines");
        let end = end_of_vectors(panels, length, inputs);
        let index = block * block_distance;
        let mut begins = self.begins;
        if !self.are_inside {
            for row in 0..ROWS {
                if self.places[row] == OUTSIDE {
                    begins[row] = self.lines.zeros.as_ptr().wrapping_sub(index);
                }
            }
        }
        Terms { begins, index, panels, place: inputs.0, end, distance: inputs.1 }
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
    panels: [&'a [[f32; LANES]]; PANELS],
    /// Of the next vector, behind the last, and the distance of two.
    place: usize,
    end: usize,
    distance: usize,
}

impl<'a, const ROWS: usize, const PANELS: usize> NextTerm<'a, ROWS, PANELS> for Terms<'a, ROWS, PANELS> {
    #[inline(always)]
    fn next(&mut self) -> Option<([&'a [f32; LANES]; PANELS], [f32; ROWS])> {
        if self.place == self.end {
            return None;
        }
        // SAFETY: places go from the first to the last before the end in steps of the distance, and each panel has a vector there.
        let vectors = unsafe { vectors_at(self.panels, self.place) };
        let mut values = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: there are as many vectors as values of each line from the first `index` on: of a line of zeros, or at a place
            // that is not beyond the largest, from which on the last block has so many.
            values[row] = unsafe { *self.begins[row].wrapping_add(self.index) };
        }
        self.place += self.distance;
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

    /// The values of all lines of a block.
    fn lines<const ROWS: usize>(lines: Lines<'_>, block: usize, first: usize) -> Vec<[f32; ROWS]> {
        let vectors = [[0.0; LANES]; 4];
        let mut terms = lines.rows::<ROWS>(first).terms(block, [&vectors], (0, 1));
        std::iter::from_fn(|| Some(terms.next()?.1)).collect()
    }

    #[test]
    fn lines_begin_anywhere_up_to_the_last_place() {
        let (values, places) = (values(), [18, 0, OUTSIDE, 26]);
        let all = Lines::new(&values, &places, LAYOUT);
        assert_eq!(lines::<2>(all, 1, 0), [[38.0, 20.0], [39.0, 21.0], [40.0, 22.0], [41.0, 23.0]]);
        assert_eq!(lines::<2>(all, 1, 2), [[0.0, 46.0], [0.0, 47.0], [0.0, 48.0], [0.0, 49.0]]);
        assert_eq!(lines::<1>(all, 0, 3), [[26.0], [27.0], [28.0], [29.0]]);
        assert_eq!(all.rows::<2>(2).values(1, 3), [0.0, 49.0]);
    }

    #[test]
    fn steps_are_lines_at_one_distance() {
        let (values, places) = (values(), [3, 5, 7, 10, OUTSIDE, 1]);
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let vectors: Vec<[f32; LANES]> = (0..6u8).map(|index| [f32::from(index); LANES]).collect();
        let steps = all.steps::<3, 2>(0).unwrap();
        let mut terms = steps.terms(1, [&vectors], (4, 1));
        assert_eq!(terms.next(), Some(([&[4.0; LANES]], [23.0, 25.0, 27.0])));
        assert_eq!(terms.next(), Some(([&[5.0; LANES]], [24.0, 26.0, 28.0])));
        assert_eq!(terms.next(), None);
        assert!(all.steps::<3, 2>(1).is_none(), "5, 7 and 10");
        assert!(all.steps::<3, 1>(0).is_none());
        assert!(all.steps::<2, 2>(4).is_none(), "nowhere and 1");
        assert!(all.steps::<1, 2>(4).is_none());
    }

    #[test]
    #[should_panic(expected = "as many vectors as values")]
    fn missing_vectors_of_steps_are_refused() {
        let (values, places) = (values(), [3, 5]);
        let all = Lines::new(&values, &places, Layout { length: 2, ..LAYOUT });
        let _ = all.steps::<2, 2>(0).unwrap().terms(0, [&[[0.0; LANES]; 4]], (3, 1));
    }

    #[test]
    #[should_panic(expected = "lines inside of a slice")]
    fn lines_behind_the_end_are_refused() {
        let _ = Lines::new(&values(), &[18, 27], LAYOUT);
    }

    #[test]
    #[should_panic(expected = "lines of zeros")]
    fn lines_longer_than_zeros_are_refused() {
        let _ = Lines::new(&[0.0; 100], &[0, OUTSIDE], Layout { blocks: 1, length: 9, ..LAYOUT });
    }

    #[test]
    #[should_panic(expected = "a block of lines")]
    fn there_is_no_line_of_a_missing_block() {
        let _ = lines::<1>(Lines::new(&values(), &[0], LAYOUT), 2, 0);
    }

    #[test]
    #[should_panic(expected = "places of lines")]
    fn there_is_no_line_at_a_missing_place() {
        let _ = lines::<2>(Lines::new(&values(), &[0, 1], LAYOUT), 0, 1);
    }

    #[test]
    fn each_value_has_a_vector() {
        let vectors: Vec<[f32; LANES]> = (0..6u8).map(|index| [f32::from(index); LANES]).collect();
        let values = values();
        let lines = Lines::new(&values, &[1, 3], Layout { length: 2, ..LAYOUT });
        let mut terms = lines.rows::<2>(0).terms(0, [&vectors, &vectors[1..]], (1, 3));
        assert_eq!(terms.next(), Some(([&[1.0; LANES], &[2.0; LANES]], [1.0, 3.0])));
        assert_eq!(terms.next(), Some(([&[4.0; LANES], &[5.0; LANES]], [2.0, 4.0])));
        assert_eq!(terms.next(), None);
    }

    #[test]
    #[should_panic(expected = "as many vectors as values")]
    fn missing_vectors_are_refused() {
        let values = values();
        let _ =
            Lines::new(&values, &[1], LAYOUT).rows::<1>(0).terms(0, [&[[0.0; LANES]; 11], &[[0.0; LANES]; 10]], (1, 3));
    }
}
