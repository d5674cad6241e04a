//! A file that sees what is read of it, and fails when it is told to.

use ipuc::files::DirectFile;
use ipuc_formats::onnx::ReadAt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A file that remembers what is read, and fails or lies when it is told to.
pub struct Watched {
    file: DirectFile,
    pub reads: Mutex<Vec<Range<u64>>>,
    pub count: AtomicUsize,
    /// The read that fails; none where it is 0.
    pub failing: AtomicUsize,
    /// Offset of a byte that is read wrongly; none where it is 0.
    pub flipped: AtomicU64,
    /// Where the file ends for reads; its length where it is 0.
    pub end: AtomicU64,
}

impl Watched {
    pub fn new(path: &Path) -> Self {
        Watched {
            file: DirectFile::open(path).unwrap(),
            reads: Mutex::default(),
            count: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            flipped: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
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
