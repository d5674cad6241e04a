//! A file that is read at any position, by any number of threads.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipuc_formats::read_at::ReadAt;

/// A regular file, opened for reading. Its length is that at the time of opening.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    path: PathBuf,
    length: u64,
    modified: Option<SystemTime>,
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceFileError {
    /// The system refused.
    #[error("cannot open `{}`: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
    /// A folder, a pipe or a device.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is not what it was when it was opened.
    #[error("`{}` was changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl SourceFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`SourceFileError`] when it does not exist, may not be read or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, SourceFileError> {
        let failed = |error| SourceFileError::Open { path: path.to_owned(), error };
        // Opening a pipe would wait for its writer, so it is looked at first, and again once it is open.
        let before = std::fs::metadata(path).map_err(failed)?;
        let not_a_file = || SourceFileError::NotAFile { path: path.to_owned() };
        if !before.is_file() {
            return Err(not_a_file());
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        // Where times of files are not kept, lengths alone tell of changes.
        let modified = metadata.modified().ok();
        Ok(Self { file, path: path.to_owned(), length: metadata.len(), modified })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file, by its length and the time of its last change, still is what was opened. Another file of the
    /// same name is no change: this one stays open.
    ///
    /// # Errors
    /// [`SourceFileError::Changed`] where it was written to or cut off since.
    pub fn check_unchanged(&self) -> Result<(), SourceFileError> {
        let metadata =
            self.file.metadata().map_err(|error| SourceFileError::Open { path: self.path.clone(), error })?;
        if (metadata.len(), metadata.modified().ok()) == (self.length, self.modified) {
            Ok(())
        } else {
            Err(SourceFileError::Changed { path: self.path.clone() })
        }
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for SourceFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read_file_at(&self.file, offset, buffer)
    }
}

/// Fill a buffer from a place in a file, by any number of threads at once.
///
/// # Errors
/// What the system reports; `UnexpectedEof` where the file ends before.
#[cfg(unix)]
pub(super) fn read_file_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// As on Unix.
#[cfg(windows)]
pub(super) fn read_file_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt as _;
    while !buffer.is_empty() {
        match file.seek_read(buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// As on Unix; where the system reads at the place of the file only, threads take turns.
#[cfg(not(any(unix, windows)))]
pub(super) fn read_file_at(mut file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    use std::io::{Read as _, Seek as _};
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_by_position() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = SourceFile::open(&path).unwrap();
        assert_eq!((file.length(), file.path()), (10, path.as_path()));
        let mut part = [0; 4];
        file.read_exact_at(6, &mut part).unwrap();
        assert_eq!(&part, b"6789");
        let error = file.read_exact_at(7, &mut part).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let error = SourceFile::open(folder.path()).unwrap_err();
        assert!(matches!(error, SourceFileError::NotAFile { .. }));
        let error = SourceFile::open(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open `") && error.contains("missing`"), "{error}");
    }
}
