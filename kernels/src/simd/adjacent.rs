//! Vectors side by side at places that are known to lie inside of a slice, without a check of each.

use super::LANES;

/// Values of which any `VECTORS` vectors that lie side by side can be taken.
#[derive(Clone, Copy)]
pub(crate) struct Adjacent<'a, const VECTORS: usize> {
    values: &'a [f32],
    /// The last place where vectors may begin.
    last: usize,
}

impl<'a, const VECTORS: usize> Adjacent<'a, VECTORS> {
    /// # Panics
    /// If vectors that begin at `largest` would reach behind the values.
    #[inline(always)]
    pub(crate) fn new(values: &'a [f32], largest: usize) -> Self {
        let length = VECTORS * LANES;
        assert!(largest <= values.len() && values.len() - largest >= length, "vectors inside of a slice");
        Self { values, last: values.len() - length }
    }

    /// The vectors from `place` on, which is at most the largest one.
    #[inline(always)]
    pub(crate) fn at(self, place: usize) -> &'a [[f32; LANES]; VECTORS] {
        let place = place.min(self.last);
        // SAFETY: from every place up to the last one there are so many values; arrays have the alignment of their elements.
        unsafe { &*self.values.as_ptr().add(place).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_begin_anywhere_up_to_the_last_place() {
        let values: Vec<f32> = (0..50u8).map(f32::from).collect();
        let vectors = Adjacent::<2>::new(&values, 18);
        for place in [0, 1, 17, 18] {
            assert_eq!(vectors.at(place).as_flattened(), &values[place..place + 32], "{place}");
        }
        assert_eq!(vectors.at(19), vectors.at(18), "never behind the end");
    }

    #[test]
    #[should_panic(expected = "vectors inside of a slice")]
    fn vectors_behind_the_end_are_refused() {
        let _ = Adjacent::<2>::new(&[0.0; 50], 19);
    }

    #[test]
    #[should_panic(expected = "vectors inside of a slice")]
    fn slices_shorter_than_a_vector_are_refused() {
        let _ = Adjacent::<1>::new(&[0.0; 15], 0);
    }
}
