//! Files that appear under their name only when they are whole.
//!
//! What is written is brought to the disk while more is made: the system alone would begin when much is waiting, and
//! putting the file under its name would wait for nearly all of it.

use crate::files::unfinished::Unfinished;
use ipuc_passes::emit::Output;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use tempfile::NamedTempFile;

/// Bytes that are brought to the disk at a time.
const FLUSHED_BYTES: u64 = 32 << 20;

/// A file being written; dropping it unfinished leaves nothing behind.
pub struct OutputFile {
    temporary: NamedTempFile,
    target: PathBuf,
    unfinished: Unfinished,
    written_bytes: AtomicU64,
    flusher: Mutex<Option<Flusher>>,
}

/// A thread that brings to the disk what is written, each time it is told to.
struct Flusher {
    more: mpsc::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl Flusher {
    fn start(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (more, told) = mpsc::channel();
        let flush = move || {
            while told.recv().is_ok() {
                // Told several times since: once is enough.
                while told.try_recv().is_ok() {}
                file.sync_data()?;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("flush".to_string()).spawn(flush)?;
        Ok(Flusher { more, thread })
    }

    /// The system reports a failed write once, here or to the last flush of the file.
    fn finish(self) -> io::Result<()> {
        drop(self.more);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("flushing failed")))
    }
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
        let temporary = tempfile::Builder::new().prefix(".ipuc-").suffix(".partial").tempfile_in(&folder);
        // The name of the temporary file tells a user nothing.
        let temporary = temporary.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), format!("there is no folder `{}`", folder.display()))
            }
            kind => kind.into(),
        })?;
        let unfinished = Unfinished::remember(temporary.path());
        let (written_bytes, flusher) = (AtomicU64::new(0), Mutex::new(None));
        Ok(OutputFile { temporary, target: target.to_owned(), unfinished, written_bytes, flusher })
    }

    /// Bring all bytes to the disk, then put the file under its name.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn finish(self) -> io::Result<()> {
        if let Some(flusher) = self.flusher.into_inner().unwrap_or_else(PoisonError::into_inner) {
            flusher.finish()?;
        }
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
        self.temporary.as_file().write_all_at(bytes, offset)?;
        let length = bytes.len() as u64;
        let before = self.written_bytes.fetch_add(length, Ordering::Relaxed);
        if before / FLUSHED_BYTES == (before + length) / FLUSHED_BYTES {
            return Ok(());
        }
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        if flusher.is_none() {
            *flusher = Some(Flusher::start(self.temporary.as_file())?);
        }
        // A thread that has ended holds an error, which `finish` reports.
        let _ = flusher.as_ref().map(|flusher| flusher.more.send(()));
        Ok(())
    }
}
