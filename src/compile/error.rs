//! Why a model cannot be compiled.

use crate::files::{ExternalFileError, SourceFileError};
use ipuc_formats::onnx::OnnxError;
use ipuc_formats::size::Size;
use ipuc_passes::emit::EmitError;
use ipuc_passes::import::ImportError;
use ipuc_passes::pipeline::PipelineError;
use std::path::PathBuf;
use thiserror::Error;

/// Why a model cannot be compiled.
#[derive(Debug, Error)]
pub enum CompileError {
    /// The model cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceFileError),
    /// Folders of external data do not exist.
    #[error(transparent)]
    External(#[from] ExternalFileError),
    /// The model is malformed.
    #[error("cannot compile `{}`: {error}", path.display())]
    Onnx {
        /// The file.
        path: PathBuf,
        /// Why.
        error: OnnxError,
    },
    /// The model holds what is not supported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A pass failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The file cannot be emitted.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// Elements of a weight lie in a file that cannot be used.
    #[error("cannot compile `{}`: {error}", path.display())]
    ExternalData {
        /// The model.
        path: PathBuf,
        /// Why.
        error: ExternalFileError,
    },
    /// The weights take more than the size that they may have.
    #[error("weights take {}, and the size is {}", Size(*weights_bytes), Size(*size_bytes))]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// What they take.
        weights_bytes: u64,
    },
    /// The output would replace a file that is compiled.
    #[error("the output `{}` is a file that the model is made of", path.display())]
    Overwrites {
        /// The file.
        path: PathBuf,
    },
    /// No input has a dimension of this name.
    #[error("the inputs have no dimension `{name}`; there {}", known_dimensions(known))]
    UnknownDimension {
        /// The name.
        name: String,
        /// Names of all open dimensions of inputs.
        known: Vec<String>,
    },
    /// The output cannot be created or put in its place.
    #[error("cannot write `{}`: {error}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// What the medium reports.
        error: std::io::Error,
    },
    /// A dimension's range is empty.
    #[error(transparent)]
    Range(#[from] ipuc_formats::dim::DimError),
}

/// `is only `a``, as the end of a sentence.
fn known_dimensions(known: &[String]) -> String {
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "is none that is open".to_string(),
        [only] => format!("is only {only}"),
        names => format!("are {}", names.join(", ")),
    }
}

impl CompileError {
    /// The place that the file goes to is at fault, not the models.
    #[cfg(feature = "cli")]
    pub(crate) fn is_of_output(&self) -> bool {
        matches!(self, CompileError::Output { .. } | CompileError::Emit(EmitError::Write { .. }))
    }

    /// Its sentence names the file; the others are about the models as a whole.
    pub(crate) fn names_file(&self) -> bool {
        match self {
            CompileError::Import(_) | CompileError::Pipeline(_) | CompileError::Emit(_) | CompileError::Size { .. } => {
                false
            }
            CompileError::Source(_)
            | CompileError::External(_)
            | CompileError::Onnx { .. }
            | CompileError::ExternalData { .. }
            | CompileError::Overwrites { .. }
            | CompileError::UnknownDimension { .. }
            | CompileError::Output { .. }
            | CompileError::Range(_) => true,
        }
    }
}
