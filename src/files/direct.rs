//! A file that is read past the page cache where the system allows it.
//!
//! What is streamed is read once a pass, in a known order: a cache would only hold memory that others need. Direct reads
//! want offset, length and buffer at multiples of a block; reads that are not go through the cache.

#[cfg(target_os = "linux")]
use super::queue::UringQueue;
use super::source::{SourceFile, SourceFileError};
use ipuc_formats::read_at::ReadAt;
use ipuc_runtime::{ReadQueue, WeightFile};
use std::io;
use std::path::Path;

/// Offsets, lengths and addresses of direct reads are multiples of this: no device asks for more.
#[cfg(target_os = "linux")]
const BLOCK_BYTES: usize = 4096;

/// A regular file, opened for direct reading.
#[derive(Debug)]
pub struct DirectFile {
    buffered: SourceFile,
    /// `None` where the file system has no direct reads.
    #[cfg(target_os = "linux")]
    direct: Option<std::fs::File>,
}

impl DirectFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`SourceFileError`] when it does not exist, may not be read or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, SourceFileError> {
        let buffered = SourceFile::open(path)?;
        #[cfg(target_os = "linux")]
        let direct = {
            use std::os::unix::fs::OpenOptionsExt as _;
            let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
            // Through the open file, so that it is the same one even where the path has been given to another.
            use std::os::fd::AsRawFd as _;
            let same = format!("/proc/self/fd/{}", buffered.file().as_raw_fd());
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(same).ok()
        };
        Ok(DirectFile {
            buffered,
            #[cfg(target_os = "linux")]
            direct,
        })
    }

    /// Whether most of the file lies in the page cache, as far as some places of it tell.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        #[cfg(target_os = "linux")]
        {
            /// Places that are asked for.
            const PLACES: u64 = 16;
            let cached = |place: u64| {
                let offset = self.length() / PLACES * place;
                let mut byte = [0u8];
                let slices = &mut [io::IoSliceMut::new(&mut byte)];
                // A read that does not wait fails where it would have to. Files that know no such reads are in memory.
                let read =
                    rustix::io::preadv2(self.buffered.file(), slices, offset, rustix::io::ReadWriteFlags::NOWAIT);
                read != Err(rustix::io::Errno::AGAIN)
            };
            (0..PLACES).filter(|&place| cached(place)).count() as u64 > PLACES / 2
        }
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// The same file, read through the page cache.
    #[must_use]
    pub fn buffered(&self) -> &SourceFile {
        &self.buffered
    }
}

impl ReadAt for DirectFile {
    fn length(&self) -> u64 {
        self.buffered.length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(direct) = &self.direct {
            let aligned = |value: usize| value.is_multiple_of(BLOCK_BYTES);
            let whole = offset.is_multiple_of(BLOCK_BYTES as u64) && aligned(buffer.len());
            if whole && aligned(buffer.as_ptr() as usize) {
                match std::os::unix::fs::FileExt::read_exact_at(direct, buffer, offset) {
                    // The file system took the flag but not the read.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                    result => return result,
                }
            }
        }
        self.buffered.read_exact_at(offset, buffer)
    }
}

impl WeightFile for DirectFile {
    #[cfg(target_os = "linux")]
    fn queue(&self, depth: usize) -> Option<Box<dyn ReadQueue>> {
        let queue = UringQueue::new(self.direct.as_ref()?, depth)?;
        Some(Box::new(queue))
    }

    #[cfg(not(target_os = "linux"))]
    fn queue(&self, _depth: usize) -> Option<Box<dyn ReadQueue>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_cached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert!(DirectFile::open(&path).unwrap().is_cached());
    }

    #[test]
    fn reads_are_right_whether_aligned_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let content: Vec<u8> = (0..3 * 4096u32).map(|index| (index % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = DirectFile::open(&path).unwrap();
        for (offset, length) in [(0, 4096), (4096, 8192), (1, 5000), (8191, 2), (0, 0)] {
            let mut buffer = ipuc_codes::aligned::AlignedBytes::<ipuc_codes::aligned::Page>::zeroed(length).unwrap();
            file.read_exact_at(offset as u64, &mut buffer).unwrap();
            assert_eq!(buffer[..], content[offset..offset + length], "{offset} {length}");
        }
        let mut past = vec![0; 2];
        let error = file.read_exact_at(content.len() as u64 - 1, &mut past).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
