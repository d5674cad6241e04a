//! A file that sees what is read of it, and fails when it is told to.

use ipuc::files::DirectFile;
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::Storage;
use ipuc_runtime::{CompletedRead, ReadQueue, WeightFile};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A file that remembers what is read, and fails or lies when it is told to.
pub struct Watched {
    seen: Arc<Seen>,
    queued: bool,
}

/// What a watched file has seen, and what it is told.
pub struct Seen {
    file: DirectFile,
    pub reads: Mutex<Vec<Range<u64>>>,
    pub count: AtomicUsize,
    /// The read that fails; none where it is 0.
    pub failing: AtomicUsize,
    /// Offset of a byte that is read wrongly; none where it is 0.
    pub flipped: AtomicU64,
    /// Where the file ends for reads; its length where it is 0.
    pub end: AtomicU64,
    /// Reads of the queue that have completed.
    pub completed: AtomicUsize,
    /// How many queues were asked for: one each time that streaming begins.
    pub queues: AtomicUsize,
}

impl Watched {
    /// A file that is read by threads.
    pub fn new(path: &Path) -> Self {
        let seen = Seen {
            file: DirectFile::open(path).unwrap(),
            reads: Mutex::default(),
            count: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            flipped: AtomicU64::new(0),
            end: AtomicU64::new(0),
            completed: AtomicUsize::new(0),
            queues: AtomicUsize::new(0),
        };
        Watched { seen: Arc::new(seen), queued: false }
    }

    /// A file that is read through a queue, in which reads end one by one and only when somebody waits.
    pub fn queued(path: &Path) -> Self {
        Watched { queued: true, ..Watched::new(path) }
    }
}

impl Deref for Watched {
    type Target = Seen;
    fn deref(&self) -> &Seen {
        &self.seen
    }
}

impl ReadAt for Watched {
    fn length(&self) -> u64 {
        self.file.length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + buffer.len() as u64;
        self.reads.lock().unwrap().push(range.clone());
        let end = self.end.load(Ordering::SeqCst);
        if end != 0 && range.end > end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.failing.load(Ordering::SeqCst) {
            return Err(io::Error::other("Input/output error"));
        }
        self.file.read_exact_at(offset, buffer)?;
        let flipped = self.flipped.load(Ordering::SeqCst);
        if flipped != 0 && range.contains(&flipped) {
            buffer[(flipped - offset) as usize] ^= 1;
        }
        Ok(())
    }
}

impl WeightFile for Watched {
    fn queue(&self, _depth: usize) -> Option<Box<dyn ReadQueue>> {
        self.queues.fetch_add(1, Ordering::SeqCst);
        let queue = OneByOne { seen: self.seen.clone(), begun: VecDeque::new() };
        self.queued.then(|| Box::new(queue) as Box<dyn ReadQueue>)
    }
}

struct OneByOne {
    seen: Arc<Seen>,
    begun: VecDeque<(u64, u64, Box<dyn Storage>)>,
}

impl ReadQueue for OneByOne {
    fn begin(&mut self, token: u64, offset: u64, buffer: Box<dyn Storage>) -> Result<(), Box<dyn Storage>> {
        self.begun.push_back((token, offset, buffer));
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Vec<CompletedRead>> {
        let Some((token, offset, mut buffer)) = self.begun.pop_front() else { return Ok(Vec::new()) };
        std::thread::sleep(Duration::from_millis(1));
        self.seen.completed.fetch_add(1, Ordering::SeqCst);
        // What the file is told to do wrong, it does in the usual way.
        let told = self.seen.failing.load(Ordering::SeqCst) as u64
            + self.seen.flipped.load(Ordering::SeqCst)
            + self.seen.end.load(Ordering::SeqCst);
        let filled = told == 0 && self.seen.file.read_exact_at(offset, buffer.bytes_mut().unwrap()).is_ok();
        Ok(vec![CompletedRead { token, buffer, filled }])
    }
}
