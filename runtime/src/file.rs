//! The file that weights are read from, and its queue of asynchronous reads. Opening files is left to the caller.

use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::Storage;
use std::io;

/// A file that weights are streamed from.
pub trait WeightFile: ReadAt {
    /// A queue for `depth` concurrent reads; `None` where the system has none for this file.
    fn queue(&self, depth: usize) -> Option<Box<dyn ReadQueue>>;
}

/// Asynchronous reads of one file.
pub trait ReadQueue: Send {
    /// Begin to fill `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The buffer, where this queue cannot begin the read.
    fn begin(&mut self, token: u64, offset: u64, buffer: Box<dyn Storage>) -> Result<(), Box<dyn Storage>>;

    /// Wait until at least one read has completed; none where none is in flight.
    ///
    /// # Errors
    /// What the system reports; the reads go on.
    fn wait(&mut self) -> io::Result<Vec<CompletedRead>>;
}

/// A read that has completed.
pub struct CompletedRead {
    /// What the read was begun with.
    pub token: u64,
    /// What it was to fill.
    pub buffer: Box<dyn Storage>,
    /// All of the buffer is filled. Where not, [`ReadAt::read_exact_at`] fills it or gives the error.
    pub filled: bool,
}
