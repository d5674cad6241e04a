//! What the disk delivers when each line of what is read is looked at once, and nothing else is done with it.

use crate::raw::{BLOCK_BYTES, offsets};
use anyhow::{Result, ensure};
use ipuc::files::DirectFile;
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::Storage;
use ipuc_pages::Pages;
use ipuc_runtime::{ReadQueue, WeightFile};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Reads in flight that are tried.
const DEPTHS: [usize; 3] = [2, 3, 4];

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
        let most = DEPTHS.into_iter().max().unwrap_or(0);
        let place = || -> Result<Box<dyn Storage>> {
            let mut pages = Pages::zeroed(BLOCK_BYTES)?;
            pages.fill(1);
            Ok(Box::new(Place(pages)))
        };
        let places = (0..=most).map(|_| place()).collect::<Result<_>>()?;
        Ok(Used { file: DirectFile::open(path)?, places })
    }

    /// Bytes a second at the best depth; `None` where the system has no queue for reads.
    pub fn rate(&mut self) -> Result<Option<f64>> {
        let mut best: Option<f64> = None;
        for reads in DEPTHS {
            let Some(mut queue) = self.file.queue(reads) else { return Ok(None) };
            let rate = self.rate_of(&mut *queue, reads)?;
            best = Some(best.map_or(rate, |best| best.max(rate)));
        }
        Ok(best)
    }

    fn rate_of(&mut self, queue: &mut dyn ReadQueue, reads: usize) -> Result<f64> {
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
                self.places.push(read.buffer);
            }
        }
        Ok((offsets.len() * BLOCK_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }
}
