//! Contents of growing state: immutable versions over shared pages.
//!
//! A version is a list of pages and a length. Appending gives another version: it writes behind the length, into the last
//! page where nobody has done so before, else into a copy of that page. Old versions stay as they are, so that a fork is a copy
//! of the list, and a run that fails leaves no trace. Pages at the front of a list may be forgotten: what is behind keeps its
//! positions, and reading them is an error. `page.rs` has the memory and the mark that says how much of it is
//! claimed, `version.rs` the lists, `spill.rs` the file that full pages go to when memory is short. The only unsafe code is in
//! `page.rs`.

mod page;
mod spill;
#[cfg(test)]
mod tests;
mod version;

pub use spill::SpillFolder;
pub use version::{HeldVersion, Version};

use ipuc_formats::size::Size;
use ipuc_formats::tensor::Storage;
use std::io;
use thiserror::Error;

/// Where the memory of pages comes from.
pub trait PageMemory {
    /// A buffer of this many bytes with unspecified contents, which is exclusively owned.
    ///
    /// # Errors
    /// [`VersionError::Memory`] where there is no room.
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError>;
}

/// Why a version cannot be made or read.
#[derive(Debug, Error)]
pub enum VersionError {
    /// There is no room for a page.
    #[error("there is no memory for a page of {} of state", Size::from(*bytes))]
    Memory {
        /// Bytes of the page.
        bytes: usize,
    },
    /// What is appended, or is to hold a copy, does not have the type and the extents of the state.
    #[error("{found} does not fit state of {expected}")]
    Mismatch {
        /// Type and extents of the state.
        expected: String,
        /// Those of the other tensor.
        found: String,
    },
    /// Positions are to be read that were forgotten, since they lie behind the window of all that reads them.
    #[error(
        "position {wanted} of the state is read, and those before {first} are forgotten, behind the window of attention"
    )]
    Forgotten {
        /// The first position that is read.
        wanted: usize,
        /// The first that is there.
        first: usize,
    },
    /// The file of spilled pages cannot be made, written or read.
    #[error("cannot {action} the file of spilled state in {folder}: {error}")]
    Spill {
        /// `make`, `write` or `read`.
        action: &'static str,
        /// The folder.
        folder: String,
        /// Why.
        error: io::Error,
    },
}
