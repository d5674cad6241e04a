//! What can be wrong with an `.ipu` file.

use crate::attribute::AttributeError;
use crate::dim::DimParseError;
use crate::encodings::EncodingError;
use std::io;
use thiserror::Error;

/// Why a file is not a sound `.ipu` file, or cannot become one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Too short to be any file of this format.
    #[error("{}", too_short(*length, *expected))]
    TooShort {
        /// Length of the file.
        length: u64,
        /// Length of the superblock.
        expected: u64,
    },
    /// Other first bytes.
    #[error("the file is no .ipu file: it does not begin with its signature")]
    Signature,
    /// The signature was changed by a transfer that takes files for text.
    #[error("the file was damaged by a transfer as text: its signature has other line ends")]
    TextTransfer,
    /// Another version of the format.
    #[error(
        "the file has format version {found_major}.{found_minor}, this program reads {known_major}.{known_minor} only"
    )]
    Version {
        /// Major version of the file.
        found_major: u32,
        /// Minor version of the file.
        found_minor: u32,
        /// Major version that is read.
        known_major: u32,
        /// Minor version that is read.
        known_minor: u32,
    },
    /// The superblock is damaged.
    #[error("the superblock is damaged: its checksum is {stored:#010x}, its bytes have {computed:#010x}")]
    SuperblockChecksum {
        /// Checksum in the file.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// Bytes that must be zero are not.
    #[error("byte {offset} must be zero")]
    Padding {
        /// Where.
        offset: u64,
    },
    /// An algorithm that this version does not know.
    #[error("the file uses {purpose} algorithm {number}, this program knows {known} only")]
    Algorithm {
        /// `checksum` or `hash`.
        purpose: &'static str,
        /// Its number.
        number: u32,
        /// Number and name of the known one.
        known: &'static str,
    },
    /// A feature without which the file cannot be understood.
    #[error("the file needs feature {0}, which this program does not know")]
    Feature(u32),
    /// The file ends too early.
    #[error("the file is truncated: it has {found} of {expected} bytes")]
    Truncated {
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// Something stands after the end.
    #[error("the file has {found} bytes, {excess} more than it should", excess = found - expected)]
    Excess {
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// A number in the superblock contradicts the layout of files.
    #[error("the superblock states {what} {found}, expected {expected}")]
    Region {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// More than a limit allows.
    #[error("the file has {what} {found}, the limit is {limit}")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// The manifest is damaged.
    #[error("the manifest is damaged: its hash is not the one in the superblock")]
    ManifestHash,
    /// The manifest's bytes are not what its schema describes.
    #[error("the manifest is malformed at byte {offset}, in a message `{message}`: {fault}")]
    Wire {
        /// Offset in the manifest.
        offset: usize,
        /// The message.
        message: &'static str,
        /// What is wrong.
        fault: WireFault,
    },
    /// The manifest cannot be decoded.
    #[error("the manifest cannot be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
    /// A record contradicts another one, or the rules of the format.
    #[error("{place}: {fault}")]
    Record {
        /// Which record.
        place: String,
        /// What is wrong.
        fault: Fault,
    },
    /// Stored bytes of a weight are damaged.
    #[error(
        "extent {extent} is damaged at byte {offset}: its checksum is {stored:#010x}, its bytes have {computed:#010x}"
    )]
    Checksum {
        /// The extent.
        extent: u32,
        /// Offset in the file where the damaged checksum block begins.
        offset: u64,
        /// Checksum in the manifest.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A chunk is damaged.
    #[error("chunk {chunk} at byte {offset} is damaged: its hash is not the one in the manifest")]
    ChunkHash {
        /// The chunk.
        chunk: u32,
        /// Its offset in the file.
        offset: u64,
    },
    /// Bytes for a check have the wrong length.
    #[error("{what} has {expected} bytes, {found} were given")]
    Length {
        /// What is checked.
        what: &'static str,
        /// Its length.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The file cannot be read.
    #[error("the file cannot be read at byte {offset}: {source}")]
    Read {
        /// Where.
        offset: u64,
        /// What the medium reports.
        source: io::Error,
    },
}

fn too_short(length: u64, expected: u64) -> String {
    match length {
        0 => "the file is empty".to_string(),
        _ => format!("the file is truncated: it has {length} bytes, its first part alone has {expected}"),
    }
}

/// What is wrong with the bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WireFault {
    /// It goes on after its end.
    #[error("a field goes on after the end of its message")]
    Truncated,
    /// A key or a number is not an integer of the field's width.
    #[error("a number is too large for its field")]
    Integer,
    /// Not in the schema.
    #[error("field {0} is unknown")]
    UnknownField(u64),
    /// Written in another way than the schema says.
    #[error("field `{0}` has the wrong wire type")]
    WireType(&'static str),
    /// Written more than once, or beside another member of its union.
    #[error("field `{0}` occurs more than once")]
    Repeated(&'static str),
    /// Messages inside messages.
    #[error("messages are nested too deeply")]
    Nesting,
}

/// What is wrong with a record.
#[derive(Debug, Error)]
pub enum Fault {
    /// An index points nowhere.
    #[error("{what} {index} does not exist, there are {count}")]
    Index {
        /// What is counted.
        what: &'static str,
        /// The index.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// A part of the record that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number that stands for nothing.
    #[error("{what} {number} is unknown")]
    Unknown {
        /// What is numbered.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// Two of what must differ are the same.
    #[error("{what} `{name}` occurs twice")]
    Duplicate {
        /// What is named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A number differs from what follows from other records.
    #[error("{what} is {found}, expected {expected}")]
    Mismatch {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// More than a limit allows.
    #[error("{what} is {found}, the limit is {limit}")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// A value is used before it exists.
    #[error("value {0} is used before it is defined")]
    Undefined(u32),
    /// A value is defined twice.
    #[error("value {0} is defined twice")]
    DefinedTwice(u32),
    /// A symbol without a record.
    #[error("symbol `{0}` is not declared")]
    UndeclaredSymbol(String),
    /// A range that contains nothing.
    #[error("the range {minimum} to {maximum} is empty")]
    EmptyRange {
        /// Least value.
        minimum: i64,
        /// Greatest value.
        maximum: i64,
    },
    /// A rule that needs no numbers.
    #[error("{0}")]
    Rule(&'static str),
    /// A dimension that is no expression.
    #[error(transparent)]
    Dimension(#[from] DimParseError),
    /// A dimension in another form than the canonical one.
    #[error("the dimension `{0}` is not in canonical form")]
    NotCanonical(String),
    /// Attributes that make no operator.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// A layout that does not fit its weight.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
}

impl Fault {
    /// This fault of the record at `place`.
    pub(super) fn at(self, place: impl Into<String>) -> FormatError {
        FormatError::Record { place: place.into(), fault: self }
    }
}
