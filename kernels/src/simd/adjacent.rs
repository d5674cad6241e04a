//! Vectors side by side at places that are known to lie inside of a slice, without a check of each.

use super::LANES;

/// Places where vectors begin, none beyond the largest.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    all: &'a [usize],
    largest: usize,
}

impl<'a> Places<'a> {
    #[inline(always)]
    pub(crate) fn new(all: &'a [usize]) -> Self {
        Self { all, largest: all.iter().copied().max().unwrap_or(0) }
    }

    #[inline(always)]
    pub(crate) fn all(self) -> &'a [usize] {
        self.all
    }

    /// So many at a time, in order.
    #[inline(always)]
    pub(crate) fn chunks(self, count: usize) -> impl Iterator<Item = Places<'a>> {
        self.all.chunks(count).map(move |all| Places { all, ..self })
    }
}

/// `VECTORS` vectors side by side at each of some places.
#[derive(Clone, Copy)]
pub(crate) struct Adjacent<'a, const VECTORS: usize> {
    values: &'a [f32],
    places: Places<'a>,
}

impl<'a, const VECTORS: usize> Adjacent<'a, VECTORS> {
    /// # Panics
    /// If vectors that begin at the largest place would reach behind the values.
    #[inline(always)]
    pub(crate) fn new(values: &'a [f32], places: Places<'a>) -> Self {
        let inside = places.largest <= values.len() && values.len() - places.largest >= VECTORS * LANES;
        assert!(inside, "vectors inside of a slice");
        Self { values, places }
    }

    /// The vectors of each place, in groups of `COUNT` and those that remain.
    #[inline(always)]
    pub(crate) fn groups<const COUNT: usize>(
        self,
    ) -> (impl Iterator<Item = [&'a [[f32; LANES]; VECTORS]; COUNT]>, impl Iterator<Item = &'a [[f32; LANES]; VECTORS]>)
    {
        let (groups, rest) = self.places.all.as_chunks::<COUNT>();
        // SAFETY: they are places of `self`.
        let groups = groups.iter().map(move |places| std::array::from_fn(|index| unsafe { self.at(places[index]) }));
        // SAFETY: as above.
        let rest = rest.iter().map(move |&place| unsafe { self.at(place) });
        (groups, rest)
    }

    /// # Safety
    /// `place` is one of the places.
    #[inline(always)]
    unsafe fn at(self, place: usize) -> &'a [[f32; LANES]; VECTORS] {
        // SAFETY: no place is beyond the largest, from which on there are so many values; arrays have the alignment of their
        // elements.
        unsafe { &*self.values.as_ptr().add(place).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<f32> {
        (0..50u8).map(f32::from).collect()
    }

    #[test]
    fn vectors_begin_anywhere_up_to_the_last_place() {
        let (values, places) = (values(), [18, 0, 1, 17, 3]);
        let (groups, rest) = Adjacent::<2>::new(&values, Places::new(&places)).groups::<2>();
        let vectors: Vec<&[f32]> = groups.flatten().chain(rest).map(|vectors| vectors.as_flattened()).collect();
        let expected: Vec<&[f32]> = places.iter().map(|&place| &values[place..place + 32]).collect();
        assert_eq!(vectors, expected);
    }

    #[test]
    fn some_of_the_places_are_as_far_as_all() {
        let places = [1, 40, 2];
        let parts: Vec<&[usize]> = Places::new(&places).chunks(2).map(Places::all).collect();
        assert_eq!(parts, [&places[..2], &places[2..]]);
        assert_eq!(Places::new(&places).chunks(1).map(|part| part.largest).collect::<Vec<_>>(), [40; 3]);
    }

    #[test]
    #[should_panic(expected = "vectors inside of a slice")]
    fn vectors_behind_the_end_are_refused() {
        let _ = Adjacent::<2>::new(&values(), Places::new(&[3, 19]));
    }

    #[test]
    #[should_panic(expected = "vectors inside of a slice")]
    fn slices_shorter_than_a_vector_are_refused() {
        let _ = Adjacent::<1>::new(&[0.0; 15], Places::new(&[]));
    }
}
