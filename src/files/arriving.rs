//! A file that is still arriving: from a pipe, or written by somebody else. Reads wait for the bytes that they need.
//!
//! What comes through a pipe is kept in a temporary file, so that it can be read again in later passes, whatever the
//! budget.

use ipuc_formats::model::{SUPERBLOCK_BYTES, Superblock};
use ipuc_formats::read_at::ReadAt;
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
    /// Somebody else writes it; how long no more may come before it counts as given up.
    Growing(Duration),
}

/// An `.ipu` file of which a part may be missing yet.
#[derive(Debug)]
pub struct ArrivingFile {
    file: File,
    origin: Origin,
    total_bytes: u64,
}

impl ArrivingFile {
    /// What a pipe brings. Gives the file once its superblock is there.
    ///
    /// # Errors
    /// What the pipe or the temporary folder report; `InvalidData` where the superblock is not sound.
    pub fn from_pipe(mut pipe: impl Read + Send + 'static) -> io::Result<Self> {
        let file = tempfile::tempfile()?;
        let arrival = Arc::new(Arrival::default());
        let (mut spool, told) = (file.try_clone()?, arrival.clone());
        let copy = move || {
            let mut block = vec![0; BLOCK_BYTES];
            let reason = loop {
                match pipe.read(&mut block) {
                    Ok(0) => break "the pipe ends before the file does".to_string(),
                    Ok(count) => match spool.write_all(&block[..count]) {
                        Ok(()) => told.advance(count as u64),
                        Err(error) => break format!("cannot keep what the pipe brings: {error}"),
                    },
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break format!("the pipe fails: {error}"),
                }
            };
            told.end(reason);
        };
        std::thread::Builder::new().name("ipuc-pipe".to_string()).spawn(copy)?;
        Self::over(file, Origin::Pipe(arrival))
    }

    /// A file that somebody else is writing from its begin to its end. Gives it once its superblock is there.
    ///
    /// # Errors
    /// What the system reports; `TimedOut` where nothing comes for `patience`; `InvalidData` where the superblock is not
    /// sound.
    pub fn follow(path: &Path, patience: Duration) -> io::Result<Self> {
        Self::over(File::open(path)?, Origin::Growing(patience))
    }

    fn over(file: File, origin: Origin) -> io::Result<Self> {
        let mut arriving = ArrivingFile { file, origin, total_bytes: SUPERBLOCK_BYTES as u64 };
        let mut head = [0; SUPERBLOCK_BYTES];
        arriving.read_exact_at(0, &mut head)?;
        let superblock = Superblock::from_bytes(&head, None);
        let superblock = superblock.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        arriving.total_bytes = superblock.total_length();
        Ok(arriving)
    }

    fn wait(&self, bytes: u64) -> io::Result<()> {
        let patience = match &self.origin {
            Origin::Pipe(arrival) => return arrival.wait(bytes),
            Origin::Growing(patience) => *patience,
        };
        let mut last = (0, Instant::now());
        loop {
            let length = self.file.metadata()?.len();
            if length >= bytes {
                return Ok(());
            }
            if length > last.0 {
                last = (length, Instant::now());
            } else if last.1.elapsed() > patience {
                let reason = format!("the file has {length} bytes and has not grown for {} s", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl ReadAt for ArrivingFile {
    /// The length that the superblock states.
    fn length(&self) -> u64 {
        self.total_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.wait(offset.saturating_add(buffer.len() as u64))?;
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }
}

impl WeightFile for ArrivingFile {
    /// What has not arrived cannot be queued.
    fn queue(&self, _depth: usize) -> Option<Box<dyn ReadQueue>> {
        None
    }
}
