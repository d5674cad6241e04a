//! Weights and their parts as the file records them.

use super::encoding::Pick;
use super::error::EncodingError;
use super::logical::Logical;
use super::part::PartRange;
use super::table::Coded;
use super::zeros::Zeros;
use crate::dtype::DType;
use std::ops::Range;

/// A weight: what it is logically, how it is stored, and where its parts are.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightRecord {
    /// ONNX name; absent for constants that the compiler made.
    pub name: Option<String>,
    /// Logical element type.
    pub dtype: DType,
    /// Logical extents.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub encoding: Coded,
    /// Why it is stored so, in words.
    pub reason: String,
    /// The parts in order; none for a weight without bytes.
    pub parts: Vec<PartRecord>,
    /// Where its elements and planes came from, as far as they lay in one piece.
    pub sources: Vec<WeightSource>,
    /// What was found of its zeros, where the compiler looked.
    pub zeros: Option<Zeros>,
    /// The compiler's number of the constant.
    pub id: u32,
}

/// Where the elements or a plane of a weight were before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSource {
    /// The plane; `None` for the elements.
    pub plane: Option<u32>,
    /// File name as in the model; empty for the model's own file.
    pub file: String,
    /// Offset in that file.
    pub offset: u64,
    /// Bytes there.
    pub length: u64,
}

/// A part of a weight and the extent that holds its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartRecord {
    /// Index of the extent.
    pub extent: u32,
    /// First unit: a row along axis 0, a panel; 0 for strings.
    pub start: u64,
    /// Unit after the last; 1 for strings.
    pub end: u64,
    /// First input of panels; 0 for other encodings.
    pub inputs_start: u64,
    /// Input after the last of panels; 0 for other encodings.
    pub inputs_end: u64,
}

impl PartRange {
    /// The record of this part in an extent.
    pub fn in_extent(self, extent: u32) -> PartRecord {
        let PartRange { start, end, inputs_start, inputs_end } = self;
        PartRecord { extent, start, end, inputs_start, inputs_end }
    }
}

impl PartRecord {
    /// Which units the part holds.
    pub fn range(&self) -> PartRange {
        let PartRecord { extent: _, start, end, inputs_start, inputs_end } = *self;
        PartRange { start, end, inputs_start, inputs_end }
    }
}

/// Some of the stored bytes of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartBytesRange {
    /// Index of the part.
    pub part: usize,
    /// Bytes within it.
    pub bytes: Range<u64>,
}

/// Where what was picked lies: its units, and their stored bytes, which lie one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The units, with all their inputs.
    pub units: PartRange,
    /// Their bytes, in order.
    pub bytes: Vec<PartBytesRange>,
}

impl Place {
    /// How many bytes there are.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.bytes.iter().map(|piece| piece.bytes.end - piece.bytes.start).fold(0, u64::saturating_add)
    }
}

impl WeightRecord {
    /// Its name, or its number as in the text form of the compiler.
    #[must_use]
    pub fn label(&self) -> String {
        let name = self.name.clone().filter(|name| !name.is_empty());
        name.unwrap_or_else(|| format!("@{}", self.id))
    }

    /// What it is to the steps that read it.
    pub fn logical(&self) -> Logical<'_> {
        Logical { dtype: self.dtype, shape: &self.shape }
    }

    /// Whether its stored bytes are the canonical bytes of a tensor, in one part.
    pub fn is_one_canonical_part(&self) -> bool {
        self.parts.len() == 1 && self.encoding.encoding().is_canonical(self.logical())
    }

    /// Check that encoding and parts describe exactly this weight.
    ///
    /// # Errors
    /// [`EncodingError`] that says where they do not.
    pub fn check(&self) -> Result<(), EncodingError> {
        let units = self.encoding.units(self.logical())?;
        let (mut next, mut next_input) = (0, 0);
        for (index, part) in self.parts.iter().enumerate() {
            units.check(part.range())?;
            if part.start != next || part.inputs_start != next_input {
                return Err(EncodingError::Coverage { part: index });
            }
            (next, next_input) =
                if part.inputs_end == units.inputs { (part.end, 0) } else { (part.start, part.inputs_end) };
        }
        let complete = (next, next_input) == (units.count, 0);
        if complete { Ok(()) } else { Err(EncodingError::Coverage { part: self.parts.len() }) }
    }

    /// Where the planes and some inputs of a unit lie among the parts, where it is read so
    /// ([`InputMajor::is_read_apart`](super::InputMajor::is_read_apart)): planes over all inputs first, if there are any, with an
    /// empty range of inputs, then each run of inputs, in as many pieces as parts have of it.
    ///
    /// # Errors
    /// [`EncodingError::Unsupported`] where it is not read so.
    pub fn locate_inputs(
        &self,
        unit: u64,
        inputs: &[Range<u64>],
    ) -> Result<Vec<(Range<u64>, PartBytesRange)>, EncodingError> {
        let unsupported =
            || EncodingError::Unsupported(format!("reading inputs of unit {unit} of a weight as `{}`", self.encoding));
        let runs = self.encoding.as_input_major().filter(|runs| runs.is_read_apart()).ok_or_else(unsupported)?;
        let (planes, row) = (runs.planes_bytes(0, 0).ok_or_else(unsupported)?, runs.row_bytes());
        let mut found = Vec::with_capacity(inputs.len() + 1);
        let first = self.parts.partition_point(|part| part.end <= unit);
        let of_unit: Vec<(usize, &PartRecord)> =
            self.parts.iter().enumerate().skip(first).take_while(|(_, part)| part.start <= unit).collect();
        let begin_of = |part: &PartRecord| {
            let bytes = runs.unit_bytes(part.inputs_start..part.inputs_end)?;
            (unit - part.start).checked_mul(bytes)
        };
        for &(index, part) in of_unit.iter().filter(|(_, part)| part.inputs_start == 0) {
            let begin = begin_of(part).ok_or_else(unsupported)?;
            if planes > 0 {
                found.push((0..0, PartBytesRange { part: index, bytes: begin..begin + planes }));
            }
        }
        for wanted in inputs {
            for &(index, part) in &of_unit {
                let own = wanted.start.max(part.inputs_start)..wanted.end.min(part.inputs_end);
                if own.is_empty() {
                    continue;
                }
                let planes = if part.inputs_start == 0 { planes } else { 0 };
                let begin = begin_of(part).ok_or_else(unsupported)? + planes;
                let place = |input: u64| begin + (input - part.inputs_start) * row;
                found.push((own.clone(), PartBytesRange { part: index, bytes: place(own.start)..place(own.end) }));
            }
        }
        Ok(found)
    }

    /// Where what is picked lies among the parts.
    ///
    /// # Errors
    /// [`EncodingError`] where it is outside the weight or cannot be read alone.
    pub fn locate(&self, pick: Pick) -> Result<Place, EncodingError> {
        let weight = self.logical();
        let units = self.encoding.locate(weight, pick)?;
        let encoding = self.encoding.encoding();
        let unsized_part = || EncodingError::Unsupported(format!("reading a part of a weight as `{}`", self.encoding));
        let bytes_of = |run: PartRange| encoding.bytes(weight, run)?.ok_or_else(unsized_part);
        let first = self.parts.partition_point(|part| part.end <= units.start);
        let mut bytes = Vec::new();
        for (index, part) in self.parts.iter().enumerate().skip(first).take_while(|(_, part)| part.start < units.end) {
            let run = part.range();
            let start = if units.start > run.start { bytes_of(PartRange { end: units.start, ..run })? } else { 0 };
            let end = bytes_of(PartRange { end: units.end.min(run.end), ..run })?;
            bytes.push(PartBytesRange { part: index, bytes: start..end });
        }
        Ok(Place { units, bytes })
    }
}
