//! A page: memory that fills up from the front, and is read up to where it was filled.

use super::spill::{SpillFile, SpillSlot};
use super::{PageMemory, VersionError};
use ipuc_formats::tensor::Storage;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A page of `positions` positions for each of `rows` rows: `[rows, positions, position bytes]`.
pub(super) struct Page {
    contents: RwLock<Contents>,
    /// Positions that are claimed, from the first on: they are written once, by who claimed them.
    claimed: AtomicUsize,
}

enum Contents {
    Memory(Arc<PageBytes>),
    File(SpillSlot),
}

/// Extents of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageShape {
    /// Rows, each of which has all positions.
    pub(super) rows: usize,
    /// Positions of a page.
    pub(super) positions: usize,
    /// Bytes of one position of one row.
    pub(super) position_bytes: usize,
}

impl PageShape {
    /// Bytes of a page.
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.positions * self.position_bytes
    }
}

/// The memory of a page. Positions are read only by versions that hold them, and written only once, before any version
/// holds them.
pub(super) struct PageBytes {
    base: NonNull<u8>,
    length: usize,
    /// Owns the memory at `base`; used no more after its address was taken.
    _buffer: Box<dyn Storage>,
}

// SAFETY: `base` points into `_buffer`, which may be sent; bytes are written by one thread, before others read them (a
// version reaches another thread only by something that synchronizes), and not changed afterwards.
unsafe impl Send for PageBytes {}
// SAFETY: as above; reads and writes at the same time are of disjoint bytes.
unsafe impl Sync for PageBytes {}

impl PageBytes {
    fn new(mut buffer: Box<dyn Storage>, bytes: usize) -> Result<PageBytes, VersionError> {
        let memory = buffer.bytes_mut().filter(|memory| memory.len() >= bytes);
        let memory = memory.ok_or(VersionError::Memory { bytes })?;
        let (base, length) = (NonNull::from(&mut *memory).cast::<u8>(), memory.len());
        Ok(PageBytes { base, length, _buffer: buffer })
    }

    /// Bytes that a version holds. The caller reads only positions that were written before its version was made.
    ///
    /// # Panics
    /// If they are outside of the page.
    pub(super) fn read(&self, start: usize, count: usize) -> &[u8] {
        assert!(start.checked_add(count).is_some_and(|end| end <= self.length), "bytes of a page");
        // SAFETY: inside the buffer, which lives as long as `self`. Claimed bytes are written once, before a version that
        // holds them exists, and callers read what their version holds.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), count) }
    }

    /// Write bytes of positions that the caller has claimed, and that no version holds yet.
    fn write(&self, start: usize, from: &[u8]) {
        assert!(start.checked_add(from.len()).is_some_and(|end| end <= self.length), "bytes of a page");
        // SAFETY: inside the buffer; the claim makes this the only access to these bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(start), from.len()) }
    }
}

impl Page {
    /// A page of which `claimed` positions are claimed by the caller.
    pub(super) fn new(shape: PageShape, claimed: usize, memory: &dyn PageMemory) -> Result<Page, VersionError> {
        let bytes = PageBytes::new(memory.page(shape.bytes())?, shape.bytes())?;
        Ok(Page { contents: RwLock::new(Contents::Memory(Arc::new(bytes))), claimed: AtomicUsize::new(claimed) })
    }

    /// Claim the positions from `first` up to `end`, if nobody has claimed beyond `first`.
    pub(super) fn claim(&self, first: usize, end: usize) -> bool {
        self.claimed.compare_exchange(first, end, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The memory; a spilled page is read into memory of its own, which is not kept.
    pub(super) fn bytes(&self, shape: PageShape, memory: &dyn PageMemory) -> Result<Arc<PageBytes>, VersionError> {
        match &*self.contents.read().unwrap_or_else(PoisonError::into_inner) {
            Contents::Memory(bytes) => Ok(bytes.clone()),
            Contents::File(slot) => {
                let mut buffer = memory.page(shape.bytes())?;
                let bytes = buffer.bytes_mut().ok_or(VersionError::Memory { bytes: shape.bytes() })?;
                slot.read(&mut bytes[..shape.bytes()])?;
                PageBytes::new(buffer, shape.bytes()).map(Arc::new)
            }
        }
    }

    /// Write one position of one row of a page that no version holds yet.
    pub(super) fn write_position(&self, shape: PageShape, row: usize, position: usize, from: &[u8]) {
        if let Contents::Memory(bytes) = &*self.contents.read().unwrap_or_else(PoisonError::into_inner) {
            bytes.write((row * shape.positions + position) * shape.position_bytes, from);
        }
    }

    /// Write `count` positions from `first` on, which the caller has claimed; `source` gives those of a row.
    pub(super) fn write<'a>(&self, shape: PageShape, first: usize, source: impl Fn(usize) -> &'a [u8]) {
        // A spilled page is full: nothing of it can be claimed.
        if let Contents::Memory(bytes) = &*self.contents.read().unwrap_or_else(PoisonError::into_inner) {
            for row in 0..shape.rows {
                bytes.write((row * shape.positions + first) * shape.position_bytes, source(row));
            }
        }
    }

    /// Begin to read it, where it is in the file.
    pub(super) fn read_ahead(&self) {
        if let Contents::File(slot) = &*self.contents.read().unwrap_or_else(PoisonError::into_inner) {
            slot.read_ahead();
        }
    }

    /// Whether it is in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(&*self.contents.read().unwrap_or_else(PoisonError::into_inner), Contents::Memory(_))
    }

    /// Move a full page to the file; it is idle where it is there already.
    pub(super) fn spill(&self, shape: PageShape, file: &Arc<SpillFile>) -> Result<(), VersionError> {
        let mut contents = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        if let Contents::Memory(bytes) = &*contents {
            *contents = Contents::File(SpillFile::store(file, bytes.read(0, shape.bytes()))?);
        }
        Ok(())
    }
}
