//! Weights that are wholly in memory: copied into huge pages, mapped and shared with other processes, or on their way there
//! from a stream (`arriving`).

mod arriving;
mod shared;

pub use shared::SharedBytes;

use crate::error::OpenError;
use crate::memory::{Arena, Charge};
use crate::steps::{Decoding, KernelError, PartBytes, PartSource};
use ipuc_formats::encodings::Pick;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::{Storage, Tensor};
use ipuc_kernels::strided::copy_slices;
use std::io::Read;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arriving::Arrivals;
use shared::Copied;

/// Threads that read weights when a file is opened.
const READERS: usize = 6;

/// The stream of a file.
pub(crate) struct Resident {
    stream: Stream,
    manifest: Arc<Manifest>,
    weights: Vec<Arc<WeightRecord>>,
    /// Extents whose checksums have been verified.
    checked: Vec<AtomicBool>,
    /// Canonical tensors of weights that were asked for whole; filled on first use.
    tensors: Vec<OnceLock<Tensor>>,
}

/// Where the bytes of the stream are.
enum Stream {
    /// One after another; where in the file they begin.
    Whole(SharedBytes, u64),
    /// Each chunk for itself, once it is there.
    Arriving(Arc<Arrivals>),
}

impl Resident {
    /// Copy the whole stream, and check it.
    ///
    /// # Errors
    /// [`OpenError`] where the file cannot be read, a checksum does not match, or memory is short.
    pub(crate) fn copy(
        manifest: Arc<Manifest>,
        weights: Vec<Arc<WeightRecord>>,
        file: &dyn ReadAt,
    ) -> Result<Self, OpenError> {
        let start = manifest.chunks.first().map_or(0, |chunk| chunk.offset);
        let needed_bytes: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
        let short = || OpenError::Memory { needed_bytes, available_bytes: 0 };
        let length = usize::try_from(needed_bytes).map_err(|_| short())?;
        let arena = Arena::new(length).ok_or_else(short)?;
        // Chunks follow one another without gaps, as validation has checked; so their places do not overlap. Each is checked while
        // it lies in a near cache.
        let read = |index: usize| -> Result<(), OpenError> {
            let chunk = &manifest.chunks[index];
            let place = (chunk.offset - start) as usize;
            let mut piece = arena.take(place, chunk.length as usize).ok_or_else(short)?;
            let target = piece.bytes_mut().unwrap_or_default();
            file.read_exact_at(chunk.offset, target)
                .map_err(|error| OpenError::Read { offset: chunk.offset, error })?;
            for index in manifest.extents_of_chunk(index as u32) {
                let extent = &manifest.extents[index];
                extent.check(index as u32, &target[extent.range_in(chunk)])?;
            }
            Ok(())
        };
        each_in_turn(manifest.chunks.len(), &read)?;
        let bytes: SharedBytes = match arena.take(0, length) {
            Some(piece) => Arc::new(Copied(piece)),
            None if length == 0 => Arc::new(Vec::new()),
            None => return Err(short()),
        };
        let resident = Resident::over(manifest, weights, Stream::Whole(bytes, start));
        resident.checked.iter().for_each(|checked| checked.store(true, Ordering::Relaxed));
        Ok(resident)
    }

    /// Over the bytes of a whole file, each extent checked when it is used first.
    pub(crate) fn over_file(manifest: Arc<Manifest>, weights: Vec<Arc<WeightRecord>>, file: SharedBytes) -> Self {
        Resident::over(manifest, weights, Stream::Whole(file, 0))
    }

    /// Over what a stream brings, whose next byte is the first of the first chunk; each extent is checked when it is used
    /// first. Memory for all of it is charged already.
    ///
    /// # Errors
    /// [`OpenError::Memory`] where no thread can be started.
    pub(crate) fn arriving(
        manifest: Arc<Manifest>,
        weights: Vec<Arc<WeightRecord>>,
        stream: impl Read + Send + 'static,
        charge: Charge,
    ) -> Result<Self, OpenError> {
        let arrivals = Arrivals::begin(&manifest, stream, charge)?;
        Ok(Resident::over(manifest, weights, Stream::Arriving(arrivals)))
    }

    fn over(manifest: Arc<Manifest>, weights: Vec<Arc<WeightRecord>>, stream: Stream) -> Self {
        let tensors = weights.iter().map(|_| OnceLock::new()).collect();
        let checked = manifest.extents.iter().map(|_| AtomicBool::new(false)).collect();
        Resident { stream, manifest, weights, checked, tensors }
    }

    /// The bytes of an extent once they are there, or why they never will be.
    fn extent(&self, index: u32) -> Result<ExtentBytes, String> {
        let extent = &self.manifest.extents[index as usize];
        // Validation has checked that an extent lies inside its chunk, and chunks inside the file.
        let (bytes, begin) = match &self.stream {
            Stream::Whole(bytes, begin) => (bytes.clone(), *begin),
            Stream::Arriving(arrivals) => {
                (arrivals.chunk(extent.chunk)?, self.manifest.chunks[extent.chunk as usize].offset)
            }
        };
        let start = (extent.offset - begin) as usize;
        Ok(ExtentBytes { bytes, start, end: start + extent.length as usize })
    }

    /// The bytes of a part, whose checksums match.
    fn checked(&self, weight: u32, index: u32) -> Result<ExtentBytes, KernelError> {
        let bytes = self.extent(index).map_err(|reason| self.failure(weight, &reason))?;
        if !self.checked[index as usize].load(Ordering::Relaxed) {
            let matches = self.manifest.extents[index as usize].check(index, &bytes);
            matches.map_err(|error| self.failure(weight, &error.to_string()))?;
            self.checked[index as usize].store(true, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    /// Rows of a weight that does not lie in memory as steps see it; the others are not decoded.
    fn decoded_rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
        let record = &self.weights[weight as usize];
        let outside = || Decoding::Part(self.failure(weight, "has a row outside of its parts"));
        let units = |at: usize| -> Result<PartBytes, Decoding> {
            let pieces = record.locate(Pick::Row(rows[at]))?.bytes;
            if let [piece] = pieces.as_slice() {
                return self.piece(weight, piece.part, piece.bytes.clone()).map_err(Decoding::Part);
            }
            let mut units = Vec::new();
            for piece in pieces {
                let bytes = self.checked(weight, record.parts[piece.part].extent).map_err(Decoding::Part)?;
                let place = piece.bytes.start as usize..piece.bytes.end as usize;
                units.extend_from_slice(bytes.get(place).ok_or_else(outside)?);
            }
            Ok(PartBytes::new(Arc::new(units)))
        };
        let decoded = record.decode_rows(rows, units);
        decoded.map_err(|error| error.of(&|error| self.failure(weight, &error.to_string())))
    }

    /// Bytes `range` of a part.
    fn piece(&self, weight: u32, part: usize, range: Range<u64>) -> Result<PartBytes, KernelError> {
        let whole = self.checked(weight, self.weights[weight as usize].parts[part].extent)?;
        let (start, end) = (whole.start + range.start as usize, whole.start + range.end as usize);
        if end > whole.end {
            return Err(self.failure(weight, "has a matrix outside of its parts"));
        }
        Ok(PartBytes::new(Arc::new(ExtentBytes { start, end, ..whole })))
    }

    fn failure(&self, weight: u32, reason: &str) -> KernelError {
        KernelError::Weight { weight: self.weights[weight as usize].label(), reason: reason.to_string() }
    }
}

/// Runs `read` for every index below `count`, on more threads than there are cores: while one waits for the device, another checks.
///
/// # Errors
/// That of the least index that fails; what comes behind it may be left out.
fn each_in_turn(count: usize, read: &(dyn Fn(usize) -> Result<(), OpenError> + Sync)) -> Result<(), OpenError> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None::<(usize, OpenError)>));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            if let Err(error) = read(index) {
                next.store(count, Ordering::Relaxed);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                    *failed = Some((index, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..READERS.min(count) {
            // Where no thread can be started, the others do its work.
            let _ = std::thread::Builder::new().name("ipuc-read".to_string()).spawn_scoped(scope, work);
        }
        work();
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

struct ExtentBytes {
    bytes: SharedBytes,
    start: usize,
    end: usize,
}

impl Deref for ExtentBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Storage for ExtentBytes {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl PartSource for Resident {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let record = self.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| self.failure(weight, "a part is missing"))?;
        Ok(PartBytes::new(Arc::new(self.checked(weight, record.extent)?)))
    }

    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        let slot = &self.tensors[weight as usize];
        if let Some(tensor) = slot.get() {
            return Ok(Some(tensor.clone()));
        }
        let record = &self.weights[weight as usize];
        let failure = |error: &dyn std::fmt::Display| self.failure(weight, &error.to_string());
        let tensor = match record.parts.as_slice() {
            [part] if record.is_one_canonical_part() => {
                let shape: Vec<usize> = record.shape.iter().map(|&extent| extent as usize).collect();
                let bytes = Arc::new(self.checked(weight, part.extent)?);
                Tensor::over(record.dtype, &shape, bytes).map_err(|error| failure(&error))?
            }
            _ => {
                let part = |part: usize| self.checked(weight, record.parts[part].extent).map_err(Decoding::Part);
                record.decode(part).map_err(|error| error.of(&failure))?
            }
        };
        Ok(Some(slot.get_or_init(|| tensor).clone()))
    }

    fn rows(&self, weight: u32, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError> {
        let another_size = || self.failure(weight, "has rows of another size");
        if !self.weights[weight as usize].is_one_canonical_part() {
            let decoded = self.decoded_rows(weight, rows)?;
            if decoded.len() != target.len() {
                return Err(another_size());
            }
            target.copy_from_slice(&decoded);
            return Ok(());
        }
        let tensor = self.tensor(weight)?.ok_or_else(|| self.failure(weight, "cannot be unpacked"))?;
        let count = tensor.shape().first().copied().unwrap_or(0);
        if tensor.dtype().bits() < 8 || count == 0 {
            return Err(self.failure(weight, "has no rows of whole bytes"));
        }
        let width = tensor.bytes().len() / count;
        if rows.len().checked_mul(width) != Some(target.len()) {
            return Err(another_size());
        }
        let start = |&row: &u64| {
            let row = usize::try_from(row).ok().filter(|&row| row < count);
            row.map(|row| row * width).ok_or_else(|| self.failure(weight, "a row is out of range"))
        };
        let starts = rows.iter().map(start).collect::<Result<Vec<usize>, _>>()?;
        copy_slices(tensor.bytes(), &starts, width, target);
        Ok(())
    }

    fn matrices(&self, weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        let record = &self.weights[weight as usize];
        let pieces = |&matrix: &u64| {
            let place = record.locate(Pick::Group(matrix));
            let place = place.map_err(|error| self.failure(weight, &error.to_string()))?;
            place.bytes.into_iter().map(|piece| self.piece(weight, piece.part, piece.bytes)).collect()
        };
        matrices.iter().map(pieces).collect()
    }
}
