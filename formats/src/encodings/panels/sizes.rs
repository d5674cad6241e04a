//! Sizes of records and panels, and where the pieces of a record lie.

use super::{LINE_BYTES, MOST_CUT, PANEL_OUTPUTS, PLAIN_CUT, Panels};
use crate::encodings::plane::Plane;
use std::ops::Range;

/// Bits of a row of a plane: one element for each output.
fn row_bits(plane: &Plane) -> u64 {
    (PANEL_OUTPUTS * plane.dtype.bits()) as u64
}

/// The fewest inputs whose planes each fill whole cache lines, at most [`MOST_CUT`]; [`PLAIN_CUT`] without planes of blocks.
pub(super) fn fewest_inputs_of_whole_lines(planes: &[Plane]) -> u64 {
    let in_blocks = planes.iter().filter(|plane| plane.block > 0);
    let inputs = in_blocks.map(|plane| plane.block * (LINE_BYTES * 8).div_ceil(row_bits(plane)));
    inputs.max().unwrap_or(PLAIN_CUT).min(MOST_CUT)
}

impl Panels {
    /// Stored bytes of the elements of this many inputs of one panel.
    pub(in crate::encodings) fn element_bytes(&self, inputs: u64) -> Option<u64> {
        let padded = inputs.checked_next_multiple_of(self.interleave)?;
        padded.checked_mul((PANEL_OUTPUTS * self.dtype.bits()) as u64)?.checked_div(8)
    }

    /// Stored bytes of a plane in a record of `inputs` inputs that begins at input `first`.
    pub(in crate::encodings) fn plane_bytes(plane: &Plane, first: u64, inputs: u64) -> u64 {
        let rows = match plane.block {
            0 => u64::from(first == 0),
            block => inputs.div_ceil(block),
        };
        (rows * row_bits(plane)).div_ceil(8).next_multiple_of(LINE_BYTES)
    }

    /// Stored bytes of all planes in a record.
    pub(in crate::encodings) fn planes_bytes(&self, first: u64, inputs: u64) -> u64 {
        self.planes.0.iter().map(|plane| Self::plane_bytes(plane, first, inputs)).sum()
    }

    /// Stored bytes of a run of inputs of one panel that begins with a record; `None` on overflow.
    pub fn panel_bytes(&self, inputs: Range<u64>) -> Option<u64> {
        let length = inputs.end.checked_sub(inputs.start)?;
        let (records, rest) = (length / self.cut, length % self.cut);
        // No record but the first has planes over all inputs: those of the second record stand for all others.
        let full = self.planes_bytes(self.cut, self.cut).checked_add(self.element_bytes(self.cut)?)?;
        let last =
            if rest == 0 { 0 } else { self.planes_bytes(self.cut, rest).checked_add(self.element_bytes(rest)?)? };
        let over_all = if inputs.start == 0 { self.planes_bytes(0, 0) } else { 0 };
        records.checked_mul(full)?.checked_add(last)?.checked_add(over_all)
    }

    /// The records of a run of inputs that begins with one: their inputs.
    pub(in crate::encodings) fn record_inputs(&self, inputs: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let cut = self.cut;
        let starts = (inputs.start..inputs.end).step_by(usize::try_from(cut).unwrap_or(usize::MAX));
        starts.map(move |start| start..inputs.end.min(start + cut))
    }

    /// Offset of the elements from `input` on, which begins an interleaved group, in a panel whose run of inputs begins
    /// with the record at `start`; `end` is where the run ends.
    pub(super) fn element_offset(&self, start: u64, end: u64, input: u64) -> usize {
        let record = start + (input - start) / self.cut * self.cut;
        let before = if record == start { 0 } else { self.panel_bytes(start..record).unwrap_or(0) };
        let planes = self.planes_bytes(record, self.cut.min(end - record));
        let elements = self.element_bytes(input - record).unwrap_or(0);
        (before + planes + elements) as usize
    }
}
