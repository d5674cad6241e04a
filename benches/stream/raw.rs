//! What the disk delivers when nothing else is done.

use anyhow::Result;
use ipuc::files::DirectFile;
use ipuc_formats::read_at::ReadAt;
use ipuc_pages::Pages;
use std::path::Path;
use std::time::Instant;

pub const BLOCK_BYTES: usize = 2 << 20;
/// Raw reads take this many bytes, enough for a rate, in stretches from all of the file: a disk need not deliver all parts
/// of it at the same rate.
const RAW_BYTES: usize = 2 << 30;
const STRETCH_BLOCKS: usize = 32;
/// Numbers of reads in flight that are tried.
const LANES: [usize; 4] = [1, 2, 4, 8];

/// Where the blocks of a file of this length lie that are read for a rate.
pub fn offsets(length: u64) -> Vec<u64> {
    let all = length as usize / BLOCK_BYTES;
    let blocks = all.min(RAW_BYTES / BLOCK_BYTES);
    let stretches_apart = all / blocks.max(1);
    let place = |block: usize| block / STRETCH_BLOCKS * stretches_apart * STRETCH_BLOCKS + block % STRETCH_BLOCKS;
    (0..blocks).map(|block| (place(block) * BLOCK_BYTES) as u64).collect()
}

/// Direct reads of a file.
pub struct Raw {
    file: DirectFile,
    buffers: Pages,
}

impl Raw {
    pub fn new(path: &Path) -> Result<Self> {
        let mut buffers = Pages::zeroed(LANES.into_iter().max().unwrap_or(1) * BLOCK_BYTES)?;
        buffers.fill(1);
        Ok(Raw { file: DirectFile::open(path)?, buffers })
    }

    /// Bytes a second with the best number of reads in flight, into one buffer for each.
    pub fn rate(&mut self) -> Result<f64> {
        LANES.into_iter().try_fold(0f64, |best, lanes| Ok(best.max(self.rate_of(lanes)?)))
    }

    fn rate_of(&mut self, lanes: usize) -> Result<f64> {
        let (file, offsets) = (&self.file, offsets(self.file.length()));
        let begun = Instant::now();
        let read = |lane: usize, buffer: &mut [u8]| -> std::io::Result<()> {
            let mut offsets = offsets.iter().skip(lane).step_by(lanes);
            offsets.try_for_each(|&offset| file.read_exact_at(offset, buffer))
        };
        let read = &read;
        std::thread::scope(|scope| {
            let buffers = self.buffers.chunks_exact_mut(BLOCK_BYTES).take(lanes).enumerate();
            let lanes: Vec<_> = buffers.map(|(lane, buffer)| scope.spawn(move || read(lane, buffer))).collect();
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok((offsets.len() * BLOCK_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }
}
