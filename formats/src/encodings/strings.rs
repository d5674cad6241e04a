//! Strings in the file: the length of each as a little-endian u32, then all their bytes (UTF-8). They are one unit.

use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::logical::Logical;
use super::part::PartRange;
use super::plane::Plane;
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use crate::tensor::{Tensor, element_count};
use std::ops::Range;

attributes! {
    /// The lengths of all strings, then their bytes.
    pub struct Strings revision 1 {}
}

impl Encoding for Strings {
    fn dtype(&self) -> DType {
        DType::String
    }

    fn planes(&self) -> &[Plane] {
        &[]
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        match weight.dtype {
            DType::String => weight.elements().map(|_| ()),
            logical => Err(EncodingError::Conversion { logical, stored: DType::String }),
        }
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        let count = u64::from(weight.elements()? > 0);
        Ok(Units { count, per_group: 1, step: 1, inputs: 0, cut: 0 })
    }

    fn bytes(&self, _weight: Logical<'_>, _part: PartRange) -> Result<Option<u64>, EncodingError> {
        Ok(None)
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
        _weight: Logical<'_>,
        _part: PartRange,
        _from: &mut dyn WeightReader,
        _to: &mut [u8],
    ) -> Result<(), EncodingError> {
        Err(EncodingError::Unsupported("packing strings from canonical bytes".into()))
    }

    fn unpack(
        &self,
        weight: Logical<'_>,
        _part: PartRange,
        from: &[u8],
        to: &mut Elements,
    ) -> Result<(), EncodingError> {
        to.stored = unpack_strings(&weight.extents()?, from)?;
        Ok(())
    }

    fn matrices(&self, _weight: Logical<'_>) -> Option<WeightMatrix> {
        None
    }

    fn is_canonical(&self, _weight: Logical<'_>) -> bool {
        false
    }

    fn locate(&self, _weight: Logical<'_>, _pick: Pick) -> Option<Range<u64>> {
        None
    }

    fn order(&self) -> ReadOrder {
        ReadOrder::Scattered
    }
}

/// The stored bytes of strings.
///
/// # Errors
/// [`EncodingError::Unsupported`] for a string of 4 GiB or more.
pub fn pack_strings(strings: &[String]) -> Result<Vec<u8>, EncodingError> {
    let mut packed = Vec::new();
    for text in strings {
        let length = u32::try_from(text.len()).map_err(|_| EncodingError::Unsupported("a string of 4 GiB".into()))?;
        packed.extend_from_slice(&length.to_le_bytes());
    }
    strings.iter().for_each(|text| packed.extend_from_slice(text.as_bytes()));
    Ok(packed)
}

/// The strings of stored bytes, as a tensor.
///
/// # Errors
/// [`EncodingError::Strings`] where lengths do not fill the bytes exactly or text is not UTF-8.
pub fn unpack_strings(shape: &[usize], packed: &[u8]) -> Result<Tensor, EncodingError> {
    let malformed = |index| EncodingError::Strings { index };
    let too_large = || EncodingError::TooLarge { shape: shape.iter().map(|&extent| extent as u64).collect() };
    let count = element_count(shape).ok_or_else(too_large)?;
    // Checked before anything of `count` elements is allocated.
    let table = count.checked_mul(4).and_then(|bytes| packed.get(..bytes)).ok_or_else(|| malformed(0))?;
    let mut rest = &packed[table.len()..];
    let mut strings = Vec::with_capacity(count);
    for (index, length) in table.as_chunks::<4>().0.iter().enumerate() {
        let length = u32::from_le_bytes(*length) as usize;
        let (text, after) = rest.split_at_checked(length).ok_or_else(|| malformed(index))?;
        strings.push(std::str::from_utf8(text).map_err(|_| malformed(index))?.to_string());
        rest = after;
    }
    if !rest.is_empty() {
        return Err(malformed(count));
    }
    Ok(Tensor::from_strings(shape, strings)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_round_trip_and_malformed_ones_are_refused() {
        let strings = vec!["über".to_string(), String::new(), "x".to_string()];
        let packed = pack_strings(&strings).unwrap();
        assert_eq!(&packed[..4], [5, 0, 0, 0]);
        assert_eq!(unpack_strings(&[3], &packed).unwrap().strings().unwrap(), strings);
        assert_eq!(
            unpack_strings(&[3], &packed[..packed.len() - 1]).unwrap_err().to_string(),
            "stored strings are malformed at string 2"
        );
        assert_eq!(unpack_strings(&[2], &packed).unwrap_err().to_string(), "stored strings are malformed at string 0");
        assert_eq!(
            unpack_strings(&[usize::MAX / 8], &packed).unwrap_err().to_string(),
            "stored strings are malformed at string 0"
        );
        let mut cut = packed.clone();
        cut[0] = 1;
        assert!(matches!(unpack_strings(&[3], &cut), Err(EncodingError::Strings { .. })));
    }
}
