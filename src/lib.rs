//! ipuc compiles ONNX models into execution-ordered `.ipu` files and runs them.

#[cfg(feature = "compile")]
pub mod build;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
#[cfg(feature = "compile")]
pub mod compile;
pub mod files;
#[cfg(feature = "run")]
pub mod handle;
#[cfg(feature = "run")]
pub mod open;

#[cfg(feature = "compile")]
pub use compile::compile;
#[cfg(feature = "run")]
pub use handle::{Array, HandleError};
pub use ipuc_formats::element::{bf16, f16};
pub use ipuc_formats::tensor::Tensor;
pub use ipuc_formats::value::Value;
#[cfg(feature = "run")]
pub use ipuc_runtime::{Model, OpenError, RunError, Session, SessionOptions};
#[cfg(feature = "run")]
pub use open::{OpenFileError, OpenOptions, open, open_bytes, open_with};

/// The module of a model that [`build::compile`](crate::build) compiled, under the name of the model's file.
#[cfg(feature = "run")]
#[macro_export]
macro_rules! include_model {
    ($visibility:vis $name:ident) => {
        #[allow(dead_code, reason = "a program uses what it needs of a generated handle")]
        $visibility mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
        }
    };
}
