//! What the disk delivers when nothing else is done.

use anyhow::Result;
use ipuc::files::DirectFile;
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::pages::Pages;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const BLOCK_BYTES: usize = 2 << 20;
/// Raw reads take this many bytes, enough for a rate, in stretches from all of the file: a disk need not deliver all parts
/// of it at the same rate.
const RAW_BYTES: usize = 2 << 30;
const STRETCH_BLOCKS: usize = 32;
/// Buffers that are used in turn, at most, when what is read is also looked at.
const PLACES: usize = 64;

/// Direct reads of a file.
pub struct Raw {
    file: DirectFile,
    buffers: Pages,
}

impl Raw {
    pub fn new(path: &Path) -> Result<Self> {
        let mut buffers = Pages::zeroed(PLACES * BLOCK_BYTES)?;
        buffers.fill(1);
        Ok(Raw { file: DirectFile::open(path)?, buffers })
    }

    /// Bytes a second with the best number of reads in flight, into one buffer for each.
    pub fn rate(&mut self) -> Result<f64> {
        [1, 2, 4, 8].into_iter().try_fold(0f64, |best, lanes| Ok(best.max(self.rate_of(lanes, 1, |_| {})?)))
    }

    /// The same where each line of what was read is loaded once, into few or many buffers.
    pub fn rate_of_use(&mut self) -> Result<f64> {
        let load = |buffer: &[u8]| _ = black_box(buffer.iter().step_by(64).fold(0, |sum, &byte| sum ^ byte));
        [(2, 1), (4, 1), (4, PLACES / 4), (8, PLACES / 8)]
            .into_iter()
            .try_fold(0f64, |best, (lanes, places)| Ok(best.max(self.rate_of(lanes, places, load)?)))
    }

    fn rate_of(&mut self, lanes: usize, places: usize, use_of: impl Fn(&[u8]) + Sync) -> Result<f64> {
        let all = usize::try_from(self.file.length())? / BLOCK_BYTES;
        let blocks = all.min(RAW_BYTES / BLOCK_BYTES);
        let stretches_apart = all / blocks.max(1);
        let place = |block: usize| block / STRETCH_BLOCKS * stretches_apart * STRETCH_BLOCKS + block % STRETCH_BLOCKS;
        let (file, use_of) = (&self.file, &use_of);
        let begun = Instant::now();
        let read = |lane: usize, buffers: &mut [u8]| -> std::io::Result<()> {
            for (turn, block) in (lane..blocks).step_by(lanes).enumerate() {
                let buffer = &mut buffers[turn % places * BLOCK_BYTES..][..BLOCK_BYTES];
                file.read_exact_at((place(block) * BLOCK_BYTES) as u64, buffer)?;
                use_of(buffer);
            }
            Ok(())
        };
        let read = &read;
        std::thread::scope(|scope| {
            let buffers = self.buffers.chunks_exact_mut(places * BLOCK_BYTES).take(lanes).enumerate();
            let lanes: Vec<_> = buffers.map(|(lane, buffers)| scope.spawn(move || read(lane, buffers))).collect();
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok((blocks * BLOCK_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }
}
