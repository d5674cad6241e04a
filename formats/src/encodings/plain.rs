//! Canonical bytes: row-major. A unit is a row along axis 0.

use super::convert::can_store;
use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::fetch::{Fetch, Runs};
use super::logical::{Logical, byte_offset, packed_bytes};
use super::part::PartRange;
use super::plane::Plane;
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader, read};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use std::ops::Range;

/// Bytes of elements that are converted at a time; a block of these stays in the second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

attributes! {
    /// Canonical bytes of all elements.
    pub struct Plain revision 1 {
        /// Stored element type; differs from the logical one only where widening is exact.
        1 since 1 => dtype: DType,
    }
}

impl Plain {
    /// Byte at which a row begins.
    fn row_offset(&self, weight: Logical<'_>, row: u64) -> Result<u64, EncodingError> {
        let (_, row_elements) = weight.rows()?;
        byte_offset(self.dtype, u128::from(row) * u128::from(row_elements)).ok_or_else(|| weight.too_large())
    }
}

impl Encoding for Plain {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn planes(&self) -> &[Plane] {
        &[]
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        if !can_store(weight.dtype, self.dtype) || self.dtype == DType::String {
            return Err(EncodingError::Conversion { logical: weight.dtype, stored: self.dtype });
        }
        let bytes = packed_bytes(self.dtype, weight.elements()?);
        bytes.map(|_| ()).ok_or_else(|| weight.too_large())
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        let (rows, row_elements) = weight.rows()?;
        // Rows of elements below a byte: the fewest that end on a byte.
        let ends_on_byte = |&rows: &u64| byte_offset(self.dtype, u128::from(rows) * u128::from(row_elements)).is_some();
        let step = (1..=8).find(ends_on_byte).unwrap_or(8);
        Ok(Units { count: rows, per_group: rows, step, inputs: 0, cut: 0 })
    }

    fn bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError> {
        let (_, row_elements) = weight.rows()?;
        let elements = (part.end - part.start).checked_mul(row_elements);
        let bytes = elements.and_then(|elements| packed_bytes(self.dtype, elements));
        bytes.map(Some).ok_or_else(|| weight.too_large())
    }

    fn records(
        &self,
        _weight: Logical<'_>,
        part: PartRange,
        bytes: u64,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), EncodingError> {
        each(StoredRecord::whole(part, bytes));
        Ok(())
    }

    fn pack(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        let mut fetch = Fetch::new(from, self.dtype)?;
        if fetch.is_direct() {
            return read(fetch.from, self.row_offset(weight, part.start)?, to);
        }
        let (_, row_elements) = weight.rows()?;
        let mut first = part.start * row_elements;
        for block in to.chunks_mut(BLOCK_BYTES) {
            let length = block.len() / (self.dtype.bits() / 8);
            block.copy_from_slice(fetch.fetch(Runs { first, rows: 1, length, stride: length as u64 })?);
            first += length as u64;
        }
        Ok(())
    }

    fn unpack(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        from: &[u8],
        to: &mut Elements,
    ) -> Result<(), EncodingError> {
        let start = self.row_offset(weight, part.start)? as usize;
        to.stored.bytes_mut()[start..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn matrices(&self, _weight: Logical<'_>) -> Option<WeightMatrix> {
        None
    }

    fn is_canonical(&self, weight: Logical<'_>) -> bool {
        self.dtype == weight.dtype
    }

    fn locate(&self, weight: Logical<'_>, pick: Pick) -> Option<Range<u64>> {
        let (rows, row_elements) = weight.rows().ok()?;
        match pick {
            // A row that shares bytes with its neighbours cannot be read alone.
            Pick::Row(row) if row < rows && (row_elements * self.dtype.bits() as u64).is_multiple_of(8) => {
                Some(row..row + 1)
            }
            // Matrices are groups of no encoding but panels; here they are rows along axis 0.
            Pick::Row(_) | Pick::Group(_) => None,
        }
    }

    fn order(&self) -> ReadOrder {
        ReadOrder::Sequential
    }
}
