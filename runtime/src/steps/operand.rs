//! What a kernel is given: nothing, a value, a weight that is read part by part, or a version of state in pages.

use crate::steps::{KernelError, Prepared};
use crate::versions::Version;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, EncodingError, PartBytesRange, Pick, Place};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{PartRecord, WeightRecord};
use ipuc_formats::ops::TypeError;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::any::Any;
use std::convert::Infallible;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// One operand of a running step.
#[derive(Default)]
pub enum Operand {
    /// Left out.
    #[default]
    Absent,
    /// A value; exclusively owned where this step is its last reader.
    Value(Value),
    /// A weight of the file.
    Weight(Weight),
    /// A version of a growing state.
    Version(Version),
}

/// A result of a running step, or what an entry is given: a value or a version of a growing state.
#[derive(Clone)]
pub enum Contents {
    /// A value.
    Value(Value),
    /// A version.
    Version(Version),
}

impl Contents {
    /// Its type, with known extents.
    pub fn kind(&self) -> Type {
        match self {
            Contents::Value(value) => value.kind(),
            Contents::Version(version) => version.kind(),
        }
    }
}

impl From<Value> for Contents {
    fn from(value: Value) -> Self {
        Contents::Value(value)
    }
}

impl Operand {
    /// The value, with a weight loaded whole.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where the weight cannot be read.
    pub fn into_value(self) -> Result<Option<Value>, KernelError> {
        match self {
            Operand::Absent => Ok(None),
            Operand::Value(value) => Ok(Some(value)),
            Operand::Weight(weight) => Ok(Some(Value::Tensor(weight.tensor()?))),
            // `Kernel::compute` has copied versions for kernels that do not read pages.
            Operand::Version(version) => {
                let found = format!("{} in pages", version.kind());
                Err(TypeError::Kind { operand: 0, expected: "a value", found }.into())
            }
        }
    }

    /// The weight, where it is one.
    pub fn as_weight(&self) -> Option<&Weight> {
        match self {
            Operand::Weight(weight) => Some(weight),
            Operand::Absent | Operand::Value(_) | Operand::Version(_) => None,
        }
    }

    /// Type of the operand, with known extents; `None` where it is absent.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where the extents of a weight do not fit in memory addresses.
    pub fn kind(&self) -> Result<Option<Type>, KernelError> {
        Ok(match self {
            Operand::Absent => None,
            Operand::Value(value) => Some(value.kind()),
            Operand::Weight(weight) => Some(Type::tensor(weight.dtype(), Shape::known(weight.shape()?))),
            Operand::Version(version) => Some(version.kind()),
        })
    }
}

/// The stored bytes of one part of a weight; held while a kernel uses them.
#[derive(Clone)]
pub struct PartBytes {
    owner: Arc<dyn Deref<Target = [u8]> + Send + Sync>,
}

impl PartBytes {
    /// Bytes that `owner` keeps alive; dropping the last reference gives their place back.
    pub fn new(owner: Arc<dyn Deref<Target = [u8]> + Send + Sync>) -> Self {
        PartBytes { owner }
    }
}

impl Deref for PartBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.owner
    }
}

/// Gives the bytes of a weight's parts: from memory, or as they arrive.
pub trait PartSource: Send + Sync {
    /// The bytes of part `part`; waits until they are there and checked.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read or do not match their checksum.
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError>;

    /// The weight as a canonical tensor, where it is kept in memory that way.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where it cannot be read or does not match its checksum.
    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError>;

    /// Writes the canonical bytes of rows `rows` (along axis 0) of a weight whose rows can be read alone, one after another.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read, do not match their checksum, or do not fill `target`.
    fn rows(&self, weight: u32, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError>;

    /// The stored bytes of matrices (experts) of a weight whose matrices can be read alone: of each the pieces that
    /// [`WeightRecord::locate`] gives.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read or do not match their checksum.
    fn matrices(&self, weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError>;

    /// Stored bytes of a weight that lie anywhere in its parts, one piece for each; `None` where all parts are in memory, so that
    /// nothing has to be read.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read or do not match their checksum.
    fn pieces(&self, _weight: u32, _pieces: &[PartBytesRange]) -> Result<Option<Vec<PartBytes>>, KernelError> {
        Ok(None)
    }

    /// Bytes of parts that a kernel may hold at a time: enough to share the work that each call of a core repeats, little
    /// enough to begin before a large weight is complete. A single part may be larger.
    fn most_held_bytes(&self) -> usize {
        32 << 20
    }

    /// Bytes of matrices that may be picked at a time; a single one may be larger.
    fn most_picked_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Whether [`part`](PartSource::part) would give this part without waiting.
    fn is_ready(&self, _weight: u32, _part: usize) -> bool {
        true
    }

    /// The run has come to this place. A step or block that fails does not end, its pass does.
    fn progress(&self, _progress: Progress) {}
}

/// Where a run is: tells a source what it will be asked for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// An entry's block begins.
    PassBegins {
        /// The block.
        block: u32,
    },
    /// A step runs a block.
    BlockBegins {
        /// The block.
        block: u32,
    },
    /// A step begins; the number of its steps stands for the results of the block.
    StepBegins {
        /// The block.
        block: u32,
        /// The step in it.
        step: u32,
    },
    /// The step has ended.
    StepEnds {
        /// The block.
        block: u32,
        /// The step in it.
        step: u32,
    },
    /// The entry's block has ended, or failed.
    PassEnds,
}

/// A weight of the file, and what steps have worked out from its record, for all operands that it is.
pub struct StoredWeight {
    record: Arc<WeightRecord>,
    /// Logical extents, where they fit in memory addresses.
    shape: Option<Box<[usize]>>,
    prepared: Prepared,
}

impl StoredWeight {
    /// A weight of which nothing was worked out.
    pub fn new(record: impl Into<Arc<WeightRecord>>) -> Self {
        let record = record.into();
        let shape = record.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        StoredWeight { record, shape, prepared: Prepared::default() }
    }

    /// What the file says of it.
    pub fn record(&self) -> &WeightRecord {
        &self.record
    }
}

/// A weight of the file as an operand.
#[derive(Clone)]
pub struct Weight {
    index: u32,
    stored: Arc<StoredWeight>,
    source: Arc<dyn PartSource>,
}

impl Weight {
    /// Weight `index` of the file, whose parts come from `source`.
    pub fn new(index: u32, stored: Arc<StoredWeight>, source: Arc<dyn PartSource>) -> Self {
        Weight { index, stored, source }
    }

    /// What `make` gives, which an earlier call may have left at the weight: there is one thing of each weight that is worked out.
    pub(super) fn prepared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(made) = self.stored.prepared.get(&[], || Ok::<T, Infallible>(make()));
        made
    }

    /// Logical element type.
    pub fn dtype(&self) -> DType {
        self.stored.record.dtype
    }

    /// Logical extents.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where one does not fit in memory addresses.
    pub fn shape(&self) -> Result<&[usize], KernelError> {
        let shape = self.stored.shape.as_deref();
        shape.ok_or_else(|| self.failure("its shape does not fit in memory addresses"))
    }

    /// How the elements are stored.
    pub fn encoding(&self) -> &Coded {
        &self.stored.record.encoding
    }

    /// Whether single rows along axis 0 can be read.
    pub fn has_rows(&self) -> bool {
        self.stored.record.locate(Pick::Row(0)).is_ok()
    }

    /// The parts, in stream order.
    pub fn parts(&self) -> &[PartRecord] {
        &self.stored.record.parts
    }

    /// The stored bytes of part `part`; waits until they are there.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read or do not match their checksum.
    pub fn part(&self, part: usize) -> Result<PartBytes, KernelError> {
        self.source.part(self.index, part)
    }

    /// Writes the canonical bytes of rows (along axis 0), for weights that [have rows](Weight::has_rows).
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read, or do not fill `target`.
    pub fn rows(&self, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError> {
        self.source.rows(self.index, rows, target)
    }

    /// The stored bytes of matrices (experts), of each the pieces that [`Weight::place_of_matrix`] names.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read.
    pub fn matrices(&self, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        self.source.matrices(self.index, matrices)
    }

    /// Stored bytes that lie anywhere in the parts; `None` where all of them are in memory.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where they cannot be read.
    pub fn pieces(&self, pieces: &[PartBytesRange]) -> Result<Option<Vec<PartBytes>>, KernelError> {
        self.source.pieces(self.index, pieces)
    }

    /// Where the planes and some inputs of a unit lie among the parts, each piece with the inputs that it has.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where its inputs cannot be read alone.
    pub fn place_of_inputs(
        &self,
        unit: u64,
        inputs: &[Range<u64>],
    ) -> Result<Vec<(Range<u64>, PartBytesRange)>, KernelError> {
        self.stored.record.locate_inputs(unit, inputs).map_err(|error| self.failure(&error.to_string()))
    }

    /// Where a matrix lies among the parts.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where it is outside the weight or cannot be read alone.
    pub fn place_of_matrix(&self, matrix: u64) -> Result<Place, KernelError> {
        self.stored.record.locate(Pick::Group(matrix)).map_err(|error| self.failure(&error.to_string()))
    }

    /// The whole weight as a canonical tensor.
    ///
    /// # Errors
    /// [`KernelError::Weight`] where it cannot be read.
    pub fn tensor(&self) -> Result<Tensor, KernelError> {
        let tensor = match self.source.tensor(self.index)? {
            Some(tensor) => Ok(tensor),
            None => self.stored.record.decode(|part| self.part(part).map_err(Decoding::Part)),
        };
        tensor.map_err(|error| error.of(&|error| self.failure(&error.to_string())))
    }

    /// Bytes of matrices that a kernel may pick at a time; a single one may be larger.
    pub fn most_picked_bytes(&self) -> u64 {
        self.source.most_picked_bytes()
    }

    /// Bytes of parts that a kernel may hold at a time; a single part may be larger.
    pub fn most_held_bytes(&self) -> usize {
        self.source.most_held_bytes()
    }

    /// Whether [`part`](Weight::part) would give this part without waiting.
    pub fn is_ready(&self, part: usize) -> bool {
        self.source.is_ready(self.index, part)
    }

    fn failure(&self, reason: &str) -> KernelError {
        KernelError::Weight { weight: self.stored.record.label(), reason: reason.to_string() }
    }
}

/// Why a weight cannot be made a tensor.
pub(crate) enum Decoding {
    Part(KernelError),
    Encoding(EncodingError),
}

impl Decoding {
    /// The error of a kernel, with what `failure` makes of an encoding's.
    pub(crate) fn of(self, failure: &dyn Fn(&dyn std::fmt::Display) -> KernelError) -> KernelError {
        match self {
            Decoding::Part(error) => error,
            Decoding::Encoding(error) => failure(&error),
        }
    }
}

impl From<EncodingError> for Decoding {
    fn from(error: EncodingError) -> Self {
        Decoding::Encoding(error)
    }
}
