//! Positional reads: how bytes are reached without loading or mapping them.
//!
//! This crate does no file I/O itself; whoever opens files implements [`ReadAt`] for them. Reads take no
//! `&mut`, so that several threads may read weights of one file at a time.

use crate::tensor::Storage;
use std::io;
use std::sync::Arc;

/// Bytes that can be read at any position.
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Fills `buffer` with the bytes that begin at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the bytes end before the buffer is full, else what the medium reports.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// A queue for `depth` reads that go on side by side; `None` where the system has none for these bytes.
    fn queue(&self, _depth: usize) -> Option<Box<dyn ReadQueue>> {
        None
    }
}

/// Reads that the system carries out while the caller does something else.
pub trait ReadQueue: Send {
    /// Begin to fill `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The buffer, where this queue cannot begin the read.
    fn begin(&mut self, token: u64, offset: u64, buffer: Box<dyn Storage>) -> Result<(), Box<dyn Storage>>;

    /// The reads that have ended; does not wait.
    fn ended(&mut self) -> Vec<EndedRead>;

    /// Wait until at least one read has ended; none where none is under way.
    ///
    /// # Errors
    /// What the system reports; the reads go on.
    fn wait(&mut self) -> io::Result<Vec<EndedRead>>;
}

/// A read that has ended.
pub struct EndedRead {
    /// What the read was begun with.
    pub token: u64,
    /// What it was to fill.
    pub buffer: Box<dyn Storage>,
    /// All of it is filled. Where not, reading in the usual way does it, or says why not.
    pub filled: bool,
}

impl ReadAt for [u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

impl<const LENGTH: usize> ReadAt for [u8; LENGTH] {
    fn length(&self) -> u64 {
        LENGTH as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buffer)
    }
}

impl ReadAt for Vec<u8> {
    fn length(&self) -> u64 {
        self.as_slice().length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buffer)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for &R {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
    }

    fn queue(&self, depth: usize) -> Option<Box<dyn ReadQueue>> {
        (**self).queue(depth)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Arc<R> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
    }

    fn queue(&self, depth: usize) -> Option<Box<dyn ReadQueue>> {
        (**self).queue(depth)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Box<R> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
    }

    fn queue(&self, depth: usize) -> Option<Box<dyn ReadQueue>> {
        (**self).queue(depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_read_inside_and_refuse_outside() {
        let bytes: Arc<[u8]> = Arc::from([1u8, 2, 3, 4].as_slice());
        let mut two = [0; 2];
        bytes.read_exact_at(2, &mut two).unwrap();
        assert_eq!(two, [3, 4]);
        assert_eq!(bytes.length(), 4);
        for offset in [3, 4, 5, u64::MAX] {
            let error = bytes.read_exact_at(offset, &mut two).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "offset {offset}");
        }
        vec![0u8; 0].read_exact_at(0, &mut []).unwrap();
    }
}
