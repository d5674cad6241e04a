//! What the disk delivers when nothing else is done.

use anyhow::Result;
use ipuc::files::DirectFile;
use ipuc_formats::onnx::ReadAt;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const BLOCK_BYTES: usize = 2 << 20;
/// Raw reads stop after this many bytes: enough for a rate.
const RAW_BYTES: u64 = 2 << 30;
/// Buffers that are used in turn when what is read is also looked at: as many as streaming has places.
const PLACES: usize = 64;

/// Direct reads of a file from its begin on.
pub struct Raw {
    file: DirectFile,
    buffers: memmap2::MmapMut,
    first: usize,
}

impl Raw {
    pub fn new(path: &Path) -> Result<Self> {
        let mut buffers = memmap2::MmapMut::map_anon((PLACES + 1) * BLOCK_BYTES)?;
        #[cfg(target_os = "linux")]
        buffers.advise(memmap2::Advice::HugePage)?;
        buffers.fill(1);
        let first = buffers.as_ptr().align_offset(BLOCK_BYTES);
        Ok(Raw { file: DirectFile::open(path)?, buffers, first })
    }

    /// Bytes a second with the best number of reads in flight, into one buffer for each.
    pub fn rate(&mut self) -> Result<f64> {
        [1, 2, 4, 8].into_iter().try_fold(0f64, |best, lanes| Ok(best.max(self.rate_of(lanes, 1, |_| {})?)))
    }

    /// The same into as many buffers as streaming has places, each line of which is loaded once when its read has ended.
    pub fn rate_of_use(&mut self) -> Result<f64> {
        let load = |buffer: &[u8]| _ = black_box(buffer.iter().step_by(64).fold(0, |sum, &byte| sum ^ byte));
        [4, 8].into_iter().try_fold(0f64, |best, lanes| Ok(best.max(self.rate_of(lanes, PLACES / lanes, load)?)))
    }

    fn rate_of(&mut self, lanes: usize, places: usize, use_of: impl Fn(&[u8]) + Sync) -> Result<f64> {
        let length = (self.file.length() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).min(RAW_BYTES);
        let (file, first, use_of) = (&self.file, self.first, &use_of);
        let begun = Instant::now();
        let read = |lane: usize, buffers: &mut [u8]| -> std::io::Result<()> {
            let offsets = ((lane * BLOCK_BYTES) as u64..length).step_by(lanes * BLOCK_BYTES);
            for (turn, offset) in offsets.enumerate() {
                let buffer = &mut buffers[turn % places * BLOCK_BYTES..][..BLOCK_BYTES];
                file.read_exact_at(offset, buffer)?;
                use_of(buffer);
            }
            Ok(())
        };
        let read = &read;
        std::thread::scope(|scope| {
            let buffers = self.buffers[first..].chunks_exact_mut(places * BLOCK_BYTES).take(lanes).enumerate();
            let lanes: Vec<_> = buffers.map(|(lane, buffers)| scope.spawn(move || read(lane, buffers))).collect();
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok(length as f64 / begun.elapsed().as_secs_f64())
    }
}
