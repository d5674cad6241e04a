//! What can be wrong with a program.

use crate::dtype::DType;
use thiserror::Error;

/// Why a program means nothing for the operands and the accumulator that it is given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// More steps than programs may have.
    #[error("it has {found} steps, at most {most} are allowed")]
    TooManySteps {
        /// How many it has.
        found: usize,
        /// How many it may have.
        most: usize,
    },
    /// Another number of results than the operator has.
    #[error("it has {found} results, expected {expected}")]
    Results {
        /// How many it has.
        found: usize,
        /// What is expected, in words.
        expected: &'static str,
    },
    /// A step that does not come before the one that reads it.
    #[error("{reader} reads step {found}, of which only {known} come before")]
    ForwardReference {
        /// The step that reads, or the results.
        reader: String,
        /// What it reads.
        found: u16,
        /// Steps before it.
        known: usize,
    },
    /// A function with another number of arguments than it takes.
    #[error("step {step}: `{function}` takes {expected} arguments, found {found}")]
    Arity {
        /// The step.
        step: usize,
        /// Its function.
        function: &'static str,
        /// How many the function takes.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Types that a function does not take or give.
    #[error("step {step}: {reason}")]
    Types {
        /// The step.
        step: usize,
        /// What is wrong.
        reason: String,
    },
    /// An operand that the step has not.
    #[error("operand {operand} is missing")]
    Operand {
        /// Its index.
        operand: u16,
    },
    /// An operand of a type that programs do not compute with.
    #[error("elements of type {0} in a program")]
    ElementType(DType),
    /// A constant whose bits are no value of its type.
    #[error("a constant of type {dtype} with bits {bits:#x}")]
    Constant {
        /// The type.
        dtype: DType,
        /// The bits.
        bits: u64,
    },
    /// The accumulator where there is none.
    #[error("it reads an accumulator, which only products have")]
    NoAccumulator,
}
