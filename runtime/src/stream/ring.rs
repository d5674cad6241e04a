//! Places for chunks that pass through, all of one size.

use std::collections::BTreeMap;
use std::ops::Range;

/// Memory cut into places, each of which holds one chunk at a time.
#[derive(Debug)]
pub(super) struct Ring {
    place_bytes: usize,
    /// Free places that were used before, taken from the end: few go round as long as chunks are used as fast as they come,
    /// and caches that the device and the processor share still have them.
    free: Vec<usize>,
    /// Places that were never used. They come first: memory that is new is slow, and should be so at the beginning, not when
    /// more reads are tried later.
    new: Range<usize>,
    taken: BTreeMap<u64, usize>,
}

impl Ring {
    /// `bytes` in places of `place_bytes`.
    pub(super) fn new(bytes: usize, place_bytes: usize) -> Self {
        let places = bytes.checked_div(place_bytes).unwrap_or(0);
        Ring { place_bytes, free: Vec::new(), new: 0..places, taken: BTreeMap::new() }
    }

    /// Offset of a place for `owner`; `None` where none is free.
    pub(super) fn take(&mut self, owner: u64) -> Option<usize> {
        let place = self.new.next().or_else(|| self.free.pop())?;
        self.taken.insert(owner, place);
        Some(place * self.place_bytes)
    }

    /// A place is free.
    pub(super) fn has_room(&self) -> bool {
        !self.new.is_empty() || !self.free.is_empty()
    }

    /// Give the place of `owner` back.
    pub(super) fn free(&mut self, owner: u64) {
        self.free.extend(self.taken.remove(&owner));
    }

    /// Give all places back.
    pub(super) fn clear(&mut self) {
        self.taken.clear();
        self.free = (0..self.new.start).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn new_places_are_used_first_then_the_one_that_was_given_back_last() {
        let mut ring = Ring::new(45, 10);
        assert_eq!([0, 1].map(|owner| ring.take(owner)), [Some(0), Some(10)]);
        ring.free(0);
        assert_eq!([2, 3].map(|owner| ring.take(owner)), [Some(20), Some(30)]);
        assert!(ring.has_room());
        assert_eq!([4, 5].map(|owner| ring.take(owner)), [Some(0), None]);
        assert!(!ring.has_room());
        [2, 1, 1, 7].into_iter().for_each(|owner| ring.free(owner));
        assert_eq!([6, 7, 8].map(|owner| ring.take(owner)), [Some(10), Some(20), None]);
        ring.clear();
        assert_eq!([0, 1, 2, 3, 4].map(|owner| ring.take(owner)), [Some(30), Some(20), Some(10), Some(0), None]);
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
