//! Calibration: runs of a model on examples, which show what its products read.

#[cfg(feature = "generate")]
mod text;

use crate::compile::{Activations, CompileError, CompileOptions, Source, WeightOptions, compile};
use crate::open::{OpenFileError, open};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord};
use ipuc_formats::ops::Op;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_passes::moments::{Calibration, Moments};
use ipuc_runtime::{Model, Observer, RunError, Session, SessionOptions};
use std::collections::BTreeMap;
#[cfg(feature = "generate")]
use std::path::{Path, PathBuf};
use thiserror::Error;

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
}

/// A value that products with weights read.
struct Watched {
    name: String,
    channels: usize,
}

/// Runs examples through a model as it is, with every step on its own, and keeps the second moments of what products with
/// weights read.
pub struct Calibrator {
    // Before the folder, which it may read.
    model: Model,
    watched: BTreeMap<u32, Watched>,
    moments: Calibration,
    examples: usize,
    /// Tokenizer and settings of a language model.
    #[cfg(feature = "generate")]
    attachments: Vec<ipuc_formats::model::AttachmentRecord>,
    /// Where a tokenizer may be beside the model.
    #[cfg(feature = "generate")]
    source_folder: PathBuf,
    _folder: tempfile::TempDir,
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
            calibration: Default::default(),
            unfused: true,
            placements: Vec::new(),
            ..options.clone()
        };
        let compiled = compile(sources, &file, &plain)?;
        let model = open(&file)?;
        let watched = watched(&compiled.emitted.manifest);
        Ok(Calibrator {
            model,
            watched,
            moments: Calibration::new(),
            examples: 0,
            #[cfg(feature = "generate")]
            attachments: options.attachments.clone(),
            #[cfg(feature = "generate")]
            source_folder: sources.first().and_then(|source| source.path.parent()).unwrap_or(Path::new("")).to_owned(),
            _folder: folder,
        })
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
        let mut session = Session::new(&self.model, &SessionOptions::default())?;
        let mut seen = Seen { watched: &self.watched, tensors: Vec::new() };
        session.run_observed(entry, inputs.clone(), &mut seen)?;
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
            self.moments.entry(number).or_insert_with(|| Moments::new(watched.channels)).add(elements);
        }
        self.examples += 1;
        Ok(())
    }

    /// What was measured, for [`CompileOptions::calibration`].
    ///
    /// # Errors
    /// [`CalibrateError::NoExample`].
    pub fn finish(self) -> Result<Calibration, CalibrateError> {
        if self.examples == 0 { Err(CalibrateError::NoExample) } else { Ok(self.moments) }
    }
}

/// The values that matrix products with weights read, by their number.
fn watched(manifest: &Manifest) -> BTreeMap<u32, Watched> {
    let of_block = |block: &BlockRecord| -> Vec<(u32, Watched)> {
        let read = |step: &ipuc_formats::model::StepRecord| {
            let [OperandRecord::Value(slot), OperandRecord::Weight(weight), ..] = step.operands.as_slice() else {
                return None;
            };
            let matrix = step.op.weight_matrix(1, &manifest.weights[*weight as usize].shape)?;
            let Op::Matmul(product) = &step.op else { return None };
            let value = &block.values[*slot as usize];
            let name = value.name.clone().unwrap_or_else(|| step.name.clone());
            let channels = usize::try_from(matrix.inputs).ok()?;
            (!product.transpose_a).then_some((value.id, Watched { name, channels }))
        };
        block.steps.iter().filter_map(read).collect()
    };
    manifest.blocks.iter().flat_map(of_block).collect()
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
            && tensor.shape().last() == Some(&watched.channels)
        {
            self.tensors.push((number, tensor.clone()));
        }
    }
}
