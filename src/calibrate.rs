//! Calibration: runs of a model on examples, which show what its products read.

mod effects;
#[cfg(feature = "generate")]
mod text;
mod windows;

use crate::compile::{Activations, Budget, CompileError, CompileOptions, Source, WeightOptions, compile};
use crate::open::{OpenFileError, open};
use effects::{Example, effect, output_error, results};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord};
use ipuc_formats::ops::Op;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_passes::moments::{Calibration, Moments};
use ipuc_runtime::{Model, Observer, RunError, Session, SessionOptions};
use std::borrow::Cow;
use std::collections::BTreeMap;
#[cfg(feature = "generate")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use windows::Windows;

/// Why a model cannot be calibrated.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// It cannot be compiled as it is.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// There is no room for the compiled model.
    #[error("cannot create a temporary folder: {0}")]
    Folder(std::io::Error),
    /// The compiled model cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenFileError),
    /// An example does not fit, or fails.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A product read NaN or an infinity.
    #[error("example {example} gives `{value}` a NaN or an infinity, which says nothing about its weights")]
    NotFinite {
        /// Number of the example, from 0.
        example: usize,
        /// ONNX name of the value.
        value: String,
    },
    /// A text has no tokens without a tokenizer.
    #[cfg(feature = "generate")]
    #[error("the folder `{}` has no tokenizer.json to make tokens of a text", folder.display())]
    NoTokenizer {
        /// The folder of the model.
        folder: PathBuf,
    },
    /// The tokenizer is of no use.
    #[cfg(feature = "generate")]
    #[error("cannot make tokens of a text with `{}`: {reason}", path.display())]
    Tokenizer {
        /// Where it is.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An input that a text says nothing of.
    #[cfg(feature = "generate")]
    #[error("a text gives no value to input `{name}`: give examples of all inputs instead (.npz)")]
    Input {
        /// Its name.
        name: String,
    },
    /// No example showed anything.
    #[error("no example was run")]
    NoExample,
    /// An error of outputs where none can be measured.
    #[error("no output is a tensor of floats, so that --max-error cannot be measured on examples")]
    NoFloats,
    /// An error of outputs that no choice keeps to.
    #[error("the outputs are off by {found} with all weights as they are, and --max-error is {most}")]
    OutputError {
        /// What was asked for.
        most: f64,
        /// The least that was found.
        found: f64,
    },
}

/// Examples that are kept to measure outputs with: so many at most of each entry, and bytes of their inputs and outputs.
const KEPT_EXAMPLES: usize = 8;
const KEPT_BYTES: usize = 256 << 20;

/// Examples of each entry that show what errors of single values do: each costs a run for each weight.
const EFFECT_EXAMPLES: usize = 2;

/// How often a choice of precisions is measured, and tightened or loosened by what was found.
const TRIES: usize = 6;

/// Shares of an error that is asked for within which a measured one is good enough, and which the next try aims at.
const ENOUGH: f64 = 0.9;
const AIMED: f64 = 0.97;

/// A value that products with weights read.
struct Watched {
    name: String,
    /// What is counted of it beside the sizes of its elements.
    counted: Counted,
}

/// How products read a value.
enum Counted {
    /// Its last axis, which has so many elements.
    Rows(usize),
    /// In windows of so many elements.
    Windows(usize, Windows),
    /// In groups of channels, of which nothing more is known.
    Groups,
}

/// Runs examples through a model as it is, with every step on its own, and keeps the second moments of what products with
/// weights read.
pub struct Calibrator {
    // Before the folder, which it may read.
    model: Model,
    watched: BTreeMap<u32, Watched>,
    /// Values that steps compute with weights, with the axis of their channels.
    results: BTreeMap<u32, usize>,
    calibration: Calibration,
    examples: usize,
    /// With a budget or a threshold: what outputs are measured with.
    kept: Vec<Example>,
    kept_bytes: usize,
    sources: Vec<Source>,
    options: CompileOptions,
    /// How examples are run.
    session: SessionOptions,
    /// Tokenizer and settings of a language model.
    #[cfg(feature = "generate")]
    attachments: Vec<ipuc_formats::model::AttachmentRecord>,
    /// Where a tokenizer may be beside the model.
    #[cfg(feature = "generate")]
    source_folder: PathBuf,
    folder: tempfile::TempDir,
}

impl Calibrator {
    /// Compile models as the options say, but neither fused nor rounded.
    ///
    /// # Errors
    /// [`CalibrateError`] where they cannot be compiled or opened.
    pub fn new(sources: &[Source], options: &CompileOptions) -> Result<Calibrator, CalibrateError> {
        let folder = tempfile::tempdir().map_err(CalibrateError::Folder)?;
        let file = folder.path().join("calibrated.ipu");
        let plain = CompileOptions {
            states: Vec::new(),
            cache: None,
            prefill: None,
            attachments: Vec::new(),
            activations: Activations::Keep,
            weights: WeightOptions::default(),
            sparse_threshold: None,
            calibration: Arc::default(),
            unfused: true,
            placements: Vec::new(),
            ..options.clone()
        };
        let compiled = compile(sources, &file, &plain)?;
        // With a budget or a threshold the model is made again, as it is asked for but for entries of its own.
        let options_of_trials = CompileOptions {
            states: options.states.clone(),
            cache: options.cache,
            activations: options.activations,
            weights: options.weights.clone(),
            sparse_threshold: options.sparse_threshold,
            unfused: options.unfused,
            ..plain
        };
        let model = open(&file)?;
        // An opened model has no records of weights.
        let (watched, results) = (watched(&compiled.emitted.manifest), results(&compiled.emitted.manifest));
        let calibration = Calibration { factors: factors(&compiled.emitted.manifest), ..Calibration::default() };
        Ok(Calibrator {
            model,
            watched,
            results,
            calibration,
            examples: 0,
            kept: Vec::new(),
            kept_bytes: 0,
            sources: sources.to_vec(),
            options: options_of_trials,
            session: SessionOptions::default(),
            #[cfg(feature = "generate")]
            attachments: options.attachments.clone(),
            #[cfg(feature = "generate")]
            source_folder: sources.first().and_then(|source| source.path.parent()).unwrap_or(Path::new("")).to_owned(),
            folder,
        })
    }

    /// Have examples run on so many threads, on all cores where 0.
    pub fn set_threads(&mut self, threads: usize) {
        self.session.threads = threads;
    }

    /// The model that runs examples, for the names and types of its inputs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Run an example. State is an input as any other.
    ///
    /// # Errors
    /// [`CalibrateError::Run`] where inputs do not fit, [`CalibrateError::NotFinite`] where a product reads NaN.
    pub fn run(&mut self, entry: Option<&str>, inputs: Vec<(String, Value)>) -> Result<(), CalibrateError> {
        let outputs = self.observe(entry, inputs.clone())?;
        self.keep(entry, inputs, outputs)
    }

    /// Run an example and count what products read; gives its outputs.
    fn observe(
        &mut self,
        entry: Option<&str>,
        inputs: Vec<(String, Value)>,
    ) -> Result<Vec<(String, Value)>, CalibrateError> {
        let mut session = Session::new(&self.model, &self.session)?;
        let mut seen = Seen { watched: &self.watched, tensors: Vec::new() };
        let outputs = session.run_observed(entry, inputs.clone(), &mut seen)?;
        // No step computes inputs, and products may read them.
        let record = self.model.entry(entry)?;
        let values = &self.model.manifest().blocks[record.block as usize].values;
        for (name, value) in &inputs {
            if let Some(at) = record.inputs.iter().position(|input| input == name) {
                seen.value(values[at].id, value);
            }
        }
        for (number, tensor) in seen.tensors {
            let watched = &self.watched[&number];
            // Others are not multiplied with weights of floats.
            let Ok(elements) = tensor.elements::<f32>() else { continue };
            if elements.iter().any(|element| !element.is_finite()) {
                return Err(CalibrateError::NotFinite { example: self.examples, value: watched.name.clone() });
            }
            self.calibration.spreads.entry(number).or_default().add(elements);
            let (channels, rows) = match &watched.counted {
                Counted::Rows(channels) => (*channels, Cow::Borrowed(elements)),
                Counted::Windows(channels, windows) => (*channels, Cow::Owned(windows.rows(tensor.shape(), elements))),
                Counted::Groups => continue,
            };
            let moments = self.calibration.moments.entry(number);
            moments.or_insert_with(|| Moments::new(channels)).add(&rows);
        }
        self.examples += 1;
        Ok(outputs)
    }

    /// Keep an example where outputs are to be measured with it, and there is room.
    fn keep(
        &mut self,
        entry: Option<&str>,
        inputs: Vec<(String, Value)>,
        outputs: Vec<(String, Value)>,
    ) -> Result<(), CalibrateError> {
        let tensors = inputs.iter().chain(&outputs).filter_map(|(_, value)| value.as_tensor());
        let bytes: usize = tensors.map(|tensor| tensor.bytes().len()).sum();
        let has_room = self.kept.is_empty() || self.kept_bytes.saturating_add(bytes) <= KEPT_BYTES;
        let entry = self.model.entry(entry)?.name.clone();
        if self.keeps(&entry) && has_room {
            self.kept.push(Example { entry, inputs, outputs });
            self.kept_bytes += bytes;
        }
        Ok(())
    }

    /// Whether outputs are to be measured, with more examples of an entry.
    fn keeps(&self, entry: &str) -> bool {
        let of_entry = self.kept.iter().filter(|example| example.entry == entry).count();
        let are_measured = self.options.weights.budget.is_some() || self.options.sparse_threshold.is_some();
        are_measured && of_entry < KEPT_EXAMPLES
    }

    /// What was measured, for [`CompileOptions::calibration`]. With a budget each weight's effect on outputs is measured too,
    /// by a run of two examples for each, and an error of outputs is kept to on up to eight examples, by compiling up to six
    /// times into a temporary folder.
    ///
    /// # Errors
    /// [`CalibrateError::NoExample`]; with a budget [`CalibrateError::OutputError`], and what compiling and running give.
    pub fn finish(self) -> Result<Calibration, CalibrateError> {
        self.finish_shown(&|_, _| {})
    }

    /// [`Calibrator::finish`], with how many runs are done of how many.
    ///
    /// # Errors
    /// As [`Calibrator::finish`].
    pub fn finish_shown(mut self, progress: &dyn Fn(u64, u64)) -> Result<Calibration, CalibrateError> {
        if self.examples == 0 {
            return Err(CalibrateError::NoExample);
        }
        let Some(budget) = self.options.weights.budget else { return self.with_threshold() };
        let is_first = |(at, example): &(usize, &Example)| {
            let before = self.kept[..*at].iter().filter(|other| other.entry == example.entry);
            before.count() < EFFECT_EXAMPLES
        };
        let examples: Vec<&Example> =
            self.kept.iter().enumerate().filter(is_first).map(|(_, example)| example).collect();
        for (done, (&number, &channels)) in self.results.iter().enumerate() {
            progress(done as u64, self.results.len() as u64);
            if let Some(effect) = effect(&self.model, &self.session, &examples, number, channels)? {
                self.calibration.effects.insert(number, effect);
            }
        }
        match budget {
            Budget::Size(_) => self.with_threshold(),
            Budget::Error(most) => self.within(most),
        }
    }

    /// The error of outputs of the model as it is asked for.
    fn error_of(&self, options: &CompileOptions) -> Result<f64, CalibrateError> {
        let file = self.folder.path().join("tried.ipu");
        compile(&self.sources, &file, options)?;
        let model = open(&file)?;
        let error = output_error(&self.kept, |example| example.run(&model, &self.session))?;
        error.ok_or(CalibrateError::NoFloats)
    }

    /// With a threshold: measure what it does to outputs, beside what is done to them without it.
    fn with_threshold(mut self) -> Result<Calibration, CalibrateError> {
        if self.options.sparse_threshold.is_some() {
            let measured = Arc::new(self.calibration.clone());
            let with = CompileOptions { calibration: measured, ..self.options.clone() };
            let without = CompileOptions { sparse_threshold: None, ..with.clone() };
            self.calibration.threshold_errors = Some([self.error_of(&with)?, self.error_of(&without)?]);
        }
        Ok(self.calibration)
    }

    /// Find the part of an error that estimates may take so that outputs keep to it.
    fn within(mut self, most: f64) -> Result<Calibration, CalibrateError> {
        let mut tried = Arc::new(std::mem::take(&mut self.calibration));
        // Parts and errors of choices that keep to it and that do not.
        let (mut kept, mut missed): (Option<(f64, f64)>, Option<f64>) = (None, None);
        let mut part = 1.0;
        let mut least = f64::INFINITY;
        for left in (0..TRIES).rev() {
            // The last try leaves all weights as they are.
            part = if left == 0 && kept.is_none() { 0.0 } else { part };
            Arc::make_mut(&mut tried).error_part = part;
            let options = CompileOptions { calibration: tried.clone(), ..self.options.clone() };
            let error = self.error_of(&options)?;
            drop(options);
            least = least.min(error);
            if error <= most {
                kept = Some((part, error));
                if error >= ENOUGH * most || error == 0.0 {
                    break;
                }
            } else {
                missed = Some(part);
            }
            let aimed = part * AIMED * most / error;
            part = match (kept, missed) {
                (None, _) => aimed,
                (Some(_), None) => aimed.min(8.0 * part),
                // Between both, nearer to what the last one says.
                (Some((low, _)), Some(high)) if low < aimed && aimed < high => aimed,
                (Some((low, _)), Some(high)) => (low * high).sqrt(),
            };
        }
        let (part, error) = kept.ok_or(CalibrateError::OutputError { most, found: least })?;
        self.calibration = Arc::unwrap_or_clone(tried);
        (self.calibration.error_part, self.calibration.output_error) = (part, Some(error));
        self.with_threshold()
    }
}

/// The values that products of matrices and convolutions read beside weights, by their number.
fn watched(manifest: &Manifest) -> BTreeMap<u32, Watched> {
    let of_block = |block: &BlockRecord| -> Vec<(u32, Watched)> {
        let read = |step: &ipuc_formats::model::StepRecord| {
            let [OperandRecord::Value(slot), OperandRecord::Weight(weight), ..] = step.operands.as_slice() else {
                return None;
            };
            let shape = &manifest.weights[*weight as usize].shape;
            let channels = || usize::try_from(step.op.weight_matrix(1, shape)?.inputs).ok();
            let counted = match &step.op {
                Op::Matmul(product) => (!product.transpose_a).then_some(Counted::Rows(channels()?))?,
                Op::Convolution(convolution) => match Windows::of(convolution, shape) {
                    Some(windows) => Counted::Windows(channels()?, windows),
                    None => Counted::Groups,
                },
                _ => return None,
            };
            let value = &block.values[*slot as usize];
            let name = value.name.clone().unwrap_or_else(|| step.name.clone());
            Some((value.id, Watched { name, counted }))
        };
        block.steps.iter().filter_map(read).collect()
    };
    let mut all: BTreeMap<u32, Watched> = BTreeMap::new();
    // Of several ways in which a value is read the first is watched of which most is known.
    for (number, watched) in manifest.blocks.iter().flat_map(of_block) {
        let known = all.get(&number).map(|known| &known.counted);
        if matches!(known, None | Some(Counted::Groups)) {
            all.insert(number, watched);
        }
    }
    all
}

/// The values that products of matrices multiply each weight with, by the number of its constant; those of which a product does
/// otherwise are left out.
fn factors(manifest: &Manifest) -> BTreeMap<u32, Vec<u32>> {
    let mut all: BTreeMap<u32, Option<Vec<u32>>> = BTreeMap::new();
    for block in &manifest.blocks {
        for step in &block.steps {
            let (Op::Matmul(product), Some(OperandRecord::Weight(weight))) = (&step.op, step.operands.get(1)) else {
                continue;
            };
            let values = all.entry(manifest.weights[*weight as usize].id).or_insert_with(|| Some(Vec::new()));
            match (step.operands.first(), values.as_mut()) {
                (Some(OperandRecord::Value(slot)), Some(values)) if !product.transpose_a => {
                    values.push(block.values[*slot as usize].id);
                }
                (_, _) => *values = None,
            }
        }
    }
    all.into_iter().filter_map(|(weight, values)| Some((weight, values?))).collect()
}

/// Keeps what is watched of a run.
struct Seen<'a> {
    watched: &'a BTreeMap<u32, Watched>,
    tensors: Vec<(u32, Tensor)>,
}

impl Observer for Seen<'_> {
    fn begin(&mut self) {
        self.tensors.clear();
    }

    fn restart(&mut self) {
        self.tensors.clear();
    }

    fn block(&mut self, _block: u32) {}

    fn value(&mut self, number: u32, value: &Value) {
        if let (Some(watched), Some(tensor)) = (self.watched.get(&number), value.as_tensor())
            && match &watched.counted {
                Counted::Rows(channels) => tensor.shape().last() == Some(channels),
                Counted::Windows(..) | Counted::Groups => true,
            }
        {
            self.tensors.push((number, tensor.clone()));
        }
    }
}
