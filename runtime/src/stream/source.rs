//! The file that is streamed, and what is known of it: the same for every plan.

use super::order::Order;
use super::report::Residency;
use super::residency::{Shortage, plan};
use super::streamed::StreamedOptions;
use crate::steps::KernelError;
use crate::trace::Trace;
use aligned_vec::{AVec, ConstAlign};
use ipuc_formats::limits::IPU_CHUNK_ALIGNMENT;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::tensor::Storage;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub(super) type Heap = AVec<u8, ConstAlign<4096>>;

/// Zeroed bytes at a border that direct reads need.
pub(super) fn heap(bytes: usize) -> Heap {
    let mut heap = Heap::new(4096);
    heap.resize(bytes, 0);
    heap
}

/// Bytes of a chunk: in its place, or elsewhere while somebody still holds that.
pub(super) type ChunkBytes = Box<dyn Storage>;

/// A file with its manifest.
pub(super) struct Source {
    pub(super) file: Arc<dyn ReadAt>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) weights: Vec<Arc<WeightRecord>>,
    pub(super) order: Order,
    /// Where reads and waits are noted.
    pub(super) trace: Mutex<Option<Arc<Trace>>>,
}

impl Source {
    /// What stays within the budget when this much of it is for other things than weights.
    pub(super) fn plan(&self, options: StreamedOptions, working_bytes: u64) -> Result<Residency, Shortage> {
        plan(&self.manifest, &self.order, options.budget_bytes, working_bytes)
    }

    pub(super) fn failure(&self, weight: u32, reason: &str) -> KernelError {
        let name = self.weights[weight as usize].name.clone().unwrap_or_else(|| format!("#{weight}"));
        KernelError::Weight { weight: name, reason: reason.to_string() }
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
        let around = borders(&wanted);
        let mut bytes = heap((around.end - around.start) as usize);
        self.read(around.start, &mut bytes, weight)?;
        Ok((bytes, (wanted.start - around.start) as usize..(wanted.end - around.start) as usize))
    }

    /// Fill `bytes` from the file.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8], weight: u32) -> Result<(), KernelError> {
        let read = self.file.read_exact_at(offset, bytes);
        read.map_err(|error| self.failure(weight, &format!("offset {offset} cannot be read: {error}")))
    }
}

/// The smallest range around this one that can be read directly.
pub(super) fn borders(wanted: &Range<u64>) -> Range<u64> {
    let border = IPU_CHUNK_ALIGNMENT;
    wanted.start / border * border..wanted.end.div_ceil(border) * border
}
