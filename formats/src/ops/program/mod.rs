//! Scalar programs: what a step does to each element, as a sequence of functions in single assignment.
//!
//! A product runs one over its accumulators before anything is rounded; the operator `map` runs one over operands. Each step
//! computes its function exactly (floats in f64) and rounds the result once, to its own type: an integer type takes the
//! nearest integer, halves to even, limited to its range, and 0 for NaN; only `cast` converts as the operator of that name
//! does. Stored and printed as one text a step and one for the results, left out where empty:
//!
//! ```text
//! "cast x : f32", "mul %0 $2 : f32", "round %1 : i32", "add %2 i32(3) : u8", "return %3"
//! ```
//!
//! where `x` is the accumulator, `%1` an earlier step, `$2` an operand of the step that the program belongs to.

pub(crate) mod error;
mod evaluate;
mod function;
mod steps;
mod text;

#[cfg(test)]
mod tests;

pub use error::ProgramError;
pub use function::Function;
pub(crate) use steps::operand_type;
pub use steps::{Argument, MOST_STEPS, Program, ScalarStep};
