//! What is computed while compiling is what a run computes: cases whose inputs are stored in the model.

use crate::Case;
use ipuc::compare::{Tolerance, compare};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{Session, SessionOptions, Tensor, Value};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::onnx::schema::{ModelProto, TensorProto};
use prost::Message as _;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

/// What goes into a model in place of what the suite has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elements {
    AsGiven,
    /// Floats of the first input with NaN, an infinity, the smallest numbers and -0 among them. The largest are left out:
    /// sums of f32 overflow where the exact sum, which is then rounded, does not.
    Hard,
}

const HARD: &[f32] = &[-0.0, 1.0, f32::NAN, 0.5, 0.0, 1e-40, -2.0, f32::INFINITY, -0.5, -1e-42, 3.0];

/// Operators whose kernels leave out products with 0 and what is masked, whose NaN the exact sums keep.
const NAN_ELSEWHERE: &[&str] = &["Attention", "DFT", "STFT"];

type Named = (String, Value);

/// Check one case; operators whose results have other bits are added to `rounded`.
pub fn check(case: &Case, elements: Elements, rounded: &Mutex<BTreeSet<String>>) -> Result<(), String> {
    let Ok(bytes) = std::fs::read(case.folder.join("model.onnx")) else { return Ok(()) };
    let model = ModelProto::decode(&bytes[..]).map_err(|error| error.to_string())?;
    let graph = model.graph.as_ref().ok_or("no graph")?;
    let [node] = &graph.node[..] else { return Ok(()) };
    if elements == Elements::Hard && NAN_ELSEWHERE.contains(&node.op_type()) {
        return Ok(());
    }
    let Some(inputs) = inputs(&bytes, &case.folder.join("test_data_set_0"), elements)? else { return Ok(()) };
    let stored = stored(&model, &inputs).encode_to_vec();
    // What is not run, as shapes of the largest numbers, need not be compiled.
    let Ok(expected) = run(&bytes, inputs) else { return Ok(()) };
    let found = run(&stored, Vec::new())?;
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        if same(found, expected) {
            continue;
        }
        rounded.lock().map_err(|error| error.to_string())?.insert(node.op_type().to_string());
        compare(name, found, expected, Tolerance::default()).map_err(|mismatch| mismatch.to_string())?;
    }
    Ok(())
}

/// The inputs of a data set; `None` where one is no tensor or there are none.
fn inputs(model: &[u8], set: &Path, elements: Elements) -> Result<Option<Vec<Named>>, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let Ok(model) = opened(model, scratch.path()) else { return Ok(None) };
    let ports = model.inputs(model.entry(None).map_err(|error| error.to_string())?);
    let mut inputs = Vec::with_capacity(ports.len());
    for (index, port) in ports.into_iter().enumerate() {
        let Type::Tensor { .. } = port.kind else { return Ok(None) };
        let Some(value) = crate::read(set, "input", index, &port.kind) else { return Ok(None) };
        let value = match value? {
            Value::Tensor(tensor) if index == 0 && elements == Elements::Hard => match hardened(&tensor) {
                Some(tensor) => tensor.into(),
                None => return Ok(None),
            },
            value => value,
        };
        inputs.push((port.name, value));
    }
    Ok(if inputs.is_empty() { None } else { Some(inputs) })
}

/// The tensor with hard numbers among its elements; `None` where they are no f32.
fn hardened(tensor: &Tensor) -> Option<Tensor> {
    let own = tensor.elements::<f32>().ok()?;
    let numbers = own.iter().zip(HARD.iter().cycle()).enumerate();
    let elements: Vec<f32> = numbers.map(|(index, (&own, &hard))| if index % 3 == 1 { hard } else { own }).collect();
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

fn opened(model: &[u8], folder: &Path) -> Result<ipuc::Model, String> {
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
