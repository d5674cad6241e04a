//! What can be wrong with an encoding, a weight, or the bytes between them.

use super::part::PartRange;
use crate::dtype::DType;
use crate::tensor::TensorError;
use thiserror::Error;

/// Why bytes do not fit an encoding, or an encoding does not fit a weight.
#[derive(Debug, Error)]
pub enum EncodingError {
    /// The encoding describes another number of elements than the weight has.
    #[error("the encoding has {encoded} elements, a weight of shape {shape:?} has {weight}")]
    ElementCount {
        /// Elements of the encoding.
        encoded: u128,
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
    /// An encoding that this version does not read or write.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// Elements of the stored type do not stand for elements of the logical type.
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
    /// A part that begins or ends where the encoding cannot be cut, or is empty.
    #[error(
        "{}..{} (inputs {}..{}) is no part of the weight: {reason}",
        range.start, range.end, range.inputs_start, range.inputs_end
    )]
    Part {
        /// The part.
        range: PartRange,
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
    /// More elements that are not zero than a record has room for, or bits of its mask.
    #[error("a record of panels without zeros has room for {capacity} values, {found} are not zero")]
    Values {
        /// Values that the record has room for.
        capacity: u64,
        /// Elements that are not zero.
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
    /// The elements of a weight cannot be read.
    #[error("elements at byte {offset} cannot be read: {source}")]
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
