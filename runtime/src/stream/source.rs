//! The file that is streamed, and what is known of it.

use super::schedule::Schedule;
use crate::file::WeightFile;
use crate::steps::KernelError;
use crate::trace::{Trace, Track};
use ipuc_codes::aligned::{AlignedBytes, Page};
use ipuc_formats::limits::IPU_CHUNK_ALIGNMENT;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::tensor::Storage;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub(super) type Heap = AlignedBytes<Page>;

/// Zeroed bytes at a border that direct reads need; `None` where there is no memory for them.
pub(super) fn heap(bytes: usize) -> Option<Heap> {
    Heap::zeroed(bytes).ok()
}

/// Bytes of a chunk: in its place, or elsewhere while somebody still holds that.
pub(super) type ChunkBytes = Box<dyn Storage>;

/// A file with its manifest.
pub(super) struct Source {
    pub(super) file: Arc<dyn WeightFile>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) weights: Vec<Arc<WeightRecord>>,
    pub(super) schedule: Schedule,
    /// Where reads and waits are noted.
    pub(super) trace: Mutex<Option<Arc<Trace>>>,
}

impl Source {
    /// The name of a weight, or its number.
    pub(super) fn weight_name(&self, weight: u32) -> String {
        self.weights[weight as usize].label()
    }

    pub(super) fn failure(&self, weight: u32, reason: &str) -> KernelError {
        KernelError::Weight { weight: self.weight_name(weight), reason: reason.to_string() }
    }

    /// Where the bytes of a part lie in its chunk.
    pub(super) fn range(&self, weight: u32, part: usize) -> Result<Range<usize>, KernelError> {
        let record = self.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| self.failure(weight, "a part is missing"))?;
        let extent = &self.manifest.extents[record.extent as usize];
        Ok(extent.range_in(&self.manifest.chunks[extent.chunk as usize]))
    }

    /// Bytes of the file, read from and to borders that direct reads need; and where in them the wanted ones are.
    pub(super) fn read_around(&self, wanted: Range<u64>, weight: u32) -> Result<(Heap, Range<usize>), KernelError> {
        let border = IPU_CHUNK_ALIGNMENT;
        let around = wanted.start / border * border..wanted.end.div_ceil(border) * border;
        let bytes = heap((around.end - around.start) as usize);
        let mut bytes = bytes.ok_or_else(|| self.failure(weight, "there is no memory for its bytes"))?;
        let read = self.file.read_exact_at(around.start, &mut bytes);
        read.map_err(|error| self.failure(weight, &format!("offset {} cannot be read: {error}", around.start)))?;
        Ok((bytes, (wanted.start - around.start) as usize..(wanted.end - around.start) as usize))
    }

    /// Notes what ends now, where there is a trace.
    pub(super) fn note(&self, track: Track, name: impl FnOnce() -> String, begun: Instant, bytes: Option<u64>) {
        let trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(trace) = trace {
            trace.add(track, name(), begun, bytes);
        }
    }
}
