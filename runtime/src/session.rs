//! The daily interface: open a model, write inputs, run, read outputs.

use crate::bind::{Declared, bind, bind_symbols};
use crate::check::checked_manifest;
use crate::error::{OpenError, RunError};
use crate::execute::Execution;
use crate::file::WeightFile;
use crate::memory::BoundMemory;
use crate::observe::Observer;
use crate::program::Program;
use crate::resident::SharedBytes;
use crate::state::initial;
use crate::steps::Progress;
use crate::stream::{Need, PassReport, Residency, StreamedOptions};
use crate::trace::{Trace, watch_workers};
use crate::working::{PortBytes, least_working_bytes};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An opened file: weights, shared by its sessions.
#[derive(Clone)]
pub struct Model {
    program: Arc<Program>,
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
    pub fn open_with(file: Arc<dyn WeightFile>, options: ModelOptions) -> Result<Model, OpenError> {
        let Some(budget_bytes) = options.memory_bytes else { return Model::open(&*file) };
        let manifest = checked_manifest(&*file)?;
        let working_bytes = least_working_bytes(&manifest, options.context);
        let options = StreamedOptions { working_bytes, readers: options.readers };
        Ok(Model::over(Program::streamed(manifest, file, budget_bytes, options)?))
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
        Model { program: Arc::new(program) }
    }

    /// What stays in memory and what streams; `None` where the model has no budget.
    pub fn residency(&self) -> Option<Residency> {
        self.program.streamed.as_ref().map(|streamed| streamed.residency())
    }

    /// Bytes in use of the budget, of weights that stream, activations, state and outputs; without a budget, of all but
    /// weights.
    pub fn memory(&self) -> MemoryUse {
        let budget = &self.program.budget;
        MemoryUse { in_use_bytes: budget.in_use_bytes(), peak_bytes: budget.peak_bytes() }
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

/// How much memory a model and its sessions use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use now.
    pub in_use_bytes: u64,
    /// The most bytes that were ever in use at a time.
    pub peak_bytes: u64,
}

/// How a model is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelOptions {
    /// Bytes for weights, activations, state, inputs and outputs; weights that do not fit are streamed. All weights are in
    /// memory where this is `None`.
    pub memory_bytes: Option<u64>,
    /// Reads in flight while streaming; 0 for what suits most devices.
    pub readers: usize,
    /// Positions that state may grow to, for which room is kept free within the budget from the beginning; where state grows
    /// beyond, weights make room.
    pub context: Option<u64>,
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
    threads: Arc<rayon::ThreadPool>,
    random_state: u64,
    /// Contents of state by entry and input.
    states: BTreeMap<(String, String), Value>,
    /// State that was restored, and so is not charged to the budget except during a run.
    restored: BTreeSet<(String, String)>,
    memory: Option<BoundMemory>,
    working_bytes: u64,
    /// The most bytes of buffers that a run took besides those of its outputs and state.
    unplanned_bytes: u64,
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
            threads: Arc::new(threads),
            random_state: options.seed,
            states: BTreeMap::new(),
            restored: BTreeSet::new(),
            memory: None,
            working_bytes: 0,
            unplanned_bytes: 0,
            trace: None,
        })
    }

    /// Another session with the same state, from which both go their own ways.
    pub fn fork(&self) -> Session {
        Session {
            model: self.model.clone(),
            threads: self.threads.clone(),
            random_state: self.random_state,
            states: self.states.clone(),
            restored: self.restored.clone(),
            memory: None,
            working_bytes: 0,
            unplanned_bytes: 0,
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
        self.restored.clear();
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
        self.restored = self.states.keys().cloned().collect();
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

    fn run_shown(
        &mut self,
        entry: Option<&str>,
        inputs: Vec<(String, Value)>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<(String, Value)>, RunError> {
        let model = self.model.clone();
        let entry = model.entry(entry)?;
        let program = &*model.program;
        let arguments = self.arguments(entry, inputs)?;
        let declared = declared(program, entry);
        let bindings = bind(&program.manifest, entry, &declared, &arguments)?;
        // Passes over streamed weights come one after another, whatever session they are of.
        let _pass = program.streamed.as_ref().map(|streamed| streamed.pass());
        if let Some(observer) = &mut observer {
            observer.begin();
        }
        if program.streamed.is_none() {
            let results = self.attempt(entry, &bindings, arguments, observer)?;
            return Ok(self.keep_states(entry, results));
        }
        loop {
            let shown: Option<&mut dyn Observer> = match &mut observer {
                Some(observer) => Some(&mut **observer),
                None => None,
            };
            match self.attempt(entry, &bindings, arguments.clone(), shown) {
                Ok(results) => return Ok(self.keep_states(entry, results)),
                Err(error) => match program.pool.take_refused_bytes() {
                    0 => return Err(error),
                    // What is sized while running was more than was kept free for it: the pass begins anew with more.
                    refused_bytes => self.unplanned_bytes = self.unplanned_bytes.saturating_add(refused_bytes),
                },
            }
            if let Some(observer) = &mut observer {
                observer.restart();
            }
        }
    }

    /// Run an entry once; gives all its results.
    fn attempt(
        &mut self,
        entry: &EntryRecord,
        bindings: &Bindings,
        arguments: Vec<Value>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Value>, RunError> {
        let program = self.model.program.clone();
        // Old arenas go before new ones come.
        let memory = self.memory.take().filter(|memory| memory.fits(entry.block, bindings));
        let mut memory = memory.unwrap_or_else(|| {
            BoundMemory::new(&program.manifest, entry.block, bindings.clone(), program.pool.clone())
        });
        let ports = PortBytes::new(&program.manifest, entry, bindings, &memory);
        let uncharged_bytes = self.uncharged_bytes(entry, &arguments);
        self.make_room(&memory, ports, uncharged_bytes)?;
        let no_room = |bytes| RunError::Memory { bytes };
        memory.acquire().map_err(no_room)?;
        let _arguments = program.pool.charge(uncharged_bytes).map_err(|exceeded| no_room(exceeded.bytes))?;
        program.pool.begin_run();
        let trace = self.trace.as_deref();
        let random_state = self.random_state;
        let mut execution = Execution { program: &program, memory: &memory, random_state, trace, observer };
        program.source.progress(Progress::PassBegins { block: entry.block });
        let results = self.threads.install(|| execution.run_block(entry.block, arguments));
        let random_state = execution.random_state;
        self.memory = Some(memory);
        let results = results?;
        program.source.progress(Progress::PassEnds);
        self.random_state = random_state;
        self.unplanned_bytes = self.unplanned_bytes.max(program.pool.run_bytes().saturating_sub(ports.results));
        Ok(results)
    }

    /// Has weights leave where the budget has no room for a run.
    fn make_room(&mut self, memory: &BoundMemory, ports: PortBytes, uncharged_bytes: u64) -> Result<(), RunError> {
        let program = self.model.program.clone();
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
        self.working_bytes =
            sum(&[memory.arena_bytes(), ports.inputs, ports.state, ports.results, self.unplanned_bytes]);
        let Some(streamed) = &program.streamed else { return Ok(()) };
        let bytes = sum(&[memory.missing_bytes(), uncharged_bytes, ports.results, self.unplanned_bytes]);
        let bytes = bytes.saturating_sub(program.pool.free_bytes());
        streamed.make_room(Need { bytes, growth_bytes: ports.growth }).map_err(|needed_bytes| RunError::Budget {
            needed_bytes,
            budget_bytes: program.budget.limit_bytes(),
            working_bytes: self.working_bytes,
        })
    }

    /// Bytes of arguments that are not charged yet: inputs, and state that is new or restored.
    fn uncharged_bytes(&self, entry: &EntryRecord, arguments: &[Value]) -> u64 {
        let is_charged = |index: usize| {
            let key = (entry.name.clone(), entry.inputs[index].clone());
            self.states.contains_key(&key) && !self.restored.contains(&key)
        };
        let uncharged = arguments.iter().enumerate().filter(|(index, _)| !is_charged(*index));
        let tensors = uncharged.filter_map(|(_, value)| value.as_tensor());
        tensors.filter(|tensor| tensor.dtype() != DType::String).map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Bytes besides weights that the entry that ran last needs at the dimensions of that run: planned results, inputs,
    /// outputs, state, and what was sized while running.
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
                    self.restored.remove(&key);
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

fn declared<'a>(program: &'a Program, entry: &'a EntryRecord) -> Vec<Declared<'a>> {
    let block = &program.manifest.blocks[entry.block as usize];
    let named = entry.inputs.iter().zip(&block.values);
    named.map(|(name, value)| Declared { name, kind: &value.kind }).collect()
}
