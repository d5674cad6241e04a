//! What the disk delivers when each line of what is read is looked at once, and nothing else is done with it; and when
//! memory is read beside it, as a pass reads the weights that stay.

use crate::figures::median;
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
/// Memory that stands for the weights that stay: more than caches hold.
const KEPT_BYTES: usize = 256 << 20;

/// One thread that reads a file and looks at it.
pub struct Used {
    file: DirectFile,
    /// What is read into; that used last is used next.
    places: Vec<Box<dyn Storage>>,
    kept: Kept,
    /// Rates that were measured, for each depth.
    alone: [Vec<f64>; DEPTHS.len()],
    beside: [Vec<f64>; DEPTHS.len()],
}

/// Memory that is read from one end to the other, again and again.
struct Kept {
    pages: Pages,
    next: usize,
}

impl Kept {
    fn look_at(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let end = (self.next + bytes).min(self.pages.len());
            look_at(&self.pages[self.next..end]);
            bytes -= end - self.next;
            self.next = if end == self.pages.len() { 0 } else { end };
        }
    }
}

/// Read one byte of each line.
fn look_at(bytes: &[u8]) {
    black_box(bytes.iter().step_by(64).fold(0, |sum, &byte| sum ^ byte));
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
        let mut pages = Pages::zeroed(KEPT_BYTES)?;
        pages.fill(1);
        let kept = Kept { pages, next: 0 };
        Ok(Used { file: DirectFile::open(path)?, places, kept, alone: Default::default(), beside: Default::default() })
    }

    /// Read the file at each depth, without and with `kept_per_byte` bytes of memory that are read for each of the file.
    /// Measures nothing where the system has no queue for reads.
    pub fn turn(&mut self, kept_per_byte: f64) -> Result<()> {
        for (at, reads) in DEPTHS.into_iter().enumerate() {
            let Some(mut queue) = self.file.queue(reads) else { return Ok(()) };
            let alone = self.rate_of(&mut *queue, reads, 0)?;
            self.alone[at].push(alone);
            let beside = self.rate_of(&mut *queue, reads, (kept_per_byte * BLOCK_BYTES as f64) as usize)?;
            self.beside[at].push(beside);
        }
        Ok(())
    }

    /// Bytes a second of the file since the last time, without and with memory that is read: medians of the turns, at the
    /// depth where they are most. `None` where nothing was measured.
    pub fn rates(&mut self) -> Option<[f64; 2]> {
        let best = |turns: &mut [Vec<f64>; DEPTHS.len()]| {
            let medians = turns.iter_mut().map(std::mem::take).filter(|turns| !turns.is_empty());
            medians.map(|turns| median(&turns)).reduce(f64::max)
        };
        Some([best(&mut self.alone)?, best(&mut self.beside)?])
    }

    fn rate_of(&mut self, queue: &mut dyn ReadQueue, reads: usize, kept_bytes: usize) -> Result<f64> {
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
                look_at(read.buffer.bytes());
                self.kept.look_at(kept_bytes);
                self.places.push(read.buffer);
            }
        }
        Ok((offsets.len() * BLOCK_BYTES) as f64 / begun.elapsed().as_secs_f64())
    }
}
