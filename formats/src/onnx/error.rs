//! What can be wrong with ONNX bytes.

use std::io;

use crate::limits;

/// Why a file could not be read as ONNX.
///
/// A `path` names the field by the way to it, as in `graph.node[3].attribute[0].t.raw_data`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// The place holder that Git LFS leaves where the content was not fetched.
    #[error("the file is a Git LFS pointer, not the {expected} itself")]
    GitLfsPointer {
        /// What was to be read.
        expected: &'static str,
    },
    /// Bytes of another format.
    #[error("the file is not an ONNX {expected}: it looks like {found} ({cause})")]
    OtherFormat {
        /// What was to be read.
        expected: &'static str,
        /// The format by its first bytes.
        found: &'static str,
        /// What the reader met.
        cause: Box<OnnxError>,
    },
    /// The file ends inside a field.
    #[error("the file is truncated: `{path}` at offset {offset} goes on to byte {end}, the file ends at {file_end}")]
    Truncated {
        /// The field.
        path: String,
        /// Where the field begins.
        offset: u64,
        /// Where it should end.
        end: u64,
        /// Length of the file in bytes.
        file_end: u64,
    },
    /// A field is longer than the message that holds it.
    #[error("`{path}` at offset {offset} goes on to byte {end}, but the message that holds it ends at {message_end}")]
    BeyondMessage {
        /// The field.
        path: String,
        /// Where the field begins.
        offset: u64,
        /// Where it should end.
        end: u64,
        /// Where its message ends.
        message_end: u64,
    },
    /// An integer of more than 64 bits.
    #[error("`{path}` holds an integer of more than 64 bits at offset {offset}")]
    VarintOverflow {
        /// The field or message.
        path: String,
        /// Where the integer begins.
        offset: u64,
    },
    /// A field key that protobuf does not allow.
    #[error("`{path}` holds an invalid field key {key} at offset {offset}")]
    InvalidKey {
        /// The message.
        path: String,
        /// The key: field number times 8 plus wire type.
        key: u64,
        /// Where the key is.
        offset: u64,
    },
    /// A field that the schema does not have.
    #[error("unknown field {number} of {message} in `{path}` at offset {offset}")]
    UnknownField {
        /// The message.
        path: String,
        /// Type of the message.
        message: &'static str,
        /// Number of the field.
        number: u32,
        /// Where the field begins.
        offset: u64,
    },
    /// A field of another type than the schema says.
    #[error("`{path}` at offset {offset} has wire type {found}, which is not that of the field")]
    WireType {
        /// The field.
        path: String,
        /// Where the field begins.
        offset: u64,
        /// Its wire type.
        found: u8,
    },
    /// A field that may occur once occurs again.
    #[error("`{path}` occurs a second time at offset {offset}")]
    Repeated {
        /// The field.
        path: String,
        /// Where it occurs again.
        offset: u64,
    },
    /// Text that is not UTF-8.
    #[error("`{path}` at offset {offset} is not UTF-8")]
    NotUtf8 {
        /// The field.
        path: String,
        /// Where the field begins.
        offset: u64,
    },
    /// Packed elements whose length is no multiple of their size.
    #[error("`{path}` at offset {offset} has {length} bytes, not a multiple of {element_bytes}")]
    PackedLength {
        /// The field.
        path: String,
        /// Where the field begins.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// Size of an element in bytes.
        element_bytes: u64,
    },
    /// Graphs inside graphs without end.
    #[error(
        "`{}` is nested too deep: more than {} graphs inside each other",
        shortened(path),
        limits::ONNX_GRAPH_NESTING
    )]
    GraphNesting {
        /// The message beyond the limit.
        path: String,
    },
    /// Messages inside messages without end.
    #[error(
        "`{}` is nested too deep: more than {} messages inside each other",
        shortened(path),
        limits::ONNX_MESSAGE_NESTING
    )]
    MessageNesting {
        /// The message beyond the limit.
        path: String,
    },
    /// More than this reader takes on.
    #[error(
        "without its large tensors the file would take more than {} MiB of memory, reached in `{path}` at offset {offset}",
        limits::ONNX_DECODED_BYTES >> 20
    )]
    TooLarge {
        /// The field where the limit was reached.
        path: String,
        /// Where the field begins.
        offset: u64,
    },
    /// A model of no graph.
    #[error("the file holds no graph")]
    NoGraph,
    /// A model that does not say its version.
    #[error("the model states no IR version")]
    NoIrVersion,
    /// A model from the future, or none.
    #[error("the model has IR version {found}, known are 1 to {newest}")]
    IrVersion {
        /// Version of the model.
        found: i64,
        /// Newest version that is known.
        newest: i64,
    },
    /// The medium failed.
    #[error("reading at offset {offset} failed: {error}")]
    Io {
        /// Where the read began.
        offset: u64,
        /// What the medium reports.
        error: io::Error,
    },
    /// The decoder refused what the walker let pass.
    #[error("the {expected} cannot be decoded: {error}")]
    Decode {
        /// What was to be read.
        expected: &'static str,
        /// What the decoder reports.
        error: prost::DecodeError,
    },
}

impl OnnxError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::GitLfsPointer { .. } => Some("fetch the content with `git lfs pull`"),
            Self::Truncated { .. } => Some("fetch the file again: a part of it is missing"),
            _ => None,
        }
    }
}

/// A path that is too long to read, with its middle left out.
fn shortened(path: &str) -> String {
    /// Characters that are kept at either end.
    const KEPT: usize = 40;
    let letters = path.chars().count();
    if letters <= 2 * KEPT {
        return path.to_string();
    }
    let (first, last): (String, String) =
        (path.chars().take(KEPT).collect(), path.chars().skip(letters - KEPT).collect());
    format!("{first} .. {last}")
}
