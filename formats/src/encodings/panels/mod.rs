//! Panels, which product kernels consume: 16 outputs side by side, their inputs one behind the other.
//!
//! A weight is one or several matrices of inputs and outputs; a unit is a *panel*: 16 outputs × all inputs. The last panel
//! of a matrix is padded to 16 outputs with zeros. A panel is a sequence of *records* of [`Panels::cut`] inputs, the last
//! one shorter: the planes of these inputs, then their elements.
//!
//! - Elements of 8 bits and more lie as `[inputs / interleave][16][interleave]`. Elements of fewer bits, and codes with
//!   planes, lie as `[inputs / (32 / bits)][16][4 bytes]`: input i of these is in byte `i mod 4`, from bit
//!   `floor(i / 4) * bits` on. Signed codes of 2 and 4 bits are stored with the sign bit flipped.
//! - A plane of blocks lies as `[blocks of the record][16]`, padded to 64 bytes. A plane over all inputs lies in the record
//!   that holds input 0, as `[16]`, padded to 64 bytes.

mod pack;
mod place;
mod sizes;
mod transpose;
mod unpack;

use super::codes::check_codes;
use super::convert::can_store;
use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::logical::Logical;
use super::part::PartRange;
use super::plane::{Plane, Planes};
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use std::ops::Range;

/// Outputs side by side in a panel.
pub const PANEL_OUTPUTS: usize = 16;

/// Inputs of a record without planes; parts are cut between inputs at multiples of this.
pub(super) const PLAIN_CUT: u64 = 256;

/// Most inputs of a record.
const MOST_CUT: u64 = 1024;

/// Bytes of a cache line: planes begin and end on one.
const LINE_BYTES: u64 = 64;

attributes! {
    /// Panels of 16 outputs.
    pub struct Panels revision 1 {
        /// Stored element type: of codes where there are planes.
        1 since 1 => dtype: DType,
        /// Matrices one after another: groups of a convolution, experts, batches.
        2 since 1 => groups: u64,
        /// Outputs of one matrix.
        3 since 1 => outputs: u64,
        /// Inputs of one matrix.
        4 since 1 => inputs: u64,
        /// Axis of a canonical matrix that is its outputs: 0 for `[outputs, inputs]`, 1 for `[inputs, outputs]`.
        /// Axes of the weight's shape that a matrix merges (those of a convolution kernel) are its inputs.
        5 since 1 => output_axis: u64,
        /// Inputs of one output that lie side by side.
        6 since 1 => interleave: u64,
        /// Inputs of a record.
        7 since 1 => cut: u64,
        /// Parameters of codes, in the order in which they are stored; none where elements are values.
        8 since 1 => planes: Planes,
    }
}

impl Panels {
    /// Panels of values (f32, f16, bf16, integers of 8 or 16 bits) as the kernels for these take them.
    pub fn values(dtype: DType, matrix: WeightMatrix) -> Panels {
        let interleave = match dtype {
            DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 => 4,
            _ => 1,
        };
        Panels::new(dtype, matrix, interleave, PLAIN_CUT, Vec::new())
    }

    /// Panels of codes with planes.
    pub fn codes(dtype: DType, matrix: WeightMatrix, planes: Vec<Plane>) -> Panels {
        let interleave = 32 / (dtype.bits() as u64).clamp(1, 32);
        let cut = sizes::fewest_inputs_of_whole_lines(&planes);
        Panels::new(dtype, matrix, interleave, cut, planes)
    }

    fn new(dtype: DType, matrix: WeightMatrix, interleave: u64, cut: u64, planes: Vec<Plane>) -> Panels {
        let WeightMatrix { groups, inputs, outputs, output_axis } = matrix;
        let (output_axis, planes) = (u64::from(output_axis), Planes(planes));
        Panels { dtype, groups, outputs, inputs, output_axis, interleave, cut, planes }
    }

    /// Whether elements are codes, which planes give a value.
    pub fn is_coded(&self) -> bool {
        !self.planes.0.is_empty()
    }

    /// Panels of one matrix.
    pub fn panels_per_group(&self) -> u64 {
        self.outputs.div_ceil(PANEL_OUTPUTS as u64)
    }

    fn check_records(&self) -> Result<(), EncodingError> {
        let unsupported = |what: String| Err(EncodingError::Unsupported(what));
        if self.output_axis > 1 {
            return unsupported(format!("panels with outputs on axis {}", self.output_axis));
        }
        if !self.is_coded() {
            if !matches!(self.interleave, 1 | 2 | 4 | 8 | 16) {
                return unsupported(format!("panels with {} inputs side by side", self.interleave));
            }
            if !matches!(self.dtype.bits(), 8 | 16 | 32 | 64) || self.dtype.is_complex() {
                return unsupported(format!("panels of {} elements", self.dtype));
            }
            let cut = self.cut;
            return if cut == PLAIN_CUT {
                Ok(())
            } else {
                unsupported(format!("records of {cut} inputs without planes"))
            };
        }
        if self.interleave != 32 / self.dtype.bits() as u64 {
            return unsupported(format!("panels of {} codes with {} inputs side by side", self.dtype, self.interleave));
        }
        let in_blocks = self.planes.0.iter().all(|plane| plane.block == 0 || self.cut.is_multiple_of(plane.block));
        if !self.cut.is_power_of_two() || !(16..=MOST_CUT).contains(&self.cut) || !in_blocks {
            return unsupported(format!("records of {} inputs", self.cut));
        }
        Ok(())
    }
}

impl Encoding for Panels {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn planes(&self) -> &[Plane] {
        &self.planes.0
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        if self.is_coded() {
            check_codes(self.dtype, &self.planes.0, weight)?;
        } else if !can_store(weight.dtype, self.dtype) || self.dtype == DType::String {
            return Err(EncodingError::Conversion { logical: weight.dtype, stored: self.dtype });
        }
        self.check_records()?;
        let matrix = u128::from(self.outputs) * u128::from(self.inputs);
        let encoded = matrix.checked_mul(u128::from(self.groups)).ok_or_else(|| weight.too_large())?;
        let elements = u128::from(weight.elements()?);
        if encoded != elements {
            return Err(EncodingError::ElementCount { encoded, weight: elements, shape: weight.shape.to_vec() });
        }
        // Padded outputs may make it larger than its elements.
        let units = self.units(weight)?;
        if units.count > 0 {
            self.bytes(weight, units.run(0, units.count))?;
        }
        Ok(())
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        let per_group = self.panels_per_group();
        let count = per_group.checked_mul(self.groups).ok_or_else(|| weight.too_large())?;
        let count = if self.inputs == 0 { 0 } else { count };
        Ok(Units { count, per_group, step: 1, inputs: self.inputs, cut: self.cut.max(PLAIN_CUT) })
    }

    fn bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError> {
        let panel = self.panel_bytes(part.inputs_start..part.inputs_end);
        let bytes = panel.and_then(|panel| panel.checked_mul(part.end - part.start));
        bytes.map(Some).ok_or_else(|| weight.too_large())
    }

    fn records(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        _bytes: u64,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), EncodingError> {
        let inputs = part.inputs_start..part.inputs_end;
        let panel_bytes = self.panel_bytes(inputs.clone()).ok_or_else(|| weight.too_large())?;
        for panel in part.start..part.end {
            let mut offset = (panel - part.start) * panel_bytes;
            for inputs in self.record_inputs(inputs.clone()) {
                let length = inputs.end - inputs.start;
                let elements = self.element_bytes(length).ok_or_else(|| weight.too_large())?;
                let planes = self.planes.0.iter().map(|plane| Panels::plane_bytes(plane, inputs.start, length));
                each(StoredRecord::new(panel..panel + 1, inputs.clone(), offset, planes, elements));
                offset += self.planes_bytes(inputs.start, length) + elements;
            }
        }
        Ok(())
    }

    fn pack(
        &self,
        _weight: Logical<'_>,
        part: PartRange,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError> {
        self.pack_part(part, from, to)
    }

    fn unpack(
        &self,
        _weight: Logical<'_>,
        part: PartRange,
        from: &[u8],
        to: &mut Elements,
    ) -> Result<(), EncodingError> {
        self.unpack_part(part, from, to);
        Ok(())
    }

    fn matrices(&self, _weight: Logical<'_>) -> Option<WeightMatrix> {
        let Panels { groups, inputs, outputs, .. } = *self;
        let output_axis = u32::from(self.output_axis == 1);
        self.is_coded().then_some(WeightMatrix { groups, inputs, outputs, output_axis })
    }

    fn is_canonical(&self, _weight: Logical<'_>) -> bool {
        false
    }

    fn locate(&self, weight: Logical<'_>, pick: Pick) -> Option<Range<u64>> {
        let (rows, row_elements) = weight.rows().ok()?;
        match pick {
            // A row is an output of an `[outputs, inputs]` weight.
            Pick::Row(row) if self.output_axis == 0 && row_elements == self.inputs && row < rows => {
                let (matrix, output) = (row / self.outputs, row % self.outputs);
                let panel = matrix * self.panels_per_group() + output / PANEL_OUTPUTS as u64;
                Some(panel..panel + 1)
            }
            Pick::Row(_) => None,
            Pick::Group(group) if group < self.groups => {
                let per_group = self.panels_per_group();
                Some(group * per_group..(group + 1) * per_group)
            }
            Pick::Group(_) => None,
        }
    }

    fn order(&self) -> ReadOrder {
        match self.output_axis {
            0 if self.is_packed_by_whole_rows() => ReadOrder::Sequential,
            0 => ReadOrder::Scattered,
            _ => ReadOrder::Across,
        }
    }
}
