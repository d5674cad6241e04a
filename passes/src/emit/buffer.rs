//! Memory that a worker fills and writes, kept from piece to piece.

use crate::emit::EmitError;
use memmap2::MmapMut;
use std::io;

/// Size of a huge page: large buffers begin at a multiple of it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that begin where direct writes want them, on huge pages where they are many: the system finds, holds and hands
/// to the disk one page instead of 512.
#[derive(Default)]
pub(super) struct Buffer {
    map: Option<MmapMut>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Bytes that it keeps in memory.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// So many bytes of any content.
    ///
    /// # Errors
    /// [`EmitError::Buffer`] where the system has no more memory.
    pub(super) fn of_length(&mut self, length: usize) -> Result<&mut [u8], EmitError> {
        if self.length < length {
            // Exactly so many, and never two buffers at a time.
            *self = Buffer::default();
            *self = Buffer::new(length).map_err(|error| EmitError::Buffer { bytes: length as u64, error })?;
        }
        Ok(self.map.as_mut().map_or(&mut [], |map| &mut map[self.start..self.start + length]))
    }

    fn new(length: usize) -> io::Result<Self> {
        let slack = if length >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let map = MmapMut::map_anon(length.saturating_add(slack))?;
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // Small pages serve as well, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        // Maps begin at a page, which is as much as direct writes ask for.
        let start = if slack > 0 { map.as_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        Ok(Buffer { map: Some(map), start, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::limits::IPU_CHUNK_ALIGNMENT;

    #[test]
    fn buffers_are_aligned_and_grow() {
        let mut buffer = Buffer::default();
        for length in [0, 5, 100, 3 << 20, 7, (3 << 20) + 1] {
            let kept = buffer.length();
            let bytes = buffer.of_length(length).unwrap();
            bytes.fill(1);
            assert_eq!(bytes.len(), length);
            assert!(length == 0 || (bytes.as_ptr() as u64).is_multiple_of(IPU_CHUNK_ALIGNMENT), "{length}");
            assert_eq!(buffer.length(), kept.max(length));
        }
        let error = buffer.of_length(usize::MAX / 2).unwrap_err().to_string();
        assert!(error.starts_with("there is no memory for a buffer of "), "{error}");
    }
}
