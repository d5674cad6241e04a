//! The source of parts that kernels read from, within a budget.

use super::boundary::{Boundary, Need};
use super::chunks::{Chunks, Pinned};
use super::loader::{ChunkMemory, Loader};
use super::loads::{Loads, Location, Status};
use super::report::{PassReport, Residency};
use super::residency::{Shortage, plan, whole_bytes};
use super::ring::Ring;
use super::rows::KeptRows;
use super::schedule::Schedule;
use super::source::{ChunkBytes, Source};
use crate::error::OpenError;
use crate::file::WeightFile;
use crate::memory::{Arena, Budget, Charge};
use crate::steps::{KernelError, PartBytes, PartSource, Progress};
use crate::trace::{Trace, Track};
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::tensor::{Storage, Tensor};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a kernel holds at a time where nothing streams.
const RESIDENT_HELD_BYTES: usize = 32 << 20;
/// The same where they come through the ring: enough to share among threads, few enough to be in a cache still.
const MOST_HELD_BYTES: usize = 8 << 20;

/// How a file is streamed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamedOptions {
    /// Bytes of activations, state, inputs and outputs that are known before the first run.
    pub(crate) working_bytes: u64,
    /// Reads in flight; 0 for what suits most devices.
    pub(crate) readers: usize,
}

/// Weights of a file within a budget.
pub(crate) struct Streamed {
    loader: Arc<Loader>,
    threads: Vec<JoinHandle<()>>,
    boundary: Mutex<Boundary>,
    kept_rows: KeptRows,
    /// For weights that a step takes as whole tensors.
    _whole: Charge,
    /// One pass at a time: several sessions share one order of reads.
    pass: Mutex<()>,
    timing: Mutex<Timing>,
}

/// When the running pass began, and what the last one reported.
#[derive(Default)]
struct Timing {
    begun: Option<Instant>,
    last: Option<PassReport>,
}

impl Streamed {
    /// Plan for a budget, and begin to wait for passes.
    ///
    /// # Errors
    /// [`OpenError::Budget`] where the budget is too small, [`OpenError::Memory`] where the system has less.
    pub(crate) fn new(
        file: Arc<dyn WeightFile>,
        manifest: Arc<Manifest>,
        weights: Vec<Arc<WeightRecord>>,
        budget: &Arc<Budget>,
        options: StreamedOptions,
    ) -> Result<Self, OpenError> {
        let whole_bytes = whole_bytes(&manifest, &weights);
        let schedule = Schedule::new(&manifest, &weights);
        let budget_bytes = budget.limit_bytes();
        let working_bytes = options.working_bytes.saturating_add(whole_bytes);
        let short = |needed_bytes| OpenError::Budget { needed_bytes, budget_bytes };
        let plan = plan(&manifest, &schedule, budget_bytes, working_bytes)
            .map_err(|Shortage { needed_bytes }| short(needed_bytes))?;
        let charge = |bytes: u64| budget.charge(bytes).map_err(|_| short(budget_bytes.saturating_add(bytes)));
        let lengths: Vec<u64> = manifest.chunks.iter().map(|chunk| chunk.length).collect();
        let (mut charges, mut places, mut end) = (Vec::new(), vec![0; lengths.len()], 0);
        for &chunk in &plan.leaving_order {
            places[chunk as usize] = end as usize;
            end += lengths[chunk as usize];
        }
        for (&length, &pinned) in lengths.iter().zip(&plan.residency.pinned) {
            charges.push(if pinned { Some(charge(length)?) } else { None });
        }
        let ring_bytes = plan.residency.ring_bytes;
        let ring = Ring::new(ring_bytes as usize, plan.place_bytes as usize);
        let needed_bytes = end.saturating_add(plan.usual_ring_bytes).max(1);
        let arena = usize::try_from(needed_bytes).ok().and_then(Arena::new);
        let arena = arena.ok_or(OpenError::Memory { needed_bytes, available_bytes: 0 })?;
        let memory = ChunkMemory { arena, places, ring_start: end as usize };
        let awaited = schedule.awaited(lengths.len());
        let rows_only = (0..).zip(awaited).filter(|(_, awaited)| !awaited).map(|(chunk, _)| chunk).collect();
        let loads = Loads::new(Chunks::new(&lengths, charges), rows_only, ring);
        let source = Source { file, manifest, weights, schedule, trace: Mutex::default() };
        let loader = Arc::new(Loader::new(source, memory, loads, options.readers));
        let rows_bytes = plan.residency.kept_rows_bytes;
        let boundary = Boundary::new(budget.clone(), plan, Some(charge(ring_bytes)?), charge(rows_bytes)?);
        Ok(Streamed {
            threads: loader.start(options.readers),
            loader,
            boundary: Mutex::new(boundary),
            kept_rows: KeptRows::new(rows_bytes),
            _whole: charge(whole_bytes)?,
            pass: Mutex::new(()),
            timing: Mutex::default(),
        })
    }

    fn boundary(&self) -> MutexGuard<'_, Boundary> {
        self.boundary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Note reads and waits from now on, or no more.
    pub(crate) fn set_trace(&self, trace: Option<Arc<Trace>>) {
        *self.loader.source.trace.lock().unwrap_or_else(PoisonError::into_inner) = trace;
    }

    /// What stays and what streams.
    pub(crate) fn residency(&self) -> Residency {
        self.boundary().residency(&self.loader)
    }

    /// What the last pass read.
    pub(crate) fn last_pass(&self) -> Option<PassReport> {
        self.timing().last.clone()
    }

    /// Nobody else runs while this is held.
    pub(crate) fn pass(&self) -> MutexGuard<'_, ()> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a pass that is about to begin; chunks leave where there is none.
    ///
    /// # Errors
    /// The smallest budget that works, where this one does not.
    pub(crate) fn make_room(&self, need: Need) -> Result<(), u64> {
        self.boundary().make_room(&self.loader, &self.kept_rows, need)
    }

    fn begin_pass(&self, entry: u32) {
        let mut loads = self.loader.lock();
        if !loads.is_aligned(entry) {
            loads = self.loader.drop_reads_ahead(loads);
        }
        loads.begin_pass(&self.loader.source.schedule, entry);
        self.loader.hand_over(loads);
    }

    fn enter_block(&self, block: u32) {
        let mut loads = self.loader.lock();
        loads.enter_block(&self.loader.source.schedule, block);
        self.loader.hand_over(loads);
    }

    fn begin_step(&self, block: u32, step: u32) {
        let mut loads = self.loader.lock();
        if self.loader.source.schedule.stops_at(block, step) {
            loads.begin_step(block, step);
        } else if loads.run_polls {
            // It asks for nothing, and may take long.
            self.loader.hand_over(loads);
        }
    }

    fn end_step(&self, block: u32, step: u32) {
        let schedule = &self.loader.source.schedule;
        if schedule.stops_at(block, step) {
            let mut loads = self.loader.lock();
            loads.end_step(schedule, block, step);
            self.loader.wake(loads);
        }
    }

    fn end_pass(&self) {
        let mut loads = self.loader.lock();
        let mut report = loads.end_pass();
        self.loader.hand_over(loads);
        let mut timing = self.timing();
        report.duration = timing.begun.take().map_or(Duration::ZERO, |begun| begun.elapsed());
        timing.last = Some(report);
    }

    /// The bytes of a part, out of order: read for this alone.
    fn direct(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let source = &self.loader.source;
        let record = source.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| source.failure(weight, "a part is missing"))?;
        let extent = &source.manifest.extents[record.extent as usize];
        if let Pinned::Loaded(chunk) = self.loader.lock().chunks.pinned(extent.chunk) {
            let range = source.range(weight, part)?;
            return Ok(PartBytes::new(Arc::new(Held { chunk: chunk.clone(), range, _release: None })));
        }
        let (bytes, range) = source.read_around(extent.offset..extent.offset + extent.length, weight)?;
        let checked = extent.check(record.extent, &bytes[range.clone()]);
        checked.map_err(|error| source.failure(weight, &error.to_string()))?;
        let mut loads = self.loader.lock();
        let report = loads.report();
        report.unplanned_bytes += bytes.len() as u64;
        report.checked_bytes += extent.length;
        drop(loads);
        let chunk: Arc<ChunkBytes> = Arc::new(Box::new(bytes));
        Ok(PartBytes::new(Arc::new(Held { chunk, range, _release: None })))
    }

    /// Looks for the bytes of an access.
    fn look(&self, loads: &Loads<ChunkBytes>, location: Location) -> Found {
        let starved = self.loader.is_starved(loads);
        match location {
            Location::Pinned(chunk) => match loads.chunks.pinned(chunk) {
                Pinned::Loaded(bytes) => Found::Bytes(bytes.clone()),
                Pinned::Failed(reason) => Found::Failed(reason.clone()),
                Pinned::Queued if !starved => Found::Later,
                Pinned::Queued | Pinned::Absent | Pinned::No => Found::Nowhere,
            },
            Location::Load(load) => match loads.status(load) {
                Some(Status::Ready(bytes)) => Found::Bytes(bytes.clone()),
                Some(Status::Failed(reason)) => Found::Failed(reason.clone()),
                Some(Status::Queued | Status::Reading) if !starved => Found::Later,
                // What the ring has no room for, since the step itself holds all of it, is read beside it.
                Some(Status::Queued | Status::Reading | Status::Skipped) | None => Found::Nowhere,
            },
        }
    }
}

/// What a look for bytes finds.
enum Found {
    Bytes(Arc<ChunkBytes>),
    Failed(String),
    Later,
    Nowhere,
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.loader.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl PartSource for Streamed {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let source = &self.loader.source;
        let mut loads = self.loader.lock();
        let Some(location) = loads.expect(weight, part as u32) else {
            drop(loads);
            return self.direct(weight, part);
        };
        let begun = Instant::now();
        let mut waited = false;
        let found = loop {
            match self.look(&loads, location) {
                Found::Later => {
                    waited = true;
                    loads = self.loader.wait(loads);
                }
                found => break found,
            }
        };
        if waited {
            loads.stalled(begun.elapsed());
            source.note(Track::Stalls, || format!("part {part} of weight {weight}"), begun, None);
        }
        let chunk = match found {
            Found::Bytes(chunk) => chunk,
            Found::Failed(reason) => return Err(source.failure(weight, &reason)),
            Found::Later | Found::Nowhere => {
                drop(loads);
                return self.direct(weight, part);
            }
        };
        loads.give_out(location);
        let release = match location {
            Location::Pinned(_) => None,
            Location::Load(load) => Some(Release { loader: self.loader.clone(), load, generation: loads.generation }),
        };
        drop(loads);
        let range = source.range(weight, part)?;
        Ok(PartBytes::new(Arc::new(Held { chunk, range, _release: release })))
    }

    /// A weight that stays, in one piece and as canonical bytes, is a tensor as it lies there.
    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        let source = &self.loader.source;
        let record = &source.weights[weight as usize];
        let (true, [part]) = (record.is_one_canonical_part(), record.parts.as_slice()) else { return Ok(None) };
        let chunk = source.manifest.extents[part.extent as usize].chunk;
        if !self.loader.lock().chunks.stays(chunk) {
            return Ok(None);
        }
        let shape: Vec<usize> = record.shape.iter().map(|&extent| extent as usize).collect();
        let bytes = Lasting(self.part(weight, 0)?);
        Tensor::over(record.dtype, &shape, Arc::new(bytes))
            .map(Some)
            .map_err(|error| source.failure(weight, &error.to_string()))
    }

    /// Rows of a plain weight: only the checksum blocks around them are read, where they are not kept.
    fn rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
        let pinned = |chunk: u32| match self.loader.lock().chunks.pinned(chunk) {
            Pinned::Loaded(bytes) => Some(bytes.clone()),
            Pinned::No | Pinned::Absent | Pinned::Queued | Pinned::Failed(_) => None,
        };
        let gathered = self.kept_rows.gather(&self.loader.source, weight, rows, &pinned)?;
        let mut loads = self.loader.lock();
        let report = loads.report();
        report.row_bytes += gathered.read_bytes;
        report.checked_bytes += gathered.checked_bytes;
        Ok(gathered.bytes)
    }

    fn most_held_bytes(&self) -> usize {
        match self.boundary().ring_bytes() as usize {
            0 => RESIDENT_HELD_BYTES,
            ring_bytes => (ring_bytes / 4).min(MOST_HELD_BYTES),
        }
    }

    fn is_ready(&self, weight: u32, part: usize) -> bool {
        self.loader.lock().is_ready(weight, part as u32)
    }

    fn begin_work(&self, operations: usize) {
        self.loader.begin_work(operations);
    }

    fn progress(&self, progress: Progress) {
        match progress {
            Progress::PassBegins { block } => {
                self.timing().begun = Some(Instant::now());
                self.begin_pass(block);
            }
            Progress::BlockBegins { block } => self.enter_block(block),
            Progress::StepBegins { block, step } => self.begin_step(block, step),
            Progress::StepEnds { block, step } => self.end_step(block, step),
            Progress::PassEnds => self.end_pass(),
        }
    }
}

/// Bytes of a part that a kernel holds. The place of its chunk must be free before the ring gives it to another: fields are
/// dropped in this order.
struct Held {
    chunk: Arc<ChunkBytes>,
    range: Range<usize>,
    _release: Option<Release>,
}

impl Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.chunk.bytes()[self.range.clone()]
    }
}

/// Says that the bytes of a load are held no more.
struct Release {
    loader: Arc<Loader>,
    load: u64,
    generation: u64,
}

impl Drop for Release {
    fn drop(&mut self) {
        let mut loads = self.loader.lock();
        if loads.generation == self.generation {
            loads.release(self.load);
        }
        self.loader.released(loads);
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
