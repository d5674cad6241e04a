//! How the elements of a weight lie in the file: layouts, their sizes, and the way in ([`pack`]) and out ([`unpack`]).
//!
//! A weight has a logical element type and shape, and a [`Layout`] that says what is stored. Operators mean the same
//! for every layout. The *canonical* bytes of a weight are those of a [`Tensor`](crate::tensor::Tensor): row-major,
//! little-endian, packed. A layout is cut into parts on its borders ([`Layout::split`]); a part is packed alone, from
//! positional reads of canonical bytes, so that a large weight needs the memory of one part at a time.
//!
//! `FORMAT.md` specifies the bytes. Leaves alone: where parts lie in the file ([`crate::model`]), and rounding: a
//! conversion that is not exact is refused.

mod convert;
mod layout;
mod pack;
mod panels;
mod record;
mod row;
mod split;
mod strings;
mod unpack;

pub use layout::{Layout, PANEL_OUTPUTS, PanelLayout, PlaneLayout, PlaneRole};
pub use pack::pack;
pub use record::{PartRange, PartRecord, WeightRecord, WeightSource};
pub use row::{RowPlace, locate_row, row};
pub use split::INPUTS_BORDER;
pub use strings::{pack_strings, unpack_strings};
pub use unpack::{unpack, unpack_each};

use crate::dtype::DType;
use crate::tensor::TensorError;
use thiserror::Error;

/// Why bytes do not fit a layout, or a layout does not fit a weight.
#[derive(Debug, Error)]
pub enum EncodingError {
    /// The layout describes another number of elements than the weight has.
    #[error("the layout has {layout} elements, a weight of shape {shape:?} has {weight}")]
    ElementCount {
        /// Elements of the layout.
        layout: u128,
        /// Elements of the weight.
        weight: u128,
        /// Shape of the weight.
        shape: Vec<u64>,
    },
    /// A size does not fit into 64 bits or into memory addresses.
    #[error("a weight of shape {shape:?} is too large to address")]
    TooLarge {
        /// Shape of the weight.
        shape: Vec<u64>,
    },
    /// A described layout that this version does not read or write.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// There is no exact conversion from one element type to the other for all values.
    #[error("a weight of type {logical} cannot be stored as {stored}")]
    Conversion {
        /// Logical element type.
        logical: DType,
        /// Stored element type.
        stored: DType,
    },
    /// An element has no exact value in the stored type.
    #[error("element {element} of the weight cannot be stored as {stored} exactly")]
    Inexact {
        /// Row-major index of the element.
        element: u64,
        /// Stored element type.
        stored: DType,
    },
    /// A part that begins or ends where the layout has no border, or is empty.
    #[error("{start}..{end} (inputs {inputs_start}..{inputs_end}) is no part of the layout: {reason}")]
    Part {
        /// First row or panel.
        start: u64,
        /// Row or panel after the last.
        end: u64,
        /// First input.
        inputs_start: u64,
        /// Input after the last.
        inputs_end: u64,
        /// Which rule is broken.
        reason: &'static str,
    },
    /// Parts leave elements out, overlap, or are out of order.
    #[error("part {part} does not continue where the parts before it end")]
    Coverage {
        /// Index of the part; the number of parts where the end is missing.
        part: usize,
    },
    /// The bytes of a part have the wrong length.
    #[error("a part needs {expected} bytes, there are {found}")]
    Size {
        /// Bytes that the part needs.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// Another number of parts than the weight has.
    #[error("the weight has {expected} parts, {found} were given")]
    PartCount {
        /// Parts of the weight.
        expected: usize,
        /// Parts given.
        found: usize,
    },
    /// A row outside the weight.
    #[error("row {row} is outside a weight of {rows} rows")]
    Row {
        /// The row.
        row: u64,
        /// Rows of the weight.
        rows: u64,
    },
    /// Stored strings that are not UTF-8 or do not fill their bytes.
    #[error("stored strings are malformed at string {index}")]
    Strings {
        /// Index of the string.
        index: usize,
    },
    /// The canonical bytes cannot be read.
    #[error("canonical bytes at offset {offset} cannot be read: {source}")]
    Read {
        /// Offset among the canonical bytes.
        offset: u64,
        /// What the medium reports.
        source: std::io::Error,
    },
    /// The result is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

#[cfg(test)]
mod tests;
