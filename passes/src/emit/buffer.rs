//! Memory that a worker fills and writes, kept from piece to piece.

use crate::emit::EmitError;
use ipuc_pages::Pages;

/// Bytes that begin where direct writes want them.
#[derive(Default)]
pub(super) struct Buffer {
    pages: Option<Pages>,
}

impl Buffer {
    /// Bytes that it keeps in memory.
    pub(super) fn length(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.len())
    }

    /// So many bytes of any content.
    ///
    /// # Errors
    /// [`EmitError::Buffer`] where the system has no more memory.
    pub(super) fn of_length(&mut self, length: usize) -> Result<&mut [u8], EmitError> {
        if self.length() < length {
            // Exactly so many, and never two buffers at a time.
            self.pages = None;
            let pages = Pages::zeroed(length).map_err(|error| EmitError::Buffer { bytes: length as u64, error })?;
            self.pages = Some(pages);
        }
        Ok(self.pages.as_mut().map_or(&mut [], |pages| &mut pages[..length]))
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
