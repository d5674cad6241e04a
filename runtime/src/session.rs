//! The daily interface: open a model, write inputs, run, read outputs.

use crate::bind::{Declared, bind};
use crate::error::{OpenError, RunError};
use crate::execute::Execution;
use crate::program::Program;
use crate::resident::Resident;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{EntryRecord, Manifest, read_manifest};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::value::Value;
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
        let (_, manifest) = read_manifest(file)?;
        let source = Arc::new(Resident::load(&manifest, file)?);
        Ok(Model { program: Arc::new(Program::new(manifest, source)) })
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

/// State and options of a caller; several may share a [`Model`].
pub struct Session {
    model: Model,
    threads: Arc<rayon::ThreadPool>,
    random_state: u64,
}

/// What a session may be told.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Threads that share a step; all cores where 0.
    pub threads: usize,
    /// Seed of random operators that have none of their own.
    pub seed: u64,
}

impl Session {
    /// A session with fresh state.
    ///
    /// # Errors
    /// [`RunError::Threads`] where threads cannot be started.
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Session, RunError> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
        let threads = threads.map_err(|error| RunError::Threads { reason: error.to_string() })?;
        Ok(Session { model: model.clone(), threads: Arc::new(threads), random_state: options.seed })
    }

    /// Run an entry; gives its outputs by name, in the order of the entry.
    ///
    /// # Errors
    /// [`RunError`] where inputs do not fit or a step fails.
    pub fn run(&mut self, entry: Option<&str>, inputs: Vec<(String, Value)>) -> Result<Vec<(String, Value)>, RunError> {
        let model = self.model.clone();
        let entry = model.entry(entry)?;
        let arguments = self.arguments(entry, inputs)?;
        let program = &*model.program;
        let block = &program.manifest.blocks[entry.block as usize];
        let named = entry.inputs.iter().zip(&block.values);
        let declared: Vec<Declared<'_>> = named.map(|(name, value)| Declared { name, kind: &value.kind }).collect();
        bind(&program.manifest, entry, &declared, &arguments)?;
        let mut execution = Execution { program, random_state: self.random_state };
        let results = self.threads.install(|| execution.run_block(entry.block, arguments))?;
        self.random_state = execution.random_state;
        Ok(entry.outputs.iter().cloned().zip(results).collect())
    }

    fn arguments(&self, entry: &EntryRecord, inputs: Vec<(String, Value)>) -> Result<Vec<Value>, RunError> {
        let mut slots: Vec<Option<Value>> = vec![None; entry.inputs.len()];
        for (name, value) in inputs {
            let Some(index) = entry.inputs.iter().position(|input| *input == name) else {
                let known = join(entry.inputs.iter().map(String::as_str));
                return Err(RunError::UnknownInput { name, known });
            };
            slots[index] = Some(value);
        }
        let block = &self.model.program.manifest.blocks[entry.block as usize];
        let given = slots.into_iter().enumerate().map(|(index, slot)| {
            slot.ok_or_else(|| RunError::MissingInput {
                name: entry.inputs[index].clone(),
                expected: block.values[index].kind.to_string(),
            })
        });
        given.collect()
    }
}
