//! What commands that execute share: opening a model from either kind of file, and gathering its inputs.

use super::arguments::{Dimension, NamedFile, Size, check_once, threads};
use super::failure::{Failure, in_models, with_hint};
use super::opening;
use super::output::Output;
use super::progress::{Bar, Passes, Unit};
use super::random::{Generator, see_all_tokens};
use super::scratch::{Scratch, spool};
use super::signature::has_signature;
use super::sizes::Sizes;
use crate::cache::Cache;
use crate::compile::folder;
use crate::compile::{CompileError, CompileOptions, Optimized, Source};
use crate::files::{SourceFile, numpy};
use crate::generate::GeneratorOptions;
use crate::generation::GENERATION;
use crate::open::{OpenFileError, OpenOptions, open_pipe, open_with};
use anyhow::Context;
use clap::Args;
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{EntryRecord, Manifest, OperandRecord, superblock};
use ipuc_formats::onnx::read_value;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Port, RunError, Session, SessionOptions};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which model is executed, and how.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelArguments {
    /// The model: an .ipu file, an .onnx file or the folder of a language model (compiled first, and kept in `ipuc cache`),
    /// or - for stdin
    model: PathBuf,
    /// The entry to run, where the model has several
    #[arg(long, value_name = "NAME")]
    pub(super) entry: Option<String>,
    /// Threads that share the work [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Memory for weights, activations, state, inputs and outputs, as 512MiB, 2GB or bytes; weights that do not fit are
    /// streamed from the file [default: what the machine has available]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Positions that state may grow to, for which room is kept free within the memory from the beginning
    #[arg(long, value_name = "N")]
    context: Option<u64>,
    /// The folder for the file that state goes to when the memory holds nothing else any more [default: the system's for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// How weights that fit are held: in a copy of their own, or mapped and shared with other processes
    #[arg(long, value_name = "HOW", value_enum, default_value = "copy", hide_default_value = true)]
    resident: Resident,
    /// Run while the .ipu file is still being written, and wait for the weights that are not there yet
    #[arg(long)]
    follow: bool,
    /// A folder outside of the .onnx model's own whose files it may use as external data
    #[arg(long, value_name = "DIR")]
    external_data_root: Vec<PathBuf>,
    /// Compile an .onnx file in any case: neither use nor keep the compiled file (`ipuc cache`)
    #[arg(long)]
    no_cache: bool,
}

impl ModelArguments {
    /// A model and its entry, everything else as it is without further arguments.
    pub(super) fn of(model: &Path, entry: Option<&str>) -> ModelArguments {
        ModelArguments {
            model: model.to_owned(),
            entry: entry.map(str::to_string),
            threads: None,
            memory: None,
            context: None,
            spill: None,
            resident: Resident::Copy,
            follow: false,
            external_data_root: Vec::new(),
            no_cache: false,
        }
    }

    /// The same for another model.
    pub(super) fn with_model(&self, model: &Path) -> ModelArguments {
        ModelArguments { model: model.to_owned(), ..self.clone() }
    }
}

/// How long a file that is followed may stand still.
const PATIENCE: Duration = Duration::from_secs(60);

/// How weights that fit are held.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Resident {
    Copy,
    Map,
}

impl From<Resident> for crate::open::Resident {
    fn from(resident: Resident) -> Self {
        match resident {
            Resident::Copy => crate::open::Resident::Copy,
            Resident::Map => crate::open::Resident::Map,
        }
    }
}

/// Where inputs come from.
#[derive(Debug, Clone, Args)]
pub(super) struct InputArguments {
    /// An input from a file: a NumPy array, or a tensor as in ONNX test data
    #[arg(long, value_name = "NAME=FILE.npy|FILE.pb")]
    input: Vec<NamedFile>,
    /// Inputs by name from a NumPy archive
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Make up the inputs that are not given; open dimensions are 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
}

impl InputArguments {
    /// Whether any input is given, or is to be made up.
    pub(super) fn is_given(&self) -> bool {
        !self.input.is_empty() || self.inputs.is_some() || self.random.is_some()
    }

    /// The same, with what is missing made up in any case.
    pub(super) fn or_random(&self) -> Self {
        InputArguments { random: Some(self.random.unwrap_or(0)), ..self.clone() }
    }
}

/// Sizes of open dimensions.
#[derive(Debug, Args)]
pub(super) struct DimensionArguments {
    /// The size of an open dimension; a range, which holds both ends, where an .onnx file is compiled
    #[arg(long, value_name = "NAME=N|NAME=A..B")]
    pub(super) dim: Vec<Dimension>,
}

/// A model that is ready to run.
pub(super) struct Loaded {
    pub(super) model: Model,
    /// How the user calls it.
    pub(super) path: PathBuf,
    /// The compiled file.
    pub(super) file: PathBuf,
    /// 0 for all cores.
    threads: usize,
    /// Folder of the compiled file, kept for as long as the model may read it.
    _scratch: Option<Scratch>,
}

impl Loaded {
    /// Open a model; compile it first where it is ONNX.
    pub(super) fn open(
        arguments: &ModelArguments,
        dimensions: &DimensionArguments,
        output: &Output,
    ) -> anyhow::Result<Loaded> {
        check_once(&dimensions.dim)?;
        let mut scratch = None;
        let mut path = arguments.model.clone();
        let options = OpenOptions {
            memory_bytes: arguments.memory.map(|size| size.bytes),
            context: arguments.context,
            spill_folder: arguments.spill.clone(),
            resident: arguments.resident.into(),
            follow: arguments.follow.then_some(PATIENCE),
        };
        if path == Path::new("-") {
            let loading = opening::begin(arguments.memory, output);
            let mut first = Vec::new();
            let signature_bytes = superblock::SIGNATURE.len() as u64;
            io::stdin().take(signature_bytes).read_to_end(&mut first).context("cannot read stdin")?;
            let signed = first == superblock::SIGNATURE;
            let pipe = io::Cursor::new(first).chain(io::stdin());
            if signed {
                let model = open_pipe(pipe, options)?;
                opening::end(loading, arguments.memory, &model, output);
                let threads = arguments.threads.unwrap_or(0);
                return Ok(Loaded { model, path: path.clone(), file: path, threads, _scratch: None });
            }
            let folder = scratch.insert(Scratch::new()?);
            path = folder.path().join("stdin");
            spool(pipe, &path)?;
        }
        let compiled_elsewhere = arguments.follow || (!path.is_dir() && is_compiled(&path)?);
        if !compiled_elsewhere {
            path = compiled_for_run(&path, arguments, dimensions, &mut scratch, output)?;
        } else if let Some(range) = dimensions.dim.iter().find(|dimension| dimension.value().is_none()) {
            let message = format!("dimension `{}` needs one size: the model is compiled already", range.name);
            return Err(Failure::usage(message).into());
        }
        let loading = opening::begin(arguments.memory, output);
        let model = open_with(&path, options).map_err(|error| match error {
            OpenFileError::Model { error, .. } => OpenFileError::Model { path: shown(&arguments.model), error },
            error @ (OpenFileError::Source(_) | OpenFileError::Arriving { .. }) => error,
        })?;
        opening::end(loading, arguments.memory, &model, output);
        let threads = arguments.threads.unwrap_or(0);
        Ok(Loaded { model, path: arguments.model.clone(), file: path, threads, _scratch: scratch })
    }

    /// A generator with the threads that the user wants.
    pub(super) fn generator_options(&self) -> GeneratorOptions {
        GeneratorOptions { threads: self.threads, ..GeneratorOptions::default() }
    }

    /// A session with the threads that the user wants.
    pub(super) fn session(&self) -> anyhow::Result<Session> {
        Ok(Session::new(&self.model, &SessionOptions { threads: self.threads, ..SessionOptions::default() })?)
    }
}

/// The compiled file of an `.onnx` model: one that is kept, else a new one, which is kept where there is a place for it.
fn compiled_for_run(
    model: &Path,
    arguments: &ModelArguments,
    dimensions: &DimensionArguments,
    scratch: &mut Option<Scratch>,
    output: &Output,
) -> anyhow::Result<PathBuf> {
    let mut options = CompileOptions {
        external_data_roots: arguments.external_data_root.clone(),
        ranges: ranges(&dimensions.dim),
        ..CompileOptions::default()
    };
    let sources = match model.is_dir() {
        true => folder::read(model)?.apply(&mut options),
        false => vec![Source { entry: "main".to_string(), path: model.to_owned() }],
    };
    let shown = [Source { path: shown(&arguments.model), ..sources[0].clone() }];
    let compile_to = |target: &Path| {
        let mut passes = Passes::begin(output);
        let optimized = Optimized::new(&sources, &options, &mut |report, _| passes.done(report.pass))?;
        drop(passes);
        optimized.write(target, &options, &Bar::new(output, "compiling", Unit::Bytes))
    };
    let failed = |error| in_models(renamed(error, &shown[0].path), &shown);
    // What a pipe brought is gone afterwards.
    let cache = if arguments.no_cache || scratch.is_some() { None } else { Cache::of_user() };
    if let Some(cache) = &cache {
        if let Some(kept) = cache.find(&sources, &options) {
            return Ok(kept.path);
        }
        // Without a place there is still the temporary folder.
        if let Ok(place) = cache.place(&sources, &options) {
            match compile_to(&place.path) {
                Ok(compiled) => {
                    if let Err(error) = cache.keep(&place, &sources, &compiled) {
                        output.note(format_args!("note: cannot keep the compiled file: {error}"));
                    }
                    return Ok(place.path);
                }
                Err(error) if error.is_of_output() => {
                    output.note(format_args!("note: cannot keep the compiled file: {error}"));
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
    let folder = match scratch {
        Some(scratch) => scratch,
        None => scratch.insert(Scratch::new()?),
    };
    let target = folder.path().join("model.ipu");
    compile_to(&target).map_err(failed)?;
    Ok(target)
}

/// How messages call a model.
fn shown(model: &Path) -> PathBuf {
    if model == Path::new("-") { PathBuf::from("stdin") } else { model.to_owned() }
}

/// The error with the name that the user knows in place of that of a copy.
fn renamed(error: CompileError, shown: &Path) -> CompileError {
    let path = shown.to_owned();
    match error {
        CompileError::Onnx { error, .. } => CompileError::Onnx { path, error },
        CompileError::ExternalData { error, .. } => CompileError::ExternalData { path, error },
        error => error,
    }
}

/// Dimensions that are given as true ranges.
fn ranges(dimensions: &[Dimension]) -> Vec<(String, i64, i64)> {
    let ranges = dimensions.iter().filter(|dimension| dimension.value().is_none());
    ranges.map(|range| (range.name.clone(), range.minimum, range.maximum)).collect()
}

/// The file is `.ipu` by its first bytes, or by its name where they are of no known format.
pub(super) fn is_compiled(path: &Path) -> anyhow::Result<bool> {
    Ok(has_signature(path)? || path.extension().is_some_and(|extension| extension == "ipu"))
}

/// Types of an entry's results, by position.
pub(super) fn result_types(manifest: &Manifest, entry: &EntryRecord) -> Vec<Type> {
    let block = &manifest.blocks[entry.block as usize];
    let kind = |operand: &OperandRecord| match *operand {
        OperandRecord::Value(slot) => block.values[slot as usize].kind.clone(),
        // A weight that is a result is a tensor; readers take its type from the file.
        OperandRecord::Weight(_) | OperandRecord::Absent => {
            Type::Tensor { dtype: ipuc_formats::dtype::DType::F32, shape: Shape::Unranked }
        }
    };
    block.results.iter().map(kind).collect()
}

/// What state has become, under the names of the outputs that it is.
pub(super) fn state_outputs(
    model: &Model,
    entry: &EntryRecord,
    session: &Session,
) -> anyhow::Result<Vec<(String, Value)>> {
    let mut outputs = Vec::new();
    for used in &entry.states {
        let Some(output) = used.output else { continue };
        let name = &model.manifest().states[used.state as usize].name;
        if let Some(value) = session.state(name)? {
            outputs.push((entry.outputs[output as usize].clone(), value));
        }
    }
    Ok(outputs)
}

/// The inputs of an entry: those that are given, and made-up ones where the user wants them.
pub(super) fn gather(
    loaded: &Loaded,
    entry: &EntryRecord,
    arguments: &InputArguments,
    sizes: Sizes<'_>,
    output: &Output,
) -> anyhow::Result<Inputs> {
    let ports = loaded.model.inputs(entry);
    let mut names = BTreeSet::new();
    if let Some(twice) = arguments.input.iter().find(|file| !names.insert(&file.name)) {
        return Err(Failure::usage(format!("input `{}` is given twice", twice.name)).into());
    }
    let mut given = Vec::new();
    if let Some(path) = &arguments.inputs {
        for (name, tensor) in read_archive(path)? {
            let port = find(&ports, &name)?;
            given.push((name.clone(), fitted(Value::Tensor(tensor), &port.kind)));
        }
    }
    for file in &arguments.input {
        let port = find(&ports, &file.name)?;
        let value = read_input(&file.path, &port.kind)?;
        given.retain(|(name, _)| *name != file.name);
        given.push((file.name.clone(), value));
    }
    complete(&loaded.model, entry, given, arguments.random, sizes, output)
}

fn find<'a>(ports: &'a [Port], name: &str) -> Result<&'a Port, RunError> {
    let known = || ports.iter().map(|port| format!("`{}`", port.name)).collect::<Vec<_>>().join(", ");
    let found = ports.iter().find(|port| port.name == name);
    found.ok_or_else(|| RunError::UnknownInput { name: name.to_string(), known: known() })
}

/// All arrays of an `.npz` file.
pub(super) fn read_archive(path: &Path) -> anyhow::Result<Vec<(String, ipuc_formats::tensor::Tensor)>> {
    let context = || format!("cannot read `{}`", path.display());
    let file = File::open(path).with_context(context)?;
    numpy::read_npz(BufReader::new(file)).with_context(context)
}

/// A value of the type from `.npy`, or from anything else as ONNX test data.
pub(super) fn read_input(path: &Path, kind: &Type) -> anyhow::Result<Value> {
    let context = || format!("cannot read `{}`", path.display());
    if path.extension().is_some_and(|extension| extension == "npy") {
        let mut file = BufReader::new(File::open(path).with_context(context)?);
        let tensor = numpy::read_npy(&mut file).with_context(context)?;
        return Ok(fitted(Value::Tensor(tensor), kind));
    }
    let file = SourceFile::open(path)?;
    read_value(&file, kind).with_context(context)
}

/// A tensor stands for an optional that holds it.
pub(super) fn fitted(value: Value, kind: &Type) -> Value {
    match (kind, value) {
        (Type::Optional(element), value @ (Value::Tensor(_) | Value::Sequence { .. } | Value::Map { .. })) => {
            Value::Optional { element: (**element).clone(), value: Some(Box::new(value)) }
        }
        (Type::Tensor { .. } | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. }, value) => value,
    }
}

/// The inputs of an entry, and the sizes of dimensions that come with them.
pub(super) struct Inputs {
    pub(super) values: Vec<(String, Value)>,
    pub(super) bindings: Bindings,
    /// What nobody said how large it is.
    pub(super) made_up: Vec<Arc<str>>,
}

impl Inputs {
    /// Why a run fails; where sizes were made up, with what they are.
    pub(super) fn failure(bindings: &Bindings, made_up: &[Arc<str>], error: RunError) -> anyhow::Error {
        let sizes: Vec<String> =
            made_up.iter().map(|symbol| format!("{symbol}={}", bindings.get(symbol).unwrap_or_default())).collect();
        if sizes.is_empty() {
            return error.into();
        }
        with_hint(error, || format!("sizes were made up ({}): give those that fit with --dim NAME=N", sizes.join(", ")))
    }
}

/// Add what is not given: made-up values where there is a seed, nothing for optionals.
pub(super) fn complete(
    model: &Model,
    entry: &EntryRecord,
    mut given: Vec<(String, Value)>,
    seed: Option<u64>,
    sizes: Sizes<'_>,
    output: &Output,
) -> anyhow::Result<Inputs> {
    let ports = model.inputs(entry);
    let missing: Vec<&Port> = ports.iter().filter(|port| !given.iter().any(|(name, _)| *name == port.name)).collect();
    let mut bindings = sizes.bind(model.manifest(), entry, &ports, &given)?;
    let open: BTreeSet<Arc<str>> = missing.iter().flat_map(|port| port.kind.symbols()).collect();
    let open: Vec<Arc<str>> = open.into_iter().filter(|symbol| bindings.get(symbol).is_none()).collect();
    let Some(seed) = seed else {
        for port in missing {
            let Type::Optional(element) = &port.kind else { return Err(missing_inputs(&ports, &given, &open).into()) };
            given.push((port.name.clone(), Value::Optional { element: (**element).clone(), value: None }));
        }
        return Ok(Inputs { values: given, bindings, made_up: Vec::new() });
    };
    sizes.choose(model.manifest(), entry, &open, &mut bindings)?;
    for symbol in &open {
        let value = bindings.get(symbol).unwrap_or_default();
        output.note(format_args!("note: dimension `{symbol}` is {value}"));
    }
    let mut generator = Generator::new(seed);
    let made = missing.len();
    for port in missing {
        given.push((port.name.clone(), generator.value(&port.name, &port.kind, &bindings)?));
    }
    let made = given.len() - made..;
    let settings = model.manifest().attachment(GENERATION);
    if let Some(settings) = settings.and_then(|settings| serde_json::from_slice(settings).ok()) {
        see_all_tokens(&settings, &mut given[made]);
    }
    Ok(Inputs { values: given, bindings, made_up: open })
}

fn missing_inputs(ports: &[Port], given: &[(String, Value)], open: &[Arc<str>]) -> Failure {
    let missing = ports.iter().filter(|port| !given.iter().any(|(name, _)| *name == port.name));
    let missing: Vec<&Port> = missing.filter(|port| !matches!(port.kind, Type::Optional(_))).collect();
    let names: Vec<String> = missing.iter().map(|port| format!("`{}` ({})", port.name, port.kind)).collect();
    let mut message = match names.as_slice() {
        [name] => format!("input {name} is missing"),
        names => format!("inputs {} are missing", names.join(", ")),
    };
    let open: Vec<String> = open.iter().map(|symbol| format!("`{symbol}`")).collect();
    match open.as_slice() {
        [] => {}
        [symbol] => message.push_str(&format!("; dimension {symbol} is unbound")),
        symbols => message.push_str(&format!("; dimensions {} are unbound", symbols.join(", "))),
    }
    Failure::usage(message).with_hint("give each with --input NAME=FILE.npy, or make them up with --random SEED")
}
