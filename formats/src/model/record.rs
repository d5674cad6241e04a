//! The records of a manifest. Indices are positions in the vectors of [`Manifest`] or [`BlockRecord`].

use crate::dim::Dim;
use crate::encodings::WeightRecord;
use crate::fact::Type;
use crate::ops::{Obligation, Op, Read, RowScheme};
use std::ops::Range;
use std::sync::Arc;

/// Everything that a file says before its first weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Name of the program that wrote the file.
    pub producer: String,
    /// What the file was made from.
    pub provenance: Provenance,
    /// Every symbol that dimensions use, with its range.
    pub symbols: Vec<SymbolRecord>,
    /// Relations of dimensions that are checked when symbols are bound.
    pub obligations: Vec<Obligation>,
    /// Blocks with a public signature.
    pub entries: Vec<EntryRecord>,
    /// Lists of steps.
    pub blocks: Vec<BlockRecord>,
    /// Weights.
    pub weights: Vec<WeightRecord>,
    /// Stored bytes of weights; those of this file in the order of their offsets.
    pub extents: Vec<ExtentRecord>,
    /// The stream, gapless.
    pub chunks: Vec<ChunkRecord>,
    /// Other files that extents name: file `i` is `files[i - 1]`.
    pub files: Vec<FileRecord>,
    /// How steps are spread over the tiles of targets.
    pub placements: Vec<PlacementRecord>,
    /// What sessions keep from run to run.
    pub states: Vec<StateRecord>,
    /// Data that belongs to the model and that no step reads.
    pub attachments: Vec<AttachmentRecord>,
}

impl Manifest {
    /// The bytes of the attachment of this name.
    pub fn attachment(&self, name: &str) -> Option<&[u8]> {
        self.attachments.iter().find(|attachment| attachment.name == name).map(|attachment| &*attachment.data)
    }
}

/// Data that belongs to a model and that no step reads, such as a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentRecord {
    /// Name, that of a file without folders.
    pub name: String,
    /// The bytes, which copies of the record share.
    pub data: Arc<[u8]>,
}

/// What a file was made from. No paths, no times: the same model and options give the same bytes, with the same instruction set
/// where constants are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// Names of source files, without folders.
    pub models: Vec<String>,
    /// BLAKE3 over the hashes of all tensors that weights come from.
    pub weights_hash: [u8; 32],
    /// Options that change bytes: name, value.
    pub options: Vec<(String, String)>,
    /// Version of the compiler.
    pub compiler_version: String,
}

/// A symbol of dimensions. Its value comes from the inputs of an entry, or from a step whose results depend on data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolRecord {
    /// The name.
    pub name: String,
    /// Least value.
    pub minimum: i64,
    /// Greatest value.
    pub maximum: i64,
}

/// A block with a public signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRecord {
    /// The name by which it is run.
    pub name: String,
    /// Index of the block.
    pub block: u32,
    /// Names of the block's parameters.
    pub inputs: Vec<String>,
    /// Names of the block's results.
    pub outputs: Vec<String>,
    /// Inputs and outputs that are state.
    pub states: Vec<StateUse>,
}

/// Contents that a session keeps from run to run; every entry that names it uses the same contents.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRecord {
    /// Name: that of the input that is given the contents.
    pub name: String,
    /// Type of the contents.
    pub kind: Type,
    /// How runs append to the contents; `None` where they replace them.
    pub growth: Option<Growth>,
}

/// Runs append elements to the contents of a state, or overwrite positions of them; the others stay where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Growth {
    /// Axis along which the contents grow.
    pub axis: u32,
    /// Extent along that axis of one page of memory, at least 1.
    pub page: u32,
    /// How rows of f32 are stored; `None` where the contents are stored as they are.
    pub rows: Option<RowScheme>,
    /// The extent along the axis stays: runs overwrite positions of contents that begin as zeros.
    pub overwritten: bool,
}

/// How an entry uses a state: at least one of input and output is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateUse {
    /// Index of the state.
    pub state: u32,
    /// Index of the parameter that is given the contents.
    pub input: Option<u32>,
    /// Index of the result that is the next contents.
    pub output: Option<u32>,
}

impl EntryRecord {
    /// The state that is input `input`.
    pub fn state_of_input(&self, input: usize) -> Option<u32> {
        self.states.iter().find(|used| used.input == u32::try_from(input).ok()).map(|used| used.state)
    }

    /// The state that is output `output`.
    pub fn state_of_output(&self, output: usize) -> Option<u32> {
        self.states.iter().find(|used| used.output == u32::try_from(output).ok()).map(|used| used.state)
    }
}

/// A list of steps with explicit parameters and results.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockRecord {
    /// Everything that steps compute or take; the parameters come first.
    pub values: Vec<ValueRecord>,
    /// How many of the values are parameters.
    pub parameters: u32,
    /// The steps in order of execution.
    pub steps: Vec<StepRecord>,
    /// What the block gives.
    pub results: Vec<OperandRecord>,
}

/// A value of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRecord {
    /// Type and symbolic shape.
    pub kind: Type,
    /// Contents of a small integer tensor as dimensions, where known.
    pub contents: Option<Vec<Dim>>,
    /// What its buffer holds.
    pub role: Role,
    /// The compiler's number of the value, the same in every file made from the model.
    pub id: u32,
    /// ONNX name.
    pub name: Option<String>,
}

/// What a buffer holds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr, strum::FromRepr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Role {
    /// Weights.
    Weights = 1,
    /// Results of steps.
    Activations = 2,
    /// State, such as a cache of keys and values.
    State = 3,
    /// Constants.
    Constants = 4,
    /// Inputs and outputs of an entry.
    InputOutput = 5,
}

/// One operator at its place in execution order.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// The operator.
    pub op: Op,
    /// What it takes.
    pub operands: Vec<OperandRecord>,
    /// Indices of the values that it computes.
    pub results: Vec<u32>,
    /// How it reads its weight operands, one each, in order of operands.
    pub reads: Vec<ReadRecord>,
    /// Name of the ONNX node.
    pub name: String,
}

impl StepRecord {
    /// Whether an operand is a weight.
    pub fn reads_weights(&self) -> bool {
        self.operands.iter().any(|operand| matches!(operand, OperandRecord::Weight(_)))
    }

    /// Whether only rows, matrices or inputs of this weight, the operand at `position`, are read, once it is known which. Matrices of a
    /// weight in which they do not lie apart are not.
    pub fn picks(&self, position: usize, weight: &WeightRecord) -> bool {
        self.reads.iter().filter(|read| read.operand as usize == position).any(|read| match read.read {
            Read::Rows => true,
            Read::Groups => weight.encoding.dense_panels().is_some(),
            Read::Nonzero => weight.encoding.as_input_major().is_some_and(|runs| runs.is_read_apart()),
            Read::Once | Read::Repeated => false,
        })
    }
}

/// What a step takes or a block gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperandRecord {
    /// Left out.
    Absent,
    /// A value of the block.
    Value(u32),
    /// A weight of the file.
    Weight(u32),
}

/// How a step reads one weight operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRecord {
    /// Index of the operand.
    pub operand: u32,
    /// How it is read.
    pub read: Read,
}

/// Stored bytes of one weight or part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentRecord {
    /// 0 for this file, else 1 + the index of a [`FileRecord`].
    pub file: u32,
    /// Offset from the beginning of that file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes that one checksum covers: a power of two, 4 KiB to 2 MiB.
    pub checksum_block: u32,
    /// CRC32C of each block.
    pub checksums: Vec<u32>,
    /// It lies among the small extents at the beginning of the stream, which stay resident.
    pub pooled: bool,
    /// Index of the chunk that holds it; 0 for other files.
    pub chunk: u32,
}

/// A piece of the stream, the unit of I/O; begins and ends on 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Offset from the beginning of the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of the bytes.
    pub hash: [u8; 32],
}

/// Another file whose extents this one uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRecord {
    /// The root hash in its superblock.
    pub root_hash: [u8; 32],
}

/// How the steps of a block are spread over the tiles of a target, at one value of each dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementRecord {
    /// Name of the target.
    pub target: String,
    /// BLAKE3 of the description of the target.
    pub target_hash: [u8; 32],
    /// Index of the block that is placed.
    pub block: u32,
    /// Steps that are placed, in order.
    pub steps: Vec<StepPlacementRecord>,
    /// Values of dimensions for which it holds: symbol, value.
    pub bindings: Vec<(String, i64)>,
}

/// How one step is spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlacementRecord {
    /// Index of the step in the block.
    pub step: u32,
    /// Splits of its spaces, outermost first.
    pub splits: Vec<SplitRecord>,
    /// Operand that stays in the tiles while the others pass.
    pub stationary: Option<u32>,
    /// Tiles that compute it: ranges in order.
    pub tiles: Vec<Range<u32>>,
    /// Where its operands and results lie in the memory of these tiles.
    pub regions: Vec<RegionRecord>,
    /// How partial results are combined.
    pub reduction: Reduction,
    /// What it was compared with, for people; may be empty.
    pub reason: String,
}

/// The points along an axis in parts of equal length, but for a shorter last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitRecord {
    /// Index of the space among those of the step.
    pub space: u32,
    /// Index of the axis.
    pub axis: u32,
    /// Number of parts.
    pub parts: u32,
    /// Where the parts are computed.
    pub kind: SplitKind,
}

/// Where the parts of a split are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SplitKind {
    /// Each on tiles of its own.
    Tiles,
    /// One after another.
    Time,
}

/// Bytes of a tile's memory that hold its part of an operand or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionRecord {
    /// The operand or result.
    pub operand: OperandRecord,
    /// Offset in the memory.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// First step that needs it.
    pub from: u32,
    /// Last step that needs it.
    pub to: u32,
}

/// How partial results of a reduced axis that is split are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reduction {
    /// There are none.
    None,
    /// In order of the parts.
    Chain,
    /// Neighbours first, then neighbouring pairs, and so on.
    Tree,
}
