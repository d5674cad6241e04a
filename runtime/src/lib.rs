//! The executor.

pub mod kernels;
