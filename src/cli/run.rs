//! `ipuc run`: inputs in, outputs out, once.

use super::Outcome;
use super::execute::{DimensionArguments, InputArguments, Inputs, Loaded, ModelArguments, gather};
use super::failure::{Code, Failure};
use super::observed;
use super::output::{Output, count, seconds};
use super::present;
use super::profile;
use super::progress::running;
use super::sizes::{Beginning, Sizes};
use super::written::{self, Written};
use crate::files::{OutputFile, SequentialWriter, numpy};
use crate::observe::{Granularity, Statistics};
use anyhow::Context;
use clap::Args;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_passes::emit::Output as _;
use ipuc_runtime::{SavedStateError, Session};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run a model once and print or store its outputs
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    inputs: InputArguments,
    #[command(flatten)]
    dimensions: DimensionArguments,
    /// Store the outputs: as NAME.npy in a folder, in one archive, or the only one in one file
    #[arg(long, short, value_name = "DIR|FILE.npz|FILE.npy")]
    output: Option<PathBuf>,
    /// Go on from the state in this file, which --save-state has stored
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    /// Store the state after the run in this file; - is stdout, and the result goes to stderr
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Store a trace of reads, waits, steps and workers, which Perfetto shows; - is stdout, and the result goes to stderr
    #[arg(long, value_name = "TRACE.json")]
    profile: Option<PathBuf>,
    /// Show the range and the zeros of each value that steps compute: of the whole value, or of each index of an axis
    /// (axis:N) or each block of the last axis (block:N); histograms too with --json
    #[arg(long, value_name = "PER", num_args = 0..=1, require_equals = true, default_missing_value = "tensor")]
    observe: Option<Granularity>,
}

/// Have a session go on from the state in a file.
pub(super) fn load_state(session: &mut Session, path: &Path) -> anyhow::Result<()> {
    let context = || format!("cannot load state from `{}`", path.display());
    let file = File::open(path).map_err(SavedStateError::Io).with_context(context)?;
    session.restore(&mut BufReader::new(file)).with_context(context)
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let state = Written { what: "the state", path: arguments.save_state.as_deref(), is_text: false };
    written::prepare(&[profile::written(arguments.profile.as_deref()), state], output)?;
    let start = Instant::now();
    let loaded = Loaded::open(&arguments.model, &arguments.dimensions, output)?;
    let load_time = start.elapsed();
    let name = arguments.model.entry.as_deref();
    let entry = loaded.model.entry(name)?;
    let beginning = if arguments.load_state.is_some() { Beginning::Given } else { Beginning::Fresh };
    let sizes = Sizes { dimensions: &arguments.dimensions.dim, beginning };
    let Inputs { values: inputs, bindings, made_up } = gather(&loaded, entry, &arguments.inputs, sizes, output)?;
    let mut session = loaded.session()?;
    if let Some(path) = &arguments.load_state {
        load_state(&mut session, path)?;
    }
    let target = arguments.profile.as_deref();
    let trace = profile::begin(&mut session, target);
    let start = Instant::now();
    let running = running(output, &mut session, "running");
    let mut statistics = arguments.observe.map(Statistics::new);
    let outputs = match &mut statistics {
        Some(statistics) => session.run_observed(name, inputs, statistics),
        None => session.run(name, inputs),
    };
    let outputs = outputs.map_err(|error| Inputs::failure(&bindings, &made_up, error))?;
    let elapsed = start.elapsed();
    drop(running);
    profile::end(&mut session, trace, target)?;
    if let Some(target) = &arguments.output {
        store(&outputs, target)?;
    }
    if let Some(target) = &arguments.save_state {
        let unwritten = |error| written::unwritten(target, error);
        let file = OutputFile::create(written::destination(target)).map_err(unwritten)?;
        let mut writer = BufWriter::new(SequentialWriter::new(&file));
        session.save(&mut writer).map_err(|error| match error {
            SavedStateError::Io(error) => unwritten(error),
            SavedStateError::Malformed(_) | SavedStateError::OtherModel { .. } | SavedStateError::State(_) => {
                error.into()
            }
        })?;
        writer.flush().map_err(unwritten)?;
        drop(writer);
        file.finish().map_err(unwritten)?;
    }
    for (name, value) in &outputs {
        output.line(format_args!("{name}: {}", present::text(value)))?;
    }
    output.note(format_args!("loaded in {}, ran in {}", seconds(load_time), seconds(elapsed)));
    let values = outputs.iter().map(|(name, value)| {
        let mut object = present::json(value);
        object["name"] = json!(name);
        object
    });
    let mut result = json!({
        "model": loaded.path.display().to_string(),
        "entry": entry.name,
        "load_seconds": load_time.as_secs_f64(),
        "seconds": elapsed.as_secs_f64(),
        "outputs": values.collect::<Vec<_>>(),
    });
    if let Some(statistics) = &statistics {
        observed::show(loaded.model.manifest(), statistics, output)?;
        result["observed"] = observed::values(loaded.model.manifest(), statistics);
        result["runs"] = observed::runs(statistics);
    }
    output.json(&result)?;
    Ok(Code::Success)
}

/// Outputs as files; all of them are made before the first gets its name.
pub(super) fn store(outputs: &[(String, Value)], target: &Path) -> anyhow::Result<()> {
    let mut arrays = Vec::new();
    for (name, value) in outputs {
        flatten(name, value, &mut arrays)?;
    }
    let failure = |path: &Path| format!("cannot write `{}`", path.display());
    let unwritten = |path: &Path, error: io::Error| Failure::output(failure(path), &error);
    if target.extension().is_some_and(|extension| extension == "npz") {
        let mut bytes = Cursor::new(Vec::new());
        numpy::write_npz(&arrays, &mut bytes).with_context(|| failure(target))?;
        return write(target, bytes.get_ref())?.finish().map_err(|error| unwritten(target, error).into());
    }
    if !target.is_dir() && target.extension().is_some_and(|extension| extension == "npy") {
        let [(_, tensor)] = arrays.as_slice() else {
            let message =
                format!("{} cannot be stored in the one file `{}`", count(arrays.len(), "array"), target.display());
            return Err(Failure::usage(message).with_hint("store them in one archive with --output FILE.npz").into());
        };
        let mut bytes = Vec::new();
        numpy::write_npy(tensor, &mut bytes).with_context(|| failure(target))?;
        return write(target, &bytes)?.finish().map_err(|error| unwritten(target, error).into());
    }
    if target.exists() && !target.is_dir() {
        let message = format!("the output `{}` is neither a folder nor called FILE.npz or FILE.npy", target.display());
        return Err(Failure::usage(message).into());
    }
    std::fs::create_dir_all(target).map_err(|error| unwritten(target, error))?;
    let mut files = Vec::with_capacity(arrays.len());
    let mut names = std::collections::BTreeSet::new();
    for (name, tensor) in &arrays {
        // Names of values often look like paths.
        let file_name = format!("{}.npy", name.replace(['/', '\\', ':', '\0'], "_"));
        let path = target.join(&file_name);
        if !names.insert(file_name) {
            let message = format!("two outputs would be stored as `{}`", path.display());
            return Err(Failure::usage(message).with_hint("store them in one archive with --output FILE.npz").into());
        }
        let mut bytes = Vec::new();
        numpy::write_npy(tensor, &mut bytes).with_context(|| failure(&path))?;
        files.push((write(&path, &bytes)?, path));
    }
    for (file, path) in files {
        file.finish().map_err(|error| unwritten(&path, error))?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<OutputFile, Failure> {
    let failure = |error: io::Error| Failure::output(format!("cannot write `{}`", path.display()), &error);
    let file = OutputFile::create(path).map_err(failure)?;
    file.write_at(0, bytes).map_err(failure)?;
    Ok(file)
}

/// Tensors as they are, items of sequences as `NAME[0]` and so on; an optional that is absent gives nothing.
fn flatten(name: &str, value: &Value, arrays: &mut Vec<(String, Tensor)>) -> Result<(), Failure> {
    match value {
        Value::Tensor(tensor) => arrays.push((name.to_string(), tensor.clone())),
        Value::Sequence { items, .. } => {
            for (index, item) in items.iter().enumerate() {
                flatten(&format!("{name}[{index}]"), item, arrays)?;
            }
        }
        Value::Optional { value: Some(value), .. } => flatten(name, value, arrays)?,
        Value::Optional { value: None, .. } => {}
        Value::Map { .. } => {
            return Err(Failure::usage(format!("output `{name}` is a map, which cannot be stored in a NumPy file"))
                .with_hint("print it with --json"));
        }
    }
    Ok(())
}
