//! The stored bytes of a part in, elements and planes out. Sizes have been checked.

use super::transpose::{InputRows, unpack_input_rows, unpack_output_rows};
use super::{PANEL_OUTPUTS, Panels};
use crate::encodings::fetch::{expand, put_code};
use crate::encodings::part::PartRange;
use crate::encodings::transfer::Elements;
use std::convert::Infallible;
use std::ops::Range;

/// Inputs whose canonical rows are written at a time: their pages stay at hand.
const BLOCK_INPUTS: usize = 64;

impl Panels {
    /// Spread the stored bytes of a part.
    pub(super) fn unpack_part(&self, part: PartRange, from: &[u8], to: &mut Elements) {
        if self.is_coded() {
            return self.unpack_records(part, 0, from, to);
        }
        let panel_bytes = from.len() / (part.end - part.start) as usize;
        let panels = || (part.start..part.end).zip(from.chunks_exact(panel_bytes));
        let canonical = to.stored.bytes_mut();
        if self.output_axis == 0 {
            let mut rows = Vec::new();
            panels().for_each(|(panel, bytes)| self.unpack_to_output_rows(part, panel, bytes, &mut rows, canonical));
            return;
        }
        let (width, interleave) = (self.dtype.bits() / 8, self.interleave as usize);
        let inputs = (part.inputs_end - part.inputs_start) as usize;
        let stride = self.outputs as usize * width;
        for start in (0..inputs).step_by(BLOCK_INPUTS) {
            for (panel, bytes) in panels() {
                let place = self.place(panel);
                let row = place.matrix as usize * self.inputs as usize + part.inputs_start as usize + start;
                let offset = row * stride + place.output as usize * width;
                let inputs = (inputs - start).min(BLOCK_INPUTS);
                let block = InputRows { stride, offset, outputs: place.outputs, inputs };
                let length = inputs.next_multiple_of(interleave) * PANEL_OUTPUTS * width;
                unpack_input_rows(
                    &bytes[start * PANEL_OUTPUTS * width..][..length],
                    block,
                    width,
                    interleave,
                    canonical,
                );
            }
        }
    }

    /// Spread one output of a panel, these being the panels of that output alone: it lies where output `lane` of a panel does.
    pub(in crate::encodings) fn unpack_lane(&self, part: PartRange, lane: usize, from: &[u8], to: &mut Elements) {
        if self.is_coded() {
            return self.unpack_records(part, lane, from, to);
        }
        let group = self.dtype.bits() / 8 * self.interleave as usize;
        let groups = from.chunks_exact(group).skip(lane).step_by(PANEL_OUTPUTS);
        for (own, group) in to.stored.bytes_mut().chunks_mut(group).zip(groups) {
            own.copy_from_slice(&group[..own.len()]);
        }
    }

    /// Spread one panel over rows of inputs.
    fn unpack_to_output_rows(
        &self,
        part: PartRange,
        panel: u64,
        bytes: &[u8],
        rows: &mut Vec<u8>,
        canonical: &mut [u8],
    ) {
        let (width, place) = (self.dtype.bits() / 8, self.place(panel));
        let inputs = (part.inputs_end - part.inputs_start) as usize;
        rows.resize(place.outputs * inputs * width, 0);
        unpack_output_rows(bytes, place.outputs, width, self.interleave as usize, rows);
        let first_row = place.matrix as usize * self.outputs as usize + place.output as usize;
        for (index, row) in rows.chunks_exact(inputs * width).enumerate() {
            let start = (first_row + index) * self.inputs as usize + part.inputs_start as usize;
            canonical[start * width..][..row.len()].copy_from_slice(row);
        }
    }

    /// Spread records of codes and planes. The first output lies where output `lane` of a panel does.
    fn unpack_records(&self, part: PartRange, lane: usize, from: &[u8], to: &mut Elements) {
        let panel_bytes = from.len() / (part.end - part.start) as usize;
        for (panel, bytes) in (part.start..part.end).zip(from.chunks_exact(panel_bytes)) {
            for record in self.record_inputs(part.inputs_start..part.inputs_end) {
                let elements = self.element_offset(part.inputs_start, part.inputs_end, record.start);
                let inputs = record.end - record.start;
                let mut at = elements - self.planes_bytes(record.start, inputs) as usize;
                for (index, plane) in self.planes.0.iter().enumerate() {
                    let length = Self::plane_bytes(plane, record.start, inputs) as usize;
                    self.unpack_plane(index, (panel, lane), &record, &bytes[at..at + length], to);
                    at += length;
                }
                self.unpack_codes((panel, lane), &record, &bytes[elements..][..self.stored_bytes(&record)], to);
            }
        }
    }

    fn unpack_plane(
        &self,
        index: usize,
        (panel, lane): (u64, usize),
        record: &Range<u64>,
        from: &[u8],
        to: &mut Elements,
    ) {
        let bits = self.planes.0[index].dtype.bits();
        let canonical = to.planes[index].bytes_mut();
        let mut codes = Vec::new();
        if bits < 8 {
            expand(from, 0, bits, from.len() * 8 / bits, &mut codes);
        }
        let done: Result<(), Infallible> = self.for_each_plane_run(index, panel, record, |run| {
            for number in 0..run.length {
                let (place, element) = (lane + run.place + number * run.step, run.element as usize + number);
                if bits < 8 {
                    put_code(canonical, bits, element, codes[place]);
                } else {
                    let width = bits / 8;
                    canonical[element * width..][..width].copy_from_slice(&from[place * width..][..width]);
                }
            }
            Ok(())
        });
        match done {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    fn unpack_codes(&self, (panel, lane): (u64, usize), record: &Range<u64>, from: &[u8], to: &mut Elements) {
        let (bits, group, place) = (self.dtype.bits(), self.interleave as usize, self.place(panel));
        let mask = ((1u16 << bits) - 1) as u8;
        let canonical = to.stored.bytes_mut();
        let firsts = (record.start..record.end).step_by(group);
        for (first, line) in firsts.zip(from.chunks_exact(PANEL_OUTPUTS * 4)) {
            for (within, input) in (first..record.end.min(first + group as u64)).enumerate() {
                let (place_of_byte, shift) = (within % 4, within / 4 * bits);
                for output in 0..place.outputs {
                    let stored = line[(lane + output) * 4 + place_of_byte] >> shift;
                    let code = stored.wrapping_sub(self.code_offset()) & mask;
                    let row = place.output + output as u64;
                    let element = match self.output_axis {
                        0 => (place.matrix * self.outputs + row) * self.inputs + input,
                        _ => (place.matrix * self.inputs + input) * self.outputs + row,
                    };
                    put_code(canonical, bits, element as usize, code);
                }
            }
        }
    }
}
