//! What a weight is to the steps that read it, whatever is stored.

use super::error::EncodingError;
use crate::dtype::DType;

/// Type and extents of a weight as steps see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logical<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [u64],
}

impl Logical<'_> {
    /// Number of elements.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] where it does not fit into 64 bits.
    pub fn elements(&self) -> Result<u64, EncodingError> {
        if self.shape.contains(&0) {
            return Ok(0);
        }
        let count = self.shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        count.ok_or_else(|| self.too_large())
    }

    /// Rows along axis 0 and elements of each: one row for shape `[]`, none where there are no elements.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] where the number of elements does not fit into 64 bits.
    pub fn rows(&self) -> Result<(u64, u64), EncodingError> {
        let count = self.elements()?;
        Ok(match self.shape.first() {
            _ if count == 0 => (0, 0),
            None => (1, 1),
            Some(&rows) => (rows, count / rows),
        })
    }

    /// Extents as memory addresses.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] where one does not fit.
    pub fn extents(&self) -> Result<Vec<usize>, EncodingError> {
        let extents: Option<Vec<usize>> = self.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        extents.ok_or_else(|| self.too_large())
    }

    pub(super) fn too_large(&self) -> EncodingError {
        EncodingError::TooLarge { shape: self.shape.to_vec() }
    }
}

/// Bytes of packed elements; `None` on overflow and for strings.
pub(super) fn packed_bytes(dtype: DType, count: u64) -> Option<u64> {
    match dtype.bits() as u128 {
        0 => None,
        bits => u64::try_from((u128::from(count) * bits).div_ceil(8)).ok(),
    }
}

/// Byte offset of element `first` among packed elements; `None` where it begins within a byte or on overflow.
pub(super) fn byte_offset(dtype: DType, first: u128) -> Option<u64> {
    let bits = first.checked_mul(dtype.bits() as u128)?;
    if bits.is_multiple_of(8) { u64::try_from(bits / 8).ok() } else { None }
}
