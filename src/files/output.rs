//! Files that appear under their name only when they are whole.

use crate::files::unfinished::Unfinished;
use ipuc_passes::emit::Output;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file being written; dropping it unfinished leaves nothing behind.
pub struct OutputFile {
    temporary: NamedTempFile,
    target: PathBuf,
    unfinished: Unfinished,
}

impl OutputFile {
    /// Begin a file that will be at `target`, in the same folder, so that renaming it is atomic.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn create(target: &Path) -> io::Result<Self> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let temporary = tempfile::Builder::new().prefix(".ipuc-").suffix(".partial").tempfile_in(folder)?;
        let unfinished = Unfinished::remember(temporary.path());
        Ok(OutputFile { temporary, target: target.to_owned(), unfinished })
    }

    /// Bring all bytes to the disk, then put the file under its name.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn finish(self) -> io::Result<()> {
        self.temporary.as_file().sync_all()?;
        set_default_permissions(self.temporary.as_file())?;
        self.temporary.persist(&self.target).map_err(|error| error.error)?;
        drop(self.unfinished);
        Ok(())
    }
}

/// Temporary files are private; the result has the permissions of any new file.
fn set_default_permissions(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

impl Output for OutputFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.temporary.as_file().write_all_at(bytes, offset)
    }
}
