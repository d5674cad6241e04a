//! Elements and planes in, the stored bytes of a part out.

use super::transpose::{InputRows, pack_input_rows, pack_output_rows};
use super::{PANEL_OUTPUTS, Panels};
use crate::dtype::DType;
use crate::encodings::error::EncodingError;
use crate::encodings::fetch::{Fetch, Runs, expand, put_code};
use crate::encodings::part::PartRange;
use crate::encodings::transfer::{WeightReader, read_plane};
use std::ops::Range;

/// Canonical bytes held at once; a block of these stays in the second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Rows of a panel up to this length are read in one run, though they are more than a block.
const WHOLE_ROWS_BYTES: u64 = 512 << 10;

impl Panels {
    /// Whether the rows of a panel of an `[outputs, inputs]` weight are read as a whole, one after another, so that
    /// packing all of it reads its elements in their order.
    pub(super) fn is_packed_by_whole_rows(&self) -> bool {
        let row_bytes = self.inputs.saturating_mul(self.dtype.bits() as u64) / 8;
        row_bytes.saturating_mul(PANEL_OUTPUTS as u64) <= WHOLE_ROWS_BYTES
    }

    /// Write the stored bytes of a part.
    pub(super) fn pack_part(
        &self,
        part: PartRange,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        self.pack_planes(part, from, to)?;
        let mut fetch = Fetch::new(from, self.dtype)?;
        match self.output_axis {
            0 => self.pack_from_output_rows(part, &mut fetch, to),
            _ => self.pack_from_input_rows(part, &mut fetch, to),
        }
    }

    /// Inputs of a block that is packed at a time, of at least 16 that are a multiple of what lies side by side.
    fn block_inputs(columns: usize, width: usize) -> u64 {
        (BLOCK_BYTES / (columns * width) / 16 * 16).max(16) as u64
    }

    /// Cut a run of inputs into blocks of at most `length` inputs, none of which crosses records with planes.
    fn blocks(&self, inputs: Range<u64>, length: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (coded, cut) = (self.is_coded(), self.cut);
        let mut next = inputs.start;
        std::iter::from_fn(move || {
            let record_end = if coded { inputs.start + ((next - inputs.start) / cut + 1) * cut } else { inputs.end };
            let block = next..inputs.end.min(next.saturating_add(length)).min(record_end);
            next = block.end;
            (!block.is_empty()).then_some(block)
        })
    }

    /// Canonical matrices are `[outputs, inputs]`.
    fn pack_from_output_rows(
        &self,
        part: PartRange,
        fetch: &mut Fetch<'_>,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        let (width, interleave) = (self.dtype.bits().div_ceil(8), self.interleave as usize);
        let panel_bytes = to.len() / (part.end - part.start) as usize;
        let whole_rows = self.is_packed_by_whole_rows();
        let block_inputs = if whole_rows { self.inputs } else { (BLOCK_BYTES / (PANEL_OUTPUTS * width)) as u64 };
        let mut folded = Vec::new();
        for (panel, to) in (part.start..part.end).zip(to.chunks_exact_mut(panel_bytes)) {
            let place = self.place(panel);
            let first_row = (place.matrix * self.outputs + place.output) * self.inputs;
            let inputs = part.inputs_start..part.inputs_end;
            for run in runs_of(inputs.clone(), block_inputs) {
                let length = (run.end - run.start) as usize;
                let runs = Runs { first: first_row + run.start, rows: place.outputs, length, stride: self.inputs };
                let rows = fetch.fetch(runs)?;
                for block in self.blocks(run.clone(), u64::MAX) {
                    let at = self.element_offset(inputs.start, inputs.end, block.start);
                    let columns = (block.start - run.start) as usize * width..(block.end - run.start) as usize * width;
                    let to = &mut to[at..][..self.stored_bytes(&block)];
                    if self.is_folded() {
                        self.fold_output_rows(rows, length, columns, &mut folded);
                        pack_output_rows(&folded, place.outputs, 1, 4, to);
                    } else if columns.len() == length * width {
                        pack_output_rows(rows, place.outputs, width, interleave, to);
                    } else {
                        folded.clear();
                        rows.chunks_exact(length * width).for_each(|row| folded.extend(&row[columns.clone()]));
                        pack_output_rows(&folded, place.outputs, width, interleave, to);
                    }
                }
            }
        }
        Ok(())
    }

    /// Canonical matrices are `[inputs, outputs]`.
    fn pack_from_input_rows(&self, part: PartRange, fetch: &mut Fetch<'_>, to: &mut [u8]) -> Result<(), EncodingError> {
        let (width, interleave) = (self.dtype.bits().div_ceil(8), self.interleave as usize);
        let panel_bytes = to.len() / (part.end - part.start) as usize;
        let (inputs_start, inputs_end) = (part.inputs_start, part.inputs_end);
        let mut folded = Vec::new();
        let mut first = part.start;
        while first < part.end {
            let place = self.place(first);
            let last = part.end.min((place.matrix + 1) * self.panels_per_group());
            let columns = ((last - first) * PANEL_OUTPUTS as u64).min(self.outputs - place.output) as usize;
            for block in self.blocks(inputs_start..inputs_end, Self::block_inputs(columns, width)) {
                let inputs = (block.end - block.start) as usize;
                let first_element = (place.matrix * self.inputs + block.start) * self.outputs + place.output;
                let rows =
                    fetch.fetch(Runs { first: first_element, rows: inputs, length: columns, stride: self.outputs })?;
                let (rows, inputs, interleave) = if self.is_folded() {
                    self.fold_input_rows(rows, columns, inputs, &mut folded);
                    (folded.as_slice(), folded.len() / columns, 4)
                } else {
                    (rows, inputs, interleave)
                };
                let at = self.element_offset(inputs_start, inputs_end, block.start);
                let length = self.stored_bytes(&block);
                for panel in first..last {
                    let column = (panel - first) as usize * PANEL_OUTPUTS;
                    let outputs = (columns - column).min(PANEL_OUTPUTS);
                    let rows_of_panel = InputRows { stride: columns * width, offset: column * width, outputs, inputs };
                    let to = &mut to[(panel - part.start) as usize * panel_bytes + at..][..length];
                    pack_input_rows(rows, rows_of_panel, width, interleave, to);
                }
            }
            first = last;
        }
        Ok(())
    }

    /// Whether several codes of one output share a byte.
    pub(super) fn is_folded(&self) -> bool {
        self.dtype.is_sub_byte()
    }

    /// What is added to a code, modulo its bits, before it is stored.
    pub(super) fn code_offset(&self) -> u8 {
        match self.dtype {
            DType::I4 => 8,
            DType::I2 => 2,
            _ => 0,
        }
    }

    /// Stored bytes of the elements of a block of inputs.
    pub(super) fn stored_bytes(&self, block: &Range<u64>) -> usize {
        let inputs = (block.end - block.start).next_multiple_of(self.interleave) as usize;
        inputs * PANEL_OUTPUTS * self.dtype.bits() / 8
    }

    /// Rows `[outputs][columns]` of codes, one a byte, as `[outputs][groups of inputs][4]` bytes that hold several each.
    fn fold_output_rows(&self, rows: &[u8], length: usize, columns: Range<usize>, folded: &mut Vec<u8>) {
        let (bits, group) = (self.dtype.bits(), self.interleave as usize);
        let (mask, offset) = ((1u8 << bits) - 1, self.code_offset());
        folded.clear();
        for row in rows.chunks_exact(length) {
            for codes in row[columns.clone()].chunks(group) {
                let mut bytes = [0u8; 4];
                for (input, code) in codes.iter().enumerate() {
                    bytes[input % 4] |= (code.wrapping_add(offset) & mask) << (input / 4 * bits);
                }
                folded.extend(bytes);
            }
        }
    }

    /// Rows `[inputs][columns]` of codes, one a byte, as rows of bytes that hold several each: four for a group of inputs.
    fn fold_input_rows(&self, rows: &[u8], columns: usize, inputs: usize, folded: &mut Vec<u8>) {
        let (bits, group) = (self.dtype.bits(), self.interleave as usize);
        let (mask, offset) = ((1u8 << bits) - 1, self.code_offset());
        folded.clear();
        folded.resize(inputs.div_ceil(group) * 4 * columns, 0);
        for (input, row) in rows.chunks_exact(columns).enumerate() {
            let (group_index, within) = (input / group, input % group);
            let target = &mut folded[(group_index * 4 + within % 4) * columns..][..columns];
            for (byte, code) in target.iter_mut().zip(row) {
                *byte |= (code.wrapping_add(offset) & mask) << (within / 4 * bits);
            }
        }
    }

    /// Write the planes of all records of a part.
    fn pack_planes(&self, part: PartRange, from: &mut dyn WeightReader, to: &mut [u8]) -> Result<(), EncodingError> {
        if !self.is_coded() {
            return Ok(());
        }
        let panel_bytes = to.len() / (part.end - part.start) as usize;
        for (panel, to) in (part.start..part.end).zip(to.chunks_exact_mut(panel_bytes)) {
            for record in self.record_inputs(part.inputs_start..part.inputs_end) {
                let inputs = record.end - record.start;
                let elements = self.element_offset(part.inputs_start, part.inputs_end, record.start);
                let mut at = elements - self.planes_bytes(record.start, inputs) as usize;
                for (index, plane) in self.planes.0.iter().enumerate() {
                    let length = Self::plane_bytes(plane, record.start, inputs) as usize;
                    self.pack_plane(index, panel, &record, from, &mut to[at..at + length])?;
                    at += length;
                }
            }
        }
        Ok(())
    }

    /// Write one plane of one record.
    fn pack_plane(
        &self,
        index: usize,
        panel: u64,
        record: &Range<u64>,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        to.fill(0);
        let plane = &self.planes.0[index];
        let bits = plane.dtype.bits();
        let (mut given, mut codes) = (Vec::new(), Vec::new());
        self.for_each_plane_run(index, panel, record, |run| {
            let first_bit = run.element as usize * bits;
            given.resize((first_bit % 8 + run.length * bits).div_ceil(8), 0);
            read_plane(from, index, (first_bit / 8) as u64, &mut given)?;
            if plane.dtype.is_sub_byte() {
                codes.clear();
                expand(&given, first_bit % 8, bits, run.length, &mut codes);
                for (number, code) in codes.iter().enumerate() {
                    put_code(to, bits, run.place + number * run.step, *code);
                }
            } else {
                let width = bits / 8;
                for (number, element) in given.chunks_exact(width).enumerate() {
                    to[(run.place + number * run.step) * width..][..width].copy_from_slice(element);
                }
            }
            Ok(())
        })
    }

    /// Calls `each` for the runs of canonical elements that make up one plane of one record.
    pub(super) fn for_each_plane_run<E>(
        &self,
        index: usize,
        panel: u64,
        record: &Range<u64>,
        mut each: impl FnMut(PlaneRun) -> Result<(), E>,
    ) -> Result<(), E> {
        let (plane, place) = (&self.planes.0[index], self.place(panel));
        if plane.block == 0 {
            if record.start > 0 {
                return Ok(());
            }
            let element = place.matrix * self.outputs + place.output;
            return each(PlaneRun { element, length: place.outputs, place: 0, step: 1 });
        }
        let blocks = plane.blocks(self.inputs);
        let rows = record.start / plane.block..record.end.div_ceil(plane.block);
        if self.output_axis == 0 {
            for output in 0..place.outputs {
                let row = place.matrix * self.outputs + place.output + output as u64;
                let length = (rows.end - rows.start) as usize;
                each(PlaneRun { element: row * blocks + rows.start, length, place: output, step: PANEL_OUTPUTS })?;
            }
            return Ok(());
        }
        for row in rows.clone() {
            let element = (place.matrix * blocks + row) * self.outputs + place.output;
            let at = (row - rows.start) as usize * PANEL_OUTPUTS;
            each(PlaneRun { element, length: place.outputs, place: at, step: 1 })?;
        }
        Ok(())
    }
}

/// Consecutive canonical elements of a plane, and where they lie in the plane of a record.
pub(super) struct PlaneRun {
    /// First canonical element.
    pub(super) element: u64,
    /// How many.
    pub(super) length: usize,
    /// Place of the first in the record's plane, in elements.
    pub(super) place: usize,
    /// Distance between their places.
    pub(super) step: usize,
}

/// `range` in runs of `length`, the last one shorter.
fn runs_of(range: Range<u64>, length: u64) -> impl Iterator<Item = Range<u64>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let run = next..range.end.min(next.saturating_add(length));
        next = run.end;
        (!run.is_empty()).then_some(run)
    })
}
