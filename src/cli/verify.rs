//! `ipuc verify`: runs a model on inputs with known outputs, and compares.
//!
//! Data sets are laid out as in the ONNX backend tests, `test_data_set_N/{input,output}_K.pb`, or are one `.npz` archive
//! that holds inputs and outputs by name.

use super::Outcome;
use super::arguments::tolerance;
use super::execute::{
    DimensionArguments, Loaded, ModelArguments, complete, fitted, read_archive, result_types, state_outputs,
};
use super::failure::{Code, Failure};
use super::output::{Output, bytes, count, seconds};
use super::present::short;
use super::progress::{Waiting, running};
use super::sizes::{Beginning, Sizes};
use super::streamed::{Run, Trial};
use crate::compare::{Tolerance, compare};
use crate::files::SourceFile;
use crate::precision;
use anyhow::Context;
use clap::Args;
use ipuc_formats::fact::Type;
use ipuc_formats::model::EntryRecord;
use ipuc_formats::onnx::read_value;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Session};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The criterion, below the options.
const CRITERION: &str = "\
Types, shapes, integers, booleans, texts, NaN and infinities must be equal.
Other floats agree within a share of the expected element, within a share of
the output's largest magnitude, or within 1e-6. The shares are 1e-3 and 1e-4
for f32 and f64, 2^-8 and 2^-10 for f16, 2^-5 and 2^-7 for bf16, whether that is
the output's type or one that its values had on the way. Where activations are
rounded to codes, an output agrees too within 3 steps and half a step on the
mean: a step is the output's scale if it ends in one, else that of such codes
over its largest magnitude, 1/127 of it for 8 bits.";

/// Run a model and compare its outputs with expected ones
#[derive(Debug, Args)]
#[command(after_help = CRITERION)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    dimensions: DimensionArguments,
    /// A folder of test_data_set_N/{input,output}_K.pb, or an archive of arrays by name [default: the model's folder]
    #[arg(long, value_name = "DIR|FILE.npz")]
    data: Option<PathBuf>,
    /// Relative tolerance: the rule becomes |found - expected| <= atol + rtol * |expected|
    #[arg(long, value_name = "R", value_parser = tolerance, allow_negative_numbers = true)]
    rtol: Option<f64>,
    /// Absolute tolerance of that rule
    #[arg(long, value_name = "A", value_parser = tolerance, allow_negative_numbers = true)]
    atol: Option<f64>,
    /// Run again within budgets of 100, 75, 50, 25 and 10 % of the weights, with 1 and 2 threads: the bits must be the same
    #[arg(long, conflicts_with = "memory")]
    streamed: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    model: &'a Path,
    entry: &'a str,
    agree: bool,
    data_sets: Vec<Checked>,
}

#[derive(Serialize)]
struct Checked {
    name: String,
    agree: bool,
    seconds: f64,
    outputs: Vec<CheckedOutput>,
    /// Runs within budgets, where they are asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streamed: Vec<Trial>,
}

#[derive(Serialize)]
struct CheckedOutput {
    name: String,
    agree: bool,
    /// What differs, in words.
    difference: Option<String>,
    /// Elements compared; this and what follows is null where type or shape differ already.
    elements: Option<u64>,
    largest_difference: Option<f64>,
    largest_magnitude: Option<f64>,
}

/// Inputs and expected outputs by name.
struct DataSet {
    name: String,
    inputs: Vec<(String, Value)>,
    outputs: Vec<(String, Value)>,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let loaded = Loaded::open(&arguments.model, &arguments.dimensions, output)?;
    let entry = loaded.model.entry(arguments.model.entry.as_deref())?;
    let parent = loaded.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let data = arguments.data.as_deref().or(parent).unwrap_or(Path::new("."));
    let names = data_set_paths(data)?;
    let mut session = loaded.session()?;
    let mut checked = Vec::with_capacity(names.len());
    let shown = running(output, &mut session, "verifying");
    for (index, path) in names.iter().enumerate() {
        shown.say(format_args!("verifying: data set {} of {}", index + 1, names.len()));
        let set = read_data_set(path, &loaded, entry)?;
        let result = check(set, &loaded, entry, &mut session, arguments, (output, &shown))?;
        print(&result, output)?;
        checked.push(result);
    }
    drop(shown);
    let agreeing = checked.iter().filter(|set| set.agree).count();
    let (agree, differing) = (agreeing == checked.len(), checked.len() - agreeing);
    output.line(match (agreeing, differing) {
        (agreeing, 0) => format!("ok: {} {}", count(agreeing, "data set"), agrees(agreeing)),
        (0, differing) => format!("MISMATCH: {} {}", count(differing, "data set"), differs(differing)),
        (agreeing, differing) => {
            format!(
                "MISMATCH: {} {}, {agreeing} {}",
                count(differing, "data set"),
                differs(differing),
                agrees(agreeing)
            )
        }
    })?;
    output.json(&Summary { model: &loaded.path, entry: &entry.name, agree, data_sets: checked })?;
    Ok(if agree { Code::Success } else { Code::Negative })
}

fn agrees(number: usize) -> &'static str {
    if number == 1 { "agrees" } else { "agree" }
}

fn differs(number: usize) -> &'static str {
    if number == 1 { "differs" } else { "differ" }
}

fn check(
    set: DataSet,
    loaded: &Loaded,
    entry: &EntryRecord,
    session: &mut Session,
    arguments: &Arguments,
    (output, shown): (&Output, &Waiting),
) -> anyhow::Result<Checked> {
    let sizes = Sizes { dimensions: &arguments.dimensions.dim, beginning: Beginning::Given };
    let context = || format!("data set `{}`", set.name);
    let is_state = |name: &str| {
        let input = entry.inputs.iter().position(|input| input == name);
        input.is_some_and(|input| entry.state_of_input(input).is_some())
    };
    let (states, inputs): (Vec<_>, Vec<_>) = set.inputs.into_iter().partition(|(name, _)| is_state(name));
    let inputs = complete(&loaded.model, entry, inputs, None, sizes, output).with_context(context)?.values;
    session.reset();
    for (name, value) in &states {
        session.set_state(name, value.clone())?;
    }
    let start = Instant::now();
    let mut found = session.run(Some(&entry.name), inputs.clone()).with_context(context)?;
    let elapsed = start.elapsed();
    found.extend(state_outputs(&loaded.model, entry, session)?);
    let mut streamed = Vec::new();
    if arguments.streamed {
        let working_bytes = session.working_bytes();
        let run = Run { loaded, entry, states: &states, inputs: &inputs, expected: &found, working_bytes };
        streamed = run.trials(shown).with_context(context)?;
    }
    let mut outputs = Vec::with_capacity(set.outputs.len());
    let precisions = precision::of_outputs(&loaded.model, entry);
    for (name, expected) in &set.outputs {
        let value = found.iter().find(|(found, _)| found == name).map(|(_, value)| value);
        let value = value.ok_or_else(|| Failure::file(format!("the model has no output `{name}`")))?;
        let precision = entry.outputs.iter().zip(&precisions).find(|(output, _)| *output == name);
        let precision = precision.map(|(_, &precision)| precision).unwrap_or_default();
        let tolerance = Tolerance { relative: arguments.rtol, absolute: arguments.atol, precision };
        let result = compare(name, value, expected, tolerance);
        let closeness = match &result {
            Ok(closeness) => Some(*closeness),
            Err(mismatch) => mismatch.closeness,
        };
        outputs.push(CheckedOutput {
            name: name.clone(),
            agree: result.is_ok(),
            difference: result.err().map(|mismatch| mismatch.difference),
            elements: closeness.map(|closeness| closeness.elements),
            largest_difference: closeness.map(|closeness| closeness.largest_difference),
            largest_magnitude: closeness.map(|closeness| closeness.largest_magnitude),
        });
    }
    let agree = outputs.iter().all(|output| output.agree) && streamed.iter().all(|trial| trial.same_bits);
    Ok(Checked { name: set.name, agree, seconds: elapsed.as_secs_f64(), outputs, streamed })
}

fn print(set: &Checked, output: &mut Output) -> anyhow::Result<()> {
    let time = seconds(std::time::Duration::from_secs_f64(set.seconds));
    for mismatch in set.outputs.iter().filter(|output| !output.agree) {
        let difference = mismatch.difference.as_deref().unwrap_or("differs");
        output.line(format_args!("{}: output `{}` {difference}", set.name, mismatch.name))?;
    }
    for trial in set.streamed.iter().filter(|trial| !trial.same_bits) {
        let (budget, threads) = (bytes(trial.budget_bytes), count(trial.threads, "thread"));
        output.line(format_args!("{}: other bits within {budget} with {threads}", set.name))?;
    }
    if set.agree && !set.streamed.is_empty() {
        let runs = count(set.streamed.len(), "run");
        output.remark(format_args!("{}: the same bits in {runs} within a budget", set.name))?;
    }
    if set.agree {
        let differences = set.outputs.iter().filter_map(|output| output.largest_difference);
        let largest = short(differences.fold(0f64, f64::max));
        let outputs = format!("{} {}", count(set.outputs.len(), "output"), agrees(set.outputs.len()));
        output.remark(format_args!("{}: {outputs}, largest difference {largest}, {time}", set.name))?;
    }
    Ok(())
}

/// The data sets of a folder in order, the folder itself where it is one, or the archive.
pub(super) fn data_set_paths(data: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if data.is_file() {
        return Ok(vec![data.to_owned()]);
    }
    let entries =
        std::fs::read_dir(data).with_context(|| format!("cannot read the data folder `{}`", data.display()))?;
    let mut numbered = Vec::new();
    let mut is_data_set = false;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read `{}`", data.display()))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some(number) = name.strip_prefix("test_data_set_").and_then(|number| number.parse::<u64>().ok()) {
            numbered.push((number, path));
        } else {
            is_data_set |= numbered_file(name, "input").or(numbered_file(name, "output")).is_some();
        }
    }
    numbered.sort();
    let mut paths: Vec<PathBuf> = numbered.into_iter().map(|(_, path)| path).collect();
    if paths.is_empty() && is_data_set {
        paths.push(data.to_owned());
    }
    if paths.is_empty() {
        let message = format!("`{}` holds no folder test_data_set_0", data.display());
        return Err(Failure::usage(message).with_hint("name the folder or archive with --data").into());
    }
    Ok(paths)
}

/// K of `input_K.pb`.
fn numbered_file(name: &str, kind: &str) -> Option<usize> {
    name.strip_prefix(kind)?.strip_prefix('_')?.strip_suffix(".pb")?.parse().ok()
}

/// The inputs by name of a data set, which may have outputs too: states that are given are among them.
pub(super) fn read_inputs(path: &Path, model: &Model, entry: &EntryRecord) -> anyhow::Result<Vec<(String, Value)>> {
    let block = &model.manifest().blocks[entry.block as usize];
    let inputs: Vec<(&String, Type)> =
        entry.inputs.iter().zip(block.values.iter().map(|value| value.kind.clone())).collect();
    if path.is_dir() {
        return read_numbered(path, "input", &inputs);
    }
    let kind = |name: &str| inputs.iter().find(|(input, _)| *input == name).map(|(_, kind)| kind);
    let given = read_archive(path)?.into_iter();
    Ok(given.filter_map(|(name, tensor)| Some((name.clone(), fitted(Value::Tensor(tensor), kind(&name)?)))).collect())
}

fn read_data_set(path: &Path, loaded: &Loaded, entry: &EntryRecord) -> anyhow::Result<DataSet> {
    let name = path.file_name().map_or_else(|| ".".to_string(), |name| name.to_string_lossy().into_owned());
    let manifest = loaded.model.manifest();
    let block = &manifest.blocks[entry.block as usize];
    let inputs: Vec<(&String, Type)> =
        entry.inputs.iter().zip(block.values.iter().map(|value| value.kind.clone())).collect();
    let outputs: Vec<(&String, Type)> = entry.outputs.iter().zip(result_types(manifest, entry)).collect();
    if path.is_file() {
        return read_archived(name, path, &inputs, &outputs);
    }
    let inputs = read_numbered(path, "input", &inputs)?;
    let outputs = read_numbered(path, "output", &outputs)?;
    Ok(DataSet { name, inputs, outputs })
}

/// `KIND_K.pb` for the K-th of these; optionals may be left out.
fn read_numbered(folder: &Path, kind: &str, wanted: &[(&String, Type)]) -> anyhow::Result<Vec<(String, Value)>> {
    let files = std::fs::read_dir(folder).with_context(|| format!("cannot read `{}`", folder.display()))?;
    let mut present = vec![false; wanted.len()];
    for file in files.flatten() {
        let Some(index) = file.file_name().to_str().and_then(|name| numbered_file(name, kind)) else { continue };
        let slot = present.get_mut(index).ok_or_else(|| {
            let path = file.path();
            let wanted = count(wanted.len(), kind);
            Failure::file(format!("`{}` is one too many: the model has {wanted}, counted from 0", path.display()))
        })?;
        *slot = true;
    }
    if !present.contains(&true) && !wanted.is_empty() && kind == "output" {
        let message = format!("`{}` holds no expected outputs", folder.display());
        return Err(Failure::file(message).with_hint("`ipuc run` runs a model without comparing").into());
    }
    let mut values = Vec::with_capacity(wanted.len());
    for (index, (name, kind_of_value)) in wanted.iter().enumerate() {
        let path = folder.join(format!("{kind}_{index}.pb"));
        if !present[index] && matches!(kind_of_value, Type::Optional(_)) {
            continue;
        }
        let file = SourceFile::open(&path).with_context(|| format!("{kind} `{name}` is missing"))?;
        let value = read_value(&file, kind_of_value).with_context(|| format!("cannot read `{}`", path.display()))?;
        values.push(((*name).clone(), value));
    }
    Ok(values)
}

fn read_archived(
    set: String,
    path: &Path,
    inputs: &[(&String, Type)],
    outputs: &[(&String, Type)],
) -> anyhow::Result<DataSet> {
    let mut data = DataSet { name: set, inputs: Vec::new(), outputs: Vec::new() };
    for (name, tensor) in read_archive(path)? {
        let find = |ports: &[(&String, Type)]| ports.iter().find(|port| *port.0 == name).map(|port| port.1.clone());
        if let Some(kind) = find(inputs) {
            data.inputs.push((name, fitted(Value::Tensor(tensor), &kind)));
        } else if let Some(kind) = find(outputs) {
            data.outputs.push((name, fitted(Value::Tensor(tensor), &kind)));
        } else {
            let message = format!("`{}` holds `{name}`, which is neither input nor output", path.display());
            return Err(Failure::file(message).into());
        }
    }
    let missing = outputs.iter().find(|(name, _)| !data.outputs.iter().any(|(found, _)| found == *name));
    if let Some((name, _)) = missing {
        return Err(Failure::file(format!("`{}` lacks output `{name}`", path.display())).into());
    }
    Ok(data)
}
