//! Panels without their zeros: a bit for each element, or for each line of 64 bytes, says whether it is stored.
//!
//! The elements lie as in [`Panels`], in records of 256 inputs. Of a record there are its planes, then its *mask*, then its
//! *values*: the elements that are not zero, in order. All records have room for the same number of values, the
//! *capacity*, so that units have one size and can be cut and found as those of [`Panels`]: a weight with the pattern 2:4
//! needs half of the elements, one with zeros at random slightly more than the share of its values. A line is a block of 16
//! outputs by the inputs that lie side by side: of weights that were pruned in blocks lines are left out as a whole, at a bit
//! for each, and are put back by copies.

use super::encoding::{Encoding, Pick, ReadOrder};
use super::error::EncodingError;
use super::logical::Logical;
use super::panels::{PANEL_OUTPUTS, PLAIN_CUT, Panels};
use super::part::PartRange;
use super::plane::{Plane, Planes};
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader};
use super::units::Units;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use std::ops::Range;

/// Masks and values begin and end on a cache line.
const LINE_BYTES: u64 = 64;

attributes! {
    /// Panels of 16 outputs without their zeros.
    pub struct SparsePanels revision 2 {
        /// Stored element type, of 8, 16 or 32 bits: of codes where there are planes.
        1 since 1 => dtype: DType,
        /// As of [`Panels`].
        2 since 1 => groups: u64,
        /// As of [`Panels`].
        3 since 1 => outputs: u64,
        /// As of [`Panels`].
        4 since 1 => inputs: u64,
        /// As of [`Panels`].
        5 since 1 => output_axis: u64,
        /// As of [`Panels`].
        6 since 1 => interleave: u64,
        /// As of [`Panels`].
        7 since 1 => planes: Planes,
        /// Values that a record has room for; a shorter record has room for at most all of its elements.
        8 since 1 => capacity: u64,
        /// Whether a bit says of a whole line whether it is stored, and not of an element.
        9 since 2 => in_lines: bool,
    }
}

impl SparsePanels {
    /// Inputs of a record.
    pub const RECORD_INPUTS: u64 = PLAIN_CUT;

    /// Elements of a record.
    pub const RECORD_ELEMENTS: u64 = PLAIN_CUT * PANEL_OUTPUTS as u64;

    /// The least capacity: what is stored is never much smaller than what it stands for.
    pub const LEAST_CAPACITY: u64 = Self::RECORD_ELEMENTS / 8;

    /// Panels without zeros, of which each 16 outputs by 256 inputs have at most `values` elements that are not zero.
    pub fn of(panels: &Panels, values: u64) -> SparsePanels {
        let Panels { dtype, groups, outputs, inputs, output_axis, interleave, cut: _, ref planes } = *panels;
        let in_line = LINE_BYTES * 8 / dtype.bits().max(1) as u64;
        let capacity = values.max(Self::LEAST_CAPACITY).next_multiple_of(in_line.max(1)).min(Self::RECORD_ELEMENTS);
        let planes = planes.clone();
        SparsePanels { dtype, groups, outputs, inputs, output_axis, interleave, planes, capacity, in_lines: false }
    }

    /// Panels without zeros that are left out line by line, of which each 16 outputs by 256 inputs have at most `lines` that are
    /// not zero; `None` where elements that lie side by side are no line.
    pub fn in_lines_of(panels: &Panels, lines: u64) -> Option<SparsePanels> {
        let in_line = LINE_BYTES * 8 / panels.dtype.bits().max(1) as u64;
        let is_line = panels.interleave * PANEL_OUTPUTS as u64 == in_line;
        is_line.then(|| SparsePanels { in_lines: true, ..SparsePanels::of(panels, lines * in_line) })
    }

    /// Bytes of what a bit of the mask stands for.
    fn unit_bytes(&self) -> u64 {
        if self.in_lines { LINE_BYTES } else { self.width() }
    }

    /// The panels with zeros that they stand for.
    pub fn dense(&self) -> Panels {
        let SparsePanels { dtype, groups, outputs, inputs, output_axis, interleave, ref planes, .. } = *self;
        let planes = planes.clone();
        Panels { dtype, groups, outputs, inputs, output_axis, interleave, cut: Self::RECORD_INPUTS, planes }
    }

    /// Bytes of an element.
    fn width(&self) -> u64 {
        self.dtype.bits() as u64 / 8
    }

    /// The record of `inputs` inputs that begins at input `first`.
    fn record(&self, dense: &Panels, first: u64, inputs: u64) -> Option<Record> {
        let unit = self.unit_bytes().max(1);
        let units = dense.element_bytes(inputs)? / unit;
        let planes = dense.planes_bytes(first, inputs);
        let mask = units.div_ceil(8).checked_next_multiple_of(LINE_BYTES)?;
        let capacity = (self.capacity.checked_mul(self.width())? / unit).min(units);
        let values = capacity.checked_mul(unit)?.checked_next_multiple_of(LINE_BYTES)?;
        Some(Record { planes, units, mask, values, capacity })
    }

    /// The records of a run of inputs of a panel, each with its inputs.
    fn records_of<'a>(
        &'a self,
        dense: &'a Panels,
        inputs: Range<u64>,
    ) -> impl Iterator<Item = Option<(Range<u64>, Record)>> + 'a {
        let of = |inputs: Range<u64>| {
            let record = self.record(dense, inputs.start, inputs.end - inputs.start)?;
            Some((inputs, record))
        };
        dense.record_inputs(inputs).map(of)
    }

    /// Stored bytes of a run of inputs of one panel: the first, the full and the last record stand for all.
    fn panel_bytes(&self, inputs: Range<u64>) -> Option<u64> {
        let dense = self.dense();
        let length = inputs.end.checked_sub(inputs.start)?;
        let bytes = |record: Record| Some(record.planes + record.mask + record.values);
        let (full, rest) = (length / Self::RECORD_INPUTS, length % Self::RECORD_INPUTS);
        let later = self.record(&dense, Self::RECORD_INPUTS, Self::RECORD_INPUTS).and_then(bytes)?;
        let last = match rest {
            0 => 0,
            rest => self.record(&dense, Self::RECORD_INPUTS, rest).and_then(bytes)?,
        };
        let over_all = if inputs.start == 0 { dense.planes_bytes(0, 0) } else { 0 };
        full.checked_mul(later)?.checked_add(last)?.checked_add(over_all)
    }

    fn check_records(&self) -> Result<(), EncodingError> {
        let unsupported = |what: String| Err(EncodingError::Unsupported(what));
        if !matches!(self.dtype.bits(), 8 | 16 | 32) {
            return unsupported(format!("panels without zeros of {} elements", self.dtype));
        }
        let in_line = LINE_BYTES / self.width();
        let in_range = (Self::LEAST_CAPACITY..=Self::RECORD_ELEMENTS).contains(&self.capacity);
        if !in_range || !self.capacity.is_multiple_of(in_line) {
            return unsupported(format!("records with room for {} values", self.capacity));
        }
        if self.interleave > 4 {
            return unsupported(format!("panels without zeros with {} inputs side by side", self.interleave));
        }
        if self.in_lines && self.interleave * PANEL_OUTPUTS as u64 != in_line {
            return unsupported(format!(
                "lines of {} elements with {} inputs side by side",
                self.dtype, self.interleave
            ));
        }
        Ok(())
    }
}

/// Sizes of the pieces of a record in bytes; units (what a bit of the mask stands for) and capacity are counts.
#[derive(Debug, Clone, Copy)]
struct Record {
    planes: u64,
    units: u64,
    mask: u64,
    values: u64,
    capacity: u64,
}

impl Encoding for SparsePanels {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn planes(&self) -> &[Plane] {
        &self.planes.0
    }

    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        self.check_records()?;
        self.dense().check(weight)?;
        let units = self.units(weight)?;
        if units.count > 0 {
            self.bytes(weight, units.run(0, units.count))?;
        }
        Ok(())
    }

    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        self.dense().units(weight)
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
        let dense = self.dense();
        let mut offset = 0;
        for panel in part.start..part.end {
            for record in self.records_of(&dense, part.inputs_start..part.inputs_end) {
                let (inputs, record) = record.ok_or_else(|| weight.too_large())?;
                let length = inputs.end - inputs.start;
                let planes = self.planes.0.iter().map(|plane| Panels::plane_bytes(plane, inputs.start, length));
                // The mask counts as elements: it says which there are.
                let elements = record.mask + record.values;
                each(StoredRecord::new(panel..panel + 1, inputs.clone(), offset, planes, elements));
                offset += record.planes + elements;
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
        let bytes = dense.bytes(weight, part)?.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| weight.too_large())?;
        let mut with_zeros = Vec::new();
        with_zeros.try_reserve_exact(bytes).map_err(|_| weight.too_large())?;
        with_zeros.resize(bytes, 0);
        dense.pack(weight, part, from, &mut with_zeros)?;
        to.fill(0);
        let (mut elements, mut stored) = (with_zeros.as_slice(), to);
        for _ in part.start..part.end {
            for record in self.records_of(&dense, part.inputs_start..part.inputs_end) {
                let (_, record) = record.ok_or_else(|| weight.too_large())?;
                let (planes, after) = elements.split_at(record.planes as usize);
                let (values, after) = after.split_at((record.units * self.unit_bytes()) as usize);
                elements = after;
                let (target, after) = stored.split_at_mut((record.planes + record.mask + record.values) as usize);
                stored = after;
                target[..planes.len()].copy_from_slice(planes);
                self.compress(record, values, &mut target[planes.len()..])?;
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
        let mut stored = from;
        let mut with_zeros = Vec::new();
        for panel in part.start..part.end {
            with_zeros.clear();
            for record in self.records_of(&dense, part.inputs_start..part.inputs_end) {
                let (_, record) = record.ok_or_else(|| weight.too_large())?;
                let (planes, after) = stored.split_at(record.planes as usize);
                let (mask, after) = after.split_at(record.mask as usize);
                let (values, after) = after.split_at(record.values as usize);
                stored = after;
                with_zeros.extend(planes);
                self.expand(weight, record, (mask, values), &mut with_zeros)?;
            }
            dense.unpack(weight, PartRange { start: panel, end: panel + 1, ..part }, &with_zeros, to)?;
        }
        Ok(())
    }

    fn matrices(&self, weight: Logical<'_>) -> Option<WeightMatrix> {
        self.dense().matrices(weight)
    }

    fn is_canonical(&self, _weight: Logical<'_>) -> bool {
        false
    }

    fn locate(&self, weight: Logical<'_>, pick: Pick) -> Option<Range<u64>> {
        match pick {
            Pick::Group(_) => self.dense().locate(weight, pick),
            Pick::Row(_) => None,
        }
    }

    fn order(&self) -> ReadOrder {
        self.dense().order()
    }
}

impl SparsePanels {
    /// Mask and values of the elements of a record, into zeroed bytes.
    fn compress(&self, record: Record, elements: &[u8], to: &mut [u8]) -> Result<(), EncodingError> {
        let (width, unit) = (self.width() as usize, self.unit_bytes() as usize);
        let (mask, values) = to.split_at_mut(record.mask as usize);
        let is_float = self.dtype.is_float();
        // The sign of a zero is not kept.
        let is_zero = |element: &[u8]| {
            let (last, others) = element.split_last().unwrap_or((&0, &[]));
            let magnitude = if is_float { last & 0x7f } else { *last };
            magnitude == 0 && others.iter().all(|&byte| byte == 0)
        };
        let mut count = 0;
        for (index, elements) in elements.chunks_exact(unit).enumerate() {
            if elements.chunks_exact(width).all(is_zero) {
                continue;
            }
            if count < record.capacity as usize {
                mask[index / 8] |= 1 << (index % 8);
                values[count * unit..][..unit].copy_from_slice(elements);
            }
            count += 1;
        }
        if count as u64 > record.capacity {
            return Err(EncodingError::Values { capacity: record.capacity, found: count as u64 });
        }
        Ok(())
    }

    /// Append the elements of a record from its mask and values.
    fn expand(
        &self,
        weight: Logical<'_>,
        record: Record,
        (mask, values): (&[u8], &[u8]),
        to: &mut Vec<u8>,
    ) -> Result<(), EncodingError> {
        let unit = self.unit_bytes() as usize;
        let found: u64 = mask.iter().map(|byte| u64::from(byte.count_ones())).sum();
        if found > record.capacity {
            return Err(EncodingError::Values { capacity: record.capacity, found });
        }
        to.try_reserve(record.units as usize * unit).map_err(|_| weight.too_large())?;
        let mut values = values.chunks_exact(unit);
        for index in 0..record.units as usize {
            let is_stored = mask[index / 8] >> (index % 8) & 1 == 1;
            match if is_stored { values.next() } else { None } {
                Some(value) => to.extend(value),
                None => to.resize(to.len() + unit, 0),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encodings::{Coded, PlaneRole, WeightRecord};
    use crate::tensor::Tensor;

    fn record(encoding: SparsePanels, dtype: DType, shape: &[u64], budget_bytes: u64) -> WeightRecord {
        let encoding = Coded::from(encoding);
        let parts = encoding.split(Logical { dtype, shape }, budget_bytes).unwrap();
        let parts = parts.into_iter().zip(0..).map(|(part, extent)| part.in_extent(extent)).collect();
        let (shape, reason, sources) = (shape.to_vec(), String::new(), Vec::new());
        WeightRecord { name: None, dtype, shape, encoding, reason, parts, sources, zeros: None, id: 0 }
    }

    fn pack(weight: &WeightRecord, elements: &Elements) -> Result<Vec<Vec<u8>>, EncodingError> {
        let pack_one = |part: &crate::encodings::PartRecord| {
            let bytes = weight.encoding.part_bytes(weight.logical(), part.range())?.unwrap();
            let mut packed = vec![0xee; bytes as usize];
            weight.encoding.pack(weight.logical(), part.range(), &mut &*elements, &mut packed)?;
            Ok(packed)
        };
        weight.parts.iter().map(pack_one).collect()
    }

    fn unpack(weight: &WeightRecord, parts: &[Vec<u8>]) -> Result<Elements, EncodingError> {
        weight.unpack(|index| Ok::<_, EncodingError>(parts[index].as_slice()))
    }

    /// About a third of the elements, else zero.
    fn elements(count: usize) -> impl Iterator<Item = i8> {
        (0..count).map(|index| {
            let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            if mixed.is_multiple_of(3) { (mixed % 255) as i8 } else { 0 }
        })
    }

    fn values(dtype: DType, shape: &[usize]) -> Tensor {
        let count = shape.iter().product();
        let bytes: Vec<u8> = match dtype {
            DType::I8 => elements(count).map(|value| value as u8).collect(),
            DType::F32 => elements(count).flat_map(|value| f32::from(value).to_le_bytes()).collect(),
            _ => elements(count).flat_map(|value| half::bf16::from_f32(value.into()).to_le_bytes()).collect(),
        };
        Tensor::from_bytes(dtype, shape, &bytes).unwrap()
    }

    #[test]
    fn what_is_packed_comes_out_wherever_it_is_cut() {
        for (groups, outputs, inputs) in [(1, 40, 700), (2, 5, 27), (1, 16, 256), (3, 33, 300)] {
            for dtype in [DType::F32, DType::BF16, DType::I8] {
                for output_axis in [0, 1] {
                    let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
                    let (rows, columns) = if output_axis == 0 { (outputs, inputs) } else { (inputs, outputs) };
                    let shape = [groups, rows, columns];
                    let tensor = values(dtype, &shape.map(|extent| extent as usize));
                    let given = Elements { stored: tensor.clone(), planes: Vec::new() };
                    let panels = Panels::values(dtype, matrix);
                    let in_lines = SparsePanels::in_lines_of(&panels, 256).unwrap();
                    let encodings = [SparsePanels::of(&panels, 1800), in_lines];
                    let sizes = [1 << 30, 8192, 1].map(|budget_bytes| (0, budget_bytes));
                    let mut whole: Option<Vec<u8>> = None;
                    for (index, budget_bytes) in sizes.into_iter().chain([(1, 1 << 30), (1, 1)]) {
                        if (index, budget_bytes) == (1, 1 << 30) {
                            whole = None;
                        }
                        let encoding = &encodings[index];
                        let weight = record(encoding.clone(), dtype, &shape, budget_bytes);
                        weight.check().unwrap();
                        let parts = pack(&weight, &given).unwrap();
                        assert_eq!(unpack(&weight, &parts).unwrap(), given);
                        let all = parts.concat();
                        assert_eq!(whole.get_or_insert_with(|| all.clone()), &all, "parts lie one after another");
                        let (mut end, mut first) = (0, 0);
                        for (part, bytes) in weight.parts.iter().zip(&parts) {
                            let each = &mut |record: StoredRecord| {
                                for piece in &record.pieces {
                                    assert_eq!(first + piece.offset, end);
                                    end += piece.bytes;
                                }
                            };
                            let stored = weight.encoding.encoding();
                            stored.records(weight.logical(), part.range(), bytes.len() as u64, each).unwrap();
                            first += bytes.len() as u64;
                        }
                        assert_eq!(end, all.len() as u64);
                    }
                }
            }
        }
    }

    #[test]
    fn codes_keep_their_planes() {
        let planes = vec![
            Plane { role: PlaneRole::Scale, dtype: DType::F16, block: 32 },
            Plane { role: PlaneRole::Scale, dtype: DType::F32, block: 0 },
        ];
        let matrix = WeightMatrix { groups: 1, inputs: 300, outputs: 20, output_axis: 0 };
        let scales: Vec<half::f16> = (1..=200).map(|index| half::f16::from_f32(index as f32 / 8.0)).collect();
        let given = Elements {
            stored: values(DType::I8, &[20, 300]),
            planes: vec![
                Tensor::from_elements(&[1, 20, 10], &scales).unwrap(),
                Tensor::from_elements(&[1, 20], &(0..20).map(|index| index as f32).collect::<Vec<_>>()).unwrap(),
            ],
        };
        let encoding = SparsePanels::of(&Panels::codes(DType::I8, matrix, planes), 1800);
        for budget_bytes in [1 << 30, 1] {
            let weight = record(encoding.clone(), DType::F32, &[20, 300], budget_bytes);
            assert_eq!(unpack(&weight, &pack(&weight, &given).unwrap()).unwrap(), given);
        }
    }

    #[test]
    fn records_have_the_specified_bytes() {
        // [inputs, outputs] = [3, 2]: a mask of 16 bits an input, then the values; -0 is not stored.
        let tensor = Tensor::from_elements(&[3, 2], &[0.0f32, 2.0, -0.0, 0.0, 5.0, 6.0]).unwrap();
        let matrix = WeightMatrix { groups: 1, inputs: 3, outputs: 2, output_axis: 1 };
        let encoding = SparsePanels::of(&Panels::values(DType::F32, matrix), 3);
        assert_eq!(encoding.capacity, SparsePanels::LEAST_CAPACITY);
        let weight = record(encoding, DType::F32, &[3, 2], 1 << 20);
        let parts = pack(&weight, &Elements { stored: tensor, planes: Vec::new() }).unwrap();
        // Room for all 48 elements, which are fewer than the capacity.
        assert_eq!(parts[0].len(), 64 + 48 * 4);
        assert_eq!(parts[0][..6], [2, 0, 0, 0, 3, 0]);
        let found: Vec<f32> =
            parts[0][64..76].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(found, [2.0, 5.0, 6.0]);
        assert!(parts[0][6..64].iter().chain(&parts[0][76..]).all(|&byte| byte == 0));
        let back = unpack(&weight, &parts).unwrap().stored;
        let bits: Vec<u32> = back.elements::<f32>().unwrap().iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, [0.0f32, 2.0, 0.0, 0.0, 5.0, 6.0].map(f32::to_bits));
    }

    #[test]
    fn lines_of_zeros_are_left_out_as_a_whole() {
        // Of 16 groups of four inputs the second and the last have values; the sign of a zero in them stays.
        let matrix = WeightMatrix { groups: 1, inputs: 64, outputs: 16, output_axis: 1 };
        let mut codes = vec![0u8; 64 * 16];
        (codes[5 * 16 + 3], codes[63 * 16]) = (7, 200);
        let encoding = SparsePanels::in_lines_of(&Panels::values(DType::U8, matrix), 2).unwrap();
        assert_eq!(encoding.capacity, SparsePanels::LEAST_CAPACITY);
        let weight = record(encoding, DType::U8, &[64, 16], 1 << 20);
        let given = Elements { stored: Tensor::from_bytes(DType::U8, &[64, 16], &codes).unwrap(), planes: Vec::new() };
        let parts = pack(&weight, &given).unwrap();
        assert_eq!(parts[0].len(), 64 + 512);
        assert_eq!(parts[0][..2], [0b10, 0b1000_0000]);
        assert_eq!((parts[0][64 + 3 * 4 + 1], parts[0][128 + 3]), (7, 200));
        assert_eq!(unpack(&weight, &parts).unwrap(), given);
        let halves = Panels::values(DType::F16, WeightMatrix { groups: 1, inputs: 64, outputs: 16, output_axis: 1 });
        assert_eq!(SparsePanels::in_lines_of(&halves, 2), None);
        let wrong = SparsePanels { in_lines: true, ..SparsePanels::of(&halves, 512) };
        let error = Coded::from(wrong).check(Logical { dtype: DType::F16, shape: &[64, 16] }).unwrap_err();
        assert_eq!(error.to_string(), "lines of f16 elements with 1 inputs side by side is not supported");
    }

    #[test]
    fn more_values_than_there_is_room_for_are_refused() {
        let matrix = WeightMatrix { groups: 1, inputs: 256, outputs: 16, output_axis: 0 };
        let encoding = SparsePanels::of(&Panels::values(DType::I8, matrix), 512);
        let weight = record(encoding, DType::I8, &[16, 256], 1 << 20);
        let full = Tensor::from_bytes(DType::I8, &[16, 256], &[1; 4096]).unwrap();
        let error = pack(&weight, &Elements { stored: full, planes: Vec::new() }).unwrap_err();
        assert!(matches!(error, EncodingError::Values { capacity: 512, found: 4096 }), "{error}");
        let error = unpack(&weight, &[vec![0xff; 512 + 512]]).unwrap_err();
        assert!(matches!(error, EncodingError::Values { capacity: 512, found: 4096 }), "{error}");
    }

    #[test]
    fn what_is_no_record_is_refused_by_name() {
        let matrix = WeightMatrix { groups: 1, inputs: 256, outputs: 16, output_axis: 0 };
        let good = SparsePanels::of(&Panels::values(DType::F32, matrix), 512);
        let refused = |encoding: SparsePanels, expected: &str| {
            let weight = Logical { dtype: DType::F32, shape: &[16, 256] };
            match Coded::from(encoding).check(weight) {
                Err(EncodingError::Unsupported(what)) => assert_eq!(what, expected),
                other => panic!("{other:?}"),
            }
        };
        for capacity in [0, 511, 513, 4112] {
            refused(SparsePanels { capacity, ..good.clone() }, &format!("records with room for {capacity} values"));
        }
        refused(SparsePanels { dtype: DType::F64, ..good.clone() }, "panels without zeros of f64 elements");
        refused(SparsePanels { interleave: 8, ..good }, "panels without zeros with 8 inputs side by side");
    }
}
