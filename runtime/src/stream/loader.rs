//! Brings chunks into memory: keeps reads in flight, checks what they have read, and wakes the run that waits for it.
//!
//! Where the system has a queue of reads, one thread keeps it full and takes what has completed. Where there is none,
//! several threads read one chunk after another.

use super::loads::{ChunkRead, Loads, Target};
use super::source::{ChunkBytes, Source, heap};
use crate::file::{CompletedRead, ReadQueue};
use crate::memory::{Arena, ArenaBytes, Charge};
use crate::trace::Track;
use ipuc_formats::tensor::Storage;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Reads in flight in the queue of the system.
const QUEUE_DEPTH: usize = 3;
/// Threads that read in turn, where there is no queue. They also check what they have read, so that more are needed.
const READER_THREADS: usize = 8;

/// The bookkeeping, locked.
pub(super) type Locked<'a> = MutexGuard<'a, Loads<ChunkBytes>>;

/// Where chunks lie: the places of those that are pinned, the lowest of which are the first to leave, and above them the
/// ring.
pub(super) struct ChunkMemory {
    pub(super) arena: Arc<Arena>,
    /// Offsets of the places of pinned chunks, by chunk.
    pub(super) places: Vec<usize>,
    /// Offset of the ring.
    pub(super) ring_start: usize,
}

/// Reads chunks in the order of loads.
pub(super) struct Loader {
    pub(super) source: Source,
    memory: ChunkMemory,
    loads: Mutex<Loads<ChunkBytes>>,
    /// A read has completed, or held bytes were given back.
    completed: Condvar,
    /// There is something to read and room for it, or the threads are to end.
    wanted: Condvar,
    /// Threads that could be started.
    threads: AtomicUsize,
    /// Runs that wait for what has completed; changes while `loads` is locked.
    waiting: AtomicUsize,
}

impl Loader {
    /// Nothing is read yet.
    pub(super) fn new(source: Source, memory: ChunkMemory, loads: Loads<ChunkBytes>) -> Self {
        let (completed, wanted) = (Condvar::new(), Condvar::new());
        let (threads, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Loader { source, memory, loads: Mutex::new(loads), completed, wanted, threads, waiting }
    }

    /// Starts the threads, for `depth` reads in flight; 0 for what suits most devices. Where not all can be started the
    /// others do their work; where none can, the run reads what it needs.
    pub(super) fn start(self: &Arc<Self>, depth: usize) -> Vec<JoinHandle<()>> {
        let thread = |work: Box<dyn FnOnce(&Loader) + Send>| {
            let loader = self.clone();
            Builder::new().name("ipuc-read".to_string()).spawn(move || work(&loader)).ok()
        };
        let or = |usual| if depth == 0 { usual } else { depth };
        let (queue_depth, readers) = (or(QUEUE_DEPTH), or(READER_THREADS));
        let threads: Vec<_> = match self.source.file.queue(queue_depth) {
            Some(queue) => thread(Box::new(move |loader| loader.keep_full(queue, queue_depth))).into_iter().collect(),
            None => {
                (0..readers).filter_map(|index| thread(Box::new(move |loader| loader.read_in_turn(index)))).collect()
            }
        };
        self.threads.store(threads.len(), Ordering::Relaxed);
        threads
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The threads are to end.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wanted.notify_all();
    }

    /// There may be something to read, or room for it. Who sleeps is woken for that only: where all weights stay in memory, a step
    /// costs no call of the system.
    pub(super) fn wake(&self, mut loads: Locked<'_>) {
        let wanted = loads.is_read_wanted();
        drop(loads);
        if wanted {
            self.wanted.notify_all();
        }
    }

    /// Held bytes were given back.
    pub(super) fn released(&self, loads: Locked<'_>) {
        let waiting = self.waiting.load(Ordering::Relaxed) > 0;
        self.wake(loads);
        if waiting {
            self.completed.notify_all();
        }
    }

    /// No read is in flight whose completion can be waited for, and none can begin.
    pub(super) fn is_starved(&self, loads: &mut Loads<ChunkBytes>) -> bool {
        self.threads.load(Ordering::Relaxed) == 0 || !loads.can_progress()
    }

    /// Waits until a read has completed.
    pub(super) fn wait<'a>(&'a self, loads: Locked<'a>) -> Locked<'a> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let loads = self.completed.wait(loads).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        loads
    }

    /// Drops everything that was planned and read ahead.
    pub(super) fn drop_reads_ahead<'a>(&'a self, mut loads: Locked<'a>) -> Locked<'a> {
        while !loads.prepare_to_forget() {
            loads = self.wait(loads);
        }
        loads.forget();
        loads
    }

    /// Gives the memory of the ring from `used_bytes` on back to the system. Nothing may be in the ring.
    pub(super) fn discard_ring(&self, used_bytes: usize, ring_bytes: usize) {
        self.memory.arena.discard(self.memory.ring_start + used_bytes, ring_bytes - used_bytes);
    }

    /// Keeps as many reads in flight as the queue takes, until the loader closes. A read's token is its index.
    fn keep_full(&self, mut queue: Box<dyn ReadQueue>, depth: usize) {
        let mut in_flight: Vec<Option<(ChunkRead, Instant)>> = vec![None; depth];
        let mut completed: Vec<CompletedRead> = Vec::new();
        loop {
            let ended: Vec<_> = completed
                .drain(..)
                .filter_map(|read| {
                    let (chunk, begun) = in_flight.get_mut(read.token as usize)?.take()?;
                    Some((read, chunk, begun))
                })
                .collect();
            // The device has work again before anything is checked.
            for (index, free) in in_flight.iter_mut().enumerate().filter(|(_, read)| read.is_none()) {
                let Some(read) = self.lock().begin_read() else { break };
                *free = self.begin(&mut *queue, index, read);
            }
            for (CompletedRead { token, buffer, filled }, read, begun) in ended {
                let chunk = if filled { Ok(buffer) } else { self.fill(&read, buffer) };
                self.complete(token as usize, begun, &read, chunk);
            }
            let mut loads = self.lock();
            if in_flight.iter().any(Option::is_some) {
                drop(loads);
                completed = queue.wait().unwrap_or_else(|_| {
                    // The reads go on; asking again at once would only take the processor from them.
                    std::thread::sleep(Duration::from_millis(1));
                    Vec::new()
                });
                continue;
            }
            while !loads.closing && !loads.can_progress() {
                loads = self.wanted.wait(loads).unwrap_or_else(PoisonError::into_inner);
            }
            if loads.closing {
                return;
            }
        }
    }

    /// Begins a read. One that the queue does not take is carried out here.
    fn begin(&self, queue: &mut dyn ReadQueue, index: usize, read: ChunkRead) -> Option<(ChunkRead, Instant)> {
        let begun = Instant::now();
        let offset = self.source.manifest.chunks[read.chunk as usize].offset;
        let refused = match self.target(&read).map(|buffer| queue.begin(index as u64, offset, buffer)) {
            Ok(Ok(())) => return Some((read, begun)),
            Ok(Err(buffer)) => self.fill(&read, buffer),
            Err(reason) => Err(reason),
        };
        self.complete(index, begun, &read, refused);
        None
    }

    /// Reads one chunk after another, until the loader closes.
    fn read_in_turn(&self, index: usize) {
        let mut loads = self.lock();
        while !loads.closing {
            let Some(read) = loads.begin_read() else {
                loads = self.wanted.wait(loads).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(loads);
            let begun = Instant::now();
            let chunk = self.target(&read).and_then(|buffer| self.fill(&read, buffer));
            self.complete(index, begun, &read, chunk);
            loads = self.lock();
        }
    }

    /// Checks a chunk that has been read, and says that it is there.
    fn complete(&self, index: usize, begun: Instant, read: &ChunkRead, chunk: Result<ChunkBytes, String>) {
        let result = chunk.and_then(|chunk| self.check(read, chunk)).map(Arc::new);
        let bytes = self.source.manifest.chunks[read.chunk as usize].length;
        self.source.note(Track::Reader(index), || format!("chunk {}", read.chunk), begun, Some(bytes));
        let mut loads = self.lock();
        loads.complete(read, result);
        self.released(loads);
    }

    /// Memory for a chunk.
    fn target(&self, read: &ChunkRead) -> Result<ChunkBytes, String> {
        let record = &self.source.manifest.chunks[read.chunk as usize];
        let (arena, length) = (&self.memory.arena, record.length as usize);
        let taken: Option<ChunkBytes> = match &read.target {
            Target::Slot(offset) => {
                arena.take(self.memory.ring_start + offset, length).map(|bytes| Box::new(bytes) as ChunkBytes)
            }
            Target::Place(charge) => arena.take(self.memory.places[read.chunk as usize], length).map(|bytes| {
                Box::new(PinnedBytes { bytes: bytes.discarded_when_dropped(), _charge: charge.clone() }) as ChunkBytes
            }),
        };
        // Where somebody still holds what was there before.
        let taken = taken.or_else(|| Some(Box::new(heap(length)?) as ChunkBytes));
        taken.ok_or_else(|| unusable(read, record.offset, &"there is no memory for it"))
    }

    fn fill(&self, read: &ChunkRead, mut buffer: ChunkBytes) -> Result<ChunkBytes, String> {
        let offset = self.source.manifest.chunks[read.chunk as usize].offset;
        let target = buffer.bytes_mut().ok_or_else(|| unusable(read, offset, &"its memory cannot be written"))?;
        let filled = self.source.file.read_exact_at(offset, target);
        filled.map_err(|error| unusable(read, offset, &error))?;
        Ok(buffer)
    }

    fn check(&self, read: &ChunkRead, chunk: ChunkBytes) -> Result<ChunkBytes, String> {
        let manifest = &self.source.manifest;
        let record = manifest.chunks[read.chunk as usize];
        for index in manifest.extents_of_chunk(read.chunk) {
            let extent = &manifest.extents[index];
            let bytes = &chunk.bytes()[extent.range_in(&record)];
            extent.check(index as u32, bytes).map_err(|error| unusable(read, record.offset, &error))?;
        }
        Ok(chunk)
    }
}

fn unusable(read: &ChunkRead, offset: u64, error: &dyn std::fmt::Display) -> String {
    format!("chunk {} at offset {offset} cannot be used: {error}", read.chunk)
}

/// The bytes of a pinned chunk. When they are dropped, first the system has the memory, then the budget.
struct PinnedBytes {
    bytes: ArenaBytes,
    _charge: Arc<Charge>,
}

impl Storage for PinnedBytes {
    fn bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.bytes.bytes_mut()
    }
}
