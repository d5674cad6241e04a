//! One row of a weight, for operators that gather.

use super::convert::widen;
use super::layout::{packed_bytes, rows_of};
use super::panels::unpack_output_rows;
use super::{EncodingError, Layout, PANEL_OUTPUTS, WeightRecord};

/// Where the stored bytes of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Index of the part.
    pub part: usize,
    /// Offset within the part.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Where the stored bytes of row `row` (along axis 0) of a plainly stored weight are. Sub-byte rows that share bytes
/// with their neighbours are refused.
///
/// # Errors
/// [`EncodingError::Row`] outside the weight, [`EncodingError::Unsupported`] where a row is no run of bytes.
pub fn locate_row(weight: &WeightRecord, row: u64) -> Result<RowPlace, EncodingError> {
    let Layout::Plain { dtype } = &weight.layout else {
        return Err(EncodingError::Unsupported("reading single rows of a weight that is not stored plainly".into()));
    };
    let (rows, row_elements) =
        rows_of(&weight.shape).ok_or_else(|| EncodingError::TooLarge { shape: weight.shape.clone() })?;
    let length = packed_bytes(*dtype, row_elements).unwrap_or(0);
    if !(u128::from(row_elements) * dtype.bits() as u128).is_multiple_of(8) {
        return Err(EncodingError::Unsupported(format!("reading single rows of {row_elements} {dtype} elements")));
    }
    let part = weight.parts.partition_point(|part| part.end <= row);
    match weight.parts.get(part) {
        Some(found) if row < rows && found.start <= row => {
            Ok(RowPlace { part, offset: (row - found.start) * length, length })
        }
        _ => Err(EncodingError::Row { row, rows }),
    }
}

/// Canonical bytes of row `row` (along axis 0) from the stored bytes of part `part`, which holds it, into `canonical`.
///
/// For panels the part must hold whole panels of a `[outputs, inputs]` weight of two axes.
///
/// # Errors
/// [`EncodingError`] where the row is not in the part or the sizes do not agree.
pub fn row(
    weight: &WeightRecord,
    part: usize,
    bytes: &[u8],
    row: u64,
    canonical: &mut [u8],
) -> Result<(), EncodingError> {
    let too_large = || EncodingError::TooLarge { shape: weight.shape.clone() };
    let (rows, row_elements) = rows_of(&weight.shape).ok_or_else(too_large)?;
    let outside = EncodingError::Row { row, rows };
    let record =
        weight.parts.get(part).ok_or(EncodingError::PartCount { expected: weight.parts.len(), found: part })?;
    weight.layout.check(weight.dtype, &weight.shape)?;
    let size = |expected: Option<u64>, found: usize| match expected {
        Some(expected) if expected != found as u64 => Err(EncodingError::Size { expected, found: found as u64 }),
        _ => Ok(()),
    };
    size(weight.layout.part_bytes(&weight.shape, &record.range())?, bytes.len())?;
    size(packed_bytes(weight.dtype, row_elements), canonical.len())?;
    let stored = weight.layout.dtype();
    let mut narrow = Vec::new();
    let stored_row = match &weight.layout {
        Layout::Plain { .. } => {
            let place = locate_row(weight, row)?;
            if place.part != part {
                return Err(outside);
            }
            &bytes[place.offset as usize..][..place.length as usize]
        }
        Layout::Panels(layout) if layout.output_axis == 0 && layout.inputs == row_elements => {
            let width = stored.bits() / 8;
            let (matrix, output) = (row / layout.outputs, row % layout.outputs);
            let panel = matrix * layout.panels_per_group() + output / PANEL_OUTPUTS as u64;
            let whole = record.inputs_start == 0 && record.inputs_end == layout.inputs;
            if row >= rows || !whole || !(record.start..record.end).contains(&panel) {
                return Err(outside);
            }
            let panel_bytes = bytes.len() / (record.end - record.start) as usize;
            let from = (panel - record.start) as usize * panel_bytes;
            // The outputs of a panel up to the one that is asked for; those before are few.
            let before = output as usize % PANEL_OUTPUTS;
            narrow.resize((before + 1) * row_elements as usize * width, 0);
            unpack_output_rows(&bytes[from..][..panel_bytes], before + 1, width, layout.group as usize, &mut narrow);
            &narrow[before * row_elements as usize * width..]
        }
        Layout::Panels(_) | Layout::Strings => {
            return Err(EncodingError::Unsupported("reading single rows of this layout".into()));
        }
    };
    if stored == weight.dtype {
        canonical.copy_from_slice(stored_row);
    } else {
        widen(stored_row, stored, canonical);
    }
    Ok(())
}
