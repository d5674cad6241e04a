//! What the disk delivers when each line of what is read is looked at once, and nothing else is done with it.

use crate::raw::{BLOCK_BYTES, offsets};
use anyhow::{Result, ensure};
use ipuc::files::DirectFile;
use ipuc_formats::onnx::{ReadAt, ReadQueue};
use ipuc_formats::pages::Pages;
use ipuc_formats::tensor::Storage;
use ipuc_runtime::flush_lines;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Reads in flight, and whether lines leave our caches when they have been looked at: the two ways that are best, each at
/// its time, where a virtual disk is filled by its host's copying.
const WAYS: [(usize, bool); 2] = [(2, false), (4, true)];

/// One thread that reads a file and looks at it.
pub struct Used {
    file: DirectFile,
    /// What is read into; that used last is used next.
    places: Vec<Box<dyn Storage>>,
}

struct Place(Pages);

impl Storage for Place {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
}

impl Used {
    pub fn new(path: &Path) -> Result<Self> {
        let most = WAYS.into_iter().map(|(reads, _)| reads).max().unwrap_or(0);
        let place = || -> Result<Box<dyn Storage>> {
            let mut pages = Pages::zeroed(BLOCK_BYTES)?;
            pages.fill(1);
            Ok(Box::new(Place(pages)))
        };
        let places = (0..=most).map(|_| place()).collect::<Result<_>>()?;
        Ok(Used { file: DirectFile::open(path)?, places })
    }

    /// Bytes a second in the better way; `None` where the system has no queue for reads.
    pub fn rate(&mut self) -> Result<Option<f64>> {
        let mut best: Option<f64> = None;
        for (reads, leave) in WAYS {
            let Some(mut queue) = self.file.queue(reads) else { return Ok(None) };
            let rate = self.rate_of(&mut *queue, reads, leave)?;
            best = Some(best.map_or(rate, |best| best.max(rate)));
        }
        Ok(best)
    }

    fn rate_of(&mut self, queue: &mut dyn ReadQueue, reads: usize, leave: bool) -> Result<f64> {
        let offsets = offsets(self.file.length());
        let (mut next, mut used) = (0, 0);
        let mut begin = |queue: &mut dyn ReadQueue, places: &mut Vec<Box<dyn Storage>>, used: usize| -> Result<()> {
            while next < offsets.len().min(used + reads)
                && let Some(place) = places.pop()
            {
                ensure!(queue.begin(next as u64, offsets[next], place).is_ok(), "a read cannot begin");
                next += 1;
            }
            Ok(())
        };
        let begun = Instant::now();
        begin(queue, &mut self.places, used)?;
        while used < offsets.len() {
            for read in queue.wait()? {
                ensure!(read.filled, "a read has failed");
                used += 1;
                // The disk has work before anybody looks.
                begin(queue, &mut self.places, used)?;
                let bytes = read.buffer.bytes();
                black_box(bytes.iter().step_by(64).fold(0, |sum, &byte| sum ^ byte));
                if leave {
                    flush_lines(bytes);
                }
                self.places.push(read.buffer);
            }
        }
        Ok((offsets.len() * BLOCK_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }
}
