//! A file that is still arriving: from a pipe, or written by somebody else. Reads wait for the bytes that they need.
//!
//! What comes through a pipe and does not stay in memory is kept in a temporary file, so that it can be read again in later
//! passes, whatever the budget. The superblock is judged first; it says how much is kept, and room for that is reserved.

use super::source::read_file_at;
use ipuc_formats::model::{SUPERBLOCK_BYTES, Superblock};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::size::Size;
use ipuc_runtime::{ReadQueue, WeightFile};
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are taken from a pipe at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// How often a growing file is looked at.
const POLL: Duration = Duration::from_millis(50);

/// How far a file has come.
#[derive(Debug, Default)]
struct Progress {
    bytes: u64,
    /// Why no more comes.
    ended: Option<String>,
}

#[derive(Debug, Default)]
struct Arrival {
    progress: Mutex<Progress>,
    more: Condvar,
}

impl Arrival {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, bytes: u64) {
        self.lock().bytes += bytes;
        self.more.notify_all();
    }

    fn end(&self, reason: String) {
        self.lock().ended = Some(reason);
        self.more.notify_all();
    }

    /// Wait until so many bytes are there.
    fn wait(&self, bytes: u64) -> io::Result<()> {
        let mut progress = self.lock();
        while progress.bytes < bytes {
            if let Some(reason) = &progress.ended {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason.clone()));
            }
            progress = self.more.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// Where bytes come from.
#[derive(Debug)]
enum Origin {
    /// A thread writes what a pipe brings into the file.
    Pipe(Arc<Arrival>),
    /// Somebody else writes it.
    Growing(Growth),
}

/// How a file grows.
#[derive(Debug)]
struct Growth {
    /// How long no more may come before it counts as given up.
    patience: Duration,
    /// The greatest length that was seen, and when.
    last: Mutex<(u64, Instant)>,
}

/// A pipe whose first bytes are those of a sound file.
#[derive(Debug)]
pub struct BegunPipe<Pipe> {
    head: [u8; SUPERBLOCK_BYTES],
    pipe: Pipe,
    total_bytes: u64,
}

impl<Pipe: Read> BegunPipe<Pipe> {
    /// Read the superblock and judge it.
    ///
    /// # Errors
    /// What the pipe reports; `InvalidData` where the superblock is not sound.
    pub fn new(mut pipe: Pipe) -> io::Result<Self> {
        let mut head = [0; SUPERBLOCK_BYTES];
        pipe.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the pipe ends before the file does"),
            kind => io::Error::new(kind, format!("the pipe fails: {error}")),
        })?;
        let total_bytes = total_bytes(&head)?;
        Ok(BegunPipe { head, pipe, total_bytes })
    }

    /// The length of the file, as it says.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// All bytes of the file, from the first one on.
    pub fn whole(self) -> impl Read + use<Pipe> {
        io::Cursor::new(self.head).chain(self.pipe)
    }
}

/// An `.ipu` file of which a part may be missing yet.
#[derive(Debug)]
pub struct ArrivingFile {
    file: File,
    origin: Origin,
    total_bytes: u64,
}

impl ArrivingFile {
    /// What a pipe brings, kept in a temporary file.
    ///
    /// # Errors
    /// What the temporary folder reports.
    pub fn from_pipe(begun: BegunPipe<impl Read + Send + 'static>) -> io::Result<Self> {
        let BegunPipe { head, mut pipe, total_bytes } = begun;
        let file = spool(total_bytes).map_err(unkept)?;
        let arrival = Arc::new(Arrival::default());
        let (mut spool, told) = (file.try_clone()?, arrival.clone());
        spool.write_all(&head).map_err(unkept)?;
        arrival.advance(head.len() as u64);
        let copy = move || {
            let mut block = vec![0; BLOCK_BYTES];
            let mut left = total_bytes.saturating_sub(SUPERBLOCK_BYTES as u64);
            let reason = loop {
                match pipe.read(&mut block) {
                    Ok(0) => break "the pipe ends before the file does".to_string(),
                    Ok(count) if count as u64 > left => {
                        break format!("the pipe brings more than the {} of the file", Size(total_bytes));
                    }
                    Ok(count) => match spool.write_all(&block[..count]) {
                        Ok(()) => {
                            left -= count as u64;
                            told.advance(count as u64);
                        }
                        Err(error) => break unkept(error).to_string(),
                    },
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break format!("the pipe fails: {error}"),
                }
            };
            told.end(reason);
        };
        std::thread::Builder::new().name("ipuc-pipe".to_string()).spawn(copy)?;
        Ok(ArrivingFile { file, origin: Origin::Pipe(arrival), total_bytes })
    }

    /// A file that somebody else is writing from its begin to its end, or is about to create. Gives it once its superblock
    /// is there.
    ///
    /// # Errors
    /// What the system reports; `TimedOut` where nothing comes for `patience`; `InvalidData` where the superblock is not
    /// sound.
    pub fn follow(path: &Path, patience: Duration) -> io::Result<Self> {
        let begun = Instant::now();
        let file = loop {
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && begun.elapsed() <= patience => {
                    std::thread::sleep(POLL);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let reason = format!("the file is not there after {} s", patience.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                }
                opened => break opened?,
            }
        };
        let origin = Origin::Growing(Growth { patience, last: Mutex::new((0, Instant::now())) });
        let mut arriving = ArrivingFile { file, origin, total_bytes: SUPERBLOCK_BYTES as u64 };
        let mut head = [0; SUPERBLOCK_BYTES];
        arriving.read_exact_at(0, &mut head)?;
        arriving.total_bytes = total_bytes(&head)?;
        Ok(arriving)
    }

    fn wait(&self, bytes: u64) -> io::Result<()> {
        let Growth { patience, last } = match &self.origin {
            Origin::Pipe(arrival) => return arrival.wait(bytes),
            Origin::Growing(growth) => growth,
        };
        loop {
            let length = self.file.metadata()?.len();
            if length >= bytes {
                return Ok(());
            }
            // All readers share the clock: what one has given up is given up by the next.
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if length > last.0 {
                *last = (length, Instant::now());
            } else if last.1.elapsed() > *patience {
                let reason = format!("the file has {} and has not grown for {} s", Size(length), patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            drop(last);
            std::thread::sleep(POLL);
        }
    }
}

/// The length of the file that a superblock states.
fn total_bytes(head: &[u8; SUPERBLOCK_BYTES]) -> io::Result<u64> {
    let superblock = Superblock::from_bytes(head, None);
    let superblock = superblock.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(superblock.total_length())
}

fn unkept(error: io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    io::Error::new(error.kind(), format!("cannot keep what the pipe brings in `{}`: {error}", folder.display()))
}

/// A temporary file with room for so many bytes, where the file system can reserve it.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables, reason = "room is reserved on Linux only"))]
fn spool(bytes: u64) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        // Not every file system reserves room.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) =
            fallocate(&file, FallocateFlags::empty(), 0, bytes)
        {
            return Err(error.into());
        }
    }
    Ok(file)
}

impl ReadAt for ArrivingFile {
    /// The length that the superblock states.
    fn length(&self) -> u64 {
        self.total_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.wait(offset.saturating_add(buffer.len() as u64))?;
        read_file_at(&self.file, offset, buffer)
    }
}

impl WeightFile for ArrivingFile {
    /// What has not arrived cannot be queued.
    fn queue(&self, _depth: usize) -> Option<Box<dyn ReadQueue>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_stands_still_is_given_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.ipu");
        let patience = Duration::from_millis(300);
        let begun = Instant::now();
        let error = ArrivingFile::follow(&path, patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the file is not there after 0 s");
        assert!(begun.elapsed() >= patience);
        std::fs::write(&path, b"IPU").unwrap();
        let origin = Origin::Growing(Growth { patience, last: Mutex::new((0, Instant::now())) });
        let file = ArrivingFile { file: File::open(&path).unwrap(), origin, total_bytes: 100 };
        assert_eq!(file.wait(10).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let begun = Instant::now();
        assert_eq!(file.wait(10).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < patience, "the second wait takes no time");
        file.wait(3).unwrap();
    }

    #[test]
    fn a_pipe_is_judged_before_anything_is_kept() {
        let error = BegunPipe::new(io::repeat(b'x')).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = BegunPipe::new(&b"IPU"[..]).unwrap_err();
        assert_eq!(error.to_string(), "the pipe ends before the file does");
    }
}
