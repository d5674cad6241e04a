//! Places for chunks that pass through, all of one size.

use std::collections::BTreeMap;

/// Memory cut into places, each of which holds one chunk at a time.
#[derive(Debug)]
pub(super) struct Ring {
    place_bytes: usize,
    places: usize,
    /// Free places, taken from the end: few go round as long as chunks are used as fast as they come, and caches that the
    /// device and the processor share still have them.
    free: Vec<usize>,
    taken: BTreeMap<u64, usize>,
}

impl Ring {
    /// `bytes` in places of `place_bytes`.
    pub(super) fn new(bytes: usize, place_bytes: usize) -> Self {
        let places = bytes.checked_div(place_bytes).unwrap_or(0);
        Ring { place_bytes, places, free: (0..places).collect(), taken: BTreeMap::new() }
    }

    /// Offset of a place for `owner`; `None` where none is free.
    pub(super) fn take(&mut self, owner: u64) -> Option<usize> {
        let place = self.free.pop()?;
        self.taken.insert(owner, place);
        Some(place * self.place_bytes)
    }

    /// A place is free.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Give the place of `owner` back.
    pub(super) fn free(&mut self, owner: u64) {
        self.free.extend(self.taken.remove(&owner));
    }

    /// Give all places back.
    pub(super) fn clear(&mut self) {
        self.taken.clear();
        self.free = (0..self.places).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn the_place_that_was_given_back_last_is_used_first() {
        let mut ring = Ring::new(35, 10);
        assert_eq!([0, 1, 2, 3].map(|owner| ring.take(owner)), [Some(20), Some(10), Some(0), None]);
        [2, 0, 1, 1, 7].into_iter().for_each(|owner| ring.free(owner));
        assert_eq!([4, 5].map(|owner| ring.take(owner)), [Some(10), Some(20)]);
        ring.clear();
        assert_eq!([6, 7, 8, 9].map(|owner| ring.take(owner)), [Some(20), Some(10), Some(0), None]);
        assert_eq!(Ring::new(0, 0).take(0), None);
    }

    proptest! {
        #[test]
        fn held_places_never_overlap(turns in proptest::collection::vec(any::<bool>(), 1..200)) {
            let mut ring = Ring::new(100, 30);
            let mut held: VecDeque<(u64, usize)> = VecDeque::new();
            for (owner, release) in turns.into_iter().enumerate() {
                if release && let Some((oldest, _)) = held.pop_front() {
                    ring.free(oldest);
                }
                let taken = ring.take(owner as u64);
                prop_assert_eq!(taken.is_some(), held.len() < 3);
                if let Some(start) = taken {
                    prop_assert!(start + 30 <= 100);
                    prop_assert!(held.iter().all(|&(_, other)| other + 30 <= start || start + 30 <= other));
                    held.push_back((owner as u64, start));
                }
            }
        }
    }
}
