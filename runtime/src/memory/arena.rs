//! One allocation, handed out in pieces that never overlap while they are held.
#![allow(unsafe_code, reason = "pieces of one allocation are written through separate owners")]

use ipuc_formats::tensor::Storage;
use ipuc_pages::Pages;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A range of memory whose pieces are held by one owner each.
pub(crate) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// What `start` points into.
    pages: Pages,
    /// Pieces that are held, offset and end, by offset: few at a time, so that none is looked for long.
    held: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: the memory is reached only through `ArenaBytes`, whose pieces do not overlap, and `held` is locked.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed memory of this size; `None` where there is not enough.
    pub(crate) fn new(bytes: usize) -> Option<Arc<Arena>> {
        let mut pages = Pages::zeroed(bytes).ok()?;
        let start = NonNull::new(pages.as_mut_ptr())?;
        Some(Arc::new(Arena { start, bytes, pages, held: Mutex::default() }))
    }

    /// The piece at `offset`; `None` where it is not inside or somebody holds a part of it.
    pub(crate) fn take(self: &Arc<Self>, offset: usize, bytes: usize) -> Option<ArenaBytes> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes && bytes > 0)?;
        let mut held = self.held();
        let place = held.partition_point(|&(other, _)| other < end);
        if place.checked_sub(1).is_some_and(|before| held[before].1 > offset) {
            return None;
        }
        held.insert(place, (offset, end));
        drop(held);
        Some(ArenaBytes { arena: self.clone(), offset, bytes, discarded: false })
    }

    /// Gives the memory of the piece at `offset` back to the system, unless it is not inside or somebody holds a part of it.
    pub(crate) fn discard(self: &Arc<Self>, offset: usize, bytes: usize) {
        drop(self.take(offset, bytes).map(ArenaBytes::discarded_when_dropped));
    }

    fn held(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of an arena; dropping it gives it back.
pub(crate) struct ArenaBytes {
    arena: Arc<Arena>,
    offset: usize,
    bytes: usize,
    /// Dropping it also gives its memory back to the system.
    discarded: bool,
}

impl ArenaBytes {
    /// Its memory goes back to the system when it is dropped.
    pub(crate) fn discarded_when_dropped(self) -> Self {
        let mut bytes = self;
        bytes.discarded = true;
        bytes
    }
}

impl Storage for ArenaBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the piece lies inside the pages, which the `Arc` keeps alive; no other piece overlaps it while
        // it is held, and writing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.arena.start.as_ptr().add(self.offset), self.bytes) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and `&mut self` is the only way to this piece.
        Some(unsafe { std::slice::from_raw_parts_mut(self.arena.start.as_ptr().add(self.offset), self.bytes) })
    }
    fn is_counted(&self) -> bool {
        true
    }
}

impl Drop for ArenaBytes {
    fn drop(&mut self) {
        if self.discarded {
            // SAFETY: the piece is still held here, nobody else refers to its bytes, and it is not looked at again.
            unsafe { self.arena.pages.discard(self.offset..self.offset + self.bytes) };
        }
        let mut held = self.arena.held();
        if let Ok(place) = held.binary_search_by_key(&self.offset, |&(offset, _)| offset) {
            held.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_pieces_are_not_given_twice() {
        let arena = Arena::new(256).unwrap();
        let mut first = arena.take(64, 64).unwrap();
        first.bytes_mut().unwrap().fill(7);
        for (offset, bytes) in [(64, 64), (0, 65), (127, 1), (100, 10), (0, 256)] {
            assert!(arena.take(offset, bytes).is_none(), "{offset} {bytes}");
        }
        let second = arena.take(128, 128).unwrap();
        assert!(arena.take(0, 64).is_some());
        assert!(second.bytes().iter().all(|&byte| byte == 0));
        drop(first);
        assert_eq!(arena.take(64, 64).unwrap().bytes(), [7; 64]);
        assert!(arena.take(200, 100).is_none());
        assert!(arena.take(usize::MAX, 2).is_none());
    }

    #[test]
    fn pieces_are_discarded_only_while_nobody_holds_them() {
        let arena = Arena::new(2 * 4096).unwrap();
        let mut piece = arena.take(0, 4096).unwrap();
        piece.bytes_mut().unwrap().fill(7);
        arena.discard(0, 8192);
        assert!(piece.bytes().iter().all(|&byte| byte == 7));
        drop(piece);
        arena.discard(0, 8192);
        assert_eq!(arena.take(0, 8192).unwrap().bytes().len(), 8192);
    }
}
