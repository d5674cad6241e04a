//! Files that appear under their name only when they are whole.
//!
//! A link keeps being one: the file that it leads to is replaced. What is no regular file (a device, a pipe, standard
//! output) gets the whole of a temporary file once that is finished.
//!
//! Large files are written past the page cache where the system allows it: nothing of them is needed again soon, copying
//! them there takes time, and threads that write to the cache of one file wait for each other. Their room is reserved
//! first, so that a write changes nothing but its own blocks, and a disk without room is found before the work.
//!
//! What goes through the cache is brought to the disk while more is made: the system alone would begin when much is
//! waiting, and putting the file under its name would wait for nearly all of it.

use crate::files::unfinished::{self, Unfinished};
use ipuc_passes::emit::Output;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use tempfile::NamedTempFile;

/// Bytes that are brought to the disk at a time; shorter files always go through the cache.
const FLUSHED_BYTES: u64 = 32 << 20;
/// Offsets, lengths and addresses of direct writes are multiples of this: no device asks for more.
#[cfg(target_os = "linux")]
const BLOCK_BYTES: usize = 4096;

/// Where a file goes.
#[derive(Debug, Clone, Copy)]
pub enum Destination<'a> {
    /// To this path.
    Path(&'a Path),
    /// To standard output.
    Stdout,
}

impl<'a> From<&'a Path> for Destination<'a> {
    fn from(path: &'a Path) -> Self {
        Destination::Path(path)
    }
}

impl<'a> From<&'a PathBuf> for Destination<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Destination::Path(path)
    }
}

/// What becomes of the temporary file.
enum Target {
    /// It gets this name.
    Name(PathBuf),
    /// Its bytes are written there.
    Copy(PathBuf),
    Stdout,
}

/// Links that lead to links, at most.
const LINKS: usize = 40;

/// The path behind links, whether there is a file or not.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = path.read_link() else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::other("it is a link to itself"))
}

/// A file being written; dropping it unfinished leaves nothing behind.
pub struct OutputFile {
    temporary: NamedTempFile,
    target: Target,
    unfinished: Unfinished,
    written_bytes: AtomicU64,
    flusher: Mutex<Option<Flusher>>,
    /// The same file for direct writes, once its room is reserved.
    #[cfg(target_os = "linux")]
    direct: OnceLock<File>,
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
    pub fn create<'a>(destination: impl Into<Destination<'a>>) -> io::Result<Self> {
        let target = match destination.into() {
            Destination::Stdout => Target::Stdout,
            Destination::Path(path) if path.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Destination::Path(path) if path.exists() && !path.is_file() => Target::Copy(path.to_owned()),
            Destination::Path(path) => Target::Name(behind_links(path)?),
        };
        let folder = match &target {
            Target::Name(path) => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
                _ => PathBuf::from("."),
            },
            Target::Copy(_) | Target::Stdout => std::env::temp_dir(),
        };
        unfinished::remove_left_over(&folder);
        let (temporary, unfinished) = locked_file(&folder)?;
        let (written_bytes, flusher) = (AtomicU64::new(0), Mutex::new(None));
        Ok(OutputFile {
            temporary,
            target,
            unfinished,
            written_bytes,
            flusher,
            #[cfg(target_os = "linux")]
            direct: OnceLock::new(),
        })
    }

    /// Reserve room for so many bytes, and write directly from now on; where the file system cannot, nothing changes.
    #[cfg(target_os = "linux")]
    fn write_directly(&self, bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, OFlags, fallocate};
        use rustix::io::Errno;
        use std::os::fd::AsRawFd as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let file = self.temporary.as_file();
        let same = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::DIRECT.bits() as i32;
        let Ok(direct) = File::options().write(true).custom_flags(flags).open(same) else { return Ok(()) };
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {
                let _ = self.direct.set(direct);
                Ok(())
            }
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
            // Not every file system reserves room.
            Err(_) => Ok(()),
        }
    }

    /// Whether the bytes were written directly.
    #[cfg(target_os = "linux")]
    fn write_directly_at(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let aligned = |value: usize| value.is_multiple_of(BLOCK_BYTES);
        let whole =
            offset.is_multiple_of(BLOCK_BYTES as u64) && aligned(bytes.len()) && aligned(bytes.as_ptr() as usize);
        let Some(direct) = self.direct.get().filter(|_| whole) else { return Ok(false) };
        match write_file_at(direct, offset, bytes) {
            // The file system took the flag but not the write.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// Bring all bytes to the disk, then put the file under its name.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn finish(self) -> io::Result<()> {
        if let Some(flusher) = self.flusher.into_inner().unwrap_or_else(PoisonError::into_inner) {
            flusher.finish()?;
        }
        let mut temporary = self.temporary;
        let path = match self.target {
            Target::Name(path) => path,
            Target::Copy(path) => {
                io::Seek::rewind(temporary.as_file_mut())?;
                return copy(temporary.as_file_mut(), &mut File::options().write(true).open(path)?);
            }
            Target::Stdout => {
                io::Seek::rewind(temporary.as_file_mut())?;
                return copy(temporary.as_file_mut(), &mut io::stdout().lock());
            }
        };
        temporary.as_file().sync_all()?;
        set_default_permissions(temporary.as_file())?;
        temporary.persist(&path).map_err(|error| error.error)?;
        drop(self.unfinished);
        Ok(())
    }
}

fn copy(from: &mut File, to: &mut dyn io::Write) -> io::Result<()> {
    io::copy(from, to)?;
    to.flush()
}

/// A temporary file that is locked: others do not remove it as left over.
fn locked_file(folder: &Path) -> io::Result<(NamedTempFile, Unfinished)> {
    loop {
        let temporary =
            tempfile::Builder::new().prefix(unfinished::PREFIX).suffix(unfinished::SUFFIX).tempfile_in(folder);
        // The name of the temporary file tells a user nothing.
        let temporary = temporary.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), format!("there is no folder `{}`", folder.display()))
            }
            kind => kind.into(),
        })?;
        match Unfinished::remember_file(temporary.path(), temporary.as_file()) {
            Ok(unfinished) => return Ok((temporary, unfinished)),
            // Taken for left over in the moment before it was locked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Write all bytes to a place in a file, by any number of threads at once.
#[cfg(unix)]
fn write_file_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// As on Unix.
#[cfg(windows)]
fn write_file_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt as _;
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// As on Unix; where the system writes at the place of the file only, threads take turns.
#[cfg(not(any(unix, windows)))]
fn write_file_at(mut file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    use std::io::{Seek as _, Write as _};
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(io::SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Temporary files are private; the result has the permissions of any new file. Elsewhere than on Unix files have those of
/// their folder anyway.
#[cfg(unix)]
fn set_default_permissions(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_default_permissions(_file: &std::fs::File) -> io::Result<()> {
    Ok(())
}

/// Writes to a file from its beginning on.
pub struct SequentialWriter<'a> {
    file: &'a OutputFile,
    offset: u64,
}

impl<'a> SequentialWriter<'a> {
    /// At the beginning of a file.
    pub fn new(file: &'a OutputFile) -> Self {
        SequentialWriter { file, offset: 0 }
    }
}

impl io::Write for SequentialWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.offset, bytes)?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for OutputFile {
    #[cfg(target_os = "linux")]
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        if bytes < FLUSHED_BYTES { Ok(()) } else { self.write_directly(bytes) }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.write_directly_at(offset, bytes)? {
            return Ok(());
        }
        write_file_at(self.temporary.as_file(), offset, bytes)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_codes::aligned::{AlignedBytes, Page};

    /// Aligned or not, large or small, all bytes are where they were written.
    #[test]
    fn bytes_are_written_whether_aligned_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let content = Vec::from_iter((0..4 * 4096u32).map(|index| (index % 251) as u8));
        let content = AlignedBytes::<Page>::copied(&content).unwrap();
        for length in [content.len() as u64, FLUSHED_BYTES] {
            let target = folder.path().join("out.bin");
            let output = OutputFile::create(&target).unwrap();
            output.reserve(length).unwrap();
            for (start, end) in [(8192, 12288), (0, 4000), (4000, 8192), (12288, 16384)] {
                output.write_at(start as u64, &content[start..end]).unwrap();
            }
            output.finish().unwrap();
            let written = std::fs::read(&target).unwrap();
            assert!(written[..content.len()] == content[..], "{length}");
            assert!(written[content.len()..].iter().all(|&byte| byte == 0), "{length}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink("round", path("round")).unwrap();
        for content in [b"first", b"other"] {
            let output = OutputFile::create(&path("link")).unwrap();
            output.write_at(0, content).unwrap();
            output.finish().unwrap();
            assert!(path("link").is_symlink());
            assert_eq!(std::fs::read(path("file")).unwrap(), content);
        }
        let error = OutputFile::create(&path("round")).err().unwrap();
        assert_eq!(error.to_string(), "it is a link to itself");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_and_pipes_are_written_to() {
        use std::os::unix::fs::FileTypeExt as _;
        let output = OutputFile::create(Path::new("/dev/null")).unwrap();
        output.write_at(0, b"nothing").unwrap();
        output.finish().unwrap();
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        let output = OutputFile::create(&pipe).unwrap();
        // Out of order: a pipe gets the bytes in order all the same.
        output.write_at(3, b"def").unwrap();
        output.write_at(0, b"abc").unwrap();
        output.finish().unwrap();
        assert_eq!(read.join().unwrap(), b"abcdef");
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn more_than_a_disk_holds_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let output = OutputFile::create(&folder.path().join("out.bin")).unwrap();
        if output.reserve(FLUSHED_BYTES).is_ok() && output.direct.get().is_some() {
            let output = OutputFile::create(&folder.path().join("out.bin")).unwrap();
            let error = output.reserve(1 << 62).unwrap_err();
            assert!(matches!(error.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull), "{error}");
        }
        drop(output);
    }
}
