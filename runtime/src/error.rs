//! Why a file cannot be opened or run.

use crate::steps::KernelError;
use crate::versions::VersionError;
use ipuc_formats::model::FormatError;
use ipuc_formats::ops::TypeError;
use ipuc_formats::size::{NeededSize, Size};
use ipuc_kernels::simd::UnknownInstructions;
use thiserror::Error;

/// Why a file cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file is malformed, truncated or of another version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A step whose records do not fit its operator.
    #[error("block {block}, step `{step}` ({operator}): {error}")]
    Step {
        /// Index of its block.
        block: u32,
        /// Name of the step.
        step: String,
        /// Name of the operator.
        operator: &'static str,
        /// What does not fit.
        error: TypeError,
    },
    /// The file cannot be read.
    #[error("cannot read weights at offset {offset}: {error}")]
    Read {
        /// Absolute offset.
        offset: u64,
        /// What the medium reports.
        error: std::io::Error,
    },
    /// Weights lie in other files.
    #[error("the file uses weights of {count} other files, which is not supported")]
    OtherFiles {
        /// How many.
        count: usize,
    },
    /// The budget is too small for the largest dimensions that the file allows, or for any.
    #[error("a memory budget of {} is too small: {} are needed", Size(*budget_bytes), NeededSize(*needed_bytes))]
    Budget {
        /// The smallest budget that works.
        needed_bytes: u64,
        /// The budget.
        budget_bytes: u64,
    },
    /// Memory is short.
    #[error("the weights need {} in memory, {} are available", NeededSize(*needed_bytes), Size(*available_bytes))]
    Memory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes that may be used.
        available_bytes: u64,
    },
}

/// Why a run gives no outputs.
#[derive(Debug, Error)]
pub enum RunError {
    /// The environment names an instruction set that this processor does not have.
    #[error(transparent)]
    Instructions(#[from] UnknownInstructions),
    /// Sessions that cannot share a pass.
    #[error("only sessions of one model, each with its inputs, run together")]
    OtherModel,
    /// No entry is named, and there are several.
    #[error("an entry must be named; there are {known}")]
    UnnamedEntry {
        /// Names of all entries.
        known: String,
    },
    /// No entry of this name.
    #[error("there is no entry `{name}`; entries are {known}")]
    UnknownEntry {
        /// Name asked for.
        name: String,
        /// Names of all entries.
        known: String,
    },
    /// An input that the entry does not have.
    #[error("there is no input `{name}`; inputs are {known}")]
    UnknownInput {
        /// Name given.
        name: String,
        /// Names of all inputs.
        known: String,
    },
    /// An input that is not given.
    #[error("input `{name}` ({expected}) is missing")]
    MissingInput {
        /// Name of the input.
        name: String,
        /// Its declared type.
        expected: String,
    },
    /// An input of another type.
    #[error("input `{name}` must be {expected}, found {found}")]
    InputType {
        /// Name of the input.
        name: String,
        /// Its declared type.
        expected: String,
        /// The type given.
        found: String,
    },
    /// An input whose extent does not fit.
    #[error("input `{name}` axis {axis} must be {expected}, found {found}")]
    InputShape {
        /// Name of the input.
        name: String,
        /// The axis.
        axis: usize,
        /// Its declared extent, with bound symbols replaced.
        expected: String,
        /// The extent given.
        found: usize,
    },
    /// A dimension outside the range that was compiled for.
    #[error("dimension `{symbol}` must be {}, found {value}", range(*minimum, *maximum))]
    OutOfRange {
        /// The symbol.
        symbol: String,
        /// Its value.
        value: i64,
        /// Least value.
        minimum: i64,
        /// Greatest value.
        maximum: i64,
    },
    /// Dimensions that must agree do not.
    #[error("entry `{entry}`: {subject}: {left} does not fit {right}")]
    Obligation {
        /// Name of the entry.
        entry: String,
        /// What is compared, with the name of the node.
        subject: String,
        /// Left side with its value.
        left: String,
        /// Right side with its value.
        right: String,
    },
    /// A state has no first contents.
    #[error("state `{name}`: {reason}")]
    State {
        /// Name of the input that is state.
        name: String,
        /// Why.
        reason: String,
    },
    /// The budget is too small for the dimensions of this run.
    #[error(
        "a memory budget of {} is too small for these inputs: {} are needed, {} of them for activations, state, inputs \
         and outputs",
        Size(*budget_bytes),
        NeededSize(*needed_bytes),
        Size(*working_bytes)
    )]
    Budget {
        /// The smallest budget that works.
        needed_bytes: u64,
        /// The budget.
        budget_bytes: u64,
        /// What is needed besides weights.
        working_bytes: u64,
    },
    /// An observer puts a value of another kind in place of a result.
    #[error("an observer replaces the result of step `{step}` by a value of another type or shape")]
    Replaced {
        /// Name of the step.
        step: String,
    },
    /// There is no memory for what a run needs besides weights.
    #[error("there is no memory for {} of activations, inputs and state", Size(*bytes))]
    Memory {
        /// Bytes that are missing.
        bytes: u64,
    },
    /// State cannot go to the spill file.
    #[error("state does not fit in the memory budget: {error}")]
    Spill {
        /// What went wrong.
        error: VersionError,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {reason}")]
    Threads {
        /// Why.
        reason: String,
    },
    /// A step failed.
    #[error("node `{step}` ({operator}): {error}")]
    Step {
        /// Name of the step.
        step: String,
        /// Name of the operator.
        operator: &'static str,
        /// Why.
        error: KernelError,
    },
}

fn range(minimum: i64, maximum: i64) -> String {
    match maximum {
        _ if minimum == maximum => minimum.to_string(),
        i64::MAX => format!("at least {minimum}"),
        maximum => format!("from {minimum} to {maximum}"),
    }
}
