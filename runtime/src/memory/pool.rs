//! Buffers of results that are sized while running, of outputs and of state; kept for the next one of the same capacity.

use crate::memory::budget::{Budget, Charge, Exceeded};
use crate::versions::{PageMemory, VersionError};
use ipuc_codes::aligned::AlignedBytes;
use ipuc_formats::tensor::Storage;
use ipuc_pages::Pages;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers kept at a time; the smallest go first.
const KEPT_BUFFERS: usize = 64;
/// A capacity is less than this part larger than what is asked for, so that a buffer serves again when sizes grow a little.
const LARGER_PART: usize = 8;
/// Capacities are multiples of a cache line.
const LEAST_STEP_BYTES: usize = 64;

/// Buffers from this many bytes on are mapped, so that their memory goes back to the system when they are given up. In a heap,
/// pages of caches that come and go leave holes in which the next ones do not fit: a process grew to seven times its budget.
const MAPPED_BYTES: usize = 64 << 10;

/// Memory of a buffer, charged to the budget; without a charge it has no bytes.
struct Buffer {
    bytes: Bytes,
    _charge: Option<Charge>,
}

enum Bytes {
    Heap(AlignedBytes),
    Mapped(Pages),
}

impl Bytes {
    fn none() -> Bytes {
        Bytes::Heap(AlignedBytes::default())
    }

    /// Zeros; `None` where the system has no memory.
    fn zeros(count: usize) -> Option<Bytes> {
        if count >= MAPPED_BYTES {
            return Pages::zeroed(count).ok().map(Bytes::Mapped);
        }
        AlignedBytes::zeroed(count).ok().map(Bytes::Heap)
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Heap(bytes) => bytes,
            Bytes::Mapped(pages) => pages,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Heap(bytes) => bytes,
            Bytes::Mapped(pages) => pages,
        }
    }
}

/// Why a buffer cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The budget has no room for it.
    Budget,
    /// The system has no memory for it.
    System,
}

/// Buffers that nobody uses.
pub(crate) struct Pool {
    budget: Arc<Budget>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By capacity.
    free: Vec<Buffer>,
    free_bytes: u64,
    /// Bytes of buffers in use, and the most since [`Pool::begin_run`].
    taken_bytes: u64,
    most_taken_bytes: u64,
    /// What was in use then.
    before_bytes: u64,
    /// Bytes that the budget had no room for since this was asked last.
    refused_bytes: u64,
}

impl Pool {
    /// No buffers; those to come are charged to `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Pool> {
        Arc::new(Pool { budget, kept: Mutex::default() })
    }

    /// Bytes that a buffer of `bytes` is charged with.
    pub(crate) fn capacity(bytes: usize) -> usize {
        let step = (bytes.checked_next_power_of_two().unwrap_or(0) / (2 * LARGER_PART)).max(LEAST_STEP_BYTES);
        bytes.checked_next_multiple_of(step).unwrap_or(bytes)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of this many bytes with unspecified contents.
    ///
    /// # Errors
    /// [`Refusal`] where there is no room.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<PoolBytes, Refusal> {
        let capacity = Pool::capacity(bytes);
        let kept = self.kept().take(capacity);
        let buffer = match kept {
            Some(buffer) => buffer,
            None => self.allocate(capacity)?,
        };
        self.kept().lend(capacity as u64);
        Ok(PoolBytes { pool: self.clone(), buffer, bytes })
    }

    /// Charge the budget; where it has no room, buffers that nobody uses are given back first.
    ///
    /// # Errors
    /// [`Exceeded`] where that is not enough.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, Exceeded> {
        self.budget.charge(bytes).or_else(|_| {
            self.trim();
            self.budget.charge(bytes)
        })
    }

    /// Count bytes that were allocated elsewhere for as long as they live; what is counted already stays as it is.
    ///
    /// # Errors
    /// [`Exceeded`] where there is no room.
    pub(crate) fn adopt(self: &Arc<Self>, storage: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, Exceeded> {
        let bytes = storage.bytes().len() as u64;
        if bytes == 0 || storage.is_counted() {
            return Ok(storage);
        }
        let charge = self.charge(bytes).inspect_err(|exceeded| self.kept().refused_bytes += exceeded.bytes)?;
        self.kept().lend(bytes);
        Ok(Arc::new(Adopted { pool: self.clone(), storage, _charge: charge }))
    }

    /// A run begins whose buffers [`Pool::run_bytes`] tells.
    pub(crate) fn begin_run(&self) {
        let mut kept = self.kept();
        (kept.most_taken_bytes, kept.before_bytes) = (kept.taken_bytes, kept.taken_bytes);
    }

    /// The most bytes of buffers in use at a time since the run began, besides those of before.
    pub(crate) fn run_bytes(&self) -> u64 {
        let kept = self.kept();
        kept.most_taken_bytes - kept.before_bytes
    }

    fn allocate(&self, capacity: usize) -> Result<Buffer, Refusal> {
        let charge = self.charge(capacity as u64).map_err(|exceeded| {
            self.kept().refused_bytes += exceeded.bytes;
            Refusal::Budget
        })?;
        let bytes = Bytes::zeros(capacity).ok_or(Refusal::System)?;
        Ok(Buffer { bytes, _charge: Some(charge) })
    }

    /// Give all buffers that nobody uses back to the budget.
    pub(crate) fn trim(&self) {
        let mut kept = self.kept();
        kept.free_bytes = 0;
        let free = std::mem::take(&mut kept.free);
        drop(kept);
        drop(free);
    }

    /// Bytes of buffers that nobody uses.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.kept().free_bytes
    }

    /// Bytes that the budget had no room for since this was called last.
    pub(crate) fn take_refused_bytes(&self) -> u64 {
        std::mem::take(&mut self.kept().refused_bytes)
    }
}

/// Memory for pages from a pool.
pub(crate) struct PoolPages(pub(crate) Arc<Pool>);

impl PageMemory for PoolPages {
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError> {
        Ok(Box::new(self.0.take(bytes).map_err(|_| VersionError::Memory { bytes })?))
    }
}

impl Kept {
    fn lend(&mut self, bytes: u64) {
        self.taken_bytes += bytes;
        self.most_taken_bytes = self.most_taken_bytes.max(self.taken_bytes);
    }

    fn take(&mut self, capacity: usize) -> Option<Buffer> {
        let index = self.free.partition_point(|buffer| buffer.bytes.len() < capacity);
        self.free.get(index).filter(|buffer| buffer.bytes.len() == capacity)?;
        self.free_bytes -= capacity as u64;
        Some(self.free.remove(index))
    }

    /// Keeps a buffer; gives the one that has to go for it.
    fn keep(&mut self, buffer: Buffer) -> Option<Buffer> {
        self.taken_bytes -= buffer.bytes.len() as u64;
        let place = self.free.partition_point(|other| other.bytes.len() < buffer.bytes.len());
        self.free_bytes += buffer.bytes.len() as u64;
        self.free.insert(place, buffer);
        let smallest = (self.free.len() > KEPT_BUFFERS).then(|| self.free.remove(0));
        self.free_bytes -= smallest.as_ref().map_or(0, |buffer| buffer.bytes.len() as u64);
        smallest
    }
}

/// Bytes of another's making that a budget counts.
struct Adopted {
    pool: Arc<Pool>,
    storage: Arc<dyn Storage>,
    _charge: Charge,
}

impl Storage for Adopted {
    fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.storage)?.bytes_mut()
    }
    fn is_counted(&self) -> bool {
        true
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        self.pool.kept().taken_bytes -= self.storage.bytes().len() as u64;
    }
}

/// A buffer in use; dropping it gives it back.
pub(crate) struct PoolBytes {
    pool: Arc<Pool>,
    buffer: Buffer,
    bytes: usize,
}

impl Storage for PoolBytes {
    fn bytes(&self) -> &[u8] {
        &self.buffer.bytes[..self.bytes]
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer.bytes[..self.bytes])
    }
    fn is_counted(&self) -> bool {
        true
    }
}

impl Drop for PoolBytes {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, Buffer { bytes: Bytes::none(), _charge: None });
        let replaced = self.pool.kept().keep(buffer);
        drop(replaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_serve_sizes_of_the_same_capacity() {
        let pool = Pool::new(Budget::new(None));
        let first = pool.take(1000).unwrap();
        let address = first.bytes().as_ptr();
        drop(first);
        assert_eq!(pool.free_bytes(), 1024);
        let again = pool.take(970).unwrap();
        assert_eq!((again.bytes().as_ptr(), again.bytes().len(), pool.free_bytes()), (address, 970, 0));
        drop(again);
        assert_eq!((pool.take(100).unwrap().bytes().len(), pool.free_bytes()), (100, 1024));
        for bytes in [0, 1, 64, 65, 1000, 4096, 1 << 20, (1 << 20) + 1, usize::MAX] {
            let capacity = Pool::capacity(bytes);
            assert!(capacity >= bytes && capacity - bytes <= (bytes / LARGER_PART).max(64), "{bytes}: {capacity}");
        }
    }

    #[test]
    fn buffers_of_any_size_are_aligned_zeros_that_can_be_written() {
        for bytes in [1, 1000, MAPPED_BYTES / 2, MAPPED_BYTES, 3 << 20] {
            let pool = Pool::new(Budget::new(None));
            let mut buffer = pool.take(bytes).unwrap();
            assert_eq!((buffer.bytes().len(), buffer.bytes().as_ptr().addr() % 64), (bytes, 0));
            assert!(buffer.bytes().iter().all(|&byte| byte == 0));
            buffer.bytes_mut().unwrap().fill(7);
            assert!(buffer.bytes().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn buffers_are_charged_while_they_are_used_or_kept() {
        let budget = Budget::new(Some(1000));
        let pool = Pool::new(budget.clone());
        let first = pool.take(600).unwrap();
        assert_eq!(pool.take(400).err(), Some(Refusal::Budget));
        assert_eq!((pool.take_refused_bytes(), pool.take_refused_bytes()), (448, 0));
        drop(first);
        assert_eq!((budget.in_use_bytes(), pool.free_bytes()), (640, 640));
        // What is kept goes where it is missing.
        pool.begin_run();
        let second = pool.take(900).unwrap();
        assert_eq!((budget.in_use_bytes(), pool.free_bytes()), (960, 0));
        drop(second);
        assert_eq!(pool.run_bytes(), 960);
        drop(pool.charge(900).unwrap());
        pool.trim();
        assert_eq!(budget.in_use_bytes(), 0);
    }
}
