//! What a weight is packed from, and what it is unpacked to.

use super::error::EncodingError;
use crate::dtype::DType;
use crate::tensor::Tensor;
use std::io;

/// Gives what a weight is made of: its elements (codes where they are coded), and the parameters of these.
///
/// All bytes are canonical: row-major, little-endian, packed.
pub trait WeightReader {
    /// Type of the elements that it gives.
    fn dtype(&self) -> DType;

    /// Fill a buffer with elements, from byte `offset` on.
    ///
    /// # Errors
    /// What the medium reports.
    fn elements(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Fill a buffer with elements of plane `plane`, from byte `offset` on (see [`Plane`](super::Plane) for their order).
    ///
    /// # Errors
    /// What the medium reports; [`io::ErrorKind::NotFound`] where there is no such plane.
    fn plane(&mut self, plane: usize, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

/// Elements in one tensor, and planes in one tensor each, of any shape with the canonical order.
#[derive(Debug, Clone, PartialEq)]
pub struct Elements {
    /// Elements as they are stored: codes where they are coded.
    pub stored: Tensor,
    /// The planes, in their order.
    pub planes: Vec<Tensor>,
}

impl WeightReader for &Elements {
    fn dtype(&self) -> DType {
        self.stored.dtype()
    }

    fn elements(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        copy(self.stored.bytes(), offset, to)
    }

    fn plane(&mut self, plane: usize, offset: u64, to: &mut [u8]) -> io::Result<()> {
        copy(self.planes.get(plane).ok_or(io::ErrorKind::NotFound)?.bytes(), offset, to)
    }
}

fn copy(bytes: &[u8], offset: u64, to: &mut [u8]) -> io::Result<()> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(to.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
    to.copy_from_slice(bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// Elements without planes, from a function that reads canonical bytes at an offset.
pub struct Canonical<R> {
    /// Type of the elements.
    pub dtype: DType,
    /// Fills a buffer with the bytes from an offset on.
    pub read: R,
}

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> WeightReader for Canonical<R> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn elements(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        (self.read)(offset, to)
    }

    fn plane(&mut self, _plane: usize, _offset: u64, _to: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Read elements, with the offset in the error.
pub(super) fn read(from: &mut dyn WeightReader, offset: u64, to: &mut [u8]) -> Result<(), EncodingError> {
    from.elements(offset, to).map_err(|source| EncodingError::Read { offset, source })
}

/// Read elements of a plane, with the offset in the error.
pub(super) fn read_plane(
    from: &mut dyn WeightReader,
    plane: usize,
    offset: u64,
    to: &mut [u8],
) -> Result<(), EncodingError> {
    from.plane(plane, offset, to).map_err(|source| EncodingError::Read { offset, source })
}
