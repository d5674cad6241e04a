//! What is computed while compiling is what a run computes, bit by bit: cases whose inputs are stored in the model.

use super::memory::{compiled, optimized};
use ipuc::compile::CompileOptions;
use ipuc::{Session, SessionOptions, Tensor, Value, bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::read_value;
use ipuc_formats::onnx::schema::{GraphProto, ModelProto, TensorProto};
use prost::Message as _;
use std::collections::BTreeSet;
use std::path::Path;

/// What goes into a model in place of what a case has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elements {
    AsGiven,
    /// Floats of every input with NaN, infinities, the smallest numbers and -0 among them.
    Hard,
    /// The largest floats among those of every input: sums and squares overflow.
    Large,
}

impl Elements {
    /// All of them.
    pub const ALL: &[Elements] = &[Elements::AsGiven, Elements::Hard, Elements::Large];

    fn numbers(self) -> &'static [f64] {
        match self {
            Elements::AsGiven => &[],
            Elements::Hard => {
                &[-0.0, 1.0, f64::NAN, 0.5, 0.0, 1e-40, -2.0, f64::INFINITY, -0.5, -1e-42, 3.0, f64::NEG_INFINITY, 3e-8]
            }
            Elements::Large => &[3e38, 1.0, -3.2e38, f32::MAX as f64, 6e4, 2.9e38, -1e38, -65504.0],
        }
    }
}

/// A value by its name.
pub type Named = (String, Value);

/// The cases of one node of `tests/contrib` by name, with the first set of their inputs, one after another.
pub fn beside_onnx() -> impl Iterator<Item = (String, Single)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "onnx")).filter_map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (bytes, data) = (read(&path), GraphProto::decode(&read(&path.with_extension("data"))[..]).unwrap());
        let model = compiled(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let given = |port: ipuc::Port| {
            let of_port = format!("0.in.{}", port.name);
            let tensor = data.initializer.iter().find(|tensor| tensor.name() == of_port)?;
            Some((port.name, read_value(&tensor.encode_to_vec(), &port.kind).unwrap()))
        };
        let inputs = model.inputs(model.entry(None).unwrap()).into_iter().map(given).collect::<Option<Vec<Named>>>();
        let inputs = inputs.unwrap_or_else(|| panic!("{name} has no inputs"));
        Some((name, Single::new(&bytes, model, inputs)?))
    })
}

/// A model of one node, as it is and compiled, with inputs.
pub struct Single {
    model: ModelProto,
    compiled: ipuc::Model,
    inputs: Vec<Named>,
}

impl Single {
    /// `None` for a model of several nodes: its steps may be fused where they are run, and are not where they are computed.
    pub fn new(bytes: &[u8], compiled: ipuc::Model, inputs: Vec<Named>) -> Option<Single> {
        let model = ModelProto::decode(bytes).ok()?;
        let [_] = &model.graph.as_ref()?.node[..] else { return None };
        Some(Single { model, compiled, inputs })
    }

    /// Check that its outputs have the same bits when they are computed while compiling, of these inputs, of which those of floats
    /// change.
    pub fn check(&self, elements: Elements) -> Result<(), String> {
        let mut inputs = self.inputs.clone();
        if elements != Elements::AsGiven {
            let changes = inputs.iter_mut().enumerate().map(|(at, (_, value))| mix(value, at, elements.numbers()));
            if changes.filter(|changed| *changed).count() == 0 {
                return Ok(());
            }
        }
        let stored = stored(&self.model, &inputs).encode_to_vec();
        // What is not run, as shapes of the largest numbers, need not be compiled.
        let Ok(expected) = run(&self.compiled, inputs) else { return Ok(()) };
        let found = run(&compiled(&stored)?, Vec::new())?;
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            if let Some(place) = difference(found, expected) {
                return Err(format!("output `{name}` has other bits when it is computed while compiling: {place}"));
            }
        }
        Ok(())
    }

    /// The operators of `.ipu` files that are computed while compiling: those of the steps that are there after the import and of
    /// which none is left at the end.
    pub fn folded(&self) -> Result<BTreeSet<&'static str>, String> {
        let stored = stored(&self.model, &self.inputs).encode_to_vec();
        let (mut imported, mut left) = (BTreeSet::new(), BTreeSet::new());
        let options = CompileOptions { unfused: true, ..CompileOptions::default() };
        optimized(&stored, &options, &mut |pass, graph| {
            let blocks = graph.reachable_blocks().into_iter();
            left = blocks.flat_map(|block| &graph.block(block).steps).map(|step| step.op.name()).collect();
            if pass == "import" {
                imported = left.clone();
            }
        })?;
        Ok(imported.difference(&left).copied().collect())
    }
}

/// Put these numbers among the floats of a tensor; `false` where there are none.
fn mix(value: &mut Value, first: usize, numbers: &[f64]) -> bool {
    fn mixed<T: ipuc::Element + Copy>(tensor: &Tensor, place: impl Fn(usize) -> Option<T>) -> Option<Tensor> {
        let own = tensor.elements::<T>().ok()?;
        let elements: Vec<T> = own.iter().enumerate().map(|(at, &own)| place(at).unwrap_or(own)).collect();
        Tensor::from_elements(tensor.shape(), &elements).ok()
    }
    let Value::Tensor(tensor) = value else { return false };
    let place = |at: usize| (at % 3 == 1).then(|| numbers[(first * 5 + at) % numbers.len()]);
    let changed = match tensor.dtype() {
        DType::F32 => mixed(tensor, |at| place(at).map(|number| number as f32)),
        DType::F64 => mixed(tensor, place),
        DType::F16 => mixed(tensor, |at| place(at).map(f16::from_f64)),
        DType::BF16 => mixed(tensor, |at| place(at).map(bf16::from_f64)),
        _ => None,
    };
    changed.is_some_and(|changed| {
        *tensor = changed;
        true
    })
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

fn run(model: &ipuc::Model, inputs: Vec<Named>) -> Result<Vec<Named>, String> {
    let options = SessionOptions { threads: 1, seed: 0 };
    let mut session = Session::new(model, &options).map_err(|error| error.to_string())?;
    session.run(None, inputs).map_err(|error| error.to_string())
}

/// Where the bits of two values differ; those of NaN may.
fn difference(found: &Value, expected: &Value) -> Option<String> {
    if found == expected {
        return None;
    }
    let (Value::Tensor(found), Value::Tensor(expected)) = (found, expected) else {
        return Some("other values".to_string());
    };
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{} {:?}, not {} {:?}", found.dtype(), found.shape(), expected.dtype(), expected.shape()));
    }
    fn first<T: ipuc::Element + Copy>(found: &Tensor, expected: &Tensor, number: impl Fn(T) -> f64) -> Option<String> {
        let (Ok(found), Ok(expected)) = (found.elements::<T>(), expected.elements::<T>()) else {
            return Some("other elements".to_string());
        };
        let pairs = found.iter().zip(expected).map(|(&one, &two)| (number(one), number(two)));
        let differ = |(one, two): &(f64, f64)| one.to_bits() != two.to_bits() && !(one.is_nan() && two.is_nan());
        pairs
            .enumerate()
            .find(|(_, pair)| differ(pair))
            .map(|(at, (one, two))| format!("element {at}: {one:e}, not {two:e}"))
    }
    match found.dtype() {
        DType::F32 => first::<f32>(found, expected, f64::from),
        DType::F64 => first::<f64>(found, expected, |number| number),
        DType::F16 => first::<f16>(found, expected, f16::to_f64),
        DType::BF16 => first::<bf16>(found, expected, bf16::to_f64),
        _ => Some("other elements".to_string()),
    }
}
