//! Files that are read: ONNX models and the data beside them, reached by position.
//!
//! `formats` says what bytes mean and opens nothing; here files are opened, and it is decided which files a
//! model may refer to.

pub mod external;
pub mod output;
pub mod source;

pub use external::{ExternalFileError, ExternalFiles};
pub use output::OutputFile;
pub use source::{SourceFile, SourceFileError};
