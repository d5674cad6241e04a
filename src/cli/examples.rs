//! Examples that `compile` calibrates with: which they are, and what they show, now or in an earlier run.

use super::arguments::{Dimension, NamedModel};
use super::execute::{Inputs, complete};
use super::failure::in_models;
use super::output::Output;
use super::progress::{Bar, Unit, waiting};
use super::random::Generator;
use super::sizes::{Beginning, Sizes};
use super::verify::{data_set_paths, read_inputs};
use crate::cache::{Cache, Examples};
use crate::calibrate::{CalibrateError, Calibrator};
use crate::compile::{Calibration, CompileOptions, Source};
use anyhow::Context;
use clap::Args;
use ipuc_formats::model::EntryRecord;
use ipuc_runtime::Port;

/// Which examples.
#[derive(Debug, Args)]
pub(super) struct ExampleArguments {
    /// Runs on examples that show what products read, so that rounding costs their results less: an .npz file, a data set
    /// as of ONNX, a folder of these, or a text (.txt) for a model with a tokenizer; of an entry where NAME is given
    #[arg(long, value_name = "PATH|NAME=PATH", group = "examples")]
    calibrate: Vec<NamedModel>,
    /// Calibrate with made-up inputs, for lack of better ones: tokens of all that a language model knows, else numbers, at
    /// the sizes of --dim
    #[arg(long, value_name = "SEED", group = "examples")]
    calibrate_random: Option<u64>,
    /// How many tokens of a text are read to calibrate, or made up
    #[arg(long, value_name = "N", default_value = "8192", requires = "examples")]
    calibrate_tokens: usize,
    /// Calibrate in any case: neither use nor keep what the same examples showed before (`ipuc cache`)
    #[arg(long)]
    no_cache: bool,
}

impl ExampleArguments {
    /// The option by which there are any.
    pub(super) fn option(&self) -> Option<&'static str> {
        let random = self.calibrate_random.map(|_| "--calibrate-random");
        if self.calibrate.is_empty() { random } else { Some("--calibrate") }
    }
}

/// A model that is to be calibrated: with which examples, and how it is compiled.
pub(super) struct Calibrating<'a> {
    pub(super) arguments: &'a ExampleArguments,
    /// Sizes of inputs that are made up.
    pub(super) dimensions: &'a [Dimension],
    pub(super) sources: &'a [Source],
    pub(super) options: &'a CompileOptions,
    /// Threads of runs; all cores where 0.
    pub(super) threads: usize,
    pub(super) output: &'a Output,
}

/// Examples that are made up of every entry.
const RANDOM_EXAMPLES: u64 = 8;

impl Calibrating<'_> {
    /// What the examples show, now or in an earlier run; nothing where there are none.
    pub(super) fn calibration(&self) -> anyhow::Result<Calibration> {
        if self.arguments.option().is_none() {
            return Ok(Calibration::default());
        }
        let (sources, options) = (self.sources, self.options);
        let cache = if self.arguments.no_cache { None } else { Cache::of_user() };
        let Some(cache) = cache else { return self.measured() };
        let examples = self.examples();
        if let Some(known) = cache.find_calibration(sources, options, &examples) {
            self.output.note("note: what these examples showed before is used again; --no-cache runs them anew");
            return Ok(known);
        }
        let place = cache.place_calibration(sources, options, &examples);
        let calibration = self.measured()?;
        let kept = place.and_then(|place| cache.keep_calibration(&place, sources, &examples, &calibration));
        if let Err(error) = kept {
            self.output.note(format_args!("note: cannot keep what the examples showed: {error}"));
        }
        Ok(calibration)
    }

    /// What is run to calibrate.
    fn examples(&self) -> Examples {
        let ExampleArguments { calibrate, calibrate_random, calibrate_tokens, no_cache: _ } = self.arguments;
        let names: Vec<_> = calibrate.iter().map(|example| (&example.name, example.path.is_dir())).collect();
        let choices = format!("{names:?} {calibrate_random:?} {calibrate_tokens} {:?}", self.dimensions);
        Examples { paths: calibrate.iter().map(|example| example.path.clone()).collect(), choices }
    }

    /// What running the examples shows.
    fn measured(&self) -> anyhow::Result<Calibration> {
        let in_models = |error| match error {
            CalibrateError::Compile(error) => in_models(error, self.sources),
            error => error.into(),
        };
        let compiling = waiting(self.output, "compiling the model as it is, to calibrate");
        let mut calibrator = Calibrator::new(self.sources, self.options).map_err(in_models)?;
        calibrator.set_threads(self.threads);
        drop(compiling);
        let shown = waiting(self.output, "calibrating");
        for NamedModel { name, path } in &self.arguments.calibrate {
            let entry = calibrator.model().entry(name.as_deref())?.clone();
            if path.extension().is_some_and(|extension| extension == "txt") {
                shown.say(format_args!("calibrating with `{}`", path.display()));
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
                let run = calibrator.run_text(Some(&entry.name), &text, self.arguments.calibrate_tokens);
                run.with_context(|| format!("cannot calibrate with `{}`", path.display()))?;
                continue;
            }
            let sets = data_set_paths(path)?;
            for (index, set) in sets.iter().enumerate() {
                shown.say(format_args!("calibrating: example {} of {}", index + 1, sets.len()));
                let inputs = read_inputs(set, calibrator.model(), &entry)?;
                let run = calibrator.run(Some(&entry.name), inputs);
                run.with_context(|| format!("cannot calibrate with `{}`", set.display()))?;
            }
        }
        if let Some(seed) = self.arguments.calibrate_random {
            self.run_random(&mut calibrator, seed)?;
        }
        drop(shown);
        let bar = Bar::new(self.output, "measuring what weights do to outputs", Unit::Items);
        let finished = calibrator.finish_shown(&|done, all| bar.set(done, all));
        drop(bar);
        finished.map_err(in_models)
    }

    /// Run made-up inputs through all entries.
    fn run_random(&self, calibrator: &mut Calibrator, seed: u64) -> anyhow::Result<()> {
        let output = self.output;
        output.note("note: made-up inputs say little of what products read in use; --calibrate takes examples");
        let entries: Vec<EntryRecord> = calibrator.model().manifest().entries.clone();
        for entry in entries {
            if calibrator.is_language_model() {
                calibrator.run_random_tokens(Some(&entry.name), seed, self.arguments.calibrate_tokens)?;
                continue;
            }
            let sizes = Sizes { dimensions: self.dimensions, beginning: Beginning::Given };
            let Inputs { values, bindings, .. } =
                complete(calibrator.model(), &entry, Vec::new(), Some(seed), sizes, output)?;
            calibrator.run(Some(&entry.name), values)?;
            let ports = calibrator.model().inputs(&entry);
            for example in 1..RANDOM_EXAMPLES {
                let mut generator = Generator::new(seed.wrapping_add(example));
                let value = |port: &Port| Ok((port.name.clone(), generator.value(&port.name, &port.kind, &bindings)?));
                let values = ports.iter().map(value).collect::<anyhow::Result<_>>()?;
                calibrator.run(Some(&entry.name), values)?;
            }
        }
        Ok(())
    }
}
