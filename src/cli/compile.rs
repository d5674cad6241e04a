//! `ipuc compile`: ONNX models in, one `.ipu` file out.

use super::Outcome;
use super::arguments::{Dimension, NamedModel, Size, check_once, threads};
use super::cross_check::{CrossCheckSummary, cross_checks};
use super::failure::{Code, Failure};
use super::output::{Output, Unit, bytes, count, seconds};
use super::targets::target;
use crate::compile::{Activations, CompileError, CompileOptions, Compiled, Optimized, Source};
use crate::simulate::{SimulateOptions, simulate};
use anyhow::Context;
use clap::Args;
use ipuc_formats::dim::Bindings;
use ipuc_formats::model::{Manifest, PlacementRecord};
use ipuc_passes::ir::{Graph, text};
use ipuc_passes::pipeline::Report;
use ipuc_passes::place::records;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compile ONNX models into one .ipu file
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The models; each becomes an entry, named NAME or like its file (main where there is one model)
    #[arg(required = true, value_name = "MODEL.onnx|NAME=MODEL.onnx")]
    models: Vec<NamedModel>,
    /// The file to write [default: the first model's name with .ipu]
    #[arg(short, long, value_name = "FILE.ipu")]
    output: Option<PathBuf>,
    /// The range of an open dimension (both ends included), or its only size
    #[arg(long, value_name = "NAME=N|NAME=A..B")]
    dim: Vec<Dimension>,
    /// An output that is the next content of an input, kept by a session; `*` stands for any text in both, and `auto`
    /// for the names that exporters give to caches
    #[arg(long, value_name = "IN=OUT")]
    state: Vec<String>,
    /// Spread the steps over the tiles of a machine that `ipuc targets` lists, or of a file, at the sizes of --dim
    #[arg(long, value_name = "NAME|FILE.toml")]
    target: Vec<String>,
    /// How activations that meet quantized weights are computed: as floats wherever the model has no sums of integers
    /// (keep), or those of matrix products rounded to 8 bits as they are computed (i8) [default: as the model says]
    #[arg(long, value_name = "HOW", value_enum, hide_default_value = true)]
    activations: Option<ActivationsArgument>,
    /// Write the program after each pass into numbered files in this folder
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
    /// Most memory for weights while they are written, as 512MiB; the file does not depend on it [default: 272MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Threads that share the work [default: all cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = threads, default_value = "0", hide_default_value = true)]
    threads: usize,
}

/// Choices of `--activations`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ActivationsArgument {
    Keep,
    I8,
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
    let sources = sources(&arguments.models)?;
    let written = arguments.output.clone().unwrap_or_else(|| sources[0].path.with_extension("ipu"));
    let mut options = options(arguments);
    let mut listing = Listing::new(arguments.emit_ir.as_deref())?;
    let bar = output.bar("writing weights", Unit::Bytes);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads).build();
    let compiled = threads.context("cannot start threads")?.install(|| {
        let optimized = Optimized::new(&sources, &options, &mut |report, graph| listing.write(report, graph));
        let optimized = optimized.map_err(|error| in_models(error, &sources))?;
        if !arguments.target.is_empty() {
            let manifest = optimized.records(&options).map_err(|error| in_models(error, &sources))?;
            options.placements = placements(&arguments.target, &manifest, &options)?;
        }
        optimized.write(&written, &options, &bar).map_err(|error| in_models(error, &sources))
    });
    drop(bar);
    let compiled = compiled?;
    listing.finish()?;
    print(&compiled, arguments.verify, &written, start, output)?;
    Ok(Code::Success)
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
        activations: match arguments.activations {
            None => Activations::Model,
            Some(ActivationsArgument::Keep) => Activations::Keep,
            Some(ActivationsArgument::I8) => Activations::I8,
        },
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
            let simulated = SimulateOptions { entry: Some(entry.name.clone()), dimensions, numerics: None };
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

/// An error that names no file, with the models in which it occurred.
pub(super) fn in_models(error: CompileError, sources: &[Source]) -> anyhow::Error {
    if error.names_file() {
        return error.into();
    }
    let names: Vec<String> = sources.iter().map(|source| format!("`{}`", source.path.display())).collect();
    anyhow::Error::new(error).context(format!("cannot compile {}", names.join(", ")))
}

/// The files of `--emit-ir`.
struct Listing<'a> {
    folder: Option<&'a Path>,
    written: usize,
    error: Option<std::io::Error>,
}

impl<'a> Listing<'a> {
    fn new(folder: Option<&'a Path>) -> anyhow::Result<Self> {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::usage(format!("cannot create `{}`: {error}", folder.display())))?;
        }
        Ok(Listing { folder, written: 0, error: None })
    }

    fn write(&mut self, report: &Report, graph: &Graph) {
        let (Some(folder), None) = (self.folder, &self.error) else { return };
        let name = format!("{:03}-{}.ir", self.written, report.pass);
        let comment = format!(
            "// after {}: {}, {} of {} changed, {}\n",
            report.pass,
            seconds(report.time),
            report.changes.steps,
            count(report.steps, "step"),
            count(report.changes.annotations, "annotation")
        );
        let written = std::fs::write(folder.join(name), comment + &text::print(graph));
        self.error = written.err();
        self.written += 1;
    }

    fn finish(self) -> anyhow::Result<()> {
        let Some(error) = self.error else { return Ok(()) };
        let folder = self.folder.unwrap_or(Path::new("")).display().to_string();
        Err(anyhow::Error::new(error).context(format!("cannot write the files of --emit-ir into `{folder}`")))
    }
}

fn print(
    compiled: &Compiled,
    verified: bool,
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
    let cross_checks = if verified { cross_checks(compiled, output)? } else { Vec::new() };
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
        peaks: peaks.collect(),
        passes: passes.collect(),
        cross_checks,
    })
}
