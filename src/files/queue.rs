//! Direct reads through io_uring: the system carries them out side by side while one thread waits for them.
#![allow(unsafe_code, reason = "the kernel writes into buffers that the queue owns")]

use io_uring::{IoUring, opcode, types};
use ipuc_formats::tensor::Storage;
use ipuc_runtime::{CompletedRead, ReadQueue};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Reads of one file that are under way.
pub(super) struct UringQueue {
    ring: IoUring,
    file: File,
    /// What the kernel writes into, by token; given back only when the read has ended.
    under_way: BTreeMap<u64, Box<dyn Storage>>,
    depth: usize,
}

impl UringQueue {
    /// A queue of this depth; `None` where the kernel has no io_uring or does not let this process use it.
    pub(super) fn new(file: &File, depth: usize) -> Option<Self> {
        let ring = IoUring::new(u32::try_from(depth).ok()?.max(1).next_power_of_two()).ok()?;
        Some(UringQueue { ring, file: file.try_clone().ok()?, under_way: BTreeMap::new(), depth })
    }

    /// The reads that have completed; does not wait.
    fn completed(&mut self) -> Vec<CompletedRead> {
        let completions: Vec<_> = self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        let reads = completions.into_iter().filter_map(|(token, result)| {
            let buffer = self.under_way.remove(&token)?;
            let filled = usize::try_from(result).is_ok_and(|bytes| bytes == buffer.bytes().len());
            Some(CompletedRead { token, buffer, filled })
        });
        reads.collect()
    }
}

impl ReadQueue for UringQueue {
    fn begin(&mut self, token: u64, offset: u64, mut buffer: Box<dyn Storage>) -> Result<(), Box<dyn Storage>> {
        let Some(bytes) = buffer.bytes_mut() else { return Err(buffer) };
        let Ok(length) = u32::try_from(bytes.len()) else { return Err(buffer) };
        if self.under_way.len() >= self.depth || self.under_way.contains_key(&token) {
            return Err(buffer);
        }
        let target = types::Fd(self.file.as_raw_fd());
        let entry = opcode::Read::new(target, bytes.as_mut_ptr(), length).offset(offset).build().user_data(token);
        // SAFETY: the entry's pointer is to bytes on the heap or in a map, which do not move with their box; the box stays
        // in `under_way`, untouched, until the kernel says that the read has ended, and `drop` waits for that too.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(buffer);
        }
        self.under_way.insert(token, buffer);
        // What cannot be submitted now is submitted with the next wait.
        let _ = self.ring.submit();
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Vec<CompletedRead>> {
        loop {
            let ended = self.completed();
            if !ended.is_empty() || self.under_way.is_empty() {
                return Ok(ended);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        while !self.under_way.is_empty() {
            if self.wait().is_err() {
                // The kernel may still write: the buffers must outlive it.
                std::mem::take(&mut self.under_way).into_values().for_each(std::mem::forget);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_codes::aligned::{AlignedBytes, Page};

    fn buffer(bytes: usize) -> Box<dyn Storage> {
        Box::new(AlignedBytes::<Page>::zeroed(bytes).unwrap())
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn reads_end_with_the_bytes_of_the_file_or_unfilled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let content: Vec<u8> = (0..40_000u32).map(|index| (index % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let Some(mut queue) = UringQueue::new(&File::open(&path).unwrap(), 3) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        assert!(queue.wait().unwrap().is_empty());
        for (token, offset) in [(7, 0), (8, 8192), (9, 36_864)] {
            assert!(queue.begin(token, offset, buffer(8192)).is_ok());
        }
        assert!(queue.begin(10, 0, buffer(4096)).is_err(), "deeper than it is");
        let mut found = BTreeMap::new();
        while found.len() < 3 {
            for read in queue.wait().unwrap() {
                found.insert(read.token, (read.filled, read.buffer.bytes().to_vec()));
            }
        }
        assert_eq!(found[&7], (true, content[..8192].to_vec()));
        assert_eq!(found[&8], (true, content[8192..16_384].to_vec()));
        assert!(!found[&9].0, "the file ends before the buffer");
        // Dropped with a read under way: waits for it.
        assert!(queue.begin(11, 0, buffer(8192)).is_ok());
    }
}
