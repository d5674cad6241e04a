//! Coded rows, for steps that read single rows: the parameters of a row, then its codes.
//!
//! A unit is a row along axis 0 of `inputs` elements: for each plane one element a block (one in all for a block of 0),
//! then the codes; each of these is packed and padded to a whole byte.

use super::codes::check_codes;
use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::fetch::{expand, put_code};
use super::logical::{Logical, packed_bytes};
use super::part::PartRange;
use super::plane::{Plane, Planes};
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader, read, read_plane};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use std::ops::Range;

attributes! {
    /// Rows of codes with their parameters.
    pub struct Rows revision 1 {
        /// Type of the codes.
        1 since 1 => dtype: DType,
        /// Parameters of a row, in the order in which they are stored.
        2 since 1 => planes: Planes,
    }
}

impl Rows {
    fn row_bytes(&self, weight: Logical<'_>) -> Result<u64, EncodingError> {
        let (_, inputs) = weight.rows()?;
        let planes = self.planes.0.iter().map(|plane| packed_bytes(plane.dtype, plane.blocks(inputs)));
        let bytes =
            planes.chain([packed_bytes(self.dtype, inputs)]).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
        bytes.ok_or_else(|| weight.too_large())
    }
}

/// Where a run of elements lies among packed ones.
struct Bits {
    /// First byte that holds some of it.
    first_byte: u64,
    /// Bits of that byte that come before.
    skipped: usize,
}

fn bits_at(dtype: DType, first: u64) -> Bits {
    let bit = u128::from(first) * dtype.bits() as u128;
    Bits { first_byte: (bit / 8) as u64, skipped: (bit % 8) as usize }
}

/// Pack `count` elements of a row of canonical elements that begin at element `first`; gives what follows in `to`.
fn pack_run(
    dtype: DType,
    (first, count): (u64, u64),
    to: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), EncodingError>,
) -> Result<&mut [u8], EncodingError> {
    let (run, rest) = to.split_at_mut((count as usize * dtype.bits()).div_ceil(8));
    let Bits { first_byte, skipped } = bits_at(dtype, first);
    if !dtype.is_sub_byte() {
        read(first_byte, run)?;
        return Ok(rest);
    }
    let bits = dtype.bits();
    let mut given = vec![0; (skipped + count as usize * bits).div_ceil(8)];
    read(first_byte, &mut given)?;
    let mut codes = Vec::with_capacity(count as usize);
    expand(&given, skipped, bits, count as usize, &mut codes);
    run.fill(0);
    codes.iter().enumerate().for_each(|(index, &code)| put_code(run, bits, index, code));
    Ok(rest)
}

/// The inverse of [`pack_run`]; gives what follows in `from`.
fn unpack_run<'a>(dtype: DType, (first, count): (u64, u64), from: &'a [u8], canonical: &mut [u8]) -> &'a [u8] {
    let (run, rest) = from.split_at((count as usize * dtype.bits()).div_ceil(8));
    if !dtype.is_sub_byte() {
        canonical[first as usize * dtype.bits() / 8..][..run.len()].copy_from_slice(run);
        return rest;
    }
    let mut codes = Vec::with_capacity(count as usize);
    expand(run, 0, dtype.bits(), count as usize, &mut codes);
    codes.iter().enumerate().for_each(|(index, &code)| put_code(canonical, dtype.bits(), first as usize + index, code));
    rest
}

impl Encoding for Rows {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn planes(&self) -> &[Plane] {
        &self.planes.0
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        check_codes(self.dtype, &self.planes.0, weight)?;
        let (rows, _) = weight.rows()?;
        rows.checked_mul(self.row_bytes(weight)?).map(|_| ()).ok_or_else(|| weight.too_large())
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        let (rows, _) = weight.rows()?;
        Ok(Units { count: rows, per_group: rows.max(1), step: 1, inputs: 0, cut: 0 })
    }

    fn bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError> {
        let bytes = (part.end - part.start).checked_mul(self.row_bytes(weight)?);
        bytes.map(Some).ok_or_else(|| weight.too_large())
    }

    fn records(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        _bytes: u64,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), EncodingError> {
        let (_, inputs) = weight.rows()?;
        let row_bytes = self.row_bytes(weight)?;
        let packed = |dtype, count| packed_bytes(dtype, count).ok_or_else(|| weight.too_large());
        let elements = packed(self.dtype, inputs)?;
        let planes = self.planes.0.iter().map(|plane| packed(plane.dtype, plane.blocks(inputs)));
        let planes: Vec<u64> = planes.collect::<Result<_, _>>()?;
        for row in part.start..part.end {
            let offset = (row - part.start) * row_bytes;
            each(StoredRecord::new(row..row + 1, 0..inputs, offset, planes.iter().copied(), elements));
        }
        Ok(())
    }

    fn pack(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        if from.dtype() != self.dtype {
            return Err(EncodingError::Conversion { logical: from.dtype(), stored: self.dtype });
        }
        let (_, inputs) = weight.rows()?;
        let mut rest = to;
        for row in part.start..part.end {
            for (index, plane) in self.planes.0.iter().enumerate() {
                let blocks = plane.blocks(inputs);
                rest = pack_run(plane.dtype, (row * blocks, blocks), rest, |offset, to| {
                    read_plane(from, index, offset, to)
                })?;
            }
            rest = pack_run(self.dtype, (row * inputs, inputs), rest, |offset, to| read(from, offset, to))?;
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
        let (_, inputs) = weight.rows()?;
        let mut rest = from;
        for row in part.start..part.end {
            for (plane, target) in self.planes.0.iter().zip(&mut to.planes) {
                let blocks = plane.blocks(inputs);
                rest = unpack_run(plane.dtype, (row * blocks, blocks), rest, target.bytes_mut());
            }
            rest = unpack_run(self.dtype, (row * inputs, inputs), rest, to.stored.bytes_mut());
        }
        Ok(())
    }

    fn matrices(&self, weight: Logical<'_>) -> Option<WeightMatrix> {
        let (outputs, inputs) = weight.rows().ok()?;
        Some(WeightMatrix { groups: 1, inputs, outputs, output_axis: 0 })
    }

    fn is_canonical(&self, _weight: Logical<'_>) -> bool {
        false
    }

    fn locate(&self, weight: Logical<'_>, pick: Pick) -> Option<Range<u64>> {
        let (rows, _) = weight.rows().ok()?;
        match pick {
            Pick::Row(row) if row < rows => Some(row..row + 1),
            Pick::Row(_) | Pick::Group(_) => None,
        }
    }

    fn order(&self) -> ReadOrder {
        ReadOrder::Sequential
    }
}
