//! One plan at work: the memory of chunks, the bookkeeping, and whoever waits for bytes.

use super::lanes::{Lanes, Patience};
use super::report::{PassReport, Residency};
use super::ring::Ring;
use super::rows::KeptRows;
use super::source::{ChunkBytes, Source};
use super::state::{Location, Pinned, State, Status};
use crate::memory::{Arena, flush_lines};
use crate::steps::{Crew, KernelError, PartBytes};
use crate::trace::Track;
use ipuc_formats::encodings::Layout;
use ipuc_formats::tensor::{Storage, Tensor};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// The bookkeeping, locked.
type Locked<'a> = MutexGuard<'a, State<ChunkBytes>>;

/// One plan at work: memory, bookkeeping, readers.
pub(super) struct Engine {
    pub(super) source: Arc<Source>,
    pub(super) residency: Residency,
    /// Offset of the place of each chunk that stays.
    pub(super) places: Vec<usize>,
    /// The ring begins here, behind the places of what stays.
    pub(super) ring_start: usize,
    pub(super) arena: Option<Arc<Arena>>,
    pub(super) state: Mutex<State<ChunkBytes>>,
    pub(super) kept_rows: KeptRows,
    /// Reads that the system carries out, where it does.
    pub(super) lanes: Option<Mutex<Lanes>>,
    /// Something has been read, or held bytes were given back.
    pub(super) arrived: Condvar,
    /// There is something to read and room for it.
    pub(super) wanted: Condvar,
    /// Reader threads that could be started.
    pub(super) readers: AtomicUsize,
    /// Lines that chunks were read into leave the caches when they have been used.
    pub(super) lines_leave: AtomicBool,
}

impl Engine {
    /// A plan, with nothing in memory yet.
    pub(super) fn new(source: Arc<Source>, residency: Residency, lanes: Option<Lanes>) -> Self {
        let lengths: Vec<usize> = source.manifest.chunks.iter().map(|chunk| chunk.length as usize).collect();
        let mut places = vec![0; lengths.len()];
        let mut end = 0;
        for (chunk, place) in places.iter_mut().enumerate().filter(|(chunk, _)| residency.pinned[*chunk]) {
            *place = end;
            end += lengths[chunk];
        }
        let ring_bytes = residency.ring_bytes as usize;
        let awaited = source.order.awaited(lengths.len());
        let chunks = || (0..).zip(awaited.iter().zip(&residency.pinned));
        let unawaited = chunks().filter(|(_, (awaited, pinned))| !**awaited && **pinned).map(|(chunk, _)| chunk);
        let streamed = chunks().filter(|(_, (awaited, pinned))| **awaited && !**pinned);
        let place_bytes = streamed.map(|(chunk, _)| lengths[chunk as usize]).max().unwrap_or(0);
        let ring = Ring::new(ring_bytes, place_bytes);
        let unawaited = unawaited.collect();
        let state = State::new(lengths, &residency.pinned, unawaited, ring);
        Engine {
            source,
            arena: if end + ring_bytes > 0 { Arena::new(end + ring_bytes) } else { None },
            kept_rows: KeptRows::new(residency.kept_rows_bytes),
            lanes: lanes.map(Mutex::new),
            residency,
            places,
            ring_start: end,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            wanted: Condvar::new(),
            readers: AtomicUsize::new(0),
            lines_leave: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wanted.notify_all();
    }

    pub(super) fn note(&self, track: Track, name: impl FnOnce() -> String, begun: Instant, bytes: Option<u64>) {
        let trace = self.source.trace.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(trace) = trace {
            trace.add(track, name(), begun, bytes);
        }
    }

    pub(super) fn begin_pass(&self, entry: u32) {
        let mut state = self.lock();
        if !state.is_aligned(entry) {
            state.generation += 1;
            while state.in_flight > 0 {
                state = self.await_arrival(state);
            }
            state.forget();
        }
        state.begin_pass(&self.source.order, entry);
        self.hand_over(state);
    }

    pub(super) fn enter_block(&self, block: u32) {
        let mut state = self.lock();
        state.enter_block(&self.source.order, block);
        self.hand_over(state);
    }

    pub(super) fn begin_step(&self, block: u32, step: u32) {
        let mut state = self.lock();
        if self.source.order.stops_at(block, step) {
            state.begin_step(block, step);
        } else if state.tended {
            // It asks for nothing, and may take long.
            self.hand_over(state);
        }
    }

    pub(super) fn end_step(&self, block: u32, step: u32) {
        if self.source.order.stops_at(block, step) {
            let mut state = self.lock();
            state.end_step(&self.source.order, block, step);
            self.call_readers(state);
        }
    }

    pub(super) fn end_pass(&self) -> PassReport {
        let mut state = self.lock();
        let report = state.end_pass();
        self.hand_over(state);
        report
    }

    /// There may be something to read: tell whoever reads, unless that is the run.
    pub(super) fn call_readers(&self, state: Locked<'_>) {
        let tended = state.tended;
        drop(state);
        if !tended {
            self.wanted.notify_all();
        }
    }

    /// The run does something else than waiting for reads.
    fn hand_over(&self, mut state: Locked<'_>) {
        state.tended = false;
        self.call_readers(state);
    }

    /// Looks after the reads; gives the state back as an error where somebody else does, or nobody can.
    fn look_after_reads<'a>(&'a self, state: Locked<'a>, patience: Patience) -> Result<Locked<'a>, Locked<'a>> {
        let Some(lanes) = &self.lanes else { return Err(state) };
        let mut lanes = match lanes.try_lock() {
            Ok(lanes) => lanes,
            Err(TryLockError::Poisoned(lanes)) => lanes.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(state),
        };
        drop(state);
        self.tend(&mut lanes, patience);
        drop(lanes);
        let state = self.lock();
        // Whoever else waits finds the lanes free.
        self.arrived.notify_all();
        Ok(state)
    }

    /// Wait until something has been read; where nobody else looks after the reads, do so.
    fn await_arrival<'a>(&'a self, mut state: Locked<'a>) -> Locked<'a> {
        state.waits();
        state.tended = self.lanes.is_some();
        self.look_after_reads(state, Patience::Waits).unwrap_or_else(|state| {
            // Who has them tells when a read has ended, and when it leaves them.
            self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// A kernel begins this many operations before it asks for more.
    pub(super) fn begin_work(&self, operations: usize) -> Crew {
        if self.residency.ring_bytes == 0 {
            return Crew::All;
        }
        let mut state = self.lock();
        if state.tended {
            state = self.look_after_reads(state, Patience::Looks).unwrap_or_else(|state| state);
        }
        if state.stays_ahead(operations) {
            return Crew::Alone;
        }
        self.hand_over(state);
        Crew::All
    }

    /// The bytes of a part: waits until they are there.
    pub(super) fn part(self: &Arc<Self>, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let mut state = self.lock();
        let Some(location) = state.expect(weight, part as u32) else {
            drop(state);
            return self.direct(weight, part);
        };
        let begun = Instant::now();
        let mut waited = false;
        let found = loop {
            match self.look(&state, location) {
                Found::Bytes(chunk) => break Ok(chunk),
                Found::Failed(reason) => break Err(self.source.failure(weight, &reason)),
                Found::Nowhere => {
                    drop(state);
                    return self.direct(weight, part);
                }
                Found::Later => {
                    waited = true;
                    state = self.await_arrival(state);
                }
            }
        };
        if waited {
            state.stalled(begun.elapsed());
            self.note(Track::Stalls, || format!("part {part} of weight {weight}"), begun, None);
        }
        let chunk = found?;
        let release = match location {
            Location::Pinned(_) => None,
            Location::Visit(visit) => {
                state.hold(visit);
                Some((self.clone(), visit, state.generation))
            }
        };
        drop(state);
        let range = self.source.range(weight, part)?;
        Ok(PartBytes::new(Arc::new(Held { chunk: Some(chunk), range, release })))
    }

    fn look(&self, state: &State<ChunkBytes>, location: Location) -> Found {
        let nobody_reads = self.lanes.is_none() && self.readers.load(Ordering::Relaxed) == 0;
        let starved = state.in_flight == 0 && (nobody_reads || !state.can_read());
        match location {
            Location::Pinned(chunk) => match &state.pinned[chunk as usize] {
                Pinned::Loaded(bytes) => Found::Bytes(bytes.clone()),
                Pinned::Failed(reason) => Found::Failed(reason.clone()),
                Pinned::Queued if !starved => Found::Later,
                Pinned::Queued | Pinned::Absent | Pinned::No => Found::Nowhere,
            },
            Location::Visit(visit) => match state.status(visit) {
                Some(Status::Ready(bytes)) => Found::Bytes(bytes.clone()),
                Some(Status::Failed(reason)) => Found::Failed(reason.clone()),
                Some(Status::Queued | Status::Reading) if !starved => Found::Later,
                // What the ring has no room for, since the step itself holds all of it, is read beside it.
                Some(Status::Queued | Status::Reading | Status::Skipped) | None => Found::Nowhere,
            },
        }
    }

    /// The bytes of a part, out of order: read for this alone.
    fn direct(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let record = self.source.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| self.source.failure(weight, "a part is missing"))?;
        let extent = &self.source.manifest.extents[record.extent as usize];
        if let Pinned::Loaded(chunk) = &self.lock().pinned[extent.chunk as usize] {
            let range = self.source.range(weight, part)?;
            return Ok(PartBytes::new(Arc::new(Held { chunk: Some(chunk.clone()), range, release: None })));
        }
        let (bytes, range) = self.source.read_around(extent.offset..extent.offset + extent.length, weight)?;
        let checked = extent.check(record.extent, &bytes[range.clone()]);
        checked.map_err(|error| self.source.failure(weight, &error.to_string()))?;
        let mut state = self.lock();
        let report = state.report();
        report.unplanned_bytes += bytes.len() as u64;
        report.checked_bytes += extent.length;
        drop(state);
        let chunk = Some(Arc::new(Box::new(bytes) as ChunkBytes));
        Ok(PartBytes::new(Arc::new(Held { chunk, range, release: None })))
    }

    /// A weight that stays, in one piece and as canonical bytes, is a tensor as it lies there.
    pub(super) fn tensor(self: &Arc<Self>, weight: u32) -> Result<Option<Tensor>, KernelError> {
        let record = &self.source.weights[weight as usize];
        let (Layout::Plain { dtype }, [part]) = (&record.layout, record.parts.as_slice()) else { return Ok(None) };
        let chunk = self.source.manifest.extents[part.extent as usize].chunk;
        if *dtype != record.dtype || !self.residency.pinned[chunk as usize] {
            return Ok(None);
        }
        let shape: Vec<usize> = record.shape.iter().map(|&extent| extent as usize).collect();
        let bytes = Lasting(self.part(weight, 0)?);
        Tensor::over(record.dtype, &shape, Arc::new(bytes))
            .map(Some)
            .map_err(|error| self.source.failure(weight, &error.to_string()))
    }

    /// Rows of a plain weight: only the checksum blocks around them are read, where they are not kept.
    pub(super) fn rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
        let pinned = |chunk: u32| match &self.lock().pinned[chunk as usize] {
            Pinned::Loaded(bytes) => Some(bytes.clone()),
            Pinned::No | Pinned::Absent | Pinned::Queued | Pinned::Failed(_) => None,
        };
        let gathered = self.kept_rows.gather(&self.source, weight, rows, &pinned)?;
        let mut state = self.lock();
        let report = state.report();
        report.row_bytes += gathered.read_bytes;
        report.checked_bytes += gathered.checked_bytes;
        Ok(gathered.bytes)
    }
}

/// What a look for bytes finds.
enum Found {
    Bytes(Arc<ChunkBytes>),
    Failed(String),
    Later,
    Nowhere,
}

/// Bytes of a part that a kernel holds.
struct Held {
    chunk: Option<Arc<ChunkBytes>>,
    range: Range<usize>,
    release: Option<(Arc<Engine>, u64, u64)>,
}

impl Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.chunk.as_ref().map_or(&[], |chunk| &chunk.bytes()[self.range.clone()])
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((engine, visit, generation)) = self.release.take() else { return };
        if engine.lines_leave.load(Ordering::Relaxed) {
            flush_lines(self);
        }
        // The place must be free before the ring gives it to another chunk.
        self.chunk = None;
        let mut state = engine.lock();
        if state.generation == generation {
            state.release(visit);
        }
        engine.call_readers(state);
        engine.arrived.notify_all();
    }
}

/// Bytes of a chunk that stays, as the storage of a tensor.
struct Lasting(PartBytes);

impl Storage for Lasting {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}
