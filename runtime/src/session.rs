//! The daily interface: open a model, write inputs, run, read outputs.

use crate::bind::{Declared, bind, bind_symbols};
use crate::check::checked_manifest;
use crate::error::{OpenError, RunError};
use crate::execute::Execution;
use crate::memory::{BoundMemory, Pool};
use crate::program::Program;
use crate::resident::SharedBytes;
use crate::state::initial;
use crate::steps::Progress;
use crate::stream::{PassReport, Residency, StreamedOptions};
use crate::trace::{Trace, watch_workers};
use crate::working::{least_working_bytes, port_bytes};
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::value::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An opened file: weights, shared by its sessions.
#[derive(Clone)]
pub struct Model {
    program: Arc<Program>,
    /// Number of the next session.
    sessions: Arc<AtomicU64>,
}

/// Name and type of an input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Type, with symbolic dimensions.
    pub kind: Type,
}

impl Model {
    /// Open a file and read its weights into memory.
    ///
    /// # Errors
    /// [`OpenError`] where the file is malformed or cannot be read.
    pub fn open(file: &dyn ReadAt) -> Result<Model, OpenError> {
        let manifest = checked_manifest(file)?;
        Ok(Model::over(Program::resident(manifest, file)?))
    }

    /// Open a file within a memory budget. The file is read at multiples of 4096 bytes, into buffers that begin there.
    ///
    /// # Errors
    /// [`OpenError`] where the file is malformed, cannot be read, or the budget is too small whatever the inputs.
    pub fn open_with(file: Arc<dyn ReadAt>, options: ModelOptions) -> Result<Model, OpenError> {
        let Some(budget_bytes) = options.memory_bytes else { return Model::open(&*file) };
        let manifest = checked_manifest(&*file)?;
        let working_bytes = least_working_bytes(&manifest);
        let options = StreamedOptions { budget_bytes, working_bytes, readers: options.readers };
        Ok(Model::over(Program::streamed(manifest, file, options)?))
    }

    /// Open the bytes of a whole file, which several processes may share: weights stay where they are, and each is checked
    /// when it is used first.
    ///
    /// # Errors
    /// [`OpenError`] where the file is malformed.
    pub fn open_shared(file: SharedBytes) -> Result<Model, OpenError> {
        let bytes: &[u8] = &file;
        let manifest = checked_manifest(&bytes)?;
        Ok(Model::over(Program::mapped(manifest, file)?))
    }

    fn over(program: Program) -> Model {
        Model { program: Arc::new(program), sessions: Arc::default() }
    }

    /// What stays in memory and what streams; `None` where the model has no budget.
    pub fn residency(&self) -> Option<Residency> {
        self.program.streamed.as_ref().map(|streamed| streamed.residency())
    }

    /// What the file says, weights excepted.
    pub fn manifest(&self) -> &Manifest {
        &self.program.manifest
    }

    /// The entry of this name; the only one where none is given.
    ///
    /// # Errors
    /// [`RunError::UnknownEntry`] where there is none, or several and no name.
    pub fn entry(&self, name: Option<&str>) -> Result<&EntryRecord, RunError> {
        let entries = &self.program.manifest.entries;
        let found = match name {
            Some(name) => entries.iter().find(|entry| entry.name == name),
            None if entries.len() == 1 => entries.first(),
            None => None,
        };
        found.ok_or_else(|| RunError::UnknownEntry {
            name: name.unwrap_or("").to_string(),
            known: join(entries.iter().map(|entry| entry.name.as_str())),
        })
    }

    /// Inputs that a caller gives: those of the entry that are not state.
    pub fn inputs(&self, entry: &EntryRecord) -> Vec<Port> {
        let block = &self.program.manifest.blocks[entry.block as usize];
        let state = |index: usize| entry.states.iter().any(|state| state.input as usize == index);
        let ports = entry.inputs.iter().enumerate().filter(|(index, _)| !state(*index));
        ports.map(|(index, name)| Port { name: name.clone(), kind: block.values[index].kind.clone() }).collect()
    }

    /// Outputs that a caller gets: those of the entry that are not state.
    pub fn outputs(&self, entry: &EntryRecord) -> Vec<String> {
        let state = |index: usize| entry.states.iter().any(|state| state.output as usize == index);
        let names = entry.outputs.iter().enumerate().filter(|(index, _)| !state(*index));
        names.map(|(_, name)| name.clone()).collect()
    }
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// How a model is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelOptions {
    /// Bytes for weights, activations, state, inputs and outputs; weights that do not fit are streamed. All weights are in
    /// memory where this is `None`.
    pub memory_bytes: Option<u64>,
    /// Reads in flight while streaming; 0 for what suits most devices.
    pub readers: usize,
}

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
    number: u64,
    threads: Arc<rayon::ThreadPool>,
    random_state: u64,
    /// Contents of state by entry and input.
    states: BTreeMap<(String, String), Value>,
    pool: Arc<Pool>,
    memory: Option<BoundMemory>,
    working_bytes: u64,
    trace: Option<Arc<Trace>>,
}

impl Session {
    /// A session with fresh state.
    ///
    /// # Errors
    /// [`RunError::Threads`] where threads cannot be started.
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Session, RunError> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
        let threads = threads.map_err(|error| RunError::Threads { reason: error.to_string() })?;
        Ok(Session {
            model: model.clone(),
            number: model.sessions.fetch_add(1, Ordering::Relaxed),
            threads: Arc::new(threads),
            random_state: options.seed,
            states: BTreeMap::new(),
            pool: Arc::default(),
            memory: None,
            working_bytes: 0,
            trace: None,
        })
    }

    /// Another session with the same state, from which both go their own ways.
    pub fn fork(&self) -> Session {
        Session {
            model: self.model.clone(),
            number: self.model.sessions.fetch_add(1, Ordering::Relaxed),
            threads: self.threads.clone(),
            random_state: self.random_state,
            states: self.states.clone(),
            pool: Arc::default(),
            memory: None,
            working_bytes: 0,
            trace: None,
        }
    }

    /// Note what happens when in the runs to come, or no more; reads that other sessions of the model cause included.
    pub fn set_trace(&mut self, trace: Option<Arc<Trace>>) {
        watch_workers(&self.threads, trace.as_ref());
        if let Some(streamed) = &self.model.program.streamed {
            streamed.set_trace(trace.clone());
        }
        self.trace = trace;
    }

    /// Forget all state; the next run begins anew.
    pub fn reset(&mut self) {
        self.states.clear();
    }

    /// The state: entry, input and contents of each that a run has set.
    pub fn save(&self) -> Vec<(String, String, Value)> {
        let saved = self.states.iter().map(|((entry, input), value)| (entry.clone(), input.clone(), value.clone()));
        saved.collect()
    }

    /// Put saved state in place of the present one.
    ///
    /// # Errors
    /// [`RunError::State`] where an entry has no such state; the present one is kept then.
    pub fn restore(&mut self, saved: Vec<(String, String, Value)>) -> Result<(), RunError> {
        for (entry, input, _) in &saved {
            let record = self.model.entry(Some(entry))?;
            let known = record.states.iter().any(|state| record.inputs[state.input as usize] == *input);
            if !known {
                let reason = format!("entry `{entry}` has no such state");
                return Err(RunError::State { name: input.clone(), reason });
            }
        }
        self.states = saved.into_iter().map(|(entry, input, value)| ((entry, input), value)).collect();
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
        let model = self.model.clone();
        let entry = model.entry(entry)?;
        let program = &*model.program;
        let arguments = self.arguments(entry, inputs)?;
        let declared = declared(program, entry);
        let bindings = bind(&program.manifest, entry, &declared, &arguments)?;
        // Passes over streamed weights come one after another, whatever session they are of.
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        if !self.memory.as_ref().is_some_and(|memory| memory.fits(entry.block, &bindings)) {
            // The old arenas go before the new ones come.
            self.memory = None;
            self.memory = Some(self.bound_memory(entry, bindings)?);
        }
        let Some(memory) = &self.memory else { return Ok(Vec::new()) };
        let mut execution =
            Execution { program, memory, random_state: self.random_state, trace: self.trace.as_deref() };
        program.source.progress(Progress::PassBegins { block: entry.block });
        let results = self.threads.install(|| execution.run_block(entry.block, arguments))?;
        program.source.progress(Progress::PassEnds);
        self.random_state = execution.random_state;
        Ok(self.keep_states(entry, results))
    }

    /// Memory for a run of the entry at these dimensions, within the budget.
    fn bound_memory(&mut self, entry: &EntryRecord, bindings: Bindings) -> Result<BoundMemory, RunError> {
        let program = self.model.program.clone();
        let ports = port_bytes(&program.manifest, entry, &bindings);
        let mut memory = BoundMemory::new(&program.manifest, entry.block, bindings, self.pool.clone());
        let working_bytes = memory.arena_bytes().saturating_add(ports);
        self.working_bytes = working_bytes;
        if let Some(streamed) = &program.streamed {
            streamed.reserve(self.number, working_bytes).map_err(|needed_bytes| RunError::Budget {
                needed_bytes,
                budget_bytes: streamed.residency().budget_bytes,
                working_bytes,
            })?;
        }
        memory.acquire();
        Ok(memory)
    }

    /// Bytes besides weights that the entry that ran last needs at the dimensions of that run: planned results, inputs,
    /// outputs, and state. What is sized while running is left out.
    pub fn working_bytes(&self) -> u64 {
        self.working_bytes
    }

    /// What the last run of this model read, and where it waited; `None` where the model has no budget.
    pub fn last_pass(&self) -> Option<PassReport> {
        self.model.program.streamed.as_ref().and_then(|streamed| streamed.last_pass())
    }

    /// Put the outputs that are state aside; gives the others by name.
    fn keep_states(&mut self, entry: &EntryRecord, results: Vec<Value>) -> Vec<(String, Value)> {
        let mut outputs = Vec::with_capacity(results.len());
        for (index, value) in results.into_iter().enumerate() {
            match entry.states.iter().find(|state| state.output as usize == index) {
                Some(state) => {
                    let key = (entry.name.clone(), entry.inputs[state.input as usize].clone());
                    self.states.insert(key, value);
                }
                None => outputs.push((entry.outputs[index].clone(), value)),
            }
        }
        outputs
    }

    /// One value for each parameter: what is given, and state.
    fn arguments(&self, entry: &EntryRecord, inputs: Vec<(String, Value)>) -> Result<Vec<Value>, RunError> {
        let program = &*self.model.program;
        let block = &program.manifest.blocks[entry.block as usize];
        let mut slots: Vec<Option<Value>> = vec![None; entry.inputs.len()];
        let is_state = |index: usize| entry.states.iter().any(|state| state.input as usize == index);
        for (name, value) in inputs {
            let index = entry.inputs.iter().position(|input| *input == name).filter(|&index| !is_state(index));
            let Some(index) = index else {
                let known = self.model.inputs(entry);
                let known = join(known.iter().map(|port| port.name.as_str()));
                return Err(RunError::UnknownInput { name, known });
            };
            slots[index] = Some(value);
        }
        let all = declared(program, entry);
        let mut given_types = Vec::new();
        let mut given = Vec::new();
        for (index, slot) in slots.iter().enumerate().filter(|(index, _)| !is_state(*index)) {
            let missing = || RunError::MissingInput {
                name: entry.inputs[index].clone(),
                expected: block.values[index].kind.to_string(),
            };
            given.push(slot.clone().ok_or_else(missing)?);
            given_types.push(Declared { name: all[index].name, kind: all[index].kind });
        }
        if !entry.states.is_empty() {
            let bindings = bind_symbols(&given_types, &given)?;
            for state in &entry.states {
                let index = state.input as usize;
                let key = (entry.name.clone(), entry.inputs[index].clone());
                let kept = self.states.get(&key).cloned();
                slots[index] = Some(match kept {
                    Some(value) => value,
                    None => initial(entry, block, state, &bindings)?,
                });
            }
        }
        Ok(slots.into_iter().flatten().collect())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(streamed) = &self.model.program.streamed {
            streamed.leave(self.number);
        }
    }
}

fn declared<'a>(program: &'a Program, entry: &'a EntryRecord) -> Vec<Declared<'a>> {
    let block = &program.manifest.blocks[entry.block as usize];
    let named = entry.inputs.iter().zip(&block.values);
    named.map(|(name, value)| Declared { name, kind: &value.kind }).collect()
}
