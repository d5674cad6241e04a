//! ipuc.

pub mod compare;
pub mod compile;
pub mod files;

pub use compile::compile;
