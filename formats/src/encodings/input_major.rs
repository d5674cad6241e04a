//! A weight for products that leave inputs out: what multiplies one input lies together.
//!
//! A unit is a *run* of outputs by all inputs. It is a sequence of records of as many inputs as those of [`Panels`] with the
//! same planes: the planes of these inputs as `[blocks][run]`, then the elements as `[inputs][run]`. A product whose activation
//! is zero reads nothing of that input but planes. The bytes of a run of inputs of one unit lie together as well, so that a
//! run that is not needed is not read from the disk either.

use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::logical::Logical;
use super::panels::{PANEL_OUTPUTS, Panels};
use super::part::PartRange;
use super::plane::{Plane, Planes};
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use crate::tensor::filled;
use std::ops::Range;

/// Planes, and the outputs of an input, begin and end on a cache line.
const LINE_BYTES: u64 = 64;

attributes! {
    /// Runs of outputs, input by input.
    pub struct InputMajor revision 1 {
        /// Stored element type, of 4, 8, 16 or 32 bits: of codes where there are planes.
        1 since 1 => dtype: DType,
        /// As of [`Panels`].
        2 since 1 => groups: u64,
        /// As of [`Panels`].
        3 since 1 => outputs: u64,
        /// As of [`Panels`].
        4 since 1 => inputs: u64,
        /// As of [`Panels`].
        5 since 1 => output_axis: u64,
        /// Inputs of a record, as of [`Panels`].
        6 since 1 => cut: u64,
        /// As of [`Panels`], with blocks of at least [`InputMajor::LEAST_BLOCK`] inputs.
        7 since 1 => planes: Planes,
        /// Outputs of a unit, which fill whole cache lines.
        8 since 1 => run: u64,
    }
}

impl InputMajor {
    /// Most bytes of the elements of one input of a unit.
    pub const MOST_RUN_BYTES: u64 = 4096;

    /// Fewest inputs of a block of a plane over some inputs: planes are read whole, whatever is left out.
    pub const LEAST_BLOCK: u64 = 128;

    /// The same weight as these panels, in runs of about `run_bytes` bytes.
    ///
    /// # Errors
    /// [`EncodingError::Unsupported`] for panels whose elements or planes do not lie so.
    pub fn of(panels: &Panels, run_bytes: u64) -> Result<InputMajor, EncodingError> {
        let Panels { dtype, groups, outputs, inputs, output_axis, interleave: _, cut, ref planes } = *panels;
        let bits = dtype.bits().max(1) as u64;
        let in_line = (LINE_BYTES * 8 / bits).max(1);
        // Runs of about the same length: the last one is filled up.
        let most = (run_bytes.clamp(LINE_BYTES, Self::MOST_RUN_BYTES) / LINE_BYTES * LINE_BYTES) * 8 / bits;
        let runs = outputs.div_ceil(most.max(1)).max(1);
        let run = outputs.div_ceil(runs).max(1).checked_next_multiple_of(in_line);
        let run = run.ok_or_else(|| EncodingError::Unsupported(format!("runs of {outputs} outputs")))?;
        let planes = planes.clone();
        let layout = InputMajor { dtype, groups, outputs, inputs, output_axis, cut, planes, run };
        layout.check_runs()?;
        Ok(layout)
    }

    /// The panels that hold the same: what a kernel for panels sees.
    pub fn dense(&self) -> Panels {
        let InputMajor { dtype, groups, outputs, inputs, output_axis, cut, ref planes, run: _ } = *self;
        let matrix = WeightMatrix { groups, inputs, outputs, output_axis: u32::from(output_axis == 1) };
        let panels = if planes.0.is_empty() {
            Panels::values(dtype, matrix)
        } else {
            Panels::codes(dtype, matrix, planes.0.clone())
        };
        Panels { cut, output_axis, ..panels }
    }

    /// Units of one matrix.
    pub fn units_per_group(&self) -> u64 {
        self.outputs.div_ceil(self.run.max(1))
    }

    /// Panels of a unit.
    fn run_panels(&self) -> u64 {
        self.run / PANEL_OUTPUTS as u64
    }

    /// Bytes of the elements of one input of a unit.
    pub fn row_bytes(&self) -> u64 {
        self.run * self.dtype.bits() as u64 / 8
    }

    /// Whether inputs are read from the disk one by one: what multiplies one fills whole blocks that are checked apart.
    pub fn is_read_apart(&self) -> bool {
        let in_blocks = self.planes.0.iter().any(|plane| plane.block > 0);
        let planes = self.planes_bytes(0, 0).is_some_and(|bytes| bytes.is_multiple_of(Self::MOST_RUN_BYTES));
        self.row_bytes() == Self::MOST_RUN_BYTES && planes && !in_blocks
    }

    fn check_runs(&self) -> Result<(), EncodingError> {
        let unsupported = |what: String| Err(EncodingError::Unsupported(what));
        if !matches!(self.dtype.bits(), 4 | 8 | 16 | 32) || self.dtype.is_complex() || self.dtype == DType::String {
            return unsupported(format!("elements of {} input by input", self.dtype));
        }
        if self.planes.0.is_empty() && self.dtype.is_sub_byte() {
            return unsupported(format!("elements of {} without planes input by input", self.dtype));
        }
        let in_line = LINE_BYTES * 8 / self.dtype.bits() as u64;
        let most = Self::MOST_RUN_BYTES * 8 / self.dtype.bits() as u64;
        let filled = self.outputs.checked_next_multiple_of(in_line).unwrap_or(u64::MAX);
        if self.run == 0 || !self.run.is_multiple_of(in_line) || self.run > most.min(filled.max(in_line)) {
            return unsupported(format!("runs of {} outputs of {}", self.run, self.dtype));
        }
        if let Some(plane) = self.planes.0.iter().find(|plane| plane.block > 0 && plane.block < Self::LEAST_BLOCK) {
            return unsupported(format!("a plane `{plane}` input by input"));
        }
        Ok(())
    }

    /// Rows of a plane in a record of `inputs` inputs that begins at input `first`.
    fn plane_rows(plane: &Plane, first: u64, inputs: u64) -> u64 {
        match plane.block {
            0 => u64::from(first == 0),
            block => inputs.div_ceil(block),
        }
    }

    /// Stored bytes of a plane in a record; `None` on overflow.
    fn plane_bytes(&self, plane: &Plane, first: u64, inputs: u64) -> Option<u64> {
        let row = self.run.checked_mul(plane.dtype.bits() as u64)?;
        Self::plane_rows(plane, first, inputs).checked_mul(row)?.div_ceil(8).checked_next_multiple_of(LINE_BYTES)
    }

    /// Stored bytes of all planes in a record; `None` on overflow.
    pub fn planes_bytes(&self, first: u64, inputs: u64) -> Option<u64> {
        let mut bytes = self.planes.0.iter().map(|plane| self.plane_bytes(plane, first, inputs));
        bytes.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Stored bytes of a run of inputs of one unit that begins with a record; `None` on overflow.
    pub fn unit_bytes(&self, inputs: Range<u64>) -> Option<u64> {
        let length = inputs.end.checked_sub(inputs.start)?;
        let (records, rest) = (length / self.cut.max(1), length % self.cut.max(1));
        let full = self.planes_bytes(self.cut, self.cut)?;
        let last = if rest == 0 { 0 } else { self.planes_bytes(self.cut, rest)? };
        let over_all = if inputs.start == 0 { self.planes_bytes(0, 0)? } else { 0 };
        let planes = records.checked_mul(full)?.checked_add(last)?.checked_add(over_all)?;
        length.checked_mul(self.row_bytes())?.checked_add(planes)
    }

    /// The panels of a unit in the order of [`InputMajor::dense`].
    fn panels_of(&self, unit: u64) -> Range<u64> {
        let (per_group, panels) = (self.units_per_group().max(1), self.outputs.div_ceil(PANEL_OUTPUTS as u64));
        let first = unit % per_group * self.run_panels();
        let group = unit / per_group * panels;
        group + first..group + panels.min(first + self.run_panels())
    }

    /// Calls `each` for what lies in one piece in a panel as well as in its unit: the places in both, in bytes.
    ///
    /// `panel` is counted from the first of the unit. Elements of 4 bits do not lie so: see [`InputMajor::nibbles`].
    fn pieces(&self, dense: &Panels, panel: u64, inputs: Range<u64>, mut each: impl FnMut(usize, usize, usize)) {
        let (mut in_panel, mut in_unit) = (0, 0);
        let width = self.dtype.bits() / 8;
        let group = dense.interleave as usize;
        for record in dense.record_inputs(inputs) {
            let length = record.end - record.start;
            for plane in &self.planes.0 {
                let row = (PANEL_OUTPUTS * plane.dtype.bits() / 8) as u64;
                for index in 0..Self::plane_rows(plane, record.start, length) {
                    let to = in_unit + (index * self.run_panels() + panel) * row;
                    each((in_panel + index * row) as usize, to as usize, row as usize);
                }
                in_panel += Panels::plane_bytes(plane, record.start, length);
                in_unit += self.plane_bytes(plane, record.start, length).unwrap_or(0);
            }
            if width > 0 {
                let (from, to) = (in_panel as usize, in_unit as usize + panel as usize * PANEL_OUTPUTS * width);
                for input in 0..length as usize {
                    let from = from + (input / group * group * PANEL_OUTPUTS + input % group) * width;
                    let to = to + input * self.row_bytes() as usize;
                    if group == 1 {
                        each(from, to, PANEL_OUTPUTS * width);
                        continue;
                    }
                    for output in 0..PANEL_OUTPUTS {
                        each(from + output * group * width, to + output * width, width);
                    }
                }
            }
            in_panel += dense.element_bytes(length).unwrap_or(0);
            in_unit += length * self.row_bytes();
        }
    }

    /// As [`InputMajor::pieces`] for elements of 4 bits: the byte and the shift of each in both.
    fn nibbles(
        &self,
        dense: &Panels,
        panel: u64,
        inputs: Range<u64>,
        mut each: impl FnMut((usize, usize), (usize, usize)),
    ) {
        let (mut in_panel, mut in_unit) = (0, 0);
        let row_bytes = self.row_bytes() as usize;
        for record in dense.record_inputs(inputs) {
            let length = record.end - record.start;
            in_panel += dense.planes_bytes(record.start, length) as usize;
            in_unit += self.planes_bytes(record.start, length).unwrap_or(0) as usize;
            for input in 0..length as usize {
                let (line, place) = (input / 8 * PANEL_OUTPUTS * 4, input % 8);
                for output in 0..PANEL_OUTPUTS {
                    let from = (in_panel + line + output * 4 + place % 4, place / 4 * 4);
                    let column = panel as usize * PANEL_OUTPUTS + output;
                    let to = in_unit + input * row_bytes + column / 128 * 64 + column % 64;
                    each(from, (to, column % 128 / 64 * 4));
                }
            }
            in_panel += dense.element_bytes(length).unwrap_or(0) as usize;
            in_unit += length as usize * row_bytes;
        }
    }
}

impl Encoding for InputMajor {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn planes(&self) -> &[Plane] {
        &self.planes.0
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        self.check_runs()?;
        self.dense().check(weight)?;
        let units = self.units(weight)?;
        if units.count > 0 {
            self.bytes(weight, units.run(0, units.count))?;
        }
        Ok(())
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        let per_group = self.units_per_group();
        let count = per_group.checked_mul(self.groups).ok_or_else(|| weight.too_large())?;
        let count = if self.inputs == 0 { 0 } else { count };
        Ok(Units { count, per_group, step: 1, inputs: self.inputs, cut: self.dense().units(weight)?.cut })
    }

    fn bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError> {
        let unit = self.unit_bytes(part.inputs_start..part.inputs_end);
        let bytes = unit.and_then(|unit| unit.checked_mul(part.end - part.start));
        bytes.map(Some).ok_or_else(|| weight.too_large())
    }

    fn records(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        _bytes: u64,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), EncodingError> {
        let dense = self.dense();
        let mut offset = 0;
        for unit in part.start..part.end {
            for inputs in dense.record_inputs(part.inputs_start..part.inputs_end) {
                let length = inputs.end - inputs.start;
                let planes = self.planes.0.iter().map(|plane| self.plane_bytes(plane, inputs.start, length));
                let planes = planes.collect::<Option<Vec<u64>>>().ok_or_else(|| weight.too_large())?;
                let elements = length * self.row_bytes();
                let next = offset + planes.iter().sum::<u64>() + elements;
                each(StoredRecord::new(unit..unit + 1, inputs, offset, planes.into_iter(), elements));
                offset = next;
            }
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
        let dense = self.dense();
        let inputs = part.inputs_start..part.inputs_end;
        let panel_bytes = dense.panel_bytes(inputs.clone()).ok_or_else(|| weight.too_large())?;
        let unit_bytes = to.len() / (part.end - part.start) as usize;
        let mut panels = Vec::new();
        to.fill(0);
        for (unit, to) in (part.start..part.end).zip(to.chunks_exact_mut(unit_bytes)) {
            let own = self.panels_of(unit);
            let bytes = panel_bytes.checked_mul(own.end - own.start).and_then(|bytes| usize::try_from(bytes).ok());
            let bytes = bytes.ok_or_else(|| weight.too_large())?;
            panels.try_reserve(bytes).map_err(|_| weight.too_large())?;
            panels.clear();
            panels.resize(bytes, 0);
            dense.pack(weight, PartRange { start: own.start, end: own.end, ..part }, from, &mut panels)?;
            for (panel, from) in (0..).zip(panels.chunks_exact(panel_bytes as usize)) {
                self.pieces(&dense, panel, inputs.clone(), |at, place, length| {
                    to[place..place + length].copy_from_slice(&from[at..at + length]);
                });
                if self.dtype.is_sub_byte() {
                    self.nibbles(&dense, panel, inputs.clone(), |(at, shift), (place, up)| {
                        to[place] |= (from[at] >> shift & 15) << up;
                    });
                }
            }
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
        let dense = self.dense();
        let inputs = part.inputs_start..part.inputs_end;
        let panel_bytes = dense.panel_bytes(inputs.clone()).and_then(|bytes| usize::try_from(bytes).ok());
        let panel_bytes = panel_bytes.ok_or_else(|| weight.too_large())?;
        let unit_bytes = from.len() / (part.end - part.start) as usize;
        let mut bytes = filled(0, panel_bytes).map_err(|_| weight.too_large())?;
        for (unit, from) in (part.start..part.end).zip(from.chunks_exact(unit_bytes)) {
            for (panel, own) in self.panels_of(unit).zip(0..) {
                bytes.fill(0);
                self.pieces(&dense, own, inputs.clone(), |at, place, length| {
                    bytes[at..at + length].copy_from_slice(&from[place..place + length]);
                });
                if self.dtype.is_sub_byte() {
                    self.nibbles(&dense, own, inputs.clone(), |(at, shift), (place, down)| {
                        bytes[at] |= (from[place] >> down & 15) << shift;
                    });
                }
                dense.unpack(weight, PartRange { start: panel, end: panel + 1, ..part }, &bytes, to)?;
            }
        }
        Ok(())
    }

    fn matrices(&self, weight: Logical<'_>) -> Option<WeightMatrix> {
        self.dense().matrices(weight)
    }

    fn is_canonical(&self, _weight: Logical<'_>) -> bool {
        false
    }

    fn locate(&self, _weight: Logical<'_>, pick: Pick) -> Option<Range<u64>> {
        match pick {
            Pick::Group(group) if group < self.groups => {
                let per_group = self.units_per_group();
                Some(group * per_group..(group + 1) * per_group)
            }
            Pick::Group(_) | Pick::Row(_) => None,
        }
    }

    fn order(&self) -> ReadOrder {
        self.dense().order()
    }
}
