//! How each operator runs: operands to slices, a numeric core over them, slices to results.
//!
//! One file a family of operators; a row `impl Kernel for X {}` is enough for a new operator, whose reference then runs.
//! A fast kernel overrides [`Kernel::run`]: it takes operands by value (an operand that nobody reads afterwards is
//! exclusively owned and may be overwritten), asks [`Context::allocate`] for its results, and calls
//! [`ipuc_kernels`] for the arithmetic. Where a kernel has no fast path for some types it calls
//! [`run_reference`]: slower, never different beyond the operator's bound.
//!
//! This module knows no file, no thread pool and no plan.

mod attention;
mod classical;
mod context;
mod control;
mod elementwise;
mod evaluate;
mod floats;
mod images;
mod movement;
mod normalization;
mod operand;
mod prepared;
mod products;
mod program;
mod quantization;
mod recurrence;
mod signal;
mod stacked;
#[cfg(test)]
mod testing;
mod text;

pub use context::{Allocate, Context};
pub use evaluate::evaluate;
pub(crate) use operand::Decoding;
pub use operand::{Contents, Operand, PartBytes, PartSource, Progress, StoredWeight, Weight};
pub use prepared::Prepared;
pub(crate) use stacked::{Stacked, stack};

use crate::versions::VersionError;
use ipuc_formats::for_each_operator;
use ipuc_formats::ops::{Op, Operator, ReferenceContext, ReferenceError, TypeError};
use ipuc_formats::size::Size;
use ipuc_formats::tensor::{Tensor, TensorError};
use ipuc_formats::value::Value;
use thiserror::Error;

/// Why a step gives no results.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Operands do not fit or their contents are out of range.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A weight cannot be read.
    #[error("weight `{weight}`: {reason}")]
    Weight {
        /// Name of the weight.
        weight: String,
        /// Why.
        reason: String,
    },
    /// A result would exceed the memory budget.
    #[error("result {result} needs {}, more than the memory budget leaves", Size(*bytes))]
    Memory {
        /// Index of the result.
        result: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A version of state cannot be made or read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl From<TypeError> for KernelError {
    fn from(error: TypeError) -> Self {
        KernelError::Reference(error.into())
    }
}

impl From<TensorError> for KernelError {
    fn from(error: TensorError) -> Self {
        KernelError::Reference(error.into())
    }
}

/// How an operator runs here.
pub trait Kernel: Operator {
    /// Run one step.
    ///
    /// # Errors
    /// [`KernelError`] where operands do not fit, a weight cannot be read or memory is short.
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        run_reference(self, operands, context)
    }

    /// Run one step whose operands may be versions of growing state. Kernels that read their pages, or give versions, override
    /// it and [`Kernel::reads_pages`]; others get a copy of the contents.
    ///
    /// # Errors
    /// [`KernelError`] as [`Kernel::run`].
    fn compute(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        run_over_copies(self, operands, context)
    }

    /// Whether [`Kernel::compute`] reads versions where they are, so that no memory is needed for copies of them.
    fn reads_pages(&self) -> bool {
        false
    }

    /// Operands that are rows, `[.., row, column]`, each of which gives the row of the result in its place whatever the others
    /// are, where all others are weights: one run over the rows of several gives all their results. `None` where rows depend
    /// on each other, or do not lie this way.
    fn independent_rows(&self, _operands: &[Operand]) -> Option<Vec<usize>> {
        None
    }
}

/// Run one step over copies of the versions among its operands.
///
/// # Errors
/// [`KernelError`] as [`Kernel::run`].
pub fn run_over_copies<K: Kernel + ?Sized>(
    kernel: &K,
    operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Contents>, KernelError> {
    let operands = without_versions(operands, context)?;
    Ok(contents(kernel.run(operands, context)?))
}

/// Each value as contents of its own.
fn contents(values: Vec<Value>) -> Vec<Contents> {
    values.into_iter().map(Contents::Value).collect()
}

/// The operands, with a copy in place of each version.
///
/// # Errors
/// [`KernelError`] where memory is short, or pages cannot be read.
pub fn without_versions(operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Operand>, KernelError> {
    if !operands.iter().any(|operand| matches!(operand, Operand::Version(_))) {
        return Ok(operands);
    }
    let whole = |operand| match operand {
        Operand::Version(version) => Ok(Operand::Value(Value::Tensor(context.whole(&version)?))),
        Operand::Absent | Operand::Value(_) | Operand::Weight(_) => Ok(operand),
    };
    operands.into_iter().map(whole).collect()
}

/// Run the reference of an operator over loaded operands.
///
/// # Errors
/// [`KernelError`] as [`Kernel::run`].
pub fn run_reference<K: Operator + ?Sized>(
    operator: &K,
    operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    run_counted(&|inputs, reference| operator.reference(inputs, reference), operands, context)
}

/// What gives the reference of an operator.
type Reference<'a> = dyn Fn(&[Option<Value>], &mut ReferenceContext<'_>) -> Result<Vec<Value>, ReferenceError> + 'a;

/// What [`run_reference`] does for any operator, compiled once. The bytes of results are counted against the budget.
fn run_counted(
    reference: &Reference<'_>,
    operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let inputs: Vec<Option<Value>> = operands.into_iter().map(Operand::into_value).collect::<Result<_, _>>()?;
    let mut reference_context = ReferenceContext::new(context.blocks);
    reference_context.random_state = context.random_state;
    let results = reference(&inputs, &mut reference_context)?;
    context.random_state = reference_context.random_state;
    // Inputs are alive: what shares their bytes is no more memory.
    results.into_iter().enumerate().map(|(index, value)| counted(index, value, context)).collect()
}

/// A result of a reference with its bytes counted against the budget.
fn counted(index: usize, value: Value, context: &mut Context<'_>) -> Result<Value, KernelError> {
    let mut all = |values: Vec<Value>| -> Result<Vec<Value>, KernelError> {
        values.into_iter().map(|value| counted(index, value, context)).collect()
    };
    Ok(match value {
        Value::Tensor(mut tensor) => {
            let is_new = tensor.is_exclusive();
            if is_new { context.memory.adopt(index, tensor)? } else { tensor }.into()
        }
        Value::Sequence { element, items } => Value::Sequence { element, items: all(items)? },
        Value::Optional { element, value: Some(value) } => {
            Value::Optional { element, value: all(vec![*value])?.pop().map(Box::new) }
        }
        Value::Optional { value: None, .. } | Value::Map { .. } => value,
    })
}

macro_rules! dispatch {
    ($($code:literal $Op:ident $class:ident $name:literal,)*) => {
        /// The kernel of any operator.
        pub fn kernel(op: &Op) -> &dyn Kernel {
            match op { $(Op::$Op(operator) => operator,)* }
        }
    };
}
for_each_operator!(dispatch);

/// A tensor operand, loaded; for kernels that want plain tensors.
///
/// # Errors
/// [`KernelError`] where it is absent, no tensor, or a weight that cannot be read.
pub fn tensor_operand(operands: &mut [Operand], index: usize) -> Result<Tensor, KernelError> {
    let missing = TypeError::MissingOperand { operand: index };
    let operand = operands.get_mut(index).map(std::mem::take).unwrap_or_default();
    match operand.into_value()? {
        Some(Value::Tensor(tensor)) => Ok(tensor),
        Some(other) => {
            let found = other.kind().to_string();
            Err(TypeError::Kind { operand: index, expected: "a tensor", found }.into())
        }
        None => Err(missing.into()),
    }
}
