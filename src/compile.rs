//! Models in, one file out.

use crate::files::{ExternalFileError, ExternalFiles, OutputFile, SourceFile, SourceFileError};
use ipuc_formats::dim::Bindings;
use ipuc_formats::onnx::schema::ModelProto;
use ipuc_formats::onnx::{OnnxError, ReadAt, TensorSource, read_model};
use ipuc_passes::emit::{EmitError, EmitOptions, Emitted, MEMORY_BYTES, NoProgress, Progress, emit};
use ipuc_passes::import::{ImportError, Model, import};
use ipuc_passes::ir::{Changes, Graph, Peak};
use ipuc_passes::options::Options;
use ipuc_passes::pipeline::{PipelineError, Report, run};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use thiserror::Error;

/// A model to compile: an entry of the program.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the entry.
    pub entry: String,
    /// The `.onnx` file.
    pub path: PathBuf,
}

/// What a compilation may be told.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// Folders besides the model's own whose files it may use as external data.
    pub external_data_roots: Vec<PathBuf>,
    /// Sizes at which memory is weighed where dimensions are open.
    pub dimensions: Bindings,
    /// Ranges of dimensions: name, least and greatest value.
    pub ranges: Vec<(String, i64, i64)>,
    /// Inputs and outputs that are state, as `IN=OUT` patterns (`past.*=present.*`).
    pub states: Vec<String>,
    /// Length of a chunk, the unit of reading, about; 2 MiB where `None`.
    pub chunk_bytes: Option<u64>,
    /// Verify after every pass in release builds too.
    pub verify: bool,
    /// Most bytes of weights in memory at a time while they are written (by default [`MEMORY_BYTES`]); the file does not
    /// depend on it.
    pub memory: Option<u64>,
}

/// What came out of a compilation.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The file's manifest, hash and length.
    pub emitted: Emitted,
    /// Peak live activation memory of each block.
    pub peaks: Vec<Peak>,
    /// What each pass did.
    pub reports: Vec<Report>,
    /// Files that the result depends on.
    pub inputs: Vec<PathBuf>,
}

/// Why a model cannot be compiled.
#[derive(Debug, Error)]
pub enum CompileError {
    /// The model cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceFileError),
    /// Folders of external data do not exist.
    #[error(transparent)]
    External(#[from] ExternalFileError),
    /// The model is malformed.
    #[error("{}: {error}", path.display())]
    Onnx {
        /// The file.
        path: PathBuf,
        /// Why.
        error: OnnxError,
    },
    /// The model holds what is not supported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A pass failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The file cannot be emitted.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The output cannot be created or put in its place.
    #[error("cannot write {}: {error}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// What the medium reports.
        error: std::io::Error,
    },
    /// A dimension's range is empty.
    #[error(transparent)]
    Range(#[from] ipuc_formats::dim::DimError),
}

/// Hands external data to the importer, and keeps the error with its type.
struct Opener<'a>(&'a ExternalFiles);

impl ipuc_passes::import::ExternalFiles for Opener<'_> {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        match self.0.open(tensor) {
            Ok(file) => Ok(file),
            Err(error) => Err(match error.hint() {
                Some(hint) => format!("{error} ({hint})"),
                None => error.to_string(),
            }),
        }
    }
}

/// An opened model.
struct Opened {
    entry: String,
    file: Arc<SourceFile>,
    proto: ModelProto,
    external: ExternalFiles,
    name: String,
}

fn open(source: &Source, options: &CompileOptions) -> Result<Opened, CompileError> {
    let file = Arc::new(SourceFile::open(&source.path)?);
    let proto = read_model(&*file).map_err(|error| CompileError::Onnx { path: source.path.clone(), error })?;
    let external = ExternalFiles::of_model(&source.path, &options.external_data_roots)?;
    let name = source.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Opened { entry: source.entry.clone(), file, proto, external, name })
}

/// Import models and run all passes; gives the graph and what happened.
fn optimize(
    opened: &[Opened],
    options: &CompileOptions,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Graph, CompileError> {
    let openers: Vec<Opener<'_>> = opened.iter().map(|model| Opener(&model.external)).collect();
    let models: Vec<Model<'_>> = opened
        .iter()
        .zip(&openers)
        .map(|(model, files)| Model {
            entry: &model.entry,
            file_name: &model.name,
            proto: &model.proto,
            bytes: model.file.clone(),
            files,
        })
        .collect();
    let start = Instant::now();
    let mut graph = import(&models)?;
    let time = start.elapsed();
    observe(&Report { pass: "import", time, changes: Changes(0), steps: graph.step_count() }, &graph);
    for (symbol, minimum, maximum) in &options.ranges {
        graph.ranges.set(symbol, *minimum, *maximum)?;
    }
    let passes =
        Options { dimensions: options.dimensions.clone(), states: options.states.clone(), verify: options.verify };
    run(&mut graph, &passes, observe)?;
    Ok(graph)
}

/// Compile models into one file, which appears under its name only when it is whole.
///
/// # Errors
/// [`CompileError`] where a model is malformed, holds what is not supported, or the file cannot be written.
pub fn compile(sources: &[Source], output: &Path, options: &CompileOptions) -> Result<Compiled, CompileError> {
    compile_observed(sources, output, options, &NoProgress, &mut |_, _| {})
}

/// [`compile`], with the graph shown after each pass and progress while weights are written.
///
/// # Errors
/// As [`compile`].
pub fn compile_observed(
    sources: &[Source],
    output: &Path,
    options: &CompileOptions,
    progress: &dyn Progress,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Compiled, CompileError> {
    let opened: Vec<Opened> = sources.iter().map(|source| open(source, options)).collect::<Result<_, _>>()?;
    let mut reports = Vec::new();
    let graph = optimize(&opened, options, &mut |report, graph| {
        reports.push(report.clone());
        observe(report, graph);
    })?;
    let failure = |error| CompileError::Output { path: output.to_owned(), error };
    let file = OutputFile::create(output).map_err(failure)?;
    let emitted = emit(&graph, &emit_options(options), &file, progress)?;
    file.finish().map_err(failure)?;
    let mut inputs: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
    inputs.extend(opened.iter().flat_map(|model| model.external.paths()));
    Ok(Compiled { emitted, peaks: graph.peaks.clone(), reports, inputs })
}

/// How weights become bytes; what changes them is recorded in the file.
fn emit_options(options: &CompileOptions) -> EmitOptions {
    let memory_bytes = options.memory.unwrap_or(MEMORY_BYTES);
    let mut emit_options = EmitOptions { memory_bytes, ..EmitOptions::default() };
    if let Some(chunk_bytes) = options.chunk_bytes {
        emit_options.chunk_bytes = chunk_bytes;
        emit_options.recorded.push(("chunk_bytes".to_string(), chunk_bytes.to_string()));
    }
    emit_options
}
