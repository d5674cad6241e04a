//! Places for chunks that pass through: given in order, free again in order.

use std::collections::VecDeque;

/// A range of bytes whose oldest place is freed first.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: usize,
    places: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    owner: u64,
    start: usize,
    end: usize,
    free: bool,
}

impl Ring {
    pub(super) fn new(bytes: usize) -> Self {
        Ring { bytes, places: VecDeque::new() }
    }

    /// Offset of a place of this length; `None` where there is no room yet.
    pub(super) fn take(&mut self, owner: u64, length: usize) -> Option<usize> {
        let start = self.room(length)?;
        self.places.push_back(Place { owner, start, end: start + length, free: false });
        Some(start)
    }

    /// Where a place of this length would begin.
    pub(super) fn room(&self, length: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.places.front(), self.places.back()) else {
            return (length <= self.bytes).then_some(0);
        };
        if last.start >= first.start {
            if self.bytes - last.end >= length {
                return Some(last.end);
            }
            return (first.start >= length).then_some(0);
        }
        (first.start - last.end >= length).then_some(last.end)
    }

    /// Give the place of `owner` back; it is used again when all older ones are free too.
    pub(super) fn free(&mut self, owner: u64) {
        if let Some(place) = self.places.iter_mut().find(|place| place.owner == owner) {
            place.free = true;
        }
        while self.places.front().is_some_and(|place| place.free) {
            self.places.pop_front();
        }
    }

    /// Give all places back.
    pub(super) fn clear(&mut self) {
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_wrap_and_wait_for_the_oldest() {
        let mut ring = Ring::new(10);
        assert_eq!((ring.take(0, 4), ring.take(1, 4), ring.take(2, 3)), (Some(0), Some(4), None));
        ring.free(1);
        assert_eq!(ring.take(2, 3), None);
        ring.free(0);
        assert_eq!((ring.take(2, 3), ring.take(3, 11)), (Some(0), None));
    }

    proptest! {
        #[test]
        fn held_places_never_overlap(lengths in proptest::collection::vec((1usize..40, any::<bool>()), 1..200)) {
            let mut ring = Ring::new(100);
            let mut held: VecDeque<(u64, usize, usize)> = VecDeque::new();
            for (owner, (length, release)) in lengths.into_iter().enumerate() {
                if release && let Some((oldest, _, _)) = held.pop_front() {
                    ring.free(oldest);
                }
                if let Some(start) = ring.take(owner as u64, length) {
                    prop_assert!(start + length <= 100);
                    prop_assert!(held.iter().all(|&(_, other, end)| end <= start || start + length <= other));
                    held.push_back((owner as u64, start, start + length));
                }
            }
        }
    }
}
