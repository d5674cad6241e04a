//! `ipuc compare`: how far the results of a model lie from those of another, and from which step on.

mod page;
mod text;

use super::Outcome;
use super::execute::{DimensionArguments, Loaded, ModelArguments, complete};
use super::failure::{Code, Failure};
use super::output::{Output, count};
use super::present::short;
use super::progress::{Bar, Unit};
use super::sizes::{Beginning, Sizes};
use super::verify::{data_set_paths, read_inputs};
use super::written::{Written, prepare};
use crate::accuracy::{Deviation, Ranking};
use anyhow::Context;
use clap::Args;
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::ops::scalar::scalars;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Observer, Session};
use page::{Page, Sample};
use serde::Serialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Run two models on the same inputs and show how far the first lies from the second
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The model that is right, an .ipu or .onnx file or the folder of a language model: say, the one in floats
    reference: PathBuf,
    #[command(flatten)]
    dimensions: DimensionArguments,
    /// A folder of test_data_set_N/input_K.pb, or an archive of inputs by name [default: the reference's folder]
    #[arg(long, value_name = "DIR|FILE.npz", conflicts_with = "random")]
    data: Option<PathBuf>,
    /// Make up the inputs; open dimensions are 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// How many values of steps are shown, those that are furthest first; --json shows all
    #[arg(long, value_name = "N", default_value = "20")]
    steps: usize,
    /// Compare language models by how well they tell each token of a text from those before it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "random", "entry"])]
    text: Option<PathBuf>,
    /// How many tokens are read at a time; each window begins with an empty context
    #[arg(long, value_name = "N", default_value = "512", requires = "text")]
    window: NonZeroUsize,
    /// Read no more than the first N tokens of the text
    #[arg(long, value_name = "N", requires = "text")]
    tokens: Option<usize>,
    /// Write a page with plots: elements of outputs, signal to noise along the model, or perplexity of windows of a text; - is
    /// stdout, and the result goes to stderr
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    model: &'a Path,
    reference: &'a Path,
    data_sets: usize,
    outputs: Vec<OutputSummary>,
    steps: Vec<StepSummary>,
}

#[derive(Serialize)]
struct OutputSummary {
    name: String,
    elements: u64,
    not_finite: u64,
    maximum: f64,
    mean: f64,
    relative: Option<f64>,
    cosine: Option<f64>,
    /// Rows along the last axis, where it is longer than 1.
    rows: u64,
    same_first: u64,
    first_among_five: u64,
}

#[derive(Serialize)]
struct StepSummary {
    name: String,
    /// In decibels; null where nothing differs.
    signal_to_noise: Option<f64>,
    maximum: f64,
}

/// What the page draws.
#[derive(Serialize)]
struct Plots {
    samples: Vec<Sample>,
    /// Indices of the steps of the summary, in the order in which they are computed.
    order: Vec<usize>,
}

/// What was measured of an output.
struct Measured {
    deviation: Deviation,
    ranking: Ranking,
    sample: Sample,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let page = Written { what: "the page", path: arguments.html.as_deref(), is_text: true };
    prepare(&[page], output)?;
    let found = Loaded::open(&arguments.model, &arguments.dimensions, output)?;
    let reference = Loaded::open(&arguments.model.with_model(&arguments.reference), &arguments.dimensions, output)?;
    let name = arguments.model.entry.as_deref();
    if let Some(path) = &arguments.text {
        let limits = (arguments.window.get(), arguments.tokens);
        return text::run(path, limits, &found, &reference, arguments.html.as_deref(), output);
    }
    let (entry, reference_entry) = (found.model.entry(name)?, reference.model.entry(name)?);
    let parent = arguments.reference.parent().filter(|folder| !folder.as_os_str().is_empty());
    let data = arguments.data.as_deref().or(parent).unwrap_or(Path::new("."));
    let sets: Vec<Option<PathBuf>> = match arguments.random {
        Some(_) => vec![None],
        None => data_set_paths(data)?.into_iter().map(Some).collect(),
    };
    let common = Common::new(found.model.manifest(), entry, reference.model.manifest(), reference_entry);
    let Compared { outputs, mut steps } =
        compared(arguments, (&found, entry), (&reference, reference_entry), &common, &sets, output)?;
    steps.sort_by(|one, other| one.deviation.signal_to_noise().total_cmp(&other.deviation.signal_to_noise()));
    show(&outputs, &steps, arguments.steps, output)?;
    let summary = Summary {
        model: &found.path,
        reference: &reference.path,
        data_sets: sets.len(),
        outputs: outputs.iter().map(|(name, measured)| summary(name.clone(), measured)).collect(),
        steps: steps.iter().map(|step| step_summary(step.name, &step.deviation)).collect(),
    };
    if let Some(path) = &arguments.html {
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by_key(|&step| steps[step].computed);
        let samples = outputs.into_values().map(|measured| measured.sample).collect();
        Page { result: &summary, plots: Plots { samples, order } }.write(path)?;
    }
    output.json(&summary)?;
    Ok(Code::Success)
}

/// What was measured over all data sets.
struct Compared<'a> {
    outputs: BTreeMap<String, Measured>,
    steps: Vec<MeasuredStep<'a>>,
}

/// What was measured of a value that both models compute.
struct MeasuredStep<'a> {
    name: &'a String,
    deviation: Deviation,
    /// Its place among the values that the reference computes.
    computed: usize,
}

fn compared<'a>(
    arguments: &Arguments,
    (found, entry): (&Loaded, &EntryRecord),
    (reference, reference_entry): (&Loaded, &EntryRecord),
    common: &'a Common,
    sets: &[Option<PathBuf>],
    output: &Output,
) -> anyhow::Result<Compared<'a>> {
    let name = arguments.model.entry.as_deref();
    let (mut session, mut reference_session) = (found.session()?, reference.session()?);
    let mut outputs: BTreeMap<String, Measured> = BTreeMap::new();
    let step = |name| MeasuredStep { name, deviation: Deviation::default(), computed: 0 };
    let mut steps: Vec<MeasuredStep> = common.names.iter().map(step).collect();
    let bar = Bar::new(output, "comparing", Unit::Items);
    for (index, set) in sets.iter().enumerate() {
        bar.set(index as u64, sets.len() as u64);
        let given = match set {
            Some(path) => read_inputs(path, &reference.model, reference_entry)?,
            None => Vec::new(),
        };
        let given = started(reference, reference_entry, &mut reference_session, given, arguments, output)?;
        let mut recorder = Recorder { numbers: &common.reference, values: BTreeMap::new(), order: Vec::new() };
        let expected = reference_session.run_observed(name, given.inputs.clone(), &mut recorder)?;
        let all = given.states.into_iter().chain(given.inputs).collect();
        let given = started(found, entry, &mut session, all, arguments, output)?;
        recorder.order.iter().enumerate().for_each(|(place, &step)| steps[step].computed = place);
        let expected_values = recorder.values;
        let mut comparer = Comparer { numbers: &common.found, expected: &expected_values, seen: BTreeMap::new() };
        let results = session.run_observed(name, given.inputs, &mut comparer)?;
        for (step, seen) in comparer.seen {
            steps[step].deviation.add(&seen, &expected_values[&step].elements);
        }
        for (name, expected) in &expected {
            let result = results.iter().find(|(found, _)| found == name).map(|(_, value)| value);
            let result = result.ok_or_else(|| Failure::usage(format!("the first model has no output `{name}`")))?;
            let measured = outputs.entry(name.clone()).or_insert_with(|| Measured::of(name));
            measured.add(name, result, expected, sets.len())?;
        }
    }
    drop(bar);
    steps.retain(|step| step.deviation.elements > 0);
    Ok(Compared { outputs, steps })
}

/// Values of the entries' own blocks that both models name alike.
struct Common {
    names: Vec<String>,
    /// Numbers of values of the first model, and the index of their name.
    found: BTreeMap<u32, usize>,
    /// The same of the reference.
    reference: BTreeMap<u32, usize>,
}

impl Common {
    fn new(found: &Manifest, entry: &EntryRecord, reference: &Manifest, reference_entry: &EntryRecord) -> Common {
        let named = |manifest: &Manifest, entry: &EntryRecord| -> BTreeMap<String, u32> {
            let block = &manifest.blocks[entry.block as usize];
            block.values.iter().filter_map(|value| Some((value.name.clone()?, value.id))).collect()
        };
        let (found, reference) = (named(found, entry), named(reference, reference_entry));
        let mut common = Common { names: Vec::new(), found: BTreeMap::new(), reference: BTreeMap::new() };
        for (name, number) in found {
            if let Some(&other) = reference.get(&name) {
                common.found.insert(number, common.names.len());
                common.reference.insert(other, common.names.len());
                common.names.push(name);
            }
        }
        common
    }
}

/// A tensor of numbers.
struct Numbers {
    shape: Vec<usize>,
    elements: Vec<f64>,
}

/// The floats of a value; none of codes, indices and what is no tensor.
fn floats(value: &Value) -> Option<Numbers> {
    let tensor = value.as_tensor().filter(|tensor| tensor.dtype().is_float())?;
    numbers(tensor)
}

fn numbers(tensor: &Tensor) -> Option<Numbers> {
    let elements = scalars(tensor).ok()?.into_iter().map(|element| element.to_f64()).collect();
    Some(Numbers { shape: tensor.shape().to_vec(), elements })
}

/// Keeps the values that are compared, by the index of their name.
struct Recorder<'a> {
    numbers: &'a BTreeMap<u32, usize>,
    values: BTreeMap<usize, Numbers>,
    /// Indices of names as their values are computed.
    order: Vec<usize>,
}

impl Observer for Recorder<'_> {
    fn begin(&mut self) {
        self.values.clear();
        self.order.clear();
    }

    fn restart(&mut self) {
        self.begin();
    }

    fn block(&mut self, _block: u32) {}

    fn value(&mut self, number: u32, value: &Value) {
        if let Some(&name) = self.numbers.get(&number)
            && let Some(numbers) = floats(value)
        {
            self.values.insert(name, numbers);
            self.order.push(name);
        }
    }
}

/// Keeps the values that have a counterpart of the same shape.
struct Comparer<'a> {
    numbers: &'a BTreeMap<u32, usize>,
    expected: &'a BTreeMap<usize, Numbers>,
    seen: BTreeMap<usize, Vec<f64>>,
}

impl Observer for Comparer<'_> {
    fn begin(&mut self) {
        self.seen.clear();
    }

    fn restart(&mut self) {
        self.seen.clear();
    }

    fn block(&mut self, _block: u32) {}

    fn value(&mut self, number: u32, value: &Value) {
        if let Some(&name) = self.numbers.get(&number)
            && let (Some(found), Some(expected)) = (floats(value), self.expected.get(&name))
            && found.shape == expected.shape
        {
            self.seen.insert(name, found.elements);
        }
    }
}

/// What a run begins with.
struct Given {
    states: Vec<(String, Value)>,
    inputs: Vec<(String, Value)>,
}

/// A session at its beginning, with the states that are given; what is missing is made up where the user wants that.
fn started(
    loaded: &Loaded,
    entry: &EntryRecord,
    session: &mut Session,
    given: Vec<(String, Value)>,
    arguments: &Arguments,
    output: &Output,
) -> anyhow::Result<Given> {
    let is_state = |name: &str| {
        let input = entry.inputs.iter().position(|input| input == name);
        input.is_some_and(|input| entry.state_of_input(input).is_some())
    };
    let (states, inputs): (Vec<_>, Vec<_>) = given.into_iter().partition(|(name, _)| is_state(name));
    let sizes = Sizes { dimensions: &arguments.dimensions.dim, beginning: Beginning::Given };
    let inputs = complete(&loaded.model, entry, inputs, arguments.random, sizes, output)
        .with_context(|| format!("inputs of `{}`", loaded.path.display()))?;
    session.reset();
    for (name, value) in &states {
        session.set_state(name, value.clone())?;
    }
    Ok(Given { states, inputs: inputs.values })
}

impl Measured {
    fn of(name: &str) -> Measured {
        Measured { deviation: Deviation::default(), ranking: Ranking::default(), sample: Sample::of(name) }
    }

    fn add(&mut self, name: &str, found: &Value, expected: &Value, data_sets: usize) -> anyhow::Result<()> {
        let (Some(found), Some(expected)) = (found.as_tensor(), expected.as_tensor()) else {
            return Err(Failure::usage(format!("output `{name}` is no tensor")).into());
        };
        if found.shape() != expected.shape() {
            let (found, expected) = (found.shape(), expected.shape());
            return Err(Failure::usage(format!("output `{name}` has shape {found:?} and {expected:?}")).into());
        }
        let (Some(found), Some(expected)) = (numbers(found), numbers(expected)) else {
            return Err(Failure::usage(format!("output `{name}` holds no numbers")).into());
        };
        self.deviation.add(&found.elements, &expected.elements);
        if let Some(&length @ 2..) = expected.shape.last() {
            self.ranking.add(&found.elements, &expected.elements, length);
        }
        self.sample.add(&found.elements, &expected.elements, data_sets);
        Ok(())
    }
}

fn summary(name: String, Measured { deviation, ranking, sample: _ }: &Measured) -> OutputSummary {
    OutputSummary {
        name,
        elements: deviation.elements,
        not_finite: deviation.not_finite,
        maximum: deviation.maximum,
        mean: deviation.mean(),
        relative: deviation.relative(),
        cosine: deviation.cosine(),
        rows: ranking.rows,
        same_first: ranking.first,
        first_among_five: ranking.among_five,
    }
}

fn step_summary(name: &str, deviation: &Deviation) -> StepSummary {
    let noise = deviation.signal_to_noise();
    StepSummary {
        name: name.to_string(),
        signal_to_noise: noise.is_finite().then_some(noise),
        maximum: deviation.maximum,
    }
}

fn show(
    outputs: &BTreeMap<String, Measured>,
    steps: &[MeasuredStep],
    most: usize,
    output: &mut Output,
) -> anyhow::Result<()> {
    let mut table = vec![["maximum", "mean", "relative", "cosine", "top 1", "top 5", "output"].map(str::to_string)];
    for (name, Measured { deviation, ranking, sample: _ }) in outputs {
        let known = |measure: Option<f64>| measure.map_or("-".to_string(), |measure| format!("{measure:.6}"));
        let share = |count: u64| match ranking.rows {
            0 => "-".to_string(),
            rows => format!("{count}/{rows}"),
        };
        table.push([
            short(deviation.maximum),
            short(deviation.mean()),
            known(deviation.relative()),
            known(deviation.cosine()),
            share(ranking.first),
            share(ranking.among_five),
            name.clone(),
        ]);
    }
    output.table(table)?;
    let mut table = vec![["signal to noise, dB", "maximum", "value"].map(str::to_string)];
    for MeasuredStep { name, deviation, computed: _ } in steps.iter().take(most) {
        let noise = deviation.signal_to_noise();
        let noise = if noise == f64::INFINITY { "same".to_string() } else { format!("{noise:.1}") };
        table.push([noise, short(deviation.maximum), (*name).clone()]);
    }
    if table.len() > 1 {
        output.line("")?;
        output.table(table)?;
    }
    if steps.len() > most {
        output.remark(format_args!("and {} more", count(steps.len() - most, "value")))?;
    }
    Ok(())
}
