//! What is computed while compiling is what a run computes, bit by bit: cases whose inputs are stored in the model.

use ipuc::compile::{CompileOptions, Optimized, Source, compile};
use ipuc::passes::ir::Graph;
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

/// The cases of `tests/contrib`: name, model, and the first set of inputs.
pub fn beside_onnx() -> Vec<(String, Vec<u8>, Vec<Named>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib");
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let models = files.filter(|path| path.extension().is_some_and(|extension| extension == "onnx"));
    let case = |path: std::path::PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let scratch = tempfile::tempdir().ok()?;
        let (bytes, data) = (read(&path), GraphProto::decode(&read(&path.with_extension("data"))[..]).ok()?);
        let model = opened(&bytes, scratch.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let given = |port: ipuc::Port| {
            let tensor = data.initializer.iter().find(|tensor| tensor.name() == format!("0.in.{}", port.name))?;
            Some((port.name, read_value(&tensor.encode_to_vec(), &port.kind).ok()?))
        };
        let inputs = model.inputs(model.entry(None).ok()?).into_iter().map(given).collect::<Option<Vec<Named>>>();
        Some((name.clone(), bytes, inputs.unwrap_or_else(|| panic!("{name} has no inputs"))))
    };
    models.filter_map(case).collect()
}

/// Check a model of one node with these inputs, of which those of floats change; gives the operators of `.ipu` files that were
/// computed while compiling.
pub fn check(bytes: &[u8], mut inputs: Vec<Named>, elements: Elements) -> Result<BTreeSet<&'static str>, String> {
    let model = ModelProto::decode(bytes).map_err(|error| error.to_string())?;
    // Steps of several nodes may be fused where they are run, and are not where they are computed.
    let [_] = &model.graph.as_ref().ok_or("no graph")?.node[..] else { return Ok(BTreeSet::new()) };
    if elements != Elements::AsGiven {
        let changes = inputs.iter_mut().enumerate().map(|(at, (_, value))| mix(value, at, elements.numbers()));
        if changes.filter(|changed| *changed).count() == 0 {
            return Ok(BTreeSet::new());
        }
    }
    let stored = stored(&model, &inputs).encode_to_vec();
    // What is not run, as shapes of the largest numbers, need not be compiled.
    let Ok(expected) = run(bytes, inputs) else { return Ok(BTreeSet::new()) };
    let folded = folded(&stored)?;
    let found = run(&stored, Vec::new())?;
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        if let Some(place) = difference(found, expected) {
            return Err(format!("output `{name}` has other bits when it is computed while compiling: {place}"));
        }
    }
    Ok(folded)
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

/// A model in memory, as a source for the compiler.
fn source(model: &[u8], folder: &Path) -> Result<Source, String> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model).map_err(|error| error.to_string())?;
    Ok(Source { entry: "main".to_string(), path })
}

/// A model in memory, compiled and opened.
pub fn opened(model: &[u8], folder: &Path) -> Result<ipuc::Model, String> {
    let output = folder.join("model.ipu");
    compile(&[source(model, folder)?], &output, &CompileOptions::default()).map_err(|error| error.to_string())?;
    ipuc::open(&output).map_err(|error| error.to_string())
}

/// Operators of the steps that are there after the import and of which none is left at the end.
fn folded(model: &[u8]) -> Result<BTreeSet<&'static str>, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (mut imported, mut left) = (BTreeSet::new(), BTreeSet::new());
    let operators = |graph: &Graph| -> BTreeSet<&'static str> {
        graph
            .reachable_blocks()
            .into_iter()
            .flat_map(|block| &graph.block(block).steps)
            .map(|step| step.op.name())
            .collect()
    };
    let options = CompileOptions { unfused: true, ..CompileOptions::default() };
    Optimized::new(&[source(model, scratch.path())?], &options, &mut |report, graph| {
        if report.pass == "import" {
            imported = operators(graph);
        }
        left = operators(graph);
    })
    .map_err(|error| error.to_string())?;
    Ok(imported.difference(&left).copied().collect())
}

fn run(model: &[u8], inputs: Vec<Named>) -> Result<Vec<Named>, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let model = opened(model, scratch.path())?;
    let mut session =
        Session::new(&model, &SessionOptions { threads: 1, seed: 0 }).map_err(|error| error.to_string())?;
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
