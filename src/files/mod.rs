//! Files that are read: ONNX models and the data beside them, reached by position.
//!
//! `formats` says what bytes mean and opens nothing; here files are opened, and it is decided which files a
//! model may refer to.

#[cfg(feature = "run")]
pub mod arriving;
#[cfg(feature = "run")]
pub mod direct;
#[cfg(feature = "compile")]
pub mod external;
#[cfg(feature = "cli")]
pub mod numpy;
#[cfg(feature = "compile")]
pub mod output;
#[cfg(all(feature = "run", target_os = "linux"))]
mod queue;
pub mod source;
#[cfg(feature = "compile")]
pub mod unfinished;

#[cfg(feature = "run")]
pub use arriving::{ArrivingFile, BegunPipe};
#[cfg(feature = "run")]
pub use direct::DirectFile;
#[cfg(feature = "compile")]
pub use external::{ExternalFileError, ExternalFiles};
#[cfg(feature = "compile")]
pub use output::{Destination, OutputFile, SequentialWriter};
pub use source::{SourceFile, SourceFileError};
