//! Weights and their parts as the file records them.

use super::Layout;
use crate::dtype::DType;

/// A weight: what it is logically, how it is stored, and where its parts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightRecord {
    /// ONNX name; absent for constants that the compiler made.
    pub name: Option<String>,
    /// Logical element type.
    pub dtype: DType,
    /// Logical extents.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub layout: Layout,
    /// The parts in order; none for a weight without bytes.
    pub parts: Vec<PartRecord>,
    /// Where its bytes came from, if they lay in one piece.
    pub source: Option<WeightSource>,
}

/// Where the bytes of a weight were before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSource {
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
    /// First row (along axis 0) of a plain layout, first panel of panels, 0 for strings.
    pub start: u64,
    /// Row or panel after the last; 1 for strings.
    pub end: u64,
    /// First input of panels; 0 for other layouts.
    pub inputs_start: u64,
    /// Input after the last of panels; 0 for other layouts.
    pub inputs_end: u64,
}

/// Which elements a part holds: a [`PartRecord`] without its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartRange {
    /// First row or panel.
    pub start: u64,
    /// Row or panel after the last.
    pub end: u64,
    /// First input of panels, else 0.
    pub inputs_start: u64,
    /// Input after the last of panels, else 0.
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
    /// Which elements the part holds.
    pub fn range(&self) -> PartRange {
        let PartRecord { extent: _, start, end, inputs_start, inputs_end } = *self;
        PartRange { start, end, inputs_start, inputs_end }
    }
}
