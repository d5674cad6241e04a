//! Positional reads: how bytes are reached without loading or mapping them.
//!
//! This crate does no file I/O itself; whoever opens files implements [`ReadAt`] for them. Reads take no
//! `&mut`, so that several threads may read weights of one file at a time.

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
}

impl<R: ReadAt + ?Sized> ReadAt for Arc<R> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Box<R> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
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
