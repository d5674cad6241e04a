//! The executor: opens a file, keeps its weights, runs its steps.
//!
//! [`steps`] says how each operator runs, and [`kernels`] are the numeric cores. The compiler is not needed here and not
//! known: the file is all there is.

pub mod kernels;
pub mod steps;
