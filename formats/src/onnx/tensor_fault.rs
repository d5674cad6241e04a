//! What can be wrong with the data of a tensor.

use super::data_field::DataField;
use super::external::ExternalDataError;
use crate::dtype::DType;
use std::io;

/// What is wrong with the data of a tensor.
#[derive(Debug, thiserror::Error)]
#[error("{} {fault}", named_tensor(name))]
pub struct TensorDataError {
    /// Name of the tensor, which may be empty.
    pub name: String,
    /// What is wrong.
    pub fault: Box<TensorFault>,
}

fn unknown_type(number: i32) -> String {
    match number {
        0 => "states no element type".to_string(),
        number => format!("has the unknown element type {number}"),
    }
}

fn named_tensor(name: &str) -> String {
    if name.is_empty() { "the tensor".to_string() } else { format!("tensor `{}`", name.escape_debug()) }
}

/// What can be wrong with the data of a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// A type from the future, or none.
    #[error("{}", unknown_type(*number))]
    UnknownType {
        /// Number of the type.
        number: i32,
    },
    /// An extent below zero.
    #[error("has the extent {extent} in axis {axis}")]
    NegativeExtent {
        /// The axis.
        axis: usize,
        /// Its extent.
        extent: i64,
    },
    /// More elements than can be addressed.
    #[error("of shape {shape:?} is too large to address")]
    TooLarge {
        /// The shape.
        shape: Vec<i64>,
    },
    /// A part of a tensor.
    #[error("is one chunk of a larger tensor (`segment` is set), which is not supported")]
    Chunk,
    /// Data twice.
    #[error("has its elements in {fields} at once")]
    SeveralFields {
        /// The fields that are set.
        fields: String,
    },
    /// Data in a field that cannot hold the type.
    #[error("has elements of type {dtype} in `{}`, which cannot hold them", field.name())]
    FieldType {
        /// The field.
        field: DataField,
        /// The element type.
        dtype: DType,
    },
    /// No data.
    #[error("has {count} elements by its shape but holds none")]
    NoData {
        /// Number of elements.
        count: usize,
    },
    /// Bytes that do not fill the shape.
    #[error("of type {dtype} and shape {shape:?} needs {expected} bytes, there are {found}")]
    Size {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Entries of a typed field that do not fill the shape.
    #[error("needs {expected} entries in `{}`, there are {}{found}", field.name(), if *more { "more than " } else { "" })]
    Entries {
        /// The field.
        field: DataField,
        /// Entries that the shape needs.
        expected: u64,
        /// Entries that there are.
        found: u64,
        /// More than that.
        more: bool,
    },
    /// A number that the element type cannot hold.
    #[error("has the value {value} in entry {index} of `{}`, beyond the range of {dtype}", field.name())]
    Range {
        /// The field.
        field: DataField,
        /// Which entry.
        index: u64,
        /// Its value.
        value: i128,
        /// The element type.
        dtype: DType,
    },
    /// A boolean that is neither.
    #[error("is boolean and has the value {value} in element {index}")]
    NotABoolean {
        /// Which element.
        index: u64,
        /// Its byte.
        value: u8,
    },
    /// Text that is not UTF-8.
    #[error("has text that is not UTF-8 in element {index}")]
    NotUtf8 {
        /// Which element.
        index: usize,
    },
    /// A storage place from the future.
    #[error("has the unknown data location {number}")]
    UnknownLocation {
        /// Number of the location.
        number: i32,
    },
    /// External data, and elements here.
    #[error("has external data and elements in {fields} besides")]
    ExternalBesides {
        /// The fields that are set.
        fields: String,
    },
    /// A wrong description of external data.
    #[error("cannot be found: {0}")]
    External(ExternalDataError),
    /// Strings elsewhere.
    #[error("has external data, which cannot hold strings")]
    ExternalStrings,
    /// External data in a place where it is not followed.
    #[error("has elements that lie in another file, which is not supported for a value or a part of a sparse tensor")]
    ExternalUnsupported,
    /// An integer that is cut off or has more than 64 bits.
    #[error("has a malformed integer at offset {offset}")]
    Varint {
        /// Where it begins or ends.
        offset: u64,
    },
    /// Data beyond the end of the file that is to hold it.
    #[error("lies in bytes {offset} to {end} of a file of {file_bytes} bytes")]
    BeyondFile {
        /// Where it begins.
        offset: u64,
        /// Where it ends.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// A read beyond the end of the tensor.
    #[error("has {length_bytes} bytes, of which {from} to {to} were asked for")]
    BeyondTensor {
        /// Where the read begins.
        from: u64,
        /// Where it ends.
        to: u64,
        /// Length of the tensor.
        length_bytes: u64,
    },
    /// The medium failed.
    #[error("cannot be read at offset {offset}: {error}")]
    Io {
        /// Where the read began.
        offset: u64,
        /// What the medium reports.
        error: io::Error,
    },
}
