//! The source of parts that kernels read from: one plan after another, as sessions need more or less memory.

use super::engine::Engine;
use super::lanes::Lanes;
use super::order::Order;
use super::pace::Pace;
use super::readers;
use super::report::{PassReport, Residency};
use super::residency::{Shortage, whole_bytes};
use super::source::Source;
use crate::error::OpenError;
use crate::steps::{Crew, KernelError, PartBytes, PartSource, Progress};
use crate::trace::Trace;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::tensor::Tensor;
use std::collections::BTreeMap;
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
    /// Bytes for weights, activations, state, inputs and outputs.
    pub(crate) budget_bytes: u64,
    /// Bytes of activations, state, inputs and outputs that are known before the first run.
    pub(crate) working_bytes: u64,
    /// Reads in flight; 0 for what suits most devices.
    pub(crate) readers: usize,
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
        let (engine, readers) = start(&source, options, residency);
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
                (plan.engine, plan.readers) = start(&self.source, self.options, residency);
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

    fn is_ready(&self, weight: u32, part: usize) -> bool {
        self.engine().lock().is_ready(weight, part as u32)
    }

    fn begin_work(&self, operations: usize) -> Crew {
        self.engine().begin_work(operations)
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

/// Puts a plan to work.
fn start(source: &Arc<Source>, options: StreamedOptions, residency: Residency) -> (Arc<Engine>, Vec<JoinHandle<()>>) {
    let pace = Pace::new(options.readers);
    let lanes = source.file.queue(pace.most_reads()).map(|queue| Lanes::new(queue, pace));
    let engine = Arc::new(Engine::new(source.clone(), residency, lanes));
    let readers = readers::start(&engine, options.readers);
    (engine, readers)
}
