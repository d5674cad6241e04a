//! The source of parts that kernels read from, within a budget.

use super::boundary::{Boundary, Need};
use super::loader::{ChunkMemory, Loader, Locked};
use super::loads::{Loads, Status};
use super::report::{PassReport, Residency};
use super::residency::{Shortage, picked_bytes, plan, whole_bytes};
use super::rows::{BlockCache, Gathered};
use super::schedule::Schedule;
use super::source::{ChunkBytes, Source};
use crate::error::OpenError;
use crate::file::WeightFile;
use crate::memory::{Arena, Budget, Charge};
use crate::steps::{KernelError, PartBytes, PartSource, Progress};
use crate::trace::{Trace, Track};
use ipuc_formats::encodings::PartBytesRange;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::tensor::{Storage, Tensor};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a kernel holds at a time where nothing streams.
const RESIDENT_HELD_BYTES: usize = 32 << 20;
/// The same where they come through the ring: enough to share among threads, few enough to be in a cache still.
const MOST_HELD_BYTES: usize = 8 << 20;

/// How a file is streamed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamedOptions {
    /// What of the budget is planned for this file.
    pub(crate) planned_bytes: u64,
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
    /// All chunks, while all of them stay and are there: then a pass needs neither order nor bookkeeping.
    settled: RwLock<Option<Vec<Arc<ChunkBytes>>>>,
    block_cache: BlockCache,
    /// For weights that a step takes as whole tensors, and for matrices that it picks.
    _copies: Charge,
    /// Bytes of matrices that a step may hold at a time.
    picked_bytes: u64,
    /// One pass at a time: several sessions share one order of reads.
    pass: Mutex<()>,
    timing: Mutex<Timing>,
}

/// When the running pass began, and what the last one reported.
#[derive(Default)]
struct Timing {
    begun: Option<Instant>,
    /// The block of the entry that ran last.
    entry: Option<u32>,
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
        let picked_bytes = picked_bytes(&manifest, &weights);
        let copied_bytes = whole_bytes(&manifest, &weights).saturating_add(picked_bytes);
        let schedule = Schedule::new(&manifest, &weights);
        let budget_bytes = options.planned_bytes;
        let working_bytes = options.working_bytes.saturating_add(copied_bytes);
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
        let needed_bytes = end.saturating_add(plan.usual_ring_bytes).max(1);
        let arena = usize::try_from(needed_bytes).ok().and_then(Arena::new);
        let arena = arena.ok_or(OpenError::Memory { needed_bytes, available_bytes: 0 })?;
        let memory = ChunkMemory { arena, places, ring_start: end as usize };
        let mut loads = Loads::new(&lengths, charges, plan.rows_only.clone());
        loads.set_ring(ring_bytes, plan.slot_bytes);
        let source = Source { file, manifest, weights, schedule, trace: Mutex::default() };
        let loader = Arc::new(Loader::new(source, memory, loads));
        let rows_bytes = plan.residency.kept_rows_bytes;
        let boundary = Boundary::new(budget.clone(), plan, Some(charge(ring_bytes)?), charge(rows_bytes)?);
        Ok(Streamed {
            threads: loader.start(options.readers),
            loader,
            boundary: Mutex::new(boundary),
            settled: RwLock::default(),
            block_cache: BlockCache::new(rows_bytes),
            _copies: charge(copied_bytes)?,
            picked_bytes,
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
        let mut weights_leave = |loads: &mut Locked<'_>| {
            let settled = self.settled.write().unwrap_or_else(PoisonError::into_inner).take();
            let timing = self.timing();
            // Between passes: what the next one uses is used once more. Within one, nobody knows how far it is.
            if let (Some(_), Some(entry), None) = (settled, timing.entry, timing.begun) {
                loads.begin_pass(&self.loader.source.schedule, entry);
            }
        };
        self.boundary().make_room(&self.loader, &self.block_cache, need, &mut weights_leave)
    }

    /// A chunk, where all are there to stay.
    fn settled(&self, chunk: u32) -> Option<Arc<ChunkBytes>> {
        let settled = self.settled.read().unwrap_or_else(PoisonError::into_inner);
        settled.as_ref().map(|chunks| chunks[chunk as usize].clone())
    }

    fn is_settled(&self) -> bool {
        self.settled.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn begin_pass(&self, entry: u32) {
        if self.is_settled() {
            return;
        }
        let mut loads = self.loader.lock();
        if !loads.is_aligned(entry) {
            loads = self.loader.drop_reads_ahead(loads);
        }
        loads.begin_pass(&self.loader.source.schedule, entry);
        self.loader.wake(loads);
    }

    fn end_step(&self, block: u32, step: u32) {
        let schedule = &self.loader.source.schedule;
        if schedule.has(block, step) {
            let mut loads = self.loader.lock();
            loads.end_step(schedule, block, step);
            self.loader.wake(loads);
        }
    }

    fn end_pass(&self) {
        let is_settled = self.is_settled();
        let mut loads = self.loader.lock();
        let mut report = loads.end_pass();
        if !is_settled && let Some(chunks) = loads.settle() {
            *self.settled.write().unwrap_or_else(PoisonError::into_inner) = Some(chunks);
        }
        drop(loads);
        let mut timing = self.timing();
        report.duration = timing.begun.take().map_or(Duration::ZERO, |begun| begun.elapsed());
        timing.last = Some(report);
    }

    /// The bytes of a part, out of order: read for this alone.
    fn direct(&self, weight: u32, part: usize) -> Result<Held, KernelError> {
        let source = &self.loader.source;
        let record = source.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| source.failure(weight, "a part is missing"))?;
        let extent = &source.manifest.extents[record.extent as usize];
        if let Some(chunk) = self.loader.lock().pinned_bytes(extent.chunk) {
            return Ok(Held { chunk, range: source.range(weight, part)?, _access: None });
        }
        let (bytes, range) = source.read_around(extent.offset..extent.offset + extent.length, weight)?;
        let checked = extent.check(record.extent, &bytes[range.clone()]);
        checked.map_err(|error| source.failure(weight, &error.to_string()))?;
        let mut loads = self.loader.lock();
        let report = loads.report();
        report.unplanned_bytes += bytes.len() as u64;
        report.checked_bytes += extent.length;
        drop(loads);
        Ok(Held { chunk: Arc::new(Box::new(bytes)), range, _access: None })
    }

    /// The bytes of a load once they have been read; `None` where the ring has no room for them, since the step itself
    /// holds all of it.
    fn wait_for(&self, load: u64, weight: u32, part: usize) -> Result<Option<Arc<ChunkBytes>>, KernelError> {
        let source = &self.loader.source;
        let mut begun = None;
        let mut loads = self.loader.lock();
        while matches!(loads.status(load), Some(Status::Pending)) && !self.loader.is_starved(&mut loads) {
            begun.get_or_insert_with(Instant::now);
            loads = self.loader.wait(loads);
        }
        if let Some(begun) = begun {
            loads.stalled(begun.elapsed());
            source.note(Track::Stalls, || format!("part {part} of {}", source.weight_name(weight)), begun, None);
        }
        match loads.status(load) {
            Some(Status::Ready(bytes)) => Ok(Some(bytes.clone())),
            Some(Status::Failed(reason)) => Err(source.failure(weight, reason)),
            Some(Status::Pending) | None => Ok(None),
        }
    }

    /// The bytes of a part once they are there.
    fn held(&self, weight: u32, part: usize) -> Result<Held, KernelError> {
        let source = &self.loader.source;
        let record = source.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| source.failure(weight, "a part is missing"))?;
        if let Some(chunk) = self.settled(source.manifest.extents[record.extent as usize].chunk) {
            return Ok(Held { chunk, range: source.range(weight, part)?, _access: None });
        }
        let Some(load) = self.loader.lock().take(weight, part as u32) else { return self.direct(weight, part) };
        let access = Some(HeldAccess { loader: self.loader.clone(), load });
        match self.wait_for(load, weight, part)? {
            Some(chunk) => Ok(Held { chunk, range: self.loader.source.range(weight, part)?, _access: access }),
            None => self.direct(weight, part),
        }
    }
}

impl Streamed {
    fn report_gathered(&self, gathered: &Gathered) {
        let mut loads = self.loader.lock();
        let report = loads.report();
        report.row_bytes += gathered.read_bytes;
        report.chosen_bytes += gathered.chosen_bytes;
        report.found_bytes += gathered.found_bytes;
        report.checked_bytes += gathered.checked_bytes;
    }
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
        Ok(PartBytes::new(Arc::new(self.held(weight, part)?)))
    }

    /// A weight that stays, in one piece and as canonical bytes, is a tensor as it lies there.
    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        let source = &self.loader.source;
        let record = &source.weights[weight as usize];
        let (true, [part]) = (record.is_one_canonical_part(), record.parts.as_slice()) else { return Ok(None) };
        let chunk = source.manifest.extents[part.extent as usize].chunk;
        if !self.is_settled() && !self.loader.lock().is_pinned(chunk) {
            return Ok(None);
        }
        let shape: Vec<usize> = record.shape.iter().map(|&extent| extent as usize).collect();
        let tensor = Tensor::over(record.dtype, &shape, Arc::new(self.held(weight, 0)?));
        tensor.map(Some).map_err(|error| source.failure(weight, &error.to_string()))
    }

    /// Only the checksum blocks around the rows are read, where they are not kept.
    fn rows(&self, weight: u32, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError> {
        let pinned = |chunk: u32| self.loader.lock().pinned_bytes(chunk);
        let report = |gathered: &Gathered| self.report_gathered(gathered);
        self.block_cache.rows(&self.loader.source, weight, (rows, target), &pinned, &report)
    }

    /// Only the checksum blocks around the matrices are read, where they are not kept; those that stay in memory are not copied.
    fn matrices(&self, weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        let pinned = |chunk: u32| self.loader.lock().pinned_bytes(chunk);
        let (matrices, gathered) = self.block_cache.matrices(&self.loader.source, weight, matrices, &pinned)?;
        self.report_gathered(&gathered);
        Ok(matrices)
    }

    /// Only the checksum blocks around the pieces are read, where they are not kept; those that stay in memory are not copied.
    fn pieces(&self, weight: u32, pieces: &[PartBytesRange]) -> Result<Option<Vec<PartBytes>>, KernelError> {
        let pinned = |chunk: u32| self.loader.lock().pinned_bytes(chunk);
        let (pieces, gathered) = self.block_cache.pieces(&self.loader.source, weight, pieces, &pinned)?;
        self.report_gathered(&gathered);
        Ok(Some(pieces))
    }

    fn most_held_bytes(&self) -> usize {
        match self.boundary().ring_bytes() as usize {
            0 => RESIDENT_HELD_BYTES,
            ring_bytes => (ring_bytes / 4).min(MOST_HELD_BYTES),
        }
    }

    fn most_picked_bytes(&self) -> u64 {
        self.picked_bytes
    }

    fn is_ready(&self, weight: u32, part: usize) -> bool {
        self.loader.lock().is_ready(weight, part as u32)
    }

    fn progress(&self, progress: Progress) {
        match progress {
            Progress::PassBegins { block } => {
                let mut timing = self.timing();
                (timing.begun, timing.entry) = (Some(Instant::now()), Some(block));
                drop(timing);
                self.begin_pass(block);
            }
            Progress::PassEnds => self.end_pass(),
            // Nothing is waited for, and nothing is over.
            Progress::BlockBegins { .. } | Progress::StepBegins { .. } | Progress::StepEnds { .. }
                if self.is_settled() => {}
            Progress::BlockBegins { block } => {
                let mut loads = self.loader.lock();
                loads.enter_block(&self.loader.source.schedule, block);
                self.loader.wake(loads);
            }
            Progress::StepBegins { block, step } => {
                if self.loader.source.schedule.has(block, step) {
                    self.loader.lock().begin_step(block, step);
                }
            }
            Progress::StepEnds { block, step } => self.end_step(block, step),
        }
    }
}

/// Bytes of a part that a kernel holds, or a tensor over them. Fields are dropped in this order: nobody reads the slot of the chunk when its access
/// is over.
struct Held {
    chunk: Arc<ChunkBytes>,
    range: Range<usize>,
    _access: Option<HeldAccess>,
}

impl Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Storage for Held {
    fn bytes(&self) -> &[u8] {
        &self.chunk.bytes()[self.range.clone()]
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// An access of a load, which is over when this is dropped.
struct HeldAccess {
    loader: Arc<Loader>,
    load: u64,
}

impl Drop for HeldAccess {
    fn drop(&mut self) {
        let mut loads = self.loader.lock();
        loads.release(self.load);
        self.loader.released(loads);
    }
}
