//! The file of spilled pages: without a name, gone with the process.

use super::VersionError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Where pages are spilled to; the file is made when the first one is.
pub struct SpillFolder {
    folder: PathBuf,
    file: OnceLock<Arc<SpillFile>>,
    making: Mutex<()>,
}

impl SpillFolder {
    /// In this folder; in that of the system for temporary files where it is `None`.
    pub fn new(folder: Option<PathBuf>) -> SpillFolder {
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        SpillFolder { folder, file: OnceLock::new(), making: Mutex::new(()) }
    }

    /// The file.
    ///
    /// # Errors
    /// [`VersionError::Spill`] where it cannot be made.
    pub(super) fn file(&self) -> Result<Arc<SpillFile>, VersionError> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = self.file.get() {
            return Ok(file.clone());
        }
        let folder = self.folder.display().to_string();
        let made = tempfile::tempfile_in(&self.folder);
        let made = made.map_err(|error| VersionError::Spill { action: "make", folder: folder.clone(), error })?;
        let file =
            Arc::new(SpillFile { folder, state: Mutex::new(State { file: made, end: 0, free: BTreeMap::new() }) });
        Ok(self.file.get_or_init(|| file).clone())
    }

    /// Bytes of pages in the file.
    pub fn spilled_bytes(&self) -> u64 {
        self.file.get().map_or(0, |file| file.used_bytes())
    }
}

pub(super) struct SpillFile {
    folder: String,
    state: Mutex<State>,
}

struct State {
    file: File,
    end: u64,
    /// Places that pages have left, by length.
    free: BTreeMap<usize, Vec<u64>>,
}

/// The place of a page in the file; given back when it is dropped.
pub(super) struct SpillSlot {
    file: Arc<SpillFile>,
    offset: u64,
    length: usize,
}

impl SpillFile {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, action: &'static str, error: io::Error) -> VersionError {
        VersionError::Spill { action, folder: self.folder.clone(), error }
    }

    fn used_bytes(&self) -> u64 {
        let state = self.state();
        let free: u64 = state.free.iter().map(|(&length, places)| length as u64 * places.len() as u64).sum();
        state.end - free
    }

    /// Write a page.
    pub(super) fn store(file: &Arc<SpillFile>, bytes: &[u8]) -> Result<SpillSlot, VersionError> {
        let mut state = file.state();
        let reused = state.free.get_mut(&bytes.len()).and_then(Vec::pop);
        let offset = reused.unwrap_or(state.end);
        let written = state.file.seek(SeekFrom::Start(offset)).and_then(|_| state.file.write_all(bytes));
        if let Err(error) = written {
            if reused.is_some() {
                state.free.entry(bytes.len()).or_default().push(offset);
            }
            return Err(file.failure("write", error));
        }
        state.end = state.end.max(offset + bytes.len() as u64);
        Ok(SpillSlot { file: file.clone(), offset, length: bytes.len() })
    }
}

impl SpillSlot {
    /// Read the page.
    pub(super) fn read(&self, to: &mut [u8]) -> Result<(), VersionError> {
        let mut state = self.file.state();
        let read = state.file.seek(SeekFrom::Start(self.offset)).and_then(|_| state.file.read_exact(to));
        read.map_err(|error| self.file.failure("read", error))
    }

    /// Ask the system to read the page before it is asked for. It may not; then reading waits for the disk.
    #[cfg(target_os = "linux")]
    pub(super) fn read_ahead(&self) {
        let Some(length) = std::num::NonZeroU64::new(self.length as u64) else { return };
        let state = self.file.state();
        // What fails here fails when the page is read.
        let _ = rustix::fs::fadvise(&state.file, self.offset, Some(length), rustix::fs::Advice::WillNeed);
    }

    /// Nothing: only Linux is asked.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn read_ahead(&self) {}
}

impl Drop for SpillSlot {
    fn drop(&mut self) {
        self.file.state().free.entry(self.length).or_default().push(self.offset);
    }
}
