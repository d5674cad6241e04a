//! The daily interface of an opened model: write inputs, run, read outputs, keep state.
//!
//! `pass` runs the block of an entry for one session or for several, `together` several sessions as one.

mod pass;
mod together;

use crate::bind::{Declared, bind_symbols, follow_equations};
use crate::cancel::CancelToken;
use crate::counter::StepCounter;
use crate::error::RunError;
use crate::memory::BoundMemory;
use crate::model::{Model, join};
use crate::observe::Observer;
use crate::program::Program;
use crate::saved::{Saved, SavedStateError, restore, save};
use crate::state::{SessionStates, States, charged, contents, initial};
use crate::steps::Contents;
use crate::stream::PassReport;
use crate::threads::Threads;
use crate::trace::{Trace, watch_workers};
use crate::versions::{PageMemory, Version};
use ipuc_formats::dtype::DType;
use ipuc_formats::model::{EntryRecord, StateRecord};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::Skipped;
use ipuc_kernels::simd::Instructions;
use std::io::{Read, Write};
use std::sync::Arc;

/// What a session may be told.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Threads that share a step; all cores where 0.
    pub threads: usize,
    /// Seed of random operators that have none of their own.
    pub seed: u64,
}

/// State and options of a caller; several may share a [`Model`].
pub struct Session {
    model: Model,
    threads: Threads,
    random_state: u64,
    skipped: Skipped,
    states: SessionStates,
    memory: Option<BoundMemory>,
    working_bytes: u64,
    /// The most bytes of buffers that a run took besides those of its outputs and state.
    unplanned_bytes: u64,
    /// Whether state behind the windows of attention is forgotten.
    forgets: bool,
    trace: Option<Arc<Trace>>,
    cancel: Option<CancelToken>,
    counter: Option<StepCounter>,
}

impl Session {
    /// A session with fresh state. Sessions that want as many threads share them.
    ///
    /// # Errors
    /// [`RunError::Threads`] where threads cannot be started, [`RunError::Instructions`] where the environment names an
    /// instruction set that this processor does not have.
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Session, RunError> {
        Session::on_threads(model, Threads::shared(options.threads)?, options.seed)
    }

    /// A session with fresh state on these threads, with a seed for random operators that have none of their own.
    ///
    /// # Errors
    /// [`RunError::Instructions`] where the environment names an instruction set that this processor does not have.
    pub fn on_threads(model: &Model, threads: Threads, seed: u64) -> Result<Session, RunError> {
        Instructions::named()?;
        Ok(Session {
            model: model.clone(),
            threads,
            random_state: seed,
            skipped: Skipped::default(),
            states: model.program.states.add(States::new()),
            memory: None,
            working_bytes: 0,
            unplanned_bytes: 0,
            forgets: false,
            trace: None,
            cancel: None,
            counter: None,
        })
    }

    /// Another session with the same state, from which both go their own ways.
    pub fn fork(&self) -> Session {
        let states = self.states.lock().clone();
        Session {
            model: self.model.clone(),
            threads: self.threads.clone(),
            random_state: self.random_state,
            skipped: Skipped::default(),
            states: self.model.program.states.add(states),
            memory: None,
            working_bytes: 0,
            unplanned_bytes: 0,
            forgets: self.forgets,
            trace: None,
            cancel: self.cancel.clone(),
            counter: None,
        }
    }

    /// Have runs end before their next step once this token is cancelled, or have none end so.
    pub fn set_cancel(&mut self, token: Option<CancelToken>) {
        self.cancel = token;
    }

    /// Count the steps of the runs to come, or no more; runs together with other sessions are not counted.
    pub fn set_counter(&mut self, counter: Option<StepCounter>) {
        self.counter = counter;
    }

    /// What products have left out in the last run, since activations were zero; of a run with other sessions, what belongs to all
    /// is told of the first.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Run an entry as [`Session::run`] does and forget what came of it: weights are read, memory is planned, threads are
    /// awake. State and random operators are then what they were.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn warm_up(&mut self, entry: Option<&str>, inputs: Vec<(String, Value)>) -> Result<(), RunError> {
        let random_state = self.random_state;
        let states = self.states.lock().clone();
        let ran = self.run(entry, inputs);
        *self.states.lock() = states;
        self.random_state = random_state;
        ran.map(|_| ())
    }

    /// Note what happens when in the runs to come, or no more; reads that other sessions of the model cause included, and
    /// work of those on the same threads.
    pub fn set_trace(&mut self, trace: Option<Arc<Trace>>) {
        watch_workers(self.threads.team(), trace.as_ref());
        if let Some(streamed) = &self.model.program.streamed {
            streamed.set_trace(trace.clone());
        }
        self.trace = trace;
    }

    /// The threads that it runs on.
    #[must_use]
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Forget all state; the next run begins anew.
    pub fn reset(&mut self) {
        self.states.lock().clear();
    }

    /// Forget from the next run on what lies behind the windows of attention, in pages of growing state that nothing else reads:
    /// memory then grows no further than windows, what the last run appended and a page or two. Such state has no contents to
    /// ask for, and [`Session::can_truncate`] says how far back it goes. What is forgotten stays so when this is set back.
    pub fn forget_behind_windows(&mut self, forgets: bool) {
        self.forgets = forgets;
    }

    /// Whether [`Session::truncate`] leaves as many positions, of which those that the next run reads are not forgotten.
    pub fn can_truncate(&self, positions: usize) -> bool {
        let states = self.states.lock();
        states.iter().all(|(&number, contents)| match contents {
            Contents::Version(version) => {
                version.length() >= positions && self.truncated(number, version, positions).is_some()
            }
            Contents::Value(_) => false,
        })
    }

    /// The first positions of a state; `None` where some of them that the next run may read are forgotten.
    fn truncated(&self, state: u32, version: &Version, positions: usize) -> Option<Version> {
        let window = self.model.program.windows[state as usize];
        let first = window.map_or(0, |window| window.first_read(positions));
        if positions > 0 && first < version.first() {
            return None;
        }
        version.truncated(positions)
    }

    /// Take back all positions of growing states but the first ones.
    ///
    /// # Errors
    /// [`RunError::State`] where a state does not grow, holds fewer positions, or has forgotten some of those that a run behind them
    /// would read; all states are then what they were.
    pub fn truncate(&mut self, positions: usize) -> Result<(), RunError> {
        let records = &self.model.program.manifest.states;
        let mut states = self.states.lock();
        let shorter = states.iter().map(|(&number, contents)| {
            let failure = |reason: String| RunError::State { name: records[number as usize].name.clone(), reason };
            match contents {
                Contents::Version(_) if records[number as usize].growth.is_some_and(|growth| growth.overwritten) => {
                    Err(failure("its positions are overwritten: none can be taken back".to_string()))
                }
                Contents::Version(version) if version.length() >= positions => {
                    let shorter = self.truncated(number, version, positions);
                    let first = version.first();
                    let forgotten = || failure(format!("positions before {first} are forgotten, behind its window"));
                    Ok((number, Contents::Version(shorter.ok_or_else(forgotten)?)))
                }
                Contents::Version(version) => Err(failure(format!("it has {} positions", version.length()))),
                Contents::Value(_) => Err(failure("it does not grow: no positions can be taken back".to_string())),
            }
        });
        *states = shorter.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The contents of a state; `None` where no run and nobody else has set them.
    ///
    /// # Errors
    /// [`RunError::State`] where there is no such state, or its contents cannot be read.
    pub fn state(&self, name: &str) -> Result<Option<Value>, RunError> {
        let (number, _) = self.state_record(name)?;
        let failure = |reason: String| RunError::State { name: name.to_string(), reason };
        let contents = self.states.lock().get(&number).cloned();
        match contents {
            None => Ok(None),
            Some(Contents::Value(value)) => Ok(Some(value)),
            Some(Contents::Version(version)) => whole(&version, &*self.model.program).map(Some).map_err(failure),
        }
    }

    /// Give a state other contents.
    ///
    /// # Errors
    /// [`RunError::State`] where there is no such state, or the value does not have its type; the state is then what it was.
    pub fn set_state(&mut self, name: &str, value: Value) -> Result<(), RunError> {
        let program = self.model.program.clone();
        let (number, record) = self.state_record(name)?;
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        let contents = contents(record, charged(value, &*program)?, &*program)?;
        self.states.lock().insert(number, contents);
        Ok(())
    }

    fn state_record(&self, name: &str) -> Result<(u32, &StateRecord), RunError> {
        let records = &self.model.program.manifest.states;
        let number = records.iter().position(|record| record.name == name);
        number.map(|number| (number as u32, &records[number])).ok_or_else(|| RunError::State {
            name: name.to_string(),
            reason: format!("there is no such state; states are {}", join(records.iter().map(|one| one.name.as_str()))),
        })
    }

    /// Write all state, and what random operators go on from.
    ///
    /// # Errors
    /// [`SavedStateError`] where it cannot be written, or is no tensor of numbers.
    pub fn save(&self, to: &mut dyn Write) -> Result<(), SavedStateError> {
        let program = &self.model.program;
        let saved = Saved { states: self.states.lock().clone(), random_state: self.random_state };
        save(&saved, program, to)
    }

    /// Put saved state in place of the present one.
    ///
    /// # Errors
    /// [`SavedStateError`] where the bytes are no saved state or that of another model; the present one is kept then.
    pub fn restore(&mut self, from: &mut dyn Read) -> Result<(), SavedStateError> {
        let program = &self.model.program;
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        let saved = restore(program, from)?;
        *self.states.lock() = saved.states;
        self.random_state = saved.random_state;
        Ok(())
    }

    /// Bytes that are planned for results of the entry that ran last, at the dimensions of that run.
    pub fn arena_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, BoundMemory::arena_bytes)
    }

    /// Run an entry; gives its outputs by name, in the order of the entry. State stays in the session.
    ///
    /// # Errors
    /// [`RunError`] where inputs do not fit or a step fails; state is then what it was before.
    pub fn run(&mut self, entry: Option<&str>, inputs: Vec<(String, Value)>) -> Result<Vec<(String, Value)>, RunError> {
        self.run_shown(entry, inputs, None)
    }

    /// [`Session::run`], with every value that a step computes shown to an observer.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_observed(
        &mut self,
        entry: Option<&str>,
        inputs: Vec<(String, Value)>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<(String, Value)>, RunError> {
        self.run_shown(entry, inputs, Some(observer))
    }

    /// Bytes of state that is in the spill file, of all sessions of the model.
    pub fn spilled_bytes(&self) -> u64 {
        self.model.program.spill.spilled_bytes()
    }

    /// Bytes of arguments that are not charged yet: inputs, and state that no run has set.
    fn uncharged_bytes(&self, entry: &EntryRecord, arguments: &[Contents]) -> u64 {
        let bytes = |(index, contents): (usize, &Contents)| match contents {
            Contents::Value(Value::Tensor(tensor)) if tensor.dtype() != DType::String => {
                let state = entry.state_of_input(index);
                if state.is_some_and(|state| self.states.lock().contains_key(&state)) {
                    0
                } else {
                    tensor.bytes().len() as u64
                }
            }
            Contents::Value(_) | Contents::Version(_) => 0,
        };
        arguments.iter().enumerate().map(bytes).sum()
    }

    /// Bytes besides weights that the entry that ran last needs at the dimensions of that run: planned results, inputs,
    /// outputs, state, and what was sized while running.
    pub fn working_bytes(&self) -> u64 {
        self.working_bytes
    }

    /// Bytes of the pages of growing state that this session keeps, in memory or in the spill file; forks share pages.
    pub fn state_bytes(&self) -> u64 {
        let bytes = |contents: &Contents| match contents {
            Contents::Version(version) => version.held_bytes() as u64,
            Contents::Value(_) => 0,
        };
        self.states.lock().values().map(bytes).sum()
    }

    /// What the last run of this model read, and where it waited; `None` where the model has no budget.
    pub fn last_pass(&self) -> Option<PassReport> {
        self.model.program.streamed.as_ref().and_then(|streamed| streamed.last_pass())
    }

    /// Put the outputs that are state aside; gives the others by name.
    fn keep_states(&mut self, entry: &EntryRecord, results: Vec<Contents>) -> Result<Vec<(String, Value)>, RunError> {
        let program = self.model.program.clone();
        let mut outputs = Vec::with_capacity(results.len());
        let mut states = Vec::new();
        for (index, found) in results.into_iter().enumerate() {
            let state = entry.state_of_output(index);
            let record = state.and_then(|state| program.manifest.states.get(state as usize));
            match (state.zip(record), found) {
                (Some((state, record)), Contents::Value(value)) => {
                    states.push((state, contents(record, value, &*program)?));
                }
                (Some((state, _)), version @ Contents::Version(_)) => states.push((state, version)),
                (None, Contents::Value(value)) => outputs.push((entry.outputs[index].clone(), value)),
                (None, Contents::Version(version)) => {
                    let failure = |reason| RunError::State { name: entry.outputs[index].clone(), reason };
                    outputs.push((entry.outputs[index].clone(), whole(&version, &*program).map_err(failure)?));
                }
            }
        }
        self.forget(entry, &mut states);
        self.states.lock().extend(states);
        Ok(outputs)
    }

    /// Forget what no later run reads of states, even where what was appended just now is taken back.
    fn forget(&self, entry: &EntryRecord, states: &mut [(u32, Contents)]) {
        if !self.forgets {
            return;
        }
        let before = self.states.lock();
        for (state, contents) in states {
            let reads = entry.states.iter().any(|used| used.state == *state && used.input.is_some());
            let window = self.model.program.windows[*state as usize].filter(|_| reads);
            if let (Some(window), Contents::Version(version), Some(Contents::Version(before))) =
                (window, contents, before.get(state))
            {
                version.forget_before(window.first_kept(before.length()));
            }
        }
    }

    /// One value for each parameter: what is given, and state.
    fn arguments(&self, entry: &EntryRecord, inputs: Vec<(String, Value)>) -> Result<Vec<Contents>, RunError> {
        let program = &*self.model.program;
        let block = &program.manifest.blocks[entry.block as usize];
        let mut slots: Vec<Option<Contents>> = vec![None; entry.inputs.len()];
        let is_state = |index: usize| entry.state_of_input(index).is_some();
        for (name, value) in inputs {
            let index = entry.inputs.iter().position(|input| *input == name).filter(|&index| !is_state(index));
            let Some(index) = index else {
                let known = self.model.inputs(entry);
                let known = join(known.iter().map(|port| port.name.as_str()));
                return Err(RunError::UnknownInput { name, known });
            };
            slots[index] = Some(value.into());
        }
        let all = declared(program, entry);
        let mut given_types = Vec::new();
        let mut given = Vec::new();
        for (index, slot) in slots.iter().enumerate().filter(|(index, _)| !is_state(*index)) {
            let missing = || RunError::MissingInput {
                name: entry.inputs[index].clone(),
                expected: block.values[index].kind.to_string(),
            };
            given.push(slot.as_ref().ok_or_else(missing)?.kind());
            given_types.push(Declared { name: all[index].name, kind: all[index].kind });
        }
        if !entry.states.is_empty() {
            let mut bindings = bind_symbols(&given_types, &given)?;
            follow_equations(&program.manifest, &mut bindings);
            for (index, slot) in slots.iter_mut().enumerate() {
                let Some(state) = entry.state_of_input(index) else { continue };
                let record = &program.manifest.states[state as usize];
                let contents = self.states.lock().get(&state).cloned();
                *slot = Some(match contents {
                    Some(contents) => contents,
                    None => initial(record, &block.values[index].kind, &bindings, program)?,
                });
            }
        }
        Ok(slots.into_iter().flatten().collect())
    }
}

fn declared<'a>(program: &'a Program, entry: &'a EntryRecord) -> Vec<Declared<'a>> {
    let block = &program.manifest.blocks[entry.block as usize];
    let named = entry.inputs.iter().zip(&block.values);
    named.map(|(name, value)| Declared { name, kind: &value.kind }).collect()
}

/// The contents of a version in memory of their own.
fn whole(version: &Version, pages: &dyn PageMemory) -> Result<Value, String> {
    let copy = Tensor::zeros(version.dtype(), version.shape()).map_err(|error| error.to_string())?;
    version.copied_into(copy, pages).map(Value::from).map_err(|error| error.to_string())
}
