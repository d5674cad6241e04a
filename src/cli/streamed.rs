//! `ipuc verify --streamed`: the same bits within any budget and with any number of threads.

use super::execute::{Loaded, state_outputs};
use super::failure::Failure;
use super::output::count;
use super::progress::Waiting;
use crate::open::{OpenFileError, OpenOptions, open_with};
use ipuc_formats::model::EntryRecord;
use ipuc_formats::value::Value;
use ipuc_runtime::{OpenError, RunError, Session, SessionOptions};
use serde::Serialize;

/// Budgets, in percent of the weights; what the run needs besides is added.
const PERCENT: [u64; 5] = [100, 75, 50, 25, 10];
const THREADS: [usize; 2] = [1, 2];
/// Passes at each budget: the second one streams in the steady state.
const PASSES: usize = 2;

/// One budget and number of threads.
#[derive(Debug, Serialize)]
pub(super) struct Trial {
    /// Percent of the weights that the budget is meant to hold.
    percent: u64,
    pub(super) budget_bytes: u64,
    pub(super) threads: usize,
    /// Bytes that the last pass read.
    bytes_read: u64,
    /// Outputs and state have the bits of the run with all weights in memory.
    pub(super) same_bits: bool,
}

/// What is run at each budget.
pub(super) struct Run<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) entry: &'a EntryRecord,
    /// Contents of state, by input.
    pub(super) states: &'a [(String, Value)],
    pub(super) inputs: &'a [(String, Value)],
    /// Outputs and state of the run with all weights in memory.
    pub(super) expected: &'a [(String, Value)],
    /// What that run needed besides weights.
    pub(super) working_bytes: u64,
}

impl Run<'_> {
    /// Run at every budget, and say at which.
    pub(super) fn trials(&self, shown: &Waiting) -> anyhow::Result<Vec<Trial>> {
        let weights: u64 = self.loaded.model.manifest().chunks.iter().map(|chunk| chunk.length).sum();
        let mut trials = Vec::new();
        for percent in PERCENT {
            for threads in THREADS {
                shown.say(format_args!("verifying within {percent} % of the weights, {}", count(threads, "thread")));
                let mut budget_bytes = self.working_bytes + weights / 100 * percent;
                let trial = loop {
                    match self.trial(percent, budget_bytes, threads) {
                        // Small models: the smallest budget that works is more than this share of the weights.
                        Err(error) => match needed_bytes(&error) {
                            Some(needed_bytes) if needed_bytes > budget_bytes => budget_bytes = needed_bytes,
                            Some(_) | None => return Err(error),
                        },
                        Ok(trial) => break trial,
                    }
                };
                trials.push(trial);
            }
        }
        Ok(trials)
    }

    fn trial(&self, percent: u64, budget_bytes: u64, threads: usize) -> anyhow::Result<Trial> {
        let model =
            open_with(&self.loaded.file, OpenOptions { memory_bytes: Some(budget_bytes), ..OpenOptions::default() })?;
        let mut session = Session::new(&model, &SessionOptions { threads, ..SessionOptions::default() })?;
        let mut same_bits = true;
        for _ in 0..PASSES {
            session.reset();
            for (name, value) in self.states {
                session.set_state(name, value.clone())?;
            }
            let mut found = session.run(Some(&self.entry.name), self.inputs.to_vec())?;
            found.extend(state_outputs(&model, self.entry, &session)?);
            same_bits &= found == self.expected;
        }
        let pass = session.last_pass().ok_or_else(|| Failure::usage("the model is not streamed"))?;
        Ok(Trial { percent, budget_bytes, threads, bytes_read: pass.bytes_read(), same_bits })
    }
}

/// The budget that would have been enough.
fn needed_bytes(error: &anyhow::Error) -> Option<u64> {
    if let Some(RunError::Budget { needed_bytes, .. }) = error.downcast_ref() {
        return Some(*needed_bytes);
    }
    match error.downcast_ref()? {
        OpenFileError::Model { error: OpenError::Budget { needed_bytes, .. }, .. } => Some(*needed_bytes),
        OpenFileError::Model { .. } | OpenFileError::Source(_) | OpenFileError::Arriving { .. } => None,
    }
}
