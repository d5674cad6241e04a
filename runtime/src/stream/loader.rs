//! Brings chunks into memory: keeps reads in flight, checks what they have read, and tells who waits for it.
//!
//! Where the system has a queue of reads, the run polls it for completions while it waits for bytes, so that the end of a
//! read wakes the one thread that goes on with it; a thread polls it while the run computes. Waking that thread for each
//! read, and the run for each chunk, would cost some thousand switches a second. Where there is no queue, several threads
//! read one chunk after another.

use super::loads::{ChunkRead, Loads, Target};
use super::source::{ChunkBytes, Source, heap};
use crate::file::{CompletedRead, ReadQueue};
use crate::memory::{Arena, ArenaBytes, Charge};
use crate::trace::Track;
use ipuc_formats::tensor::Storage;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Reads in flight in the queue of the system.
const QUEUE_DEPTH: usize = 3;
/// Threads that read in turn, where there is no queue. They also check what they have read, so that more are needed.
const READER_THREADS: usize = 8;

/// The bookkeeping, locked.
pub(super) type Locked<'a> = MutexGuard<'a, Loads<ChunkBytes>>;

/// Where chunks lie: the places of those that stay, the lowest of which are the first to leave, and above them the ring.
pub(super) struct ChunkMemory {
    pub(super) arena: Arc<Arena>,
    /// Offsets of the places of chunks that stay, by chunk.
    pub(super) places: Vec<usize>,
    /// Offset of the ring.
    pub(super) ring_start: usize,
}

/// Reads chunks in the order of loads.
pub(super) struct Loader {
    pub(super) source: Source,
    memory: ChunkMemory,
    loads: Mutex<Loads<ChunkBytes>>,
    in_flight: Option<Mutex<InFlight>>,
    /// Something has been read, or held bytes were given back.
    arrived: Condvar,
    /// There is something to read and room for it.
    wanted: Condvar,
    /// Threads that could be started.
    threads: AtomicUsize,
}

/// Reads in flight in a queue of the system, by load.
struct InFlight {
    queue: Box<dyn ReadQueue>,
    depth: usize,
    /// Numbers, below the depth, that no read in flight has.
    free_slots: Vec<usize>,
    reads: BTreeMap<u64, (ChunkRead, usize, Instant)>,
}

/// A chunk that has been read, or why not.
struct Completion {
    read: ChunkRead,
    /// Number among the reads in flight, or of the thread.
    slot: usize,
    begun: Instant,
    chunk: Result<ChunkBytes, String>,
}

/// Whether polling waits until a read has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    Wait,
    Try,
}

impl Loader {
    /// Nothing is read yet. `depth` is how many reads are in flight, 0 for what suits most devices.
    pub(super) fn new(source: Source, memory: ChunkMemory, loads: Loads<ChunkBytes>, depth: usize) -> Self {
        let depth = if depth == 0 { QUEUE_DEPTH } else { depth };
        let in_flight =
            |queue| InFlight { queue, depth, free_slots: (0..depth).rev().collect(), reads: BTreeMap::new() };
        Loader {
            in_flight: source.file.queue(depth).map(|queue| Mutex::new(in_flight(queue))),
            source,
            memory,
            loads: Mutex::new(loads),
            arrived: Condvar::new(),
            wanted: Condvar::new(),
            threads: AtomicUsize::new(0),
        }
    }

    /// Starts the threads; `depth` as for [`Loader::new`]. Where not all can be started the others do their work; where none
    /// can, the run reads what it waits for.
    pub(super) fn start(self: &Arc<Self>, depth: usize) -> Vec<JoinHandle<()>> {
        let thread = |work: Box<dyn FnOnce(&Loader) + Send>| {
            let loader = self.clone();
            Builder::new().name("ipuc-read".to_string()).spawn(move || work(&loader)).ok()
        };
        let threads: Vec<_> = if self.in_flight.is_some() {
            thread(Box::new(Loader::poll_while_the_run_computes)).into_iter().collect()
        } else {
            let threads = if depth == 0 { READER_THREADS } else { depth };
            (0..threads).filter_map(|slot| thread(Box::new(move |loader| loader.read_in_turn(slot)))).collect()
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

    /// There may be something to read: wakes whoever reads, unless the run polls.
    pub(super) fn wake(&self, loads: Locked<'_>) {
        let run_polls = loads.run_polls;
        drop(loads);
        if !run_polls {
            self.wanted.notify_all();
        }
    }

    /// The run does something else than to wait for reads: from now on a thread polls.
    pub(super) fn hand_over(&self, mut loads: Locked<'_>) {
        loads.run_polls = false;
        self.wake(loads);
    }

    /// Held bytes were given back.
    pub(super) fn released(&self, loads: Locked<'_>) {
        self.wake(loads);
        self.arrived.notify_all();
    }

    /// No read is in flight whose end can be waited for, and none can begin.
    pub(super) fn is_starved(&self, loads: &Loads<ChunkBytes>) -> bool {
        let nobody_reads = self.in_flight.is_none() && self.threads.load(Ordering::Relaxed) == 0;
        loads.in_flight == 0 && (nobody_reads || !loads.can_read())
    }

    /// Waits until something has been read.
    pub(super) fn wait<'a>(&'a self, mut loads: Locked<'a>) -> Locked<'a> {
        loads.waits();
        loads.run_polls = self.in_flight.is_some();
        // A thread that polls tells when a read has completed, and when it polls no more.
        let polled = self.poll_unless_another_does(loads, Poll::Wait);
        polled.unwrap_or_else(|loads| self.arrived.wait(loads).unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops everything that was planned and read ahead.
    pub(super) fn drop_reads_ahead<'a>(&'a self, mut loads: Locked<'a>) -> Locked<'a> {
        loads.prepare_to_forget();
        while loads.in_flight > 0 {
            loads = self.wait(loads);
        }
        loads.forget();
        loads
    }

    /// A kernel begins this many operations before it asks for more bytes.
    pub(super) fn begin_work(&self, operations: usize) {
        let mut loads = self.lock();
        if !loads.run_polls {
            return;
        }
        loads = self.poll_unless_another_does(loads, Poll::Try).unwrap_or_else(|loads| loads);
        if !loads.waits_soon(operations) {
            self.hand_over(loads);
        }
    }

    /// Gives the memory of the ring from `used_bytes` on back to the system. Nothing may be in the ring.
    pub(super) fn discard_ring(&self, used_bytes: usize, ring_bytes: usize) {
        self.memory.arena.discard(self.memory.ring_start + used_bytes, ring_bytes - used_bytes);
    }

    /// Polls the queue; gives the state back as an error where another thread does, or there is no queue.
    fn poll_unless_another_does<'a>(&'a self, loads: Locked<'a>, poll: Poll) -> Result<Locked<'a>, Locked<'a>> {
        let Some(in_flight) = &self.in_flight else { return Err(loads) };
        let mut in_flight = match in_flight.try_lock() {
            Ok(in_flight) => in_flight,
            Err(TryLockError::Poisoned(in_flight)) => in_flight.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(loads),
        };
        drop(loads);
        self.poll(&mut in_flight, poll);
        drop(in_flight);
        let loads = self.lock();
        // Another session that waits may poll now.
        self.arrived.notify_all();
        Ok(loads)
    }

    /// Keeps the queue full, and takes what has completed.
    fn poll(&self, in_flight: &mut InFlight, poll: Poll) {
        let mut completions = self.begin_reads(in_flight);
        if completions.is_empty() {
            let completed = match poll {
                Poll::Wait => in_flight.queue.wait().unwrap_or_else(|_| {
                    // The reads go on; asking again at once would only take the processor from them.
                    std::thread::sleep(Duration::from_millis(1));
                    Vec::new()
                }),
                Poll::Try => in_flight.queue.completed(),
            };
            completions.extend(completed.into_iter().filter_map(|read| self.completion(in_flight, read)));
            // The device has work again before anything is checked.
            completions.extend(self.begin_reads(in_flight));
        }
        completions.into_iter().for_each(|completion| self.finish(completion));
    }

    /// Begins reads; gives those that the queue does not take, which are carried out here.
    fn begin_reads(&self, in_flight: &mut InFlight) -> Vec<Completion> {
        let most = in_flight.depth.saturating_sub(in_flight.reads.len());
        let mut loads = self.lock();
        let reads: Vec<ChunkRead> =
            if loads.closing { Vec::new() } else { (0..most).map_while(|_| loads.next_read()).collect() };
        drop(loads);
        reads.into_iter().filter_map(|read| self.begin(in_flight, read)).collect()
    }

    fn begin(&self, in_flight: &mut InFlight, read: ChunkRead) -> Option<Completion> {
        let (begun, slot) = (Instant::now(), in_flight.free_slots.pop().unwrap_or(0));
        let offset = self.source.manifest.chunks[read.chunk as usize].offset;
        let refused = match self.target(&read) {
            Ok(buffer) => match in_flight.queue.begin(read.load, offset, buffer) {
                Ok(()) => {
                    in_flight.reads.insert(read.load, (read, slot, begun));
                    return None;
                }
                Err(buffer) => self.fill(&read, buffer),
            },
            Err(reason) => Err(reason),
        };
        in_flight.free_slots.push(slot);
        Some(Completion { read, slot, begun, chunk: refused })
    }

    fn completion(&self, in_flight: &mut InFlight, completed: CompletedRead) -> Option<Completion> {
        let (read, slot, begun) = in_flight.reads.remove(&completed.token)?;
        in_flight.free_slots.push(slot);
        let chunk = if completed.filled { Ok(completed.buffer) } else { self.fill(&read, completed.buffer) };
        Some(Completion { read, slot, begun, chunk })
    }

    /// Checks a chunk and says that it is there.
    fn finish(&self, Completion { read, slot, begun, chunk }: Completion) {
        let result = chunk.and_then(|chunk| self.check(&read, chunk)).map(Arc::new);
        let bytes = self.source.manifest.chunks[read.chunk as usize].length;
        self.source.note(Track::Reader(slot), || format!("chunk {}", read.chunk), begun, Some(bytes));
        let mut loads = self.lock();
        loads.finish(&read, result);
        self.wake(loads);
        self.arrived.notify_all();
    }

    /// Polls whenever the run does not, until the loader closes.
    fn poll_while_the_run_computes(&self) {
        let Some(in_flight) = &self.in_flight else { return };
        let mut loads = self.lock();
        while !loads.closing {
            if loads.run_polls || (loads.in_flight == 0 && !loads.can_read()) {
                // The run may wait for the queue that this thread has just left.
                self.arrived.notify_all();
                loads = self.wanted.wait(loads).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(loads);
            self.poll(&mut in_flight.lock().unwrap_or_else(PoisonError::into_inner), Poll::Wait);
            loads = self.lock();
        }
    }

    /// Reads and checks one chunk after another, until the loader closes.
    fn read_in_turn(&self, slot: usize) {
        let mut loads = self.lock();
        while !loads.closing {
            let Some(read) = loads.next_read() else {
                loads = self.wanted.wait(loads).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(loads);
            let begun = Instant::now();
            let chunk = self.target(&read).and_then(|buffer| self.fill(&read, buffer));
            self.finish(Completion { read, slot, begun, chunk });
            loads = self.lock();
        }
    }

    /// Memory for a chunk.
    fn target(&self, read: &ChunkRead) -> Result<ChunkBytes, String> {
        let record = &self.source.manifest.chunks[read.chunk as usize];
        let length = record.length as usize;
        let (offset, stays) = match &read.target {
            Target::Ring(offset) => (self.memory.ring_start + offset, None),
            Target::Place(charge) => (self.memory.places[read.chunk as usize], Some(charge.clone())),
        };
        match (self.memory.arena.take(offset, length), stays) {
            (Some(piece), None) => Ok(Box::new(piece)),
            (Some(piece), Some(charge)) => {
                let discards = Discards { arena: self.memory.arena.clone(), offset, length };
                Ok(Box::new(PinnedBytes { piece, _discards: discards, _charge: charge }))
            }
            // Somebody still holds what was there before.
            (None, _) => match heap(length) {
                Some(bytes) => Ok(Box::new(bytes)),
                None => Err(unusable(read, record.offset, &"there is no memory for it")),
            },
        }
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

/// A chunk that stays. When it is dropped, first its place is free, then the system has the memory, then the budget.
struct PinnedBytes {
    piece: ArenaBytes,
    _discards: Discards,
    _charge: Option<Arc<Charge>>,
}

impl Storage for PinnedBytes {
    fn bytes(&self) -> &[u8] {
        self.piece.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.piece.bytes_mut()
    }
}

/// Gives the memory of a place back to the system when it is dropped.
struct Discards {
    arena: Arc<Arena>,
    offset: usize,
    length: usize,
}

impl Drop for Discards {
    fn drop(&mut self) {
        self.arena.discard(self.offset, self.length);
    }
}
