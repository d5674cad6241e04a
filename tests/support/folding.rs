//! What is computed while compiling is what a run computes: cases whose inputs are stored in the model.

use ipuc::compare::{Tolerance, compare};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{Session, SessionOptions, Tensor, Value};
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{ModelProto, TensorProto};
use prost::Message as _;
use std::collections::BTreeSet;
use std::path::Path;

/// What goes into a model in place of what a case has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elements {
    AsGiven,
    /// Floats of the first input with NaN, an infinity, the smallest numbers and -0 among them. The largest are left out:
    /// sums of f32 overflow where the exact sum, which is then rounded, does not.
    Hard,
    /// The largest floats among those of the first input, for normalizations, whose sums of squares overflow.
    Large,
}

/// Operators that divide by what they sum.
const NORMALIZATIONS: &[&str] = &[
    "BatchNormalization",
    "BranchwiseRMSNorm",
    "GatedRMSNorm",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipGroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "Softmax",
];

const LARGE: &[f32] = &[3e38, 1.0, -3.2e38, f32::MAX, 2.9e38, -1e38];
const HARD: &[f32] = &[-0.0, 1.0, f32::NAN, 0.5, 0.0, 1e-40, -2.0, f32::INFINITY, -0.5, -1e-42, 3.0];

/// Operators whose kernels leave out products with 0 and what is masked, whose NaN the exact sums keep.
const NAN_ELSEWHERE: &[&str] =
    &["Attention", "DFT", "GroupQueryAttention", "Irfft", "MultiHeadAttention", "Rfft", "STFT", "SparseAttention"];

/// A value by its name.
pub type Named = (String, Value);

/// Check a model of one node with these inputs, of which the first one changes; `Some` operator whose results have other bits
/// where it is computed while compiling.
pub fn check(bytes: &[u8], mut inputs: Vec<Named>, elements: Elements) -> Result<Option<String>, String> {
    let model = ModelProto::decode(bytes).map_err(|error| error.to_string())?;
    let graph = model.graph.as_ref().ok_or("no graph")?;
    let [node] = &graph.node[..] else { return Ok(None) };
    let operator = node.op_type();
    let numbers = match elements {
        Elements::AsGiven => None,
        Elements::Hard if NAN_ELSEWHERE.contains(&operator) => return Ok(None),
        Elements::Hard => Some(HARD),
        Elements::Large if !NORMALIZATIONS.contains(&operator) => return Ok(None),
        Elements::Large => Some(LARGE),
    };
    if let Some(numbers) = numbers {
        let changed = match inputs.first() {
            Some((_, Value::Tensor(tensor))) => mixed(tensor, numbers),
            _ => None,
        };
        let (Some(changed), Some(first)) = (changed, inputs.first_mut()) else { return Ok(None) };
        first.1 = changed.into();
    }
    let stored = stored(&model, &inputs).encode_to_vec();
    // What is not run, as shapes of the largest numbers, need not be compiled.
    let Ok(expected) = run(bytes, inputs) else { return Ok(None) };
    let found = run(&stored, Vec::new())?;
    let mut differs = None;
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        if !same(found, expected) {
            differs = Some(operator.to_string());
            compare(name, found, expected, Tolerance::default()).map_err(|mismatch| mismatch.to_string())?;
        }
    }
    Ok(differs)
}

/// Add what `check` found to operators whose results have other bits.
pub fn note(found: Result<Option<String>, String>, rounded: &std::sync::Mutex<BTreeSet<String>>) -> Result<(), String> {
    if let Some(operator) = found? {
        rounded.lock().map_err(|error| error.to_string())?.insert(operator);
    }
    Ok(())
}

/// The tensor with these numbers among its elements; `None` where they are no f32.
fn mixed(tensor: &Tensor, numbers: &[f32]) -> Option<Tensor> {
    let own = tensor.elements::<f32>().ok()?;
    let pairs = own.iter().zip(numbers.iter().cycle()).enumerate();
    let elements: Vec<f32> = pairs.map(|(index, (&own, &number))| if index % 3 == 1 { number } else { own }).collect();
    Tensor::from_elements(tensor.shape(), &elements).ok()
}

/// The model with its inputs stored in it.
fn stored(model: &ModelProto, inputs: &[Named]) -> ModelProto {
    let mut model = model.clone();
    let Some(graph) = model.graph.as_mut() else { return model };
    for (name, value) in inputs {
        let Value::Tensor(tensor) = value else { continue };
        graph.input.retain(|input| input.name() != name);
        let mut proto = TensorProto {
            name: Some(name.clone()),
            dims: tensor.shape().iter().map(|&extent| extent as i64).collect(),
            data_type: Some(tensor.dtype().onnx_code()),
            ..TensorProto::default()
        };
        match tensor.strings() {
            Ok(texts) => proto.string_data = texts.iter().map(|text| text.clone().into_bytes()).collect(),
            Err(_) => proto.raw_data = Some(tensor.bytes().to_vec()),
        }
        graph.initializer.push(proto);
    }
    model
}

/// A model in memory, compiled and opened.
pub fn opened(model: &[u8], folder: &Path) -> Result<ipuc::Model, String> {
    let (path, output) = (folder.join("model.onnx"), folder.join("model.ipu"));
    std::fs::write(&path, model).map_err(|error| error.to_string())?;
    let source = Source { entry: "main".to_string(), path };
    compile(&[source], &output, &CompileOptions::default()).map_err(|error| error.to_string())?;
    ipuc::open(&output).map_err(|error| error.to_string())
}

fn run(model: &[u8], inputs: Vec<Named>) -> Result<Vec<Named>, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let model = opened(model, scratch.path())?;
    let mut session =
        Session::new(&model, &SessionOptions { threads: 1, seed: 0 }).map_err(|error| error.to_string())?;
    session.run(None, inputs).map_err(|error| error.to_string())
}

/// The same bits, but for those of NaN.
fn same(found: &Value, expected: &Value) -> bool {
    if found == expected {
        return true;
    }
    let (Value::Tensor(found), Value::Tensor(expected)) = (found, expected) else { return false };
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) || found.dtype() == DType::String {
        return false;
    }
    match (found.elements::<f32>(), expected.elements::<f32>()) {
        (Ok(found), Ok(expected)) => {
            let same = |(one, two): (&f32, &f32)| one.to_bits() == two.to_bits() || (one.is_nan() && two.is_nan());
            found.iter().zip(expected).all(same)
        }
        _ => false,
    }
}
