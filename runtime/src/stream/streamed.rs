//! Reader threads under the bookkeeping, and the source of parts that kernels read from.

use super::order::Order;
use super::report::{PassReport, Residency};
use super::residency::{Shortage, whole_bytes};
use super::rows::KeptRows;
use super::source::{ChunkBytes, Source, heap};
use super::state::{Job, Location, Pinned, State, Status};
use crate::error::OpenError;
use crate::memory::Arena;
use crate::steps::{KernelError, PartBytes, PartSource, Progress};
use crate::trace::{Trace, Track};
use ipuc_formats::encodings::Layout;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::tensor::{Storage, Tensor};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Reads in flight where nobody says how many. A reader checks what it has read before it reads on, so that more are needed
/// than the device asks for.
const DEFAULT_READERS: usize = 8;

/// How a file is streamed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamedOptions {
    /// Bytes for weights, activations, state, inputs and outputs.
    pub(crate) budget_bytes: u64,
    /// Bytes of activations, state, inputs and outputs that are known before the first run.
    pub(crate) working_bytes: u64,
    /// Reads in flight; 0 for what suits most devices.
    pub(crate) readers: usize,
}

/// Bytes that a kernel holds at a time where nothing streams.
const RESIDENT_HELD_BYTES: usize = 32 << 20;
/// The same where they come through the ring: enough to share among threads, few enough to be in a cache still.
const MOST_HELD_BYTES: usize = 8 << 20;

/// One plan at work: memory, bookkeeping, readers.
struct Engine {
    source: Arc<Source>,
    residency: Residency,
    /// Offset of the place of each chunk that stays.
    places: Vec<usize>,
    /// The ring begins here, behind the places of what stays.
    ring_start: usize,
    arena: Option<Arc<Arena>>,
    state: Mutex<State<ChunkBytes>>,
    kept_rows: KeptRows,
    /// Something has been read, or held bytes were given back.
    arrived: Condvar,
    /// There is something to read and room for it.
    wanted: Condvar,
    /// Reader threads that could be started.
    readers: AtomicUsize,
}

/// Weights of a file within a budget.
pub(crate) struct Streamed {
    source: Arc<Source>,
    options: StreamedOptions,
    /// Weights that a step takes as whole tensors, at most.
    whole_bytes: u64,
    plan: Mutex<Planned>,
    /// One pass at a time: several sessions share one order of reads.
    pass: Mutex<()>,
}

struct Planned {
    engine: Arc<Engine>,
    readers: Vec<JoinHandle<()>>,
    /// Bytes that each session works with, by its number.
    working: BTreeMap<u64, u64>,
    begun: Option<Instant>,
    last: Option<PassReport>,
}

impl Streamed {
    /// Plan for a budget, and begin to wait for passes.
    ///
    /// # Errors
    /// [`OpenError::Budget`] where the budget is too small.
    pub(crate) fn new(
        file: Arc<dyn ReadAt>,
        manifest: Arc<Manifest>,
        weights: Vec<Arc<WeightRecord>>,
        options: StreamedOptions,
    ) -> Result<Self, OpenError> {
        let whole_bytes = whole_bytes(&manifest, &weights);
        let order = Order::new(&manifest, &weights);
        let source = Arc::new(Source { file, manifest, weights, order, trace: Mutex::default() });
        let working_bytes = options.working_bytes.saturating_add(whole_bytes);
        let residency = source.plan(options, working_bytes).map_err(|Shortage { needed_bytes }| OpenError::Budget {
            needed_bytes,
            budget_bytes: options.budget_bytes,
        })?;
        let (engine, readers) = Engine::start(&source, options, residency);
        let plan = Planned { engine, readers, working: BTreeMap::new(), begun: None, last: None };
        Ok(Streamed { source, options, whole_bytes, plan: Mutex::new(plan), pass: Mutex::new(()) })
    }

    fn plan(&self) -> MutexGuard<'_, Planned> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self) -> Arc<Engine> {
        self.plan().engine.clone()
    }

    /// Note reads and waits from now on, or no more.
    pub(crate) fn set_trace(&self, trace: Option<Arc<Trace>>) {
        *self.source.trace.lock().unwrap_or_else(PoisonError::into_inner) = trace;
    }

    /// What stays and what streams.
    pub(crate) fn residency(&self) -> Residency {
        self.engine().residency.clone()
    }

    /// What the last pass read.
    pub(crate) fn last_pass(&self) -> Option<PassReport> {
        self.plan().last.clone()
    }

    /// Nobody else runs while this is held.
    pub(crate) fn pass(&self) -> MutexGuard<'_, ()> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Session `session` works with this many bytes from now on; the plan changes where they were not planned for.
    ///
    /// # Errors
    /// The smallest budget that works, where this one does not.
    pub(crate) fn reserve(&self, session: u64, bytes: u64) -> Result<(), u64> {
        let mut plan = self.plan();
        let before = plan.working.insert(session, bytes);
        let working = plan.working.values().fold(self.whole_bytes, |sum, &bytes| sum.saturating_add(bytes));
        if working <= plan.engine.residency.working_bytes {
            return Ok(());
        }
        match self.source.plan(self.options, working) {
            Ok(residency) => {
                plan.stop();
                (plan.engine, plan.readers) = Engine::start(&self.source, self.options, residency);
                Ok(())
            }
            Err(shortage) => {
                match before {
                    Some(before) => plan.working.insert(session, before),
                    None => plan.working.remove(&session),
                };
                Err(shortage.needed_bytes)
            }
        }
    }

    /// A session has ended.
    pub(crate) fn leave(&self, session: u64) {
        self.plan().working.remove(&session);
    }
}

impl Planned {
    fn stop(&mut self) {
        self.engine.close();
        for reader in self.readers.drain(..) {
            // A reader that panicked has nothing more to say.
            let _ = reader.join();
        }
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.plan.get_mut().unwrap_or_else(PoisonError::into_inner).stop();
    }
}

impl PartSource for Streamed {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        self.engine().part(weight, part)
    }

    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        self.engine().tensor(weight)
    }

    fn rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
        self.engine().rows(weight, rows)
    }

    fn most_held_bytes(&self) -> usize {
        match self.engine().residency.ring_bytes as usize {
            0 => RESIDENT_HELD_BYTES,
            ring_bytes => (ring_bytes / 4).min(MOST_HELD_BYTES),
        }
    }

    fn progress(&self, progress: Progress) {
        let engine = self.engine();
        match progress {
            Progress::PassBegins { block } => {
                self.plan().begun = Some(Instant::now());
                engine.begin_pass(block);
            }
            Progress::BlockBegins { block } => engine.enter_block(block),
            Progress::StepBegins { block, step } => engine.begin_step(block, step),
            Progress::StepEnds { block, step } => engine.end_step(block, step),
            Progress::PassEnds => {
                let mut report = engine.end_pass();
                let mut plan = self.plan();
                report.duration = plan.begun.take().map_or(Duration::ZERO, |begun| begun.elapsed());
                plan.last = Some(report);
            }
        }
    }
}

impl Engine {
    fn start(
        source: &Arc<Source>,
        options: StreamedOptions,
        residency: Residency,
    ) -> (Arc<Engine>, Vec<JoinHandle<()>>) {
        let lengths: Vec<usize> = source.manifest.chunks.iter().map(|chunk| chunk.length as usize).collect();
        let mut places = vec![0; lengths.len()];
        let mut end = 0;
        for (chunk, place) in places.iter_mut().enumerate().filter(|(chunk, _)| residency.pinned[*chunk]) {
            *place = end;
            end += lengths[chunk];
        }
        let ring_bytes = residency.ring_bytes as usize;
        let awaited = source.order.awaited(lengths.len()).into_iter().zip(&residency.pinned);
        let unawaited = (0..).zip(awaited).filter(|(_, (awaited, pinned))| !awaited && **pinned);
        let unawaited = unawaited.map(|(chunk, _)| chunk).collect();
        let state = State::new(lengths, &residency.pinned, unawaited, ring_bytes);
        let engine = Arc::new(Engine {
            source: source.clone(),
            arena: if end + ring_bytes > 0 { Arena::new(end + ring_bytes) } else { None },
            kept_rows: KeptRows::new(residency.kept_rows_bytes),
            residency,
            places,
            ring_start: end,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            wanted: Condvar::new(),
            readers: AtomicUsize::new(0),
        });
        let count = if options.readers == 0 { DEFAULT_READERS } else { options.readers };
        let reader = |index: usize| {
            let engine = engine.clone();
            // Where a thread cannot be started the others do its work; where none can, parts are read directly.
            std::thread::Builder::new().name(format!("ipuc-read-{index}")).spawn(move || engine.read(index)).ok()
        };
        let readers: Vec<JoinHandle<()>> = (0..count).filter_map(reader).collect();
        engine.readers.store(readers.len(), Ordering::Relaxed);
        (engine, readers)
    }

    fn lock(&self) -> MutexGuard<'_, State<ChunkBytes>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closing = true;
        self.wanted.notify_all();
    }

    fn note(&self, track: Track, name: impl FnOnce() -> String, begun: Instant, bytes: Option<u64>) {
        let trace = self.source.trace.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(trace) = trace {
            trace.add(track, name(), begun, bytes);
        }
    }

    /// Reader thread `reader`.
    fn read(&self, reader: usize) {
        let mut state = self.lock();
        while !state.closing {
            let Some(job) = state.next_job() else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let begun = Instant::now();
            let result = self.fetch(job).map(Arc::new);
            let bytes = self.source.manifest.chunks[job.chunk as usize].length;
            self.note(Track::Reader(reader), || format!("chunk {}", job.chunk), begun, Some(bytes));
            state = self.lock();
            state.finish(job, result);
            self.arrived.notify_all();
            self.wanted.notify_all();
        }
    }

    /// Read and check one chunk.
    fn fetch(&self, job: Job) -> Result<ChunkBytes, String> {
        let record = self.source.manifest.chunks[job.chunk as usize];
        let length = record.length as usize;
        let place = job.ring_offset.map_or(self.places[job.chunk as usize], |offset| self.ring_start + offset);
        let piece = self.arena.as_ref().and_then(|arena| arena.take(place, length));
        let mut chunk = match piece {
            Some(piece) => ChunkBytes::Placed(piece),
            None => ChunkBytes::Heap(heap(length)),
        };
        let target = match &mut chunk {
            ChunkBytes::Placed(piece) => piece.bytes_mut().unwrap_or_default(),
            ChunkBytes::Heap(bytes) => bytes,
        };
        let failure = |error: &dyn std::fmt::Display| {
            format!("chunk {} at offset {} cannot be used: {error}", job.chunk, record.offset)
        };
        self.source.file.read_exact_at(record.offset, target).map_err(|error| failure(&error))?;
        let manifest = &self.source.manifest;
        for index in manifest.extents_of_chunk(job.chunk) {
            let extent = &manifest.extents[index];
            let start = (extent.offset - record.offset) as usize;
            let bytes = &chunk.bytes()[start..start + extent.length as usize];
            extent.check(index as u32, bytes).map_err(|error| failure(&error))?;
        }
        Ok(chunk)
    }

    fn begin_pass(&self, entry: u32) {
        let mut state = self.lock();
        if !state.is_aligned(entry) {
            state.generation += 1;
            while state.in_flight > 0 {
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.forget();
        }
        state.begin_pass(&self.source.order, entry);
        self.wanted.notify_all();
    }

    fn enter_block(&self, block: u32) {
        self.lock().enter_block(&self.source.order, block);
        self.wanted.notify_all();
    }

    fn begin_step(&self, block: u32, step: u32) {
        if self.source.order.stops_at(block, step) {
            self.lock().begin_step(block, step);
        }
    }

    fn end_step(&self, block: u32, step: u32) {
        if self.source.order.stops_at(block, step) {
            self.lock().end_step(&self.source.order, block, step);
            self.wanted.notify_all();
        }
    }

    fn end_pass(&self) -> PassReport {
        self.lock().end_pass()
    }

    /// The bytes of a part: waits until they are there.
    fn part(self: &Arc<Self>, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let mut state = self.lock();
        let Some(location) = state.expect(weight, part as u32) else {
            drop(state);
            return self.direct(weight, part);
        };
        let begun = Instant::now();
        let mut waited = false;
        let found = loop {
            match self.look(&mut state, location) {
                Found::Bytes(chunk) => break Ok(chunk),
                Found::Failed(reason) => break Err(self.source.failure(weight, &reason)),
                Found::Nowhere => {
                    drop(state);
                    return self.direct(weight, part);
                }
                Found::Later => {
                    waited = true;
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
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

    fn look(&self, state: &mut State<ChunkBytes>, location: Location) -> Found {
        let nobody_reads = self.readers.load(Ordering::Relaxed) == 0;
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
        let chunk = Some(Arc::new(ChunkBytes::Heap(bytes)));
        Ok(PartBytes::new(Arc::new(Held { chunk, range, release: None })))
    }

    /// A weight that stays, in one piece and as canonical bytes, is a tensor as it lies there.
    fn tensor(self: &Arc<Self>, weight: u32) -> Result<Option<Tensor>, KernelError> {
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
    fn rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
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
        // The place must be free before the ring gives it to another chunk.
        self.chunk = None;
        let Some((engine, visit, generation)) = self.release.take() else { return };
        let mut state = engine.lock();
        if state.generation == generation {
            state.release(visit);
        }
        drop(state);
        engine.wanted.notify_all();
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
