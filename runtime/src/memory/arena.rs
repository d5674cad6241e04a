//! One allocation, handed out in pieces that never overlap while they are held.
#![allow(unsafe_code, reason = "pieces of one allocation are written through separate owners")]

use ipuc_formats::tensor::{Storage, Tensor};
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

    /// The bytes at `offset` as one, where they are those of the parts, one behind the other; else `None`.
    pub(crate) fn join(self: &Arc<Self>, offset: usize, bytes: usize, parts: Box<[Tensor]>) -> Option<JoinedBytes> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes)?;
        let start = self.start.as_ptr().addr();
        let mut place = start + offset;
        for part in &parts {
            let bytes = part.bytes();
            if bytes.as_ptr().addr() != place {
                return None;
            }
            place += bytes.len();
        }
        (place == start + end).then(|| JoinedBytes { arena: self.clone(), offset, bytes, parts })
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

/// Neighbouring pieces of an arena as one.
pub(crate) struct JoinedBytes {
    arena: Arc<Arena>,
    offset: usize,
    bytes: usize,
    /// Their owners.
    parts: Box<[Tensor]>,
}

impl Storage for JoinedBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are those of the parts, which lie inside the pages that the `Arc` keeps alive. A part has another owner or
        // this one; it is written by an owner without others only, and this one reads.
        unsafe { std::slice::from_raw_parts(self.arena.start.as_ptr().add(self.offset), self.bytes) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.parts.iter_mut().all(Tensor::is_exclusive) {
            return None;
        }
        // SAFETY: as above; no part has another owner, and `&mut self` is the only way to them.
        Some(unsafe { std::slice::from_raw_parts_mut(self.arena.start.as_ptr().add(self.offset), self.bytes) })
    }

    fn is_counted(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::dtype::DType;

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
    fn neighbours_are_joined_and_written_when_nobody_else_holds_them() {
        let arena = Arena::new(256).unwrap();
        let piece = |offset: usize, value: u8| {
            let mut piece = arena.take(offset, 64).unwrap();
            piece.bytes_mut().unwrap().fill(value);
            Tensor::over(DType::U8, &[64], Arc::new(piece)).unwrap()
        };
        let parts = [piece(64, 1), piece(128, 2)];
        let join = |offset, bytes, parts: &[&Tensor]| {
            arena.join(offset, bytes, parts.iter().map(|&part| part.clone()).collect())
        };
        let [first, second] = &parts;
        for (offset, bytes, parts) in [
            (0, 128, [first, second]),
            (64, 64, [first, second]),
            (64, 192, [first, second]),
            (64, 128, [second, first]),
            (64, usize::MAX, [first, second]),
        ] {
            assert!(join(offset, bytes, &parts).is_none(), "{offset} {bytes}");
        }
        let mut joined = join(64, 128, &[first, second]).unwrap();
        assert_eq!(joined.bytes(), [[1; 64], [2; 64]].concat());
        assert!(joined.bytes_mut().is_none());
        assert!(arena.take(64, 1).is_none() && arena.take(191, 1).is_none());
        drop(parts);
        joined.bytes_mut().unwrap()[63..65].fill(3);
        assert_eq!(joined.bytes()[62..66], [1, 3, 3, 2]);
        drop(joined);
        assert!(arena.take(0, 256).is_some());
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
