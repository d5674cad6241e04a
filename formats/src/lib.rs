//! The contract.

pub mod dim;
