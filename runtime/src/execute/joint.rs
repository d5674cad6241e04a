//! Runs the steps of an entry for several callers at once, step by step for all of them.
//!
//! A weight is read once for all. Products take the rows of all callers in one; other steps run for one caller after the
//! other, and what they read of a weight is kept until the last one is through. A row of a product has the same bits whatever
//! rows it comes with, so that each caller gets what it would get alone.

use super::{Execution, StepMemory, failure, frame, keep, reads_caches, release, upcoming_versions};
use crate::error::RunError;
use crate::program::Program;
use crate::steps::{Contents, Kernel, KernelError, Operand, PartBytes, PartSource, Progress, Stacked, kernel, stack};
use crate::versions::Version;
use ipuc_formats::encodings::PartBytesRange;
use ipuc_formats::model::StepRecord;
use ipuc_formats::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Whether [`run_together`] knows all steps of a block: none of them runs blocks of its own.
pub(crate) fn can_run_together(program: &Program, block: u32) -> bool {
    program.manifest.blocks[block as usize].steps.iter().all(|step| step.op.blocks().is_empty())
}

/// Results of a block for the parameters of each caller.
///
/// # Errors
/// [`RunError::Step`] for the first step that fails for one of them.
pub(crate) fn run_together(
    callers: &mut [Execution<'_, '_>],
    index: u32,
    arguments: Vec<Vec<Contents>>,
) -> Result<Vec<Vec<Contents>>, RunError> {
    let Some(Execution { program, trace, .. }) = callers.first() else { return Ok(Vec::new()) };
    let (program, trace) = (*program, *trace);
    let (block, plan) = (&program.manifest.blocks[index as usize], &program.plans[index as usize]);
    let mut frames: Vec<_> = arguments.into_iter().map(|arguments| frame(arguments, block)).collect();
    for (at, step) in block.steps.iter().enumerate() {
        let here = at as u32;
        program.source.progress(Progress::StepBegins { block: index, step: here });
        let begun = Instant::now();
        let source: Arc<dyn PartSource> = Arc::new(KeptParts::new(program.source.clone()));
        let joined = callers.iter().zip(&frames).map(|(caller, frame)| caller.joined(index, step, at, frame));
        let results = match joined.collect() {
            Some(joined) => joined,
            None => {
                let operands = callers.iter().zip(&mut frames);
                let operands = operands.map(|(caller, frame)| caller.operands(index, step, plan, at, frame, &source));
                let operands = operands.collect();
                let next = frames.first().map_or(&[][..], Vec::as_slice);
                let ahead = || upcoming_versions(&block.steps[at + 1..], next).for_each(Version::read_ahead);
                run_step(callers, (index, at), step, operands, &ahead)?
            }
        };
        drop(source);
        if let Some(trace) = trace {
            trace.add_step((index, here), step.op.name(), &step.name, begun);
        }
        program.source.progress(Progress::StepEnds { block: index, step: here });
        for (frame, results) in frames.iter_mut().zip(results) {
            release(step, plan, at, frame);
            keep(results, step, plan, frame);
        }
    }
    let end = block.steps.len() as u32;
    program.source.progress(Progress::StepBegins { block: index, step: end });
    let results = callers.iter().zip(&mut frames).map(|(caller, frame)| {
        block.results.iter().map(|operand| caller.result(operand, frame)).collect::<Result<Vec<_>, _>>()
    });
    let results = results.collect();
    program.source.progress(Progress::StepEnds { block: index, step: end });
    results
}

/// One step for all; `ahead` has what the next step needs read from the spill file.
fn run_step(
    callers: &mut [Execution<'_, '_>],
    (block, at): (u32, usize),
    step: &StepRecord,
    operands: Vec<Vec<Operand>>,
    ahead: &dyn Fn(),
) -> Result<Vec<Vec<Contents>>, RunError> {
    let kernel = kernel(&step.op);
    let bound = callers[0].memory;
    let mut memory = StepMemory { bound, block, step: at, slots: &[] };
    let operands = match stack(kernel, operands, &mut memory).map_err(|error| failure(step, error))? {
        Ok(stacked) => return run_stacked(callers, (block, at), step, kernel, stacked),
        Err(operands) => operands,
    };
    let spills = callers[0].program.spill.spilled_bytes() > 0;
    let mut results = Vec::with_capacity(callers.len());
    let mut operands = operands.into_iter().peekable();
    for caller in callers {
        let Some(own) = operands.next() else { break };
        if spills && reads_caches(&own) {
            match operands.peek() {
                Some(next) => next.iter().filter_map(version).for_each(Version::read_ahead),
                None => ahead(),
            }
        }
        results.push(caller.run_step((block, at), step, own)?);
    }
    Ok(results)
}

fn version(operand: &Operand) -> Option<&Version> {
    match operand {
        Operand::Version(version) => Some(version),
        Operand::Absent | Operand::Value(_) | Operand::Weight(_) => None,
    }
}

fn run_stacked(
    callers: &mut [Execution<'_, '_>],
    (block, at): (u32, usize),
    step: &StepRecord,
    kernel: &dyn Kernel,
    stacked: Stacked,
) -> Result<Vec<Vec<Contents>>, RunError> {
    let memories: Vec<_> = callers.iter().map(|caller| caller.memory).collect();
    let mut memory = StepMemory { bound: memories[0], block, step: at, slots: &[] };
    let place = (block, step.results.first().copied());
    let allocate = |caller: usize, dtype, shape: &[usize]| memories[caller].allocate(place, 0, dtype, shape);
    let results = stacked.run(kernel, &mut callers[0], &mut memory, allocate);
    let contents = |tensor: Tensor| vec![Contents::Value(tensor.into())];
    let (results, skipped) = results.map_err(|error| failure(step, error))?;
    callers[0].skipped += skipped;
    Ok(results.into_iter().map(contents).collect())
}

/// Parts of weights that one step of several callers reads: they are kept for the next caller, as far as a kernel may hold
/// them at a time.
struct KeptParts {
    source: Arc<dyn PartSource>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: usize,
    parts: BTreeMap<(u32, usize), PartBytes>,
}

impl KeptParts {
    fn new(source: Arc<dyn PartSource>) -> KeptParts {
        KeptParts { source, kept: Mutex::default() }
    }

    fn find(&self, weight: u32, part: usize) -> Option<PartBytes> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).parts.get(&(weight, part)).cloned()
    }
}

impl PartSource for KeptParts {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        if let Some(found) = self.find(weight, part) {
            return Ok(found);
        }
        let bytes = self.source.part(weight, part)?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + bytes.len() <= self.source.most_held_bytes() {
            kept.bytes += bytes.len();
            kept.parts.insert((weight, part), bytes.clone());
        }
        Ok(bytes)
    }

    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        self.source.tensor(weight)
    }

    fn rows(&self, weight: u32, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError> {
        self.source.rows(weight, rows, target)
    }

    fn matrices(&self, weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        self.source.matrices(weight, matrices)
    }

    fn pieces(&self, weight: u32, pieces: &[PartBytesRange]) -> Result<Option<Vec<PartBytes>>, KernelError> {
        self.source.pieces(weight, pieces)
    }

    fn most_held_bytes(&self) -> usize {
        self.source.most_held_bytes()
    }

    fn most_picked_bytes(&self) -> u64 {
        self.source.most_picked_bytes()
    }

    fn is_ready(&self, weight: u32, part: usize) -> bool {
        self.find(weight, part).is_some() || self.source.is_ready(weight, part)
    }

    fn progress(&self, progress: Progress) {
        self.source.progress(progress);
    }
}
