//! What a reference needs besides its operands, and how it fails.

use crate::attribute::BlockIndex;
use crate::fact::Type;
use crate::ops::TypeError;
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;
use thiserror::Error;

/// Why a reference gives no result.
#[derive(Debug, Error)]
pub enum ReferenceError {
    /// The operands do not fit the operator.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A result cannot be built.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An index or a size in an operand's contents is out of range.
    #[error("{subject} is {found}, outside {range}")]
    OutOfRange {
        /// What it is, in words.
        subject: String,
        /// Its value.
        found: i64,
        /// What is allowed, in words.
        range: String,
    },
    /// A body failed.
    #[error("in the body: {0}")]
    Block(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What computes the operator in place of its reference failed.
    #[error(transparent)]
    Kernel(Box<dyn std::error::Error + Send + Sync>),
}

/// Runs blocks for a control-flow operator.
pub trait BlockRunner {
    /// Results of the block for these arguments (one a parameter).
    ///
    /// # Errors
    /// [`ReferenceError::Block`] where a step fails.
    fn run_block(&mut self, block: BlockIndex, arguments: Vec<Value>) -> Result<Vec<Value>, ReferenceError>;

    /// Types of the block's results as far as they are known without running it: what a loop without iterations
    /// stacks. Dimensions that have no value yet may stay symbols.
    ///
    /// # Errors
    /// [`ReferenceError::Block`] where there is no such block.
    fn result_types(&mut self, block: BlockIndex) -> Result<Vec<Type>, ReferenceError>;
}

impl BlockRunner for crate::ops::NoBlocks {
    fn run_block(&mut self, block: BlockIndex, _arguments: Vec<Value>) -> Result<Vec<Value>, ReferenceError> {
        Err(ReferenceError::Type(TypeError::Block(format!("block {} does not exist", block.0))))
    }

    fn result_types(&mut self, block: BlockIndex) -> Result<Vec<Type>, ReferenceError> {
        Err(ReferenceError::Type(TypeError::Block(format!("block {} does not exist", block.0))))
    }
}

/// What a reference may use besides its operands.
pub struct ReferenceContext<'a> {
    /// Bodies of control flow.
    pub blocks: &'a mut dyn BlockRunner,
    /// Multiply-accumulates counted so far; products add theirs inside their loops.
    pub macs: u64,
    /// Seed for random operators without one; changes with each draw.
    pub random_state: u64,
}

impl<'a> ReferenceContext<'a> {
    /// A context with fresh counters.
    pub fn new(blocks: &'a mut dyn BlockRunner) -> Self {
        ReferenceContext { blocks, macs: 0, random_state: 0x9e37_79b9_7f4a_7c15 }
    }
}

/// The tensor behind operand `operand`.
///
/// # Errors
/// [`TypeError`] where it is absent or no tensor.
pub fn tensor(inputs: &[Option<Value>], operand: usize) -> Result<&Tensor, ReferenceError> {
    match inputs.get(operand).and_then(Option::as_ref) {
        None => Err(TypeError::MissingOperand { operand }.into()),
        Some(Value::Tensor(tensor)) => Ok(tensor),
        Some(other) => Err(TypeError::Kind { operand, expected: "a tensor", found: other.kind().to_string() }.into()),
    }
}

/// The tensor behind operand `operand`, or `None` where it is absent.
///
/// # Errors
/// [`TypeError::Kind`] where it is no tensor.
pub fn optional_tensor(inputs: &[Option<Value>], operand: usize) -> Result<Option<&Tensor>, ReferenceError> {
    match inputs.get(operand).and_then(Option::as_ref) {
        None => Ok(None),
        Some(_) => tensor(inputs, operand).map(Some),
    }
}

/// The elements of an integer or bool tensor operand as i64 (shapes, axes, indices).
///
/// # Errors
/// [`TypeError::ElementType`] for other types.
pub fn integers(inputs: &[Option<Value>], operand: usize) -> Result<Vec<i64>, ReferenceError> {
    let tensor = tensor(inputs, operand)?;
    crate::fact::integers(tensor).ok_or_else(|| {
        TypeError::ElementType { operand, expected: "an integer type".to_string(), found: tensor.dtype() }.into()
    })
}
