//! A file by its path becomes a model that runs.
//!
//! Without a budget the weights are kept in memory where they fit in what the machine has available; else they are streamed
//! within most of it.

use crate::files::{ArrivingFile, BegunPipe, DirectFile, SourceFile, SourceFileError};
use crate::memory;
use ipuc_formats::limits;
use ipuc_formats::model::read_manifest;
use ipuc_formats::read_at::ReadAt;
use ipuc_runtime::{Model, ModelOptions, OpenError, SharedBytes};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Room for what a small file needs besides its weights.
const ROOM_BYTES: u64 = 1 << 30;

/// Files from this size on are read past the page cache, unless they are in it.
const PAST_CACHE_BYTES: u64 = 256 << 20;

/// How a file is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Bytes for weights, activations, state, inputs and outputs. What fits is where `None`.
    pub memory_bytes: Option<u64>,
    /// Positions that state may grow to, for which room is kept free within the budget.
    pub context: Option<u64>,
    /// Folder of the file that state goes to when it and the weights do not fit any more; that of the system for temporary
    /// files where `None`.
    pub spill_folder: Option<PathBuf>,
    /// How weights that all fit are held; without meaning for those that are streamed.
    pub resident: Resident,
    /// Take weights as they come, where the file is still being written; how long nothing may come before that is an error.
    pub follow: Option<Duration>,
}

/// How weights are held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resident {
    /// In a copy of their own, on huge pages.
    #[default]
    Copy,
    /// In the page cache: processes that run the same file share one copy, and start at once. The file must not change.
    Map,
}

/// Why a file cannot be opened as a model.
#[derive(Debug, Error)]
pub enum OpenFileError {
    /// The file cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceFileError),
    /// A file that is still coming does not come.
    #[error("cannot open {name}: {error}")]
    Arriving {
        /// What is read.
        name: String,
        /// Why.
        error: io::Error,
    },
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
    open_with(path, OpenOptions::default())
}

/// Open an `.ipu` file within a memory budget.
///
/// # Errors
/// [`OpenFileError`] where it cannot be read, is damaged, or the budget is too small.
pub fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Model, OpenFileError> {
    let path = path.as_ref();
    if let Some(patience) = options.follow {
        let arriving = ArrivingFile::follow(path, patience)
            .map_err(|error| OpenFileError::Arriving { name: path.display().to_string(), error })?;
        return open_arriving(arriving, &path.display().to_string(), options);
    }
    let file = DirectFile::open(path)?;
    let failed = |error| OpenFileError::Model { path: path.to_owned(), error };
    let memory_bytes = match options.memory_bytes {
        Some(bytes) => Some(bytes),
        None => automatic_budget(&file).map_err(failed)?,
    };
    match memory_bytes {
        Some(_) => Model::open_with(Arc::new(file), streaming(options, memory_bytes)).map_err(failed),
        // Through the page cache: what was compiled or copied just now is still there, and small files are there the next time. Of
        // large ones that are not, each read of the device is faster past the cache.
        None => match options.resident {
            Resident::Copy if file.length() >= PAST_CACHE_BYTES && !file.is_cached() => {
                Model::open(&file).map_err(failed)
            }
            Resident::Copy => Model::open(file.buffered()).map_err(failed),
            Resident::Map => Model::open_shared(mapped(file.buffered())?).map_err(failed),
        },
    }
}

/// Open a file and a smaller one that guesses for it, both within one memory budget where there is one: at most half of it is
/// planned for the smaller one.
///
/// # Errors
/// [`OpenFileError`] as [`open_with`].
pub fn open_pair(
    path: impl AsRef<Path>,
    smaller: impl AsRef<Path>,
    options: OpenOptions,
) -> Result<(Model, Model), OpenFileError> {
    let Some(memory_bytes) = options.memory_bytes else {
        let smaller = open_with(smaller, options.clone())?;
        return Ok((open_with(path, options)?, smaller));
    };
    let open = |path: &Path, beside: Option<&Model>| {
        let file = Arc::new(DirectFile::open(path)?);
        let all = streaming(options.clone(), Some(memory_bytes));
        let opened = match beside {
            Some(other) => other.open_beside(file, all),
            None => Model::open_with(file, ModelOptions { planned_bytes: Some(memory_bytes / 2), ..all }),
        };
        opened.map_err(|error| OpenFileError::Model { path: path.to_owned(), error })
    };
    let smaller = open(smaller.as_ref(), None)?;
    Ok((open(path.as_ref(), Some(&smaller))?, smaller))
}

/// Open what a pipe brings: a run begins as soon as the first weights are there. Where half of the budget, or of the memory
/// that is available, has room for the whole file, weights stay in memory; else the file is kept in the folder for temporary
/// files, since a later pass may have to read again what has left the memory.
///
/// # Errors
/// [`OpenFileError`] where the pipe ends early or brings no sound file, or the budget is too small.
pub fn open_pipe(pipe: impl Read + Send + 'static, options: OpenOptions) -> Result<Model, OpenFileError> {
    let name = "the pipe".to_string();
    let failed = |error| OpenFileError::Arriving { name: name.clone(), error };
    let begun = BegunPipe::new(pipe).map_err(failed)?;
    let memory_bytes = options.memory_bytes.or_else(memory::available_bytes);
    if memory_bytes.is_none_or(|memory_bytes| begun.total_bytes() <= memory_bytes / 2) {
        let opened = Model::open_stream(begun.whole(), options.memory_bytes);
        return opened.map_err(|error| OpenFileError::Model { path: PathBuf::from(name), error });
    }
    let arriving = ArrivingFile::from_pipe(begun).map_err(failed)?;
    open_arriving(arriving, &name, options)
}

fn open_arriving(file: ArrivingFile, name: &str, options: OpenOptions) -> Result<Model, OpenFileError> {
    // Twice the file is room for all weights and for whatever a run of it needs besides; a part is left to others.
    let enough_bytes = file.length().saturating_mul(2).max(ROOM_BYTES);
    let most_bytes = memory::available_bytes().map_or(u64::MAX, |available| available / 10 * 8);
    let memory_bytes = options.memory_bytes.or(Some(enough_bytes.min(most_bytes)));
    Model::open_with(Arc::new(file), streaming(options, memory_bytes))
        .map_err(|error| OpenFileError::Model { path: PathBuf::from(name), error })
}

fn streaming(options: OpenOptions, memory_bytes: Option<u64>) -> ModelOptions {
    let OpenOptions { context, spill_folder, .. } = options;
    ModelOptions { memory_bytes, context, spill_folder, ..ModelOptions::default() }
}

/// The bytes of a file, shared with everybody who maps it.
#[allow(unsafe_code, reason = "a map of a file")]
fn mapped(file: &SourceFile) -> Result<SharedBytes, OpenFileError> {
    // SAFETY: the bytes are read only. That nobody changes the file meanwhile is asked of the user (`Resident::Map`), and
    // every weight is checked against its checksum when it is used first.
    let map = unsafe { memmap2::Mmap::map(file.file()) };
    let failed = |error| SourceFileError::Open { path: file.path().to_owned(), error };
    Ok(Arc::new(map.map_err(failed)?))
}

/// `None` where the weights fit into memory.
fn automatic_budget(file: &DirectFile) -> Result<Option<u64>, OpenError> {
    let Some(available) = memory::available_bytes() else { return Ok(None) };
    // Whatever the weights are, they are no more than the file.
    if file.length() <= available / 2 {
        return Ok(None);
    }
    let (_, manifest) = read_manifest(file)?;
    let weights: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
    // A part is left to activations and to others.
    let budget = available / 10 * 8;
    Ok((weights > budget).then_some(budget))
}

/// Open the bytes of an `.ipu` file.
///
/// # Errors
/// [`OpenError`] where they are damaged or do not fit into memory.
pub fn open_bytes(bytes: &[u8]) -> Result<Model, OpenError> {
    Model::open(&bytes)
}

/// Open the bytes of an `.ipu` file that are a part of the program. Where they begin at a multiple of 64, weights are used
/// where they lie, and each is checked when it is used first; else they are copied.
///
/// # Errors
/// [`OpenError`] where they are damaged or do not fit into memory.
pub fn open_static(bytes: &'static [u8]) -> Result<Model, OpenError> {
    if (bytes.as_ptr() as usize).is_multiple_of(limits::IPU_EXTENT_ALIGNMENT as usize) {
        Model::open_shared(Arc::new(bytes))
    } else {
        Model::open(&bytes)
    }
}
