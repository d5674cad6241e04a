//! The way in: a file becomes a model.

use crate::check::{checked_manifest, checked_manifest_from};
use crate::error::{OpenError, RunError};
use crate::file::WeightFile;
use crate::memory::Budget;
use crate::program::Program;
use crate::resident::SharedBytes;
use crate::stream::{Residency, StreamedOptions};
use crate::versions::SpillFolder;
use crate::working::least_working_bytes;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::Tensor;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// An opened file: weights, shared by its sessions.
#[derive(Clone)]
pub struct Model {
    pub(crate) program: Arc<Program>,
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
        Model::open_in(Budget::new(Some(budget_bytes)), file, options)
    }

    /// Open another file within what the budget of this model leaves; both are charged to it from then on. Without a budget
    /// its weights are in memory, too.
    ///
    /// # Errors
    /// As [`Model::open_with`].
    pub fn open_beside(&self, file: Arc<dyn WeightFile>, options: ModelOptions) -> Result<Model, OpenError> {
        match &self.program.streamed {
            Some(_) => Model::open_in(self.program.budget.clone(), file, options),
            None => Model::open(&*file),
        }
    }

    fn open_in(budget: Arc<Budget>, file: Arc<dyn WeightFile>, options: ModelOptions) -> Result<Model, OpenError> {
        let manifest = checked_manifest(&*file)?;
        let planned_bytes = options.planned_bytes.unwrap_or(u64::MAX).min(budget.free_bytes());
        let working_bytes = least_working_bytes(&manifest.manifest, options.context);
        let streaming = StreamedOptions { planned_bytes, working_bytes, readers: options.readers };
        let spill = SpillFolder::new(options.spill_folder);
        Ok(Model::over(Program::streamed(manifest, file, &budget, streaming, spill)?))
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

    /// Open what a stream brings, from its first byte on. Weights stay in memory, where steps wait for those that are not
    /// there yet; each is checked when it is used first. With a budget, all of them are charged to it.
    ///
    /// # Errors
    /// [`OpenError`] where the file is malformed up to its weights, or these do not fit.
    pub fn open_stream(mut stream: impl Read + Send + 'static, memory_bytes: Option<u64>) -> Result<Model, OpenError> {
        let manifest = checked_manifest_from(&mut stream)?;
        Ok(Model::over(Program::arriving(manifest, stream, memory_bytes)?))
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

    /// What the file says, with its weights: a copy, as the program keeps their records apart.
    pub fn whole_manifest(&self) -> Manifest {
        let weights = self.program.weights.iter().map(|weight| weight.record().clone()).collect();
        Manifest { weights, ..self.program.manifest.as_ref().clone() }
    }

    /// What the file says, weights excepted.
    pub fn manifest(&self) -> &Manifest {
        &self.program.manifest
    }

    /// A weight as a tensor, where it is in memory that way: small ones always are.
    pub fn weight(&self, weight: u32) -> Option<Tensor> {
        ((weight as usize) < self.program.weights.len()).then(|| self.program.source.tensor(weight).ok()).flatten()?
    }

    /// The entry of this name; the only one where none is given.
    ///
    /// # Errors
    /// [`RunError::UnknownEntry`] where there is none of this name, [`RunError::UnnamedEntry`] where there are several and no
    /// name.
    pub fn entry(&self, name: Option<&str>) -> Result<&EntryRecord, RunError> {
        let entries = &self.program.manifest.entries;
        let known = || join(entries.iter().map(|entry| entry.name.as_str()));
        match (name, entries.as_slice()) {
            (Some(name), _) => {
                let found = entries.iter().find(|entry| entry.name == name);
                found.ok_or_else(|| RunError::UnknownEntry { name: name.to_string(), known: known() })
            }
            (None, [only]) => Ok(only),
            (None, _) => Err(RunError::UnnamedEntry { known: known() }),
        }
    }

    /// Inputs that a caller gives: those of the entry that are not state.
    pub fn inputs(&self, entry: &EntryRecord) -> Vec<Port> {
        let block = &self.program.manifest.blocks[entry.block as usize];
        let ports = entry.inputs.iter().enumerate().filter(|(index, _)| entry.state_of_input(*index).is_none());
        ports.map(|(index, name)| Port { name: name.clone(), kind: block.values[index].kind.clone() }).collect()
    }

    /// Outputs that a caller gets: those of the entry that are not state.
    pub fn outputs(&self, entry: &EntryRecord) -> Vec<String> {
        let names = entry.outputs.iter().enumerate().filter(|(index, _)| entry.state_of_output(*index).is_none());
        names.map(|(_, name)| name.clone()).collect()
    }
}

/// Names between backticks, with commas.
pub(crate) fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
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
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Bytes for weights, activations, state, inputs and outputs; weights that do not fit are streamed. All weights are in
    /// memory where this is `None`.
    pub memory_bytes: Option<u64>,
    /// What of the budget is planned for this model, where others are opened beside it; all that is free where `None`.
    pub planned_bytes: Option<u64>,
    /// Reads in flight while streaming; 0 for what suits most devices.
    pub readers: usize,
    /// Positions that state may grow to, for which room is kept free within the budget from the beginning; where state grows
    /// beyond, weights make room.
    pub context: Option<u64>,
    /// Folder of the file that state goes to when weights cannot make room any more; that of the system for temporary files
    /// where it is `None`.
    pub spill_folder: Option<PathBuf>,
}
