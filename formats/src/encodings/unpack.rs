//! Stored bytes of all parts in, the canonical tensor out.

use super::convert::widen;
use super::layout::byte_border;
use super::panels::{InputRows, unpack_input_rows, unpack_output_rows};
use super::{EncodingError, Layout, PANEL_OUTPUTS, PanelLayout, PartRecord, WeightRecord, unpack_strings};
use crate::tensor::Tensor;
use std::ops::Deref;

/// The canonical tensor of a weight from the stored bytes of its parts, in order.
///
/// # Errors
/// [`EncodingError`] where record, parts and bytes do not agree.
pub fn unpack(weight: &WeightRecord, parts: &[&[u8]]) -> Result<Tensor, EncodingError> {
    let count = EncodingError::PartCount { expected: weight.parts.len(), found: parts.len() };
    if parts.len() != weight.parts.len() {
        return Err(count);
    }
    unpack_each(weight, |index| Ok::<_, EncodingError>(parts[index]))
}

/// As [`unpack`], with the bytes of one part at a time: `part` is called for each index in order.
///
/// # Errors
/// [`EncodingError`] as for [`unpack`], and what `part` gives.
pub fn unpack_each<B: Deref<Target = [u8]>, E: From<EncodingError>>(
    weight: &WeightRecord,
    mut part: impl FnMut(usize) -> Result<B, E>,
) -> Result<Tensor, E> {
    let too_large = || EncodingError::TooLarge { shape: weight.shape.clone() };
    weight.check()?;
    let shape: Option<Vec<usize>> = weight.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let shape = shape.ok_or_else(too_large)?;
    if weight.layout == Layout::Strings {
        let packed = if weight.parts.is_empty() { None } else { Some(part(0)?) };
        return Ok(unpack_strings(&shape, packed.as_deref().unwrap_or(&[]))?);
    }
    let mut stored = Tensor::zeros(weight.layout.dtype(), &shape).map_err(EncodingError::from)?;
    let canonical = stored.bytes_mut();
    for (index, record) in weight.parts.iter().enumerate() {
        let bytes = part(index)?;
        let expected = weight.layout.part_bytes(&weight.shape, &record.range())?;
        if let Some(expected) = expected.filter(|&expected| expected != bytes.len() as u64) {
            return Err(EncodingError::Size { expected, found: bytes.len() as u64 }.into());
        }
        match &weight.layout {
            Layout::Panels(layout) => unpack_panels(layout, record, &bytes, canonical),
            Layout::Plain { .. } | Layout::Strings => {
                let (_, row_elements) = super::layout::rows_of(&weight.shape).ok_or_else(too_large)?;
                let start = byte_border(weight.layout.dtype(), record.start, row_elements).ok_or_else(too_large)?;
                canonical[start as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
    if stored.dtype() == weight.dtype {
        return Ok(stored);
    }
    let mut wide = Tensor::zeros(weight.dtype, &shape).map_err(EncodingError::from)?;
    widen(stored.bytes(), stored.dtype(), wide.bytes_mut());
    Ok(wide)
}

/// Inputs whose canonical rows are written at a time: their pages stay at hand.
const BLOCK_INPUTS: usize = 64;

/// Spread one part over canonical bytes of the stored type. Sizes have been checked.
fn unpack_panels(layout: &PanelLayout, part: &PartRecord, bytes: &[u8], canonical: &mut [u8]) {
    let panel_bytes = bytes.len() / (part.end - part.start) as usize;
    let panels = || (part.start..part.end).zip(bytes.chunks_exact(panel_bytes));
    if layout.output_axis == 0 {
        let mut rows = Vec::new();
        panels().for_each(|(panel, bytes)| unpack_to_output_rows(layout, part, panel, bytes, &mut rows, canonical));
        return;
    }
    let (width, group) = (layout.dtype.bits() / 8, layout.group as usize);
    let inputs = (part.inputs_end - part.inputs_start) as usize;
    let stride = layout.outputs as usize * width;
    for start in (0..inputs).step_by(BLOCK_INPUTS) {
        for (panel, bytes) in panels() {
            let place = layout.place(panel);
            let row = place.matrix as usize * layout.inputs as usize + part.inputs_start as usize + start;
            let offset = row * stride + place.output as usize * width;
            let inputs = (inputs - start).min(BLOCK_INPUTS);
            let block = InputRows { stride, offset, outputs: place.outputs, inputs };
            let lines =
                &bytes[start * PANEL_OUTPUTS * width..][..inputs.next_multiple_of(group) * PANEL_OUTPUTS * width];
            unpack_input_rows(lines, block, width, group, canonical);
        }
    }
}

/// Spread one panel over rows of inputs.
fn unpack_to_output_rows(
    layout: &PanelLayout,
    part: &PartRecord,
    panel: u64,
    bytes: &[u8],
    rows: &mut Vec<u8>,
    canonical: &mut [u8],
) {
    let (width, place) = (layout.dtype.bits() / 8, layout.place(panel));
    let inputs = (part.inputs_end - part.inputs_start) as usize;
    rows.resize(place.outputs * inputs * width, 0);
    unpack_output_rows(bytes, place.outputs, width, layout.group as usize, rows);
    let first_row = place.matrix as usize * layout.outputs as usize + place.output as usize;
    for (index, row) in rows.chunks_exact(inputs * width).enumerate() {
        let start = (first_row + index) * layout.inputs as usize + part.inputs_start as usize;
        canonical[start * width..][..row.len()].copy_from_slice(row);
    }
}

impl WeightRecord {
    /// Check that layout and parts describe exactly this weight.
    ///
    /// # Errors
    /// [`EncodingError`] that says where they do not.
    pub fn check(&self) -> Result<(), EncodingError> {
        self.layout.check(self.dtype, &self.shape)?;
        let (end, inputs_end) = self.ends()?;
        let (mut next, mut next_input) = (0, 0);
        for (index, part) in self.parts.iter().enumerate() {
            self.layout.part_bytes(&self.shape, &part.range())?;
            if part.start != next || part.inputs_start != next_input {
                return Err(EncodingError::Coverage { part: index });
            }
            (next, next_input) =
                if part.inputs_end == inputs_end { (part.end, 0) } else { (part.start, part.inputs_end) };
        }
        if (next, next_input) == (end, 0) { Ok(()) } else { Err(EncodingError::Coverage { part: self.parts.len() }) }
    }

    /// Where the last part must end: rows or panels, and inputs. Zero where there are no bytes.
    fn ends(&self) -> Result<(u64, u64), EncodingError> {
        let too_large = || EncodingError::TooLarge { shape: self.shape.clone() };
        let (rows, row_elements) = super::layout::rows_of(&self.shape).ok_or_else(too_large)?;
        if rows == 0 || row_elements == 0 {
            return Ok((0, 0));
        }
        match &self.layout {
            Layout::Plain { .. } => Ok((rows, 0)),
            Layout::Panels(layout) => Ok((layout.panel_count().ok_or_else(too_large)?, layout.inputs)),
            Layout::Strings => Ok((1, 0)),
        }
    }
}
