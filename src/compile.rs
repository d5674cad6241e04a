//! Models in, one file out.

pub mod folder;

use crate::files::{Destination, ExternalFileError, ExternalFiles, OutputFile, SourceFile, SourceFileError};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::model::{AttachmentRecord, Manifest, PlacementRecord};
use ipuc_formats::onnx::schema::{ModelProto, TensorProto, tensor_proto, tensor_shape_proto, type_proto};
use ipuc_formats::onnx::{OnnxError, TensorSource, read_model};
use ipuc_formats::ops::RowScheme;
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::size::Size;
use ipuc_passes::emit::{
    EmitError, EmitOptions, Emitted, MEMORY_BYTES, NoProgress, Progress, describe as records, emit,
};
use ipuc_passes::error::PassError;
#[cfg(feature = "cross-check")]
use ipuc_passes::import::{CrossCheck, cross_check};
use ipuc_passes::import::{ImportError, Model, import};
use ipuc_passes::ir::{Changes, Graph, Peak};
pub use ipuc_passes::moments::Calibration;
use ipuc_passes::moments::hash_of;
use ipuc_passes::options::Options;
pub use ipuc_passes::options::{ActivationSparsity, Activations, Budget, Precision, Sparsity, WeightOptions};
use ipuc_passes::pipeline::{PipelineError, Report, run};
use ipuc_passes::round_weights::stored_bytes;
use std::cell::OnceCell;
use std::collections::BTreeSet;
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

/// What an entry takes of a model that has more: a branch of a merged decoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Branch {
    /// The entry.
    pub entry: String,
    /// Inputs, scalars or of one element, that always have this value.
    pub constant_inputs: Vec<(String, bool)>,
    /// Extents of inputs: name, axis, and what it always is there.
    pub extents: Vec<(String, usize, u32)>,
    /// Inputs that nothing reads then, and outputs, which the entry does without.
    pub left_out: Vec<String>,
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
    /// Inputs and outputs that are state, as `IN=OUT` patterns (`past.*=present.*`); `auto` for the names that
    /// exporters give to caches.
    pub states: Vec<String>,
    /// How rows of f32 of a growing cache are stored; `None` where they stay as they are.
    pub cache: Option<RowScheme>,
    /// What entries take of models that have more.
    pub branches: Vec<Branch>,
    /// Inputs with a default, an initializer, that callers may give: they are optional, and steps that read them are not
    /// computed while compiling. Any other input with a default has it always.
    pub overridable: Vec<String>,
    /// The output `[batch, positions, vocabulary]` of a language model for which an entry `prefill` is added, which computes
    /// it for the last position only.
    pub prefill: Option<String>,
    /// Data that belongs to the model and that no step reads, such as a tokenizer.
    pub attachments: Vec<AttachmentRecord>,
    /// How activations that meet quantized weights are computed.
    pub activations: Activations,
    /// How weights are rounded.
    pub weights: WeightOptions,
    /// Whether the zeros of weights are left out of the file.
    pub sparsity: Sparsity,
    /// Whether products leave out inputs whose activations are zero.
    pub activation_sparsity: ActivationSparsity,
    /// What products read in runs of the models on examples (`ipuc::calibrate`), for weights that become codes.
    pub calibration: Arc<Calibration>,
    /// Length of a chunk, the unit of reading, about; 2 MiB where `None`.
    pub chunk_bytes: Option<u64>,
    /// Leave every step as it is, so that each value of the model is computed and can be observed; slower.
    pub unfused: bool,
    /// Verify after every pass in release builds too, and compare shapes with those that tract derives (feature `cross-check`).
    pub verify: bool,
    /// Most bytes of weights in memory at a time while they are written; the file does not depend on it. By default
    /// [`MEMORY_BYTES`], and for a larger constant that is computed what the machine has available.
    pub memory: Option<u64>,
    /// How steps are spread over the tiles of targets, with the numbers that blocks and steps have in the file
    /// (`ipuc inspect --program` of the file without them shows these).
    pub placements: Vec<PlacementRecord>,
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
    /// For each entry, what tract says of its types and shapes, or why it says nothing; where verifying was asked for.
    #[cfg(feature = "cross-check")]
    pub cross_checks: Vec<(String, Result<CrossCheck, String>)>,
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
    #[error("cannot compile `{}`: {error}", path.display())]
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
    /// Elements of a weight lie in a file that cannot be used.
    #[error("cannot compile `{}`: {error}", path.display())]
    ExternalData {
        /// The model.
        path: PathBuf,
        /// Why.
        error: ExternalFileError,
    },
    /// The weights take more than the size that they may have.
    #[error("weights take {}, and the size is {}", Size(*weights_bytes), Size(*size_bytes))]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// What they take.
        weights_bytes: u64,
    },
    /// The output would replace a file that is compiled.
    #[error("the output `{}` is a file that the model is made of", path.display())]
    Overwrites {
        /// The file.
        path: PathBuf,
    },
    /// No input has a dimension of this name.
    #[error("the inputs have no dimension `{name}`; there {}", known_dimensions(known))]
    UnknownDimension {
        /// The name.
        name: String,
        /// Names of all open dimensions of inputs.
        known: Vec<String>,
    },
    /// The output cannot be created or put in its place.
    #[error("cannot write `{}`: {error}", path.display())]
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

/// `is only `a``, as the end of a sentence.
pub(crate) fn known_dimensions(known: &[String]) -> String {
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "is none that is open".to_string(),
        [only] => format!("is only {only}"),
        names => format!("are {}", names.join(", ")),
    }
}

/// Hands external data to the importer, and keeps the first error with its type.
struct Opener<'a> {
    files: &'a ExternalFiles,
    failed: OnceCell<ExternalFileError>,
    /// Files of weights may be missing: only their sizes are wanted.
    sizes_only: bool,
}

/// A file that is missing: its floats and codes are zero, wherever they are. Integers of shapes are never made up.
struct Missing;

impl ReadAt for Missing {
    fn length(&self) -> u64 {
        u64::MAX >> 1
    }

    fn read_exact_at(&self, _offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.fill(0);
        Ok(())
    }
}

/// Whether the file of a tensor is missing and shapes do not depend on its elements.
fn may_be_missing(tensor: &TensorSource, error: &ExternalFileError) -> bool {
    let shapes =
        matches!(tensor.dtype(), DType::I64 | DType::I32 | DType::U64 | DType::U32 | DType::Bool | DType::String);
    !shapes && matches!(error, ExternalFileError::Missing { .. })
}

impl ipuc_passes::import::ExternalFiles for Opener<'_> {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        match self.files.open(tensor) {
            Ok(file) => Ok(file),
            Err(error) => {
                if self.sizes_only && may_be_missing(tensor, &error) {
                    return Ok(Arc::new(Missing));
                }
                let message = error.to_string();
                // The importer stops there, so that there is no second one.
                let _ = self.failed.set(error);
                Err(message)
            }
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
    let mut proto = read_model(&*file).map_err(|error| CompileError::Onnx { path: source.path.clone(), error })?;
    for branch in options.branches.iter().filter(|branch| branch.entry == source.entry) {
        branch.constant_inputs.iter().for_each(|(name, value)| fix_input(&mut proto, name, *value));
        branch.extents.iter().for_each(|(name, axis, extent)| fix_extent(&mut proto, name, *axis, *extent));
    }
    let external = ExternalFiles::of_model(&source.path, &options.external_data_roots)?;
    let name = source.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Opened { entry: source.entry.clone(), file, proto, external, name })
}

/// Make an input a constant, where the model has it.
fn fix_input(model: &mut ModelProto, name: &str, value: bool) {
    let Some(graph) = &mut model.graph else { return };
    let Some(at) = graph.input.iter().position(|input| input.name.as_deref() == Some(name)) else { return };
    let input = graph.input.remove(at);
    let tensor = input.r#type.and_then(|kind| match kind.value {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape,
        _ => None,
    });
    graph.initializer.push(TensorProto {
        name: Some(name.to_string()),
        dims: vec![1; tensor.map_or(0, |shape| shape.dim.len())],
        data_type: Some(tensor_proto::DataType::Bool.into()),
        raw_data: Some(vec![u8::from(value)]),
        ..TensorProto::default()
    });
}

/// Make an extent of an input a number, where the model has it open.
fn fix_extent(model: &mut ModelProto, name: &str, axis: usize, extent: u32) {
    let input =
        model.graph.iter_mut().flat_map(|graph| &mut graph.input).find(|input| input.name.as_deref() == Some(name));
    let Some(type_proto::Value::TensorType(tensor)) =
        input.and_then(|input| input.r#type.as_mut()).and_then(|kind| kind.value.as_mut())
    else {
        return;
    };
    if let Some(dim) = tensor.shape.as_mut().and_then(|shape| shape.dim.get_mut(axis)) {
        dim.value = Some(tensor_shape_proto::dimension::Value::DimValue(extent.into()));
    }
}

/// What an attempt at a program adds to the options.
#[derive(Clone, Copy, Default)]
struct Attempt {
    sizes_only: bool,
    reserved_bytes: u64,
}

/// Import models and run all passes; gives the graph and what happened.
fn optimize(
    opened: &[Opened],
    options: &CompileOptions,
    Attempt { sizes_only, reserved_bytes }: Attempt,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Graph, CompileError> {
    let openers = opened.iter().map(|model| Opener { files: &model.external, failed: OnceCell::new(), sizes_only });
    let mut openers: Vec<Opener<'_>> = openers.collect();
    let models: Vec<Model<'_>> = opened
        .iter()
        .zip(&openers)
        .map(|(model, files)| Model {
            entry: &model.entry,
            file_name: &model.name,
            proto: &model.proto,
            bytes: model.file.clone(),
            files,
            overridable: &options.overridable,
        })
        .collect();
    let start = Instant::now();
    let imported = import(&models);
    drop(models);
    let mut graph = imported.map_err(|error| {
        let mut failures = opened.iter().zip(&mut openers);
        let external = failures.find_map(|(model, opener)| Some((model.file.path(), opener.failed.take()?)));
        match (error, external) {
            (ImportError::Weight { .. }, Some((path, error))) => {
                CompileError::ExternalData { path: path.to_owned(), error }
            }
            (error, _) => error.into(),
        }
    })?;
    check_dimensions(&graph, options)?;
    let time = start.elapsed();
    observe(&Report { pass: "import", time, changes: Changes::default(), steps: graph.step_count() }, &graph);
    for (symbol, minimum, maximum) in &options.ranges {
        graph.ranges.set(symbol, *minimum, *maximum)?;
    }
    let left_out = |branch: &Branch| {
        let entry = branch.entry.clone();
        branch.left_out.clone().into_iter().map(move |port| (entry.clone(), port))
    };
    let passes = Options {
        dimensions: options.dimensions.clone(),
        states: options.states.clone(),
        left_out: options.branches.iter().flat_map(left_out).collect(),
        cache: options.cache,
        prefill: options.prefill.clone(),
        activations: options.activations,
        weights: options.weights.clone(),
        sparsity: options.sparsity,
        activation_sparsity: options.activation_sparsity,
        sizes_only,
        reserved_bytes,
        calibration: options.calibration.clone(),
        unfused: options.unfused,
        verify: options.verify,
    };
    run(&mut graph, &passes, observe)?;
    Ok(graph)
}

/// [`optimize`], with all weights within a size where one is asked for. Passes after the choice of precisions add small
/// constants: where they do not fit, the choice is made again with room for them.
fn optimize_to_size(
    opened: &[Opened],
    options: &CompileOptions,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Graph, CompileError> {
    let Some(Budget::Size(size_bytes)) = options.weights.budget else {
        return optimize(opened, options, Attempt::default(), observe);
    };
    // The graph, bytes of its weights, and how many of them passes after the choice have added.
    let mut attempt = |options: &CompileOptions, attempt: Attempt| -> Result<(Graph, u64, u64), CompileError> {
        let mut chosen_bytes = 0;
        let graph = optimize(opened, options, attempt, &mut |report, graph| {
            if report.pass == "round_weights" {
                chosen_bytes = stored_bytes(graph);
            }
            observe(report, graph);
        })?;
        let bytes = weights_bytes(&records(&graph, &emit_options(options))?);
        Ok((graph, bytes, bytes.saturating_sub(chosen_bytes)))
    };
    match attempt(options, Attempt::default()) {
        Ok((graph, bytes, _)) if bytes <= size_bytes => Ok(graph),
        Ok((_, _, reserved_bytes)) => Ok(attempt(options, Attempt { reserved_bytes, ..Attempt::default() })?.0),
        Err(CompileError::Pipeline(PipelineError::Pass(PassError::Size { least_bytes, .. }))) => {
            let mut least = options.clone();
            least.weights.budget = Some(Budget::Size(least_bytes));
            let (_, least_bytes, _) = attempt(&least, Attempt::default())?;
            Err(PipelineError::from(PassError::Size { size_bytes, least_bytes }).into())
        }
        Err(error) => Err(error),
    }
}

impl CompileError {
    /// The place that the file goes to is at fault, not the models.
    #[cfg(feature = "cli")]
    pub(crate) fn is_of_output(&self) -> bool {
        matches!(self, CompileError::Output { .. } | CompileError::Emit(EmitError::Write { .. }))
    }

    /// Its sentence names the file; the others are about the models as a whole.
    pub(crate) fn names_file(&self) -> bool {
        match self {
            CompileError::Import(_) | CompileError::Pipeline(_) | CompileError::Emit(_) | CompileError::Size { .. } => {
                false
            }
            CompileError::Source(_)
            | CompileError::External(_)
            | CompileError::Onnx { .. }
            | CompileError::ExternalData { .. }
            | CompileError::Overwrites { .. }
            | CompileError::UnknownDimension { .. }
            | CompileError::Output { .. }
            | CompileError::Range(_) => true,
        }
    }
}

/// Every dimension that the options name must be one of an input: a misspelt one would bind nothing.
fn check_dimensions(graph: &Graph, options: &CompileOptions) -> Result<(), CompileError> {
    let inputs = graph.entries.iter().flat_map(|entry| &graph.block(entry.block).parameters);
    let known: BTreeSet<Arc<str>> = inputs.flat_map(|&input| graph.value(input).fact.kind.symbols()).collect();
    let ranges = options.ranges.iter().map(|(name, _, _)| name.as_str());
    let mut named = ranges.chain(options.dimensions.iter().map(|(name, _)| &**name));
    match named.find(|name| !known.contains(*name)) {
        Some(name) => {
            let known = known.iter().map(ToString::to_string).collect();
            Err(CompileError::UnknownDimension { name: name.to_string(), known })
        }
        None => Ok(()),
    }
}

/// The output must not be a model or its data: these are still read while it is written.
fn check_output(output: &Path, inputs: &[PathBuf]) -> Result<(), CompileError> {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    if inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == target)) {
        return Err(CompileError::Overwrites { path: output.to_owned() });
    }
    Ok(())
}

/// Compile models into one file, which appears under its name only when it is whole.
///
/// # Errors
/// [`CompileError`] where a model is malformed, holds what is not supported, or the file cannot be written.
pub fn compile(sources: &[Source], output: &Path, options: &CompileOptions) -> Result<Compiled, CompileError> {
    compile_observed(sources, output, options, &NoProgress, &mut |_, _| {})
}

/// The records of the file that [`compile`] would write, without reading or writing a weight: files of weights may even
/// be missing. What the records lack is where weights are in the file, and their hashes.
///
/// # Errors
/// As [`compile`].
pub fn describe(sources: &[Source], options: &CompileOptions) -> Result<Manifest, CompileError> {
    let opened: Vec<Opened> = sources.iter().map(|source| open(source, options)).collect::<Result<_, _>>()?;
    let graph = optimize(&opened, options, Attempt { sizes_only: true, ..Attempt::default() }, &mut |_, _| {})?;
    Ok(records(&graph, &emit_options(options))?)
}

/// [`compile`] to a file or to standard output, with the graph shown after each pass and progress while weights are written.
///
/// # Errors
/// As [`compile`].
pub fn compile_observed<'a>(
    sources: &[Source],
    output: impl Into<Destination<'a>>,
    options: &CompileOptions,
    progress: &dyn Progress,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Compiled, CompileError> {
    Optimized::new(sources, options, observe)?.write(output, options, progress)
}

/// Models that are imported and optimized, and not written yet.
pub struct Optimized {
    opened: Vec<Opened>,
    graph: Graph,
    reports: Vec<Report>,
    #[cfg(feature = "cross-check")]
    cross_checks: Vec<(String, Result<CrossCheck, String>)>,
}

impl Optimized {
    /// Import models and run all passes, with the graph shown after each.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn new(
        sources: &[Source],
        options: &CompileOptions,
        observe: &mut dyn FnMut(&Report, &Graph),
    ) -> Result<Optimized, CompileError> {
        let opened: Vec<Opened> = sources.iter().map(|source| open(source, options)).collect::<Result<_, _>>()?;
        let mut reports: Vec<Report> = Vec::new();
        #[cfg(feature = "cross-check")]
        let mut cross_checks = Vec::new();
        let mut shown = |report: &Report, graph: &Graph| {
            // Types are known for the first time, and nothing is folded yet.
            #[cfg(feature = "cross-check")]
            if options.verify && report.pass == "infer" && cross_checks.is_empty() {
                let check = |model: &Opened| (model.entry.clone(), cross_check(&model.proto, graph, &model.entry));
                cross_checks = opened.iter().map(check).collect();
            }
            // What a first attempt did that took too much does not count.
            if report.pass == "import" {
                reports.clear();
            }
            reports.push(report.clone());
            observe(report, graph);
        };
        let graph = optimize_to_size(&opened, options, &mut shown)?;
        Ok(Optimized {
            opened,
            graph,
            reports,
            #[cfg(feature = "cross-check")]
            cross_checks,
        })
    }

    /// The records of the file that [`write`](Optimized::write) would write, as [`describe`] gives them.
    ///
    /// # Errors
    /// [`CompileError::Emit`] where a weight cannot be encoded.
    pub fn records(&self, options: &CompileOptions) -> Result<Manifest, CompileError> {
        Ok(records(&self.graph, &emit_options(options))?)
    }

    /// Write the file, which appears under its name only when it is whole.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn write<'a>(
        self,
        output: impl Into<Destination<'a>>,
        options: &CompileOptions,
        progress: &dyn Progress,
    ) -> Result<Compiled, CompileError> {
        let mut inputs: Vec<PathBuf> = self.opened.iter().map(|model| model.file.path().to_owned()).collect();
        inputs.extend(self.opened.iter().flat_map(|model| model.external.paths()));
        let output = output.into();
        let path = match output {
            Destination::Path(path) => {
                check_output(path, &inputs)?;
                path
            }
            Destination::Stdout => Path::new("standard output"),
        };
        let failure = |error| CompileError::Output { path: path.to_owned(), error };
        let file = OutputFile::create(output).map_err(failure)?;
        let emitted = emit(&self.graph, &emit_options(options), &file, progress)?;
        if let Some(Budget::Size(size_bytes)) = options.weights.budget {
            let weights_bytes = weights_bytes(&emitted.manifest);
            if weights_bytes > size_bytes {
                return Err(CompileError::Size { size_bytes, weights_bytes });
            }
        }
        // What was read before and after a change belongs to no model.
        for model in &self.opened {
            model.file.check_unchanged()?;
            model.external.check_unchanged()?;
        }
        file.finish().map_err(failure)?;
        Ok(Compiled {
            emitted,
            peaks: self.graph.peaks.clone(),
            reports: self.reports,
            inputs,
            #[cfg(feature = "cross-check")]
            cross_checks: self.cross_checks,
        })
    }
}

fn weights_bytes(manifest: &Manifest) -> u64 {
    manifest.extents.iter().map(|extent| extent.length).sum()
}

/// How weights become bytes; what changes them is recorded in the file.
fn emit_options(options: &CompileOptions) -> EmitOptions {
    let memory_bytes = options.memory.unwrap_or(MEMORY_BYTES);
    // A part of what the machine has is left to others.
    let available_bytes = || crate::memory::available_bytes().map_or(MEMORY_BYTES, |available| available / 10 * 8);
    let piece_bytes = options.memory.unwrap_or_else(available_bytes);
    let placements = options.placements.clone();
    let attachments = options.attachments.clone();
    let mut emit_options = EmitOptions { memory_bytes, piece_bytes, placements, attachments, ..EmitOptions::default() };
    if let Some(chunk_bytes) = options.chunk_bytes {
        emit_options.chunk_bytes = chunk_bytes;
        emit_options.recorded.push(("chunk_bytes".to_string(), chunk_bytes.to_string()));
    }
    let WeightOptions { precision, budget, keep, each } = &options.weights;
    let mut record = |name: &str, value: String| emit_options.recorded.push((name.to_string(), value));
    precision.iter().for_each(|precision| record("weights", precision.to_string()));
    match budget {
        None => {}
        Some(Budget::Size(bytes)) => record("size", bytes.to_string()),
        Some(Budget::Error(most)) => record("max_error", most.to_string()),
    }
    keep.iter().for_each(|pattern| record("keep", pattern.clone()));
    let measured = &options.calibration;
    if !measured.is_empty() {
        record("calibration", hash_of(measured).to_string());
        measured.output_error.iter().for_each(|error| record("output_error", error.to_string()));
    }
    match options.sparsity {
        Sparsity::Measured => {}
        Sparsity::Always => record("sparse", "always".to_string()),
        Sparsity::Never => record("sparse", "never".to_string()),
    }
    match options.activation_sparsity {
        ActivationSparsity::Measured => {}
        ActivationSparsity::Always => record("sparse_activations", "always".to_string()),
        ActivationSparsity::Never => record("sparse_activations", "never".to_string()),
    }
    each.iter().for_each(|(pattern, precision)| record("weights_for", format!("{pattern}={precision}")));
    emit_options
}
