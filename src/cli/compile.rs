//! `ipuc compile`: ONNX models in, one `.ipu` file out.

use super::Outcome;
use super::arguments::{Dimension, NamedModel, NamedPrecision, Size, check_once, threads};
use super::cross_check::{CrossCheckSummary, cross_checks};
use super::examples::{Calibrating, ExampleArguments};
use super::failure::{Code, Failure, in_models};
use super::listing::Listing;
use super::output::{Output, bytes, count, is_stdout, seconds};
use super::progress::{Bar, Passes, Unit, waiting};
use super::signature::has_signature;
use super::targets::target;
use super::written::{self, Written};
use crate::compile::folder::{self, LanguageModel};
use crate::compile::{
    ActivationSparsity, Activations, Budget, CompileOptions, Compiled, Optimized, Precision, Source, Sparsity,
    WeightOptions,
};
use crate::simulate::{SimulateOptions, simulate};
use anyhow::Context;
use clap::Args;
use ipuc_formats::dim::Bindings;
use ipuc_formats::model::{Manifest, PlacementRecord, WeightRecord};
use ipuc_formats::ops::RowScheme;
use ipuc_passes::place::records;
use serde::Serialize;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Compile ONNX models into one .ipu file
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The models; each becomes an entry, named NAME or like its file (main where there is one model). Or the folder of a
    /// language model, as onnxruntime-genai, Optimum or transformers export it
    #[arg(required = true, value_name = "MODEL.onnx|NAME=MODEL.onnx|FOLDER")]
    models: Vec<NamedModel>,
    /// The file to write, or - for stdout [default: the first model's name with .ipu]
    #[arg(short, long, value_name = "FILE.ipu")]
    output: Option<PathBuf>,
    /// The range of an open dimension (both ends included), or its only size
    #[arg(long, value_name = "NAME=N|NAME=A..B")]
    dim: Vec<Dimension>,
    /// An output that is the next content of an input, kept by a session; `*` stands for any text in both, and `auto`
    /// for the names that exporters give to caches
    #[arg(long, value_name = "IN=OUT")]
    state: Vec<String>,
    /// An input with a default that runs may be given; without this it always has the default
    #[arg(long, value_name = "INPUT")]
    overridable: Vec<String>,
    /// Spread the steps over the tiles of a machine that `ipuc targets` lists, or of a file, at the sizes of --dim
    #[arg(long, value_name = "NAME|FILE.toml")]
    target: Vec<String>,
    /// How the rows of a cache that grows are stored (`--state`): as they are, as f16, or as codes of 8 bits with a scale a row.
    #[arg(long, value_enum, value_name = "TYPE")]
    cache: Option<CacheArgument>,
    /// How activations that meet quantized weights are computed: as floats wherever the model has no sums of integers
    /// (keep), those of matrix products rounded to 8 bits as they are computed (i8), or those of products and convolutions
    /// whose weights have 8 bits with a scale that --calibrate chooses, and others as with i8 (i8-static) [default: as the
    /// model says]
    #[arg(long, value_name = "HOW", value_enum, hide_default_value = true)]
    activations: Option<ActivationsArgument>,
    /// Leave the zeros of weights out of the file: where that takes fewer bytes and no more time (auto), wherever it takes
    /// fewer bytes (always), or not (never) [default: auto]. `inspect --sparsity` has reasons
    #[arg(long, value_name = "WHEN", value_enum, hide_default_value = true)]
    sparse: Option<SparseArgument>,
    /// Let products leave out inputs whose activations are zero, as ReLU makes them: where that takes less time (auto),
    /// wherever activations are known to have zeros (always), or not (never) [default: auto]. With --calibrate zeros are counted.
    /// `inspect --sparsity` has reasons
    #[arg(long, value_name = "WHEN", value_enum, hide_default_value = true)]
    sparse_activations: Option<SparseArgument>,
    /// Take activations as zero whose magnitude is below this share of the root mean square that the examples of --calibrate
    /// have shown, as 0.05, where products leave them out then; the error that this makes is measured on the examples
    #[arg(long, value_name = "SHARE")]
    sparse_threshold: Option<f64>,
    /// Round the weights of products and gathers: to floats of 16 bits (f16, bf16), or to codes with a scale for each
    /// output (i8, fp8, fp8_e5m2) or for each block of 32 inputs (i4, i2, mxfp4) or 16 (nvfp4, i4_e4m3); i4:64 and i8:32
    /// name the inputs of a block. With 4 bits and 2, embeddings, convolutions and the last products get 8 bits; what is
    /// too small stays. `inspect --layout` has reasons
    #[arg(long, value_name = "TYPE[:BLOCK]")]
    weights: Option<Precision>,
    /// Choose the precision of each weight so that all of them take no more than this, as 90MB: bytes are spent where they
    /// lower the error of results most. `inspect --layout` has reasons
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["weights", "max_error"])]
    size: Option<Size>,
    /// Take the fewest bytes with which the outputs of the model are off by no more than this on the examples of
    /// --calibrate, as 0.02: the root mean square of the differences beside that of the output. Without examples it is
    /// kept by the results of each product for itself
    #[arg(long, value_name = "SHARE", conflicts_with = "weights")]
    max_error: Option<f64>,
    /// Weights that are not rounded, by their names or those of nodes that read them; `*` stands for any text
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Weights that are rounded otherwise than --weights says; the last pattern that matches counts
    #[arg(long, value_name = "PATTERN=TYPE[:BLOCK]")]
    weights_for: Vec<NamedPrecision>,
    #[command(flatten)]
    examples: ExampleArguments,
    /// Write the program after each pass that changes it into numbered files in this folder, with what changed in .diff
    /// files, and at last the steps and weights as they are in the file
    #[arg(long, value_name = "DIR")]
    emit_ir: Option<PathBuf>,
    /// Leave every step as it is, so that `run --observe` sees each value of the model; slower
    #[arg(long)]
    unfused: bool,
    /// Check every pass, and compare types and shapes with those of tract (feature `cross-check`)
    #[arg(long)]
    verify: bool,
    /// A folder outside of the models' own whose files they may use as external data
    #[arg(long, value_name = "DIR")]
    external_data_root: Vec<PathBuf>,
    /// Most memory for weights while they are written, as 512MiB; the file does not depend on it [default: four fifths of
    /// what the machine or its control group has available, of which 272MiB are used unless one constant needs more]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Threads that share the work [default: all cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
}

/// Choices of `--cache`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum CacheArgument {
    Keep,
    F16,
    I8,
}

impl CacheArgument {
    fn rows(self) -> Option<RowScheme> {
        match self {
            CacheArgument::Keep => None,
            CacheArgument::F16 => Some(RowScheme::F16),
            CacheArgument::I8 => Some(RowScheme::I8),
        }
    }
}

/// Choices of `--activations`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ActivationsArgument {
    Keep,
    I8,
    I8Static,
}

/// Choices of `--sparse` and `--sparse-activations`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SparseArgument {
    Auto,
    Always,
    Never,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    output: &'a Path,
    root_hash: String,
    file_bytes: u64,
    weights_bytes: u64,
    seconds: f64,
    entries: Vec<EntrySummary>,
    steps: usize,
    weights: usize,
    /// With --max-error and examples: how far outputs are off on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<f64>,
    /// With --sparse-threshold: the same with the threshold and without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_with_threshold: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_without_threshold: Option<f64>,
    /// Blocks with their peak of live activations, where sizes are known.
    peaks: Vec<PeakSummary>,
    passes: Vec<PassSummary>,
    /// With --verify: what tract says of the types of each entry's values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cross_checks: Vec<CrossCheckSummary>,
}

#[derive(Serialize)]
struct EntrySummary {
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

#[derive(Serialize)]
struct PeakSummary {
    block: u32,
    topological_bytes: u64,
    ordered_bytes: u64,
}

#[derive(Serialize)]
struct PassSummary {
    pass: &'static str,
    seconds: f64,
    changed_steps: usize,
    changed_annotations: usize,
    steps: usize,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let start = Instant::now();
    check_once(&arguments.dim)?;
    let mut options = options(arguments);
    check_options(arguments, &options)?;
    let folder = language_model(&arguments.models, output)?;
    let sources = match folder {
        Some(model) => model.apply(&mut options),
        None => sources(&arguments.models)?,
    };
    for source in &sources {
        if has_signature(&source.path)? {
            let message = format!("`{}` is an .ipu file, which is compiled already", source.path.display());
            return Err(Failure::usage(message).with_hint("run it: ipuc run MODEL.ipu").into());
        }
    }
    let written = arguments.output.clone().unwrap_or_else(|| arguments.models[0].path.with_extension("ipu"));
    let to_stdout = is_stdout(&written);
    let file = Written { what: "the file", path: Some(written.as_path()), is_text: false };
    written::prepare(&[file], output)?;
    let count = arguments.threads.unwrap_or(0);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(count).build().context("cannot start threads")?;
    let calibrating = Calibrating {
        arguments: &arguments.examples,
        dimensions: &arguments.dim,
        sources: &sources,
        options: &options,
        threads: count,
        output,
    };
    let calibration = threads.install(|| calibrating.calibration())?;
    options.calibration = Arc::new(calibration);
    let mut listing = Listing::new(arguments.emit_ir.as_deref())?;
    let compiled = threads.install(|| {
        let mut passes = Passes::begin(output);
        let optimized = Optimized::new(&sources, &options, &mut |report, graph| {
            passes.done(report.pass);
            listing.write(report, graph);
        });
        let optimized = optimized.map_err(|error| in_models(error, &sources))?;
        drop(passes);
        if !arguments.target.is_empty() {
            let _placing = waiting(output, "spreading steps over tiles");
            let manifest = optimized.records(&options).map_err(|error| in_models(error, &sources))?;
            options.placements = placements(&arguments.target, &manifest, &options)?;
        }
        let bar = Bar::new(output, "writing weights", Unit::Bytes);
        optimized.write(written::destination(&written), &options, &bar).map_err(|error| in_models(error, &sources))
    });
    let compiled = compiled?;
    listing.finish(&compiled.emitted.manifest)?;
    if to_stdout {
        output.note(format_args!("stdout: {}, {}", bytes(compiled.emitted.file_bytes), seconds(start.elapsed())));
        return Ok(Code::Success);
    }
    print(&compiled, arguments, &written, start, output)?;
    Ok(Code::Success)
}

/// Options that need others have them.
fn check_options(arguments: &Arguments, options: &CompileOptions) -> Result<(), Failure> {
    if !arguments.keep.is_empty() && !options.weights.is_rounding() {
        return Err(Failure::usage("--keep names exceptions, and no weight is rounded without --weights"));
    }
    let examples = arguments.examples.option();
    if options.sparse_threshold.is_some() && examples.is_none() {
        return Err(Failure::usage("--sparse-threshold takes --calibrate, which shows how large activations are"));
    }
    if options.sparse_threshold.is_some() && options.activation_sparsity == ActivationSparsity::Never {
        let message =
            "--sparse-threshold is for products that leave zeros out, and --sparse-activations never has none";
        return Err(Failure::usage(message));
    }
    let is_static = options.activations == Activations::I8Static;
    if is_static && examples.is_none() {
        return Err(Failure::usage("--activations i8-static takes --calibrate, which shows what products read"));
    }
    if let Some(option) = examples
        && !options.weights.is_rounding()
        && !is_static
        && options.activation_sparsity == ActivationSparsity::Never
    {
        let message = format!("{option} is for weights that are rounded (--weights) and for zeros of activations");
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn options(arguments: &Arguments) -> CompileOptions {
    let mut dimensions = Bindings::new();
    for dimension in &arguments.dim {
        if let Some(value) = dimension.value() {
            dimensions.insert(dimension.name.as_str(), value);
        }
    }
    let range = |dimension: &Dimension| (dimension.name.clone(), dimension.minimum, dimension.maximum);
    CompileOptions {
        external_data_roots: arguments.external_data_root.clone(),
        dimensions,
        ranges: arguments.dim.iter().map(range).collect(),
        states: arguments.state.clone(),
        cache: arguments.cache.and_then(CacheArgument::rows),
        branches: Vec::new(),
        joined: Vec::new(),
        overridable: arguments.overridable.clone(),
        prefill: None,
        attachments: Vec::new(),
        activations: match arguments.activations {
            None => Activations::Model,
            Some(ActivationsArgument::Keep) => Activations::Keep,
            Some(ActivationsArgument::I8) => Activations::I8,
            Some(ActivationsArgument::I8Static) => Activations::I8Static,
        },
        weights: WeightOptions {
            precision: arguments.weights,
            budget: match (arguments.size, arguments.max_error) {
                (Some(size), _) => Some(Budget::Size(size.bytes)),
                (None, most) => most.map(Budget::Error),
            },
            keep: arguments.keep.clone(),
            each: arguments.weights_for.iter().map(|each| (each.pattern.clone(), each.precision)).collect(),
        },
        sparsity: match arguments.sparse {
            None | Some(SparseArgument::Auto) => Sparsity::Measured,
            Some(SparseArgument::Always) => Sparsity::Always,
            Some(SparseArgument::Never) => Sparsity::Never,
        },
        activation_sparsity: match arguments.sparse_activations {
            None | Some(SparseArgument::Auto) => ActivationSparsity::Measured,
            Some(SparseArgument::Always) => ActivationSparsity::Always,
            Some(SparseArgument::Never) => ActivationSparsity::Never,
        },
        sparse_threshold: arguments.sparse_threshold,
        calibration: Arc::default(),
        chunk_bytes: None,
        unfused: arguments.unfused,
        verify: arguments.verify,
        memory: arguments.memory.map(|size| size.bytes),
        placements: Vec::new(),
    }
}

/// How the steps of all entries are spread over the tiles of each machine.
fn placements(
    targets: &[String],
    manifest: &Manifest,
    options: &CompileOptions,
) -> anyhow::Result<Vec<PlacementRecord>> {
    let mut placements = Vec::new();
    for name in targets {
        let target = target(name, &[])?;
        let hash = target.hash().with_context(|| format!("cannot write the description of `{name}`"))?;
        for entry in &manifest.entries {
            let block = &manifest.blocks[entry.block as usize];
            let kinds = block.values.iter().take(block.parameters as usize).map(|value| &value.kind);
            let open: BTreeSet<_> = kinds.flat_map(ipuc_formats::fact::Type::symbols).collect();
            let own = options.dimensions.iter().filter(|(symbol, _)| open.contains(*symbol));
            let dimensions: Bindings = own.map(|(symbol, value)| (symbol.clone(), value)).collect();
            // A file says how steps are spread over one machine.
            let simulated = SimulateOptions {
                entry: Some(entry.name.clone()),
                dimensions,
                chips: Some(NonZeroU32::MIN),
                ..SimulateOptions::default()
            };
            let result = simulate(manifest, &target, &simulated)
                .with_context(|| format!("cannot spread entry `{}` over `{name}`", entry.name))?;
            if let Some(plan) = &result.plan {
                plan.check(&result.program, &target).with_context(|| format!("cannot place entry `{}`", entry.name))?;
            }
            let (dimensions, plan) = (&simulated.dimensions, result.plan.as_ref());
            placements.extend(records(manifest, &result.program, &target, hash, dimensions, &result.placed, plan));
        }
    }
    Ok(placements)
}

/// The language model in the folder that is to be compiled; `None` where files are.
fn language_model(models: &[NamedModel], output: &Output) -> anyhow::Result<Option<LanguageModel>> {
    match models {
        [model] if model.path.is_dir() => {
            let found = folder::read(&model.path)?;
            if !found.left_out.is_empty() {
                let names = found.left_out.join(", ");
                output.note(format_args!("left out, since only text is supported: {names}"));
            }
            Ok(Some(found))
        }
        models => match models.iter().find(|model| model.path.is_dir()) {
            Some(model) => {
                let path = model.path.display();
                Err(Failure::usage(format!("the folder `{path}` cannot be compiled together with other models")).into())
            }
            None => Ok(None),
        },
    }
}

/// Every model with the name of its entry.
fn sources(models: &[NamedModel]) -> Result<Vec<Source>, Failure> {
    let single = models.len() == 1;
    let mut sources: Vec<Source> = Vec::with_capacity(models.len());
    for model in models {
        let entry = match &model.name {
            Some(name) => name.clone(),
            None if single => "main".to_string(),
            None => model.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        };
        if sources.iter().any(|source| source.entry == entry) {
            let message = format!("two models are named `{entry}`");
            return Err(Failure::usage(message).with_hint("name them with NAME=MODEL.onnx"));
        }
        sources.push(Source { entry, path: model.path.clone() });
    }
    Ok(sources)
}

fn print(
    compiled: &Compiled,
    arguments: &Arguments,
    target: &Path,
    start: Instant,
    output: &mut Output,
) -> anyhow::Result<()> {
    let manifest = &compiled.emitted.manifest;
    let steps = manifest.blocks.iter().map(|block| block.steps.len()).sum();
    let weights_bytes = manifest.extents.iter().map(|extent| extent.length).sum();
    let elapsed = start.elapsed();
    output.line(format_args!(
        "{}: {} ({} of weights in {}), {}, {}",
        target.display(),
        bytes(compiled.emitted.file_bytes),
        bytes(weights_bytes),
        count(manifest.chunks.len(), "chunk"),
        count(steps, "step"),
        seconds(elapsed)
    ))?;
    for entry in &manifest.entries {
        let (inputs, outputs) = (entry.inputs.join(", "), entry.outputs.join(", "));
        output.remark(format_args!("  entry {}({inputs}) -> ({outputs})", entry.name))?;
    }
    if !compiled.emitted.budgeted.is_empty() {
        let reason = |weight: &WeightRecord| Some([format!("  {}", weight.name.as_deref()?), weight.reason.clone()]);
        let chosen = compiled.emitted.budgeted.iter().map(|&weight| &manifest.weights[weight]);
        output.table(chosen.filter_map(reason).collect())?;
    }
    let measured = |name: &str| -> Option<f64> {
        let (_, error) = manifest.provenance.options.iter().find(|(option, _)| option == name)?;
        error.parse().ok()
    };
    let output_error = measured("output_error");
    if let Some(error) = output_error {
        output.line(format_args!("  outputs are off by {:.3} % on the examples", 100.0 * error))?;
    }
    let threshold_errors = measured("error_with_threshold").zip(measured("error_without_threshold"));
    if let Some((with, without)) = threshold_errors {
        output.line(format_args!(
            "  outputs are off by {:.3} % on the examples with small activations taken as zero, and by {:.3} % without that",
            100.0 * with,
            100.0 * without
        ))?;
    }
    // Bodies come and go within the block that runs them, so that the largest tells most.
    if let Some(peak) = compiled.peaks.iter().max_by_key(|peak| peak.given_bytes) {
        let (kept, given) = (bytes(peak.kept_bytes), bytes(peak.given_bytes));
        let open = manifest.symbols.iter().any(|symbol| symbol.minimum != symbol.maximum);
        let counted = if open { " (open dimensions count as 1)" } else { "" };
        output.remark(format_args!("  live activations peak at {kept}; in the model's order at {given}{counted}"))?;
    }
    let peaks = compiled.peaks.iter().map(|peak| PeakSummary {
        block: peak.block.0,
        topological_bytes: peak.given_bytes,
        ordered_bytes: peak.kept_bytes,
    });
    let cross_checks = if arguments.verify { cross_checks(compiled, output)? } else { Vec::new() };
    let passes = compiled.reports.iter().map(|report| PassSummary {
        pass: report.pass,
        seconds: report.time.as_secs_f64(),
        changed_steps: report.changes.steps,
        changed_annotations: report.changes.annotations,
        steps: report.steps,
    });
    let entries = manifest.entries.iter().map(|entry| EntrySummary {
        name: entry.name.clone(),
        inputs: entry.inputs.clone(),
        outputs: entry.outputs.clone(),
    });
    output.json(&Summary {
        output: target,
        root_hash: compiled.emitted.root_hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        file_bytes: compiled.emitted.file_bytes,
        weights_bytes,
        seconds: elapsed.as_secs_f64(),
        entries: entries.collect(),
        steps,
        weights: manifest.weights.len(),
        output_error,
        error_with_threshold: threshold_errors.map(|(with, _)| with),
        error_without_threshold: threshold_errors.map(|(_, without)| without),
        peaks: peaks.collect(),
        passes: passes.collect(),
        cross_checks,
    })
}
