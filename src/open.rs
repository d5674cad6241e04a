//! A file by its path becomes a model that runs.

use crate::files::{SourceFile, SourceFileError};
use ipuc_runtime::{Model, OpenError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file cannot be opened as a model.
#[derive(Debug, Error)]
pub enum OpenFileError {
    /// The file cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceFileError),
    /// The file is no sound `.ipu` file, or its weights do not fit into memory.
    #[error("cannot open `{}`: {error}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why.
        error: OpenError,
    },
}

/// Open an `.ipu` file.
///
/// # Errors
/// [`OpenFileError`] where it cannot be read, is damaged, or does not fit into memory.
pub fn open(path: impl AsRef<Path>) -> Result<Model, OpenFileError> {
    let path = path.as_ref();
    let file = SourceFile::open(path)?;
    Model::open(&file).map_err(|error| OpenFileError::Model { path: path.to_owned(), error })
}
