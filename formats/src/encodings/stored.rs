//! Where the records of a weight lie, and the planes and elements in them: what shows the layout of a file asks here.

use super::part::PartRange;
use std::ops::Range;

/// Planes and elements that lie together: those of a row, or of some inputs of a panel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The units whose elements it holds.
    pub units: Range<u64>,
    /// The inputs of these units, where units have inputs.
    pub inputs: Range<u64>,
    /// Its planes in their order, then its elements.
    pub pieces: Vec<StoredPiece>,
}

/// A plane or the elements of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredPiece {
    /// Index of the plane; `None` for elements.
    pub plane: Option<u32>,
    /// Bytes from the begin of the part.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl StoredRecord {
    /// A part without parameters as one record.
    pub(super) fn whole(part: PartRange, bytes: u64) -> Self {
        Self::new(part.start..part.end, part.inputs_start..part.inputs_end, 0, std::iter::empty(), bytes)
    }

    /// A record that begins at `offset`: its planes and then its elements take these bytes. Planes without bytes are not in
    /// it.
    pub(super) fn new(
        units: Range<u64>,
        inputs: Range<u64>,
        mut offset: u64,
        planes: impl Iterator<Item = u64>,
        elements: u64,
    ) -> Self {
        let bytes = planes.zip(0u32..).map(|(bytes, plane)| (Some(plane), bytes)).chain([(None, elements)]);
        let mut pieces = Vec::new();
        for (plane, bytes) in bytes {
            if bytes > 0 || plane.is_none() {
                pieces.push(StoredPiece { plane, offset, bytes });
            }
            offset += bytes;
        }
        StoredRecord { units, inputs, pieces }
    }
}
