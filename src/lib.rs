//! ipuc compiles ONNX models into execution-ordered `.ipu` files and runs them.

#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
#[cfg(feature = "compile")]
pub mod compile;
pub mod files;
#[cfg(feature = "run")]
pub mod open;

#[cfg(feature = "compile")]
pub use compile::compile;
#[cfg(feature = "run")]
pub use open::{OpenOptions, open, open_with};
