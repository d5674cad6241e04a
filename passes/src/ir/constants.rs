//! Constants: tensors whose bytes are in memory, still in their file, or computed when they are needed.

use crate::ir::{ConstantId, Graph};
use crate::rounding::{Part, RoundingError, Scheme};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Zeros};
use ipuc_formats::fact::{Fact, Shape};
use ipuc_formats::onnx::{TensorDataError, TensorSource};
use ipuc_formats::ops::{Op, ReferenceError};
use ipuc_formats::tensor::{Tensor, element_count};
use ipuc_formats::value::Value;
use std::sync::Arc;
use thiserror::Error;

/// A constant of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// ONNX name of the tensor, for constants that have one.
    pub name: Option<Arc<str>>,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Where the bytes are.
    pub data: ConstantData,
    /// Where the bytes of a constant in memory came from, if they are those of a file.
    pub origin: Option<Origin>,
    /// How it is stored, where a pass has chosen that; emission decides for all others.
    pub encoding: Option<ChosenEncoding>,
    /// What was found of its zeros, where a pass has looked.
    pub zeros: Option<Zeros>,
}

/// How a pass wants a constant to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenEncoding {
    /// How.
    pub encoding: Coded,
    /// Whether a budget for all weights decided.
    pub by_budget: bool,
    /// Why, in words.
    pub reason: String,
}

/// A place in a file of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Index into [`Graph::sources`].
    pub source: u32,
    /// Where the bytes begin.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
}

/// Where the bytes of a constant are.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstantData {
    /// In memory.
    Tensor(Tensor),
    /// In the model's file or beside it.
    Stored(Stored),
    /// The only result of an operator over other constants, computed while emitting.
    Recipe {
        /// The operator; pure.
        op: Op,
        /// Its operands.
        operands: Vec<Option<ConstantId>>,
    },
    /// A part of what rounding another constant gives, made while emitting, part by part.
    Rounded(Rounded),
    /// Not at hand: only the hash of the canonical bytes is known. The text form gives large constants so.
    Hashed(blake3::Hash),
}

/// A tensor whose elements stay in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Index into [`Graph::sources`].
    pub source: u32,
    /// Where in the file, and in which form.
    pub tensor: Arc<TensorSource>,
}

/// What rounding a constant gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounded {
    /// The constant that is rounded: f32, f16 or bf16.
    pub weight: ConstantId,
    /// What is known of the inputs of products with it: what [`Moments::factor`](crate::moments::Moments::factor) gives.
    pub factor: Option<ConstantId>,
    /// To what.
    pub to: RoundedTo,
}

/// What a constant is rounded to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RoundedTo {
    /// Elements of the narrower float type that the rounded constant has.
    Narrow,
    /// Codes with parameters, of which the rounded constant is this part.
    Codes(Scheme, Part),
}

/// Why a constant's bytes cannot be had.
#[derive(Debug, Error)]
pub enum ConstantError {
    /// The file cannot be read or its bytes do not make the tensor.
    #[error("cannot read `{file}`: {error}")]
    Read {
        /// Name of the file.
        file: String,
        /// Why.
        error: TensorDataError,
    },
    /// The recipe cannot be computed.
    #[error("cannot compute constant `{tensor}` with `{operator}`: {error}")]
    Recipe {
        /// Name of the constant.
        tensor: String,
        /// Name of the operator.
        operator: &'static str,
        /// Why not.
        error: ReferenceError,
    },
    /// A weight has elements that its codes cannot stand for.
    #[error("cannot round weight `{tensor}`: {error}")]
    Rounding {
        /// Name of the weight.
        tensor: String,
        /// Why.
        error: RoundingError,
    },
    /// Only the hash of the bytes is known.
    #[error(
        "the bytes of constant `{tensor}` are not at hand: its graph was read from text, which has their hash only"
    )]
    Hashed {
        /// Name of the constant.
        tensor: String,
    },
}

impl Constant {
    /// A constant in memory.
    pub fn of(tensor: Tensor, name: Option<&str>) -> Constant {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        Constant {
            name: name.map(Arc::from),
            dtype,
            shape,
            data: ConstantData::Tensor(tensor),
            origin: None,
            encoding: None,
            zeros: None,
        }
    }

    /// The tensor, where it is in memory.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.data {
            ConstantData::Tensor(tensor) => Some(tensor),
            ConstantData::Stored(_)
            | ConstantData::Recipe { .. }
            | ConstantData::Rounded(_)
            | ConstantData::Hashed(_) => None,
        }
    }

    /// What is known of it: contents too, where they are in memory.
    pub fn fact(&self) -> Fact {
        match self.tensor() {
            Some(tensor) => Fact::constant(tensor.clone()),
            None => Fact::tensor(self.dtype, Shape::known(&self.shape)),
        }
    }

    /// Packed bytes; 0 for strings.
    pub fn byte_count(&self) -> u64 {
        let bytes = element_count(&self.shape).and_then(|count| self.dtype.packed_bytes(count));
        bytes.map_or(0, |bytes| bytes as u64)
    }

    /// The name for messages.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or("(unnamed)")
    }
}

impl Graph {
    /// Read or compute the tensor of a constant.
    ///
    /// # Errors
    /// [`ConstantError`] where a file cannot be read, a recipe cannot be computed, or only the hash of the bytes is known.
    pub fn load_constant(&self, id: ConstantId) -> Result<Tensor, ConstantError> {
        let constant = self.constant(id);
        match &constant.data {
            ConstantData::Tensor(tensor) => Ok(tensor.clone()),
            ConstantData::Stored(stored) => {
                let source = &self.sources[stored.source as usize];
                let failure = |error| ConstantError::Read { file: source.name.clone(), error };
                stored.tensor.load(&*source.bytes).map_err(failure)
            }
            ConstantData::Recipe { op, operands } => {
                let inputs: Vec<Option<Value>> = operands
                    .iter()
                    .map(|operand| operand.map(|id| self.load_constant(id).map(Value::Tensor)).transpose())
                    .collect::<Result<_, _>>()?;
                let failure =
                    |error| ConstantError::Recipe { tensor: constant.label().to_string(), operator: op.name(), error };
                let results = self.evaluator.results(op, &inputs).map_err(failure)?;
                let result = ipuc_formats::ops::tensor(&results.into_iter().map(Some).collect::<Vec<_>>(), 0)
                    .map_err(failure)?
                    .clone();
                Ok(result)
            }
            ConstantData::Rounded(rounded) => self.load_rounded(rounded, constant),
            ConstantData::Hashed(_) => Err(ConstantError::Hashed { tensor: constant.label().to_string() }),
        }
    }

    /// Read canonical bytes of a stored constant from `offset` on, as many as the buffer holds.
    ///
    /// # Errors
    /// [`ConstantError::Read`] where the file cannot be read or ends early.
    pub fn read_stored(&self, stored: &Stored, offset: u64, buffer: &mut [u8]) -> Result<(), ConstantError> {
        let source = &self.sources[stored.source as usize];
        let failure = |error| ConstantError::Read { file: source.name.clone(), error };
        stored.tensor.read_at(&*source.bytes, offset, buffer).map_err(failure)
    }
}
