//! What a weight is packed from, and what it is unpacked to.

use super::error::EncodingError;
use crate::dtype::DType;
use crate::read_at::ReadAt;
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
        self.stored.bytes().read_exact_at(offset, to)
    }

    fn plane(&mut self, plane: usize, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.planes.get(plane).ok_or(io::ErrorKind::NotFound)?.bytes().read_exact_at(offset, to)
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
