//! Quantized graphs as integers: near their floats, and not further from what they mean.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{self, Random, graph, node, port, tensor};
use ipuc::calibrate::Calibrator;
use ipuc::compile::{Activations, CompileOptions, Source, WeightOptions, compile};
use ipuc::{Session, SessionOptions, Tensor, Value, open};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, attribute_proto,
};
use prost::Message as _;
use std::path::Path;
use std::sync::Arc;

const ROWS: usize = 400;
const INPUTS: usize = 70;
const OUTPUTS: usize = 24;
const X_SCALE: f32 = 0.037;
const X_ZERO: u8 = 119;
const Y_SCALE: f32 = 0.082;
const Y_ZERO: i8 = -17;

fn bytes(name: &str, shape: &[i64], data_type: i32, bytes: Vec<u8>) -> TensorProto {
    TensorProto { data_type: Some(data_type), raw_data: Some(bytes), ..tensor(name, shape, &[]) }
}

/// What the model holds, for the exact result.
struct Weights {
    codes: Vec<i8>,
    scales: Vec<f32>,
    bias: Vec<f32>,
}

fn weights() -> Weights {
    let mut random = Random::new(5);
    let codes = (0..INPUTS * OUTPUTS).map(|_| random.below(256) as u8 as i8).collect();
    let scales = (0..OUTPUTS).map(|_| (random.below(900) + 100) as f32 / 200_000.0).collect();
    let bias = (0..OUTPUTS).map(|_| random.below(2000) as f32 / 100.0 - 10.0).collect();
    Weights { codes, scales, bias }
}

/// `x` to codes and back, a product with codes of a scale for each output, a bias, and to codes and back again.
fn model(weights: &Weights) -> GraphProto {
    let codes = weights.codes.iter().map(|&code| code as u8).collect();
    let initializers = vec![
        tensor("xs", &[], &[X_SCALE]),
        bytes("xz", &[], 2, vec![X_ZERO]),
        bytes("w", &[INPUTS as i64, OUTPUTS as i64], 3, codes),
        tensor("ws", &[OUTPUTS as i64], &weights.scales),
        tensor("b", &[OUTPUTS as i64], &weights.bias),
        tensor("ys", &[], &[Y_SCALE]),
        bytes("yz", &[], 3, vec![Y_ZERO as u8]),
    ];
    let axis = AttributeProto {
        name: Some("axis".to_string()),
        i: Some(1),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        ..AttributeProto::default()
    };
    let weight = NodeProto { attribute: vec![axis], ..node("DequantizeLinear", &["w", "ws"], &["wd"]) };
    let nodes = vec![
        node("QuantizeLinear", &["x", "xs", "xz"], &["xq"]),
        node("DequantizeLinear", &["xq", "xs", "xz"], &["xd"]),
        weight,
        node("MatMul", &["xd", "wd"], &["p"]),
        node("Add", &["p", "b"], &["a"]),
        node("Relu", &["a"], &["r"]),
        node("QuantizeLinear", &["r", "ys", "yz"], &["yq"]),
        node("DequantizeLinear", &["yq", "ys", "yz"], &["y"]),
    ];
    let (inputs, outputs) = (INPUTS.to_string(), OUTPUTS.to_string());
    graph(vec![port("x", &["n", &inputs])], initializers, nodes, vec![port("y", &["n", &outputs])])
}

/// The codes that a compiled model gives, and the names of its operators.
fn run(folder: &Path, activations: Activations, shape: &[usize], x: &[f32]) -> (Vec<i32>, Vec<&'static str>) {
    let ipu = folder.join(format!("{activations:?}.ipu"));
    let source = Source { entry: "main".to_string(), path: folder.join("model.onnx") };
    compile(&[source], &ipu, &CompileOptions { activations, ..CompileOptions::default() }).unwrap();
    let model = open(&ipu).unwrap();
    let steps = model.manifest().blocks[0].steps.iter().map(|step| step.op.name()).collect();
    let mut session = Session::new(&model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
    let x = Value::from(Tensor::from_elements(shape, x).unwrap());
    let outputs = session.run(None, vec![("x".to_string(), x)]).unwrap();
    let values = outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap();
    (values.iter().map(|value| (value / Y_SCALE).round() as i32 + i32::from(Y_ZERO)).collect(), steps)
}

/// The codes before they are rounded, in f64.
fn exact(weights: &Weights, x: &[f32]) -> Vec<f64> {
    let mut results = Vec::with_capacity(ROWS * OUTPUTS);
    for row in x.chunks(INPUTS) {
        let code = |x: &f32| ((x / X_SCALE).round_ties_even() as i64 + i64::from(X_ZERO)).clamp(0, 255);
        let codes: Vec<i64> = row.iter().map(|x| code(x) - i64::from(X_ZERO)).collect();
        for output in 0..OUTPUTS {
            let of = |(input, code): (usize, &i64)| code * i64::from(weights.codes[input * OUTPUTS + output]);
            let sum: i64 = codes.iter().enumerate().map(of).sum();
            let value = sum as f64 * f64::from(X_SCALE) * f64::from(weights.scales[output]);
            let value = (value + f64::from(weights.bias[output])).max(0.0);
            results.push((value / f64::from(Y_SCALE) + f64::from(Y_ZERO)).clamp(-128.0, 127.0));
        }
    }
    results
}

#[test]
fn integers_are_within_a_code_of_floats_and_as_near_to_the_exact_result() {
    /// Roundings of f32 on the way to the largest code.
    const ROUNDINGS: f64 = 127.0 / (1 << 21) as f64;
    let folder = tempfile::tempdir().unwrap();
    let weights = weights();
    let opset = OperatorSetIdProto { domain: None, version: Some(21) };
    let onnx = ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset],
        graph: Some(model(&weights)),
        ..ModelProto::default()
    };
    std::fs::write(folder.path().join("model.onnx"), onnx.encode_to_vec()).unwrap();
    let mut random = Random::new(9);
    let x: Vec<f32> = (0..ROWS * INPUTS).map(|_| random.below(20_000) as f32 / 2000.0 - 5.0).collect();
    let (integers, steps) = run(folder.path(), Activations::Model, &[ROWS, INPUTS], &x);
    assert_eq!(steps, ["quantize", "integer_matmul", "dequantize"]);
    let (floats, steps) = run(folder.path(), Activations::Keep, &[ROWS, INPUTS], &x);
    assert!(steps.contains(&"matmul") && !steps.contains(&"integer_matmul"), "{steps:?}");
    let exact = exact(&weights, &x);
    let mut different = 0;
    for ((&integer, &float), &exact) in integers.iter().zip(&floats).zip(&exact) {
        let distance = |code: i32| (f64::from(code) - exact).abs();
        assert!(distance(integer) <= 0.5 + ROUNDINGS, "code {integer} for {exact}");
        assert!(distance(integer) <= distance(float) + ROUNDINGS, "codes {integer} and {float} for {exact}");
        assert!((integer - float).abs() <= 1, "codes {integer} and {float} for {exact}");
        different += usize::from(integer != float);
    }
    assert!(different * 1000 < integers.len(), "{different} of {} codes differ", integers.len());
    assert!(exact.iter().any(|&code| code > 100.0) && exact.iter().any(|&code| code == f64::from(Y_ZERO)));
}

#[test]
fn activations_of_products_with_codes_are_rounded_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights();
    let mut graph = model(&weights);
    // Without codes on the left.
    graph.node.retain(|node| !matches!(node.output[0].as_str(), "xq" | "xd"));
    for node in &mut graph.node {
        node.input.iter_mut().filter(|input| *input == "xd").for_each(|input| *input = "x".to_string());
    }
    let opset = OperatorSetIdProto { domain: None, version: Some(21) };
    let onnx =
        ModelProto { ir_version: Some(10), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() };
    std::fs::write(folder.path().join("model.onnx"), onnx.encode_to_vec()).unwrap();
    let mut random = Random::new(3);
    let x: Vec<f32> = (0..ROWS * INPUTS).map(|_| random.below(20_000) as f32 / 4000.0 - 2.5).collect();
    let (floats, steps) = run(folder.path(), Activations::Model, &[ROWS, INPUTS], &x);
    assert!(steps.contains(&"matmul"), "{steps:?}");
    assert_eq!(run(folder.path(), Activations::Keep, &[ROWS, INPUTS], &x).0, floats);
    let rounded = run(folder.path(), Activations::I8, &[ROWS, INPUTS], &x).0;
    assert!(rounded != floats, "8 bits are fewer than 24");
    let largest = rounded.iter().zip(&floats).map(|(rounded, float)| (rounded - float).abs()).max();
    assert!(largest.is_some_and(|largest| largest <= 2), "{largest:?}");
}

/// `x` by codes that are decoded by `nodes`; the result, and how the codes are stored.
fn decoded_by(folder: &Path, codes: &[i8], x: &[f32], nodes: Vec<NodeProto>) -> (Vec<f32>, Vec<String>) {
    let (rows, columns) = (INPUTS as i64, OUTPUTS as i64 * 3);
    let scales: Vec<f32> = (0..columns).map(|column| (column + 1) as f32 / 512.0).collect();
    let initializers = vec![
        bytes("w", &[rows, columns], 3, codes.iter().map(|&code| code as u8).collect()),
        tensor("s", &[columns], &scales),
    ];
    let (inputs, outputs) = (INPUTS.to_string(), columns.to_string());
    let mut all = nodes;
    all.push(node("MatMul", &["x", "d"], &["y"]));
    let graph = graph(vec![port("x", &["n", &inputs])], initializers, all, vec![port("y", &["n", &outputs])]);
    let opset = OperatorSetIdProto { domain: None, version: Some(21) };
    let onnx =
        ModelProto { ir_version: Some(10), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() };
    let (path, ipu) = (folder.join("decoded.onnx"), folder.join("decoded.ipu"));
    std::fs::write(&path, onnx.encode_to_vec()).unwrap();
    let source = Source { entry: "main".to_string(), path };
    let compiled = compile(&[source], &ipu, &CompileOptions::default()).unwrap();
    let stored = compiled.emitted.manifest.weights.iter().map(|weight| weight.encoding.to_string()).collect();
    let mut session = Session::new(&open(&ipu).unwrap(), &SessionOptions { threads: 2, seed: 0 }).unwrap();
    let x = Value::from(Tensor::from_elements(&[x.len() / INPUTS, INPUTS], x).unwrap());
    let outputs = session.run(None, vec![("x".to_string(), x)]).unwrap();
    (outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec(), stored)
}

#[test]
fn codes_that_a_model_decodes_step_by_step_stay_codes() {
    let attribute = |name: &str, value: i64| AttributeProto {
        name: Some(name.to_string()),
        i: Some(value),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        ..AttributeProto::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(11);
    let codes: Vec<i8> = (0..INPUTS * OUTPUTS * 3).map(|_| random.below(256) as u8 as i8).collect();
    let x: Vec<f32> = (0..5 * INPUTS).map(|_| random.below(2000) as f32 / 1000.0 - 1.0).collect();
    let dequantize =
        NodeProto { attribute: vec![attribute("axis", 1)], ..node("DequantizeLinear", &["w", "s"], &["d"]) };
    let (expected, stored) = decoded_by(folder.path(), &codes, &x, vec![dequantize]);
    assert!(matches!(stored.as_slice(), [only] if only.contains("panels dtype=i8")), "{stored:?}");
    for operands in [["c", "s"], ["s", "c"]] {
        let cast = NodeProto { attribute: vec![attribute("to", 1)], ..node("Cast", &["w"], &["c"]) };
        let steps = vec![cast, node("Mul", &operands, &["d"])];
        assert_eq!(decoded_by(folder.path(), &codes, &x, steps), (expected.clone(), stored.clone()), "{operands:?}");
    }
}

const CHANNELS: usize = 12;
const SIDE: usize = 9;

/// `x` to codes and back, a convolution of each channel with its own filter and a bias, a bound, and to codes and back.
fn depthwise_model(codes: Vec<u8>, scales: &[f32], bias: &[f32]) -> GraphProto {
    let channels = CHANNELS as i64;
    let initializers = vec![
        tensor("xs", &[], &[X_SCALE]),
        bytes("xz", &[], 2, vec![X_ZERO]),
        bytes("w", &[channels, 1, 3, 3], 3, codes),
        tensor("ws", &[channels], scales),
        tensor("b", &[channels], bias),
        tensor("least", &[], &[0.0]),
        tensor("greatest", &[], &[6.0]),
        tensor("ys", &[], &[Y_SCALE]),
        bytes("yz", &[], 3, vec![Y_ZERO as u8]),
    ];
    let integers = |name: &str, values: &[i64]| AttributeProto {
        name: Some(name.to_string()),
        ints: values.to_vec(),
        r#type: Some(attribute_proto::AttributeType::Ints as i32),
        ..AttributeProto::default()
    };
    let integer = |name: &str, value: i64| AttributeProto {
        name: Some(name.to_string()),
        i: Some(value),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        ..AttributeProto::default()
    };
    let weight = NodeProto { attribute: vec![integer("axis", 0)], ..node("DequantizeLinear", &["w", "ws"], &["wd"]) };
    let attribute = vec![integer("group", channels), integers("pads", &[1; 4]), integers("strides", &[2, 1])];
    let nodes = vec![
        node("QuantizeLinear", &["x", "xs", "xz"], &["xq"]),
        node("DequantizeLinear", &["xq", "xs", "xz"], &["xd"]),
        weight,
        NodeProto { attribute, ..node("Conv", &["xd", "wd", "b"], &["c"]) },
        node("Clip", &["c", "least", "greatest"], &["r"]),
        node("QuantizeLinear", &["r", "ys", "yz"], &["yq"]),
        node("DequantizeLinear", &["yq", "ys", "yz"], &["y"]),
    ];
    let [channels, side, rows] = [CHANNELS, SIDE, SIDE.div_ceil(2)].map(|extent| extent.to_string());
    let x = port("x", &["n", &channels, &side, &side]);
    graph(vec![x], initializers, nodes, vec![port("y", &["n", &channels, &rows, &side])])
}

#[test]
fn channels_with_filters_of_their_own_are_integers_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(17);
    let codes = (0..CHANNELS * 9).map(|_| random.below(256) as u8).collect();
    let scales: Vec<f32> = (0..CHANNELS).map(|_| (random.below(900) + 100) as f32 / 100_000.0).collect();
    let bias: Vec<f32> = (0..CHANNELS).map(|_| random.below(2000) as f32 / 1000.0 - 1.0).collect();
    let opset = OperatorSetIdProto { domain: None, version: Some(21) };
    let onnx = ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset],
        graph: Some(depthwise_model(codes, &scales, &bias)),
        ..ModelProto::default()
    };
    std::fs::write(folder.path().join("model.onnx"), onnx.encode_to_vec()).unwrap();
    let x: Vec<f32> = (0..2 * CHANNELS * SIDE * SIDE).map(|_| random.below(20_000) as f32 / 2000.0 - 5.0).collect();
    let shape = [2, CHANNELS, SIDE, SIDE];
    let (integers, steps) = run(folder.path(), Activations::Model, &shape, &x);
    assert_eq!(steps, ["quantize", "integer_convolution", "dequantize"]);
    let (floats, steps) = run(folder.path(), Activations::Keep, &shape, &x);
    assert!(steps.contains(&"convolution") && !steps.contains(&"integer_convolution"), "{steps:?}");
    let different = integers.iter().zip(&floats).filter(|(integer, float)| integer != float).count();
    assert!(integers.iter().zip(&floats).all(|(integer, float)| (integer - float).abs() <= 1));
    assert!(different * 1000 < integers.len(), "{different} of {} codes differ", integers.len());
    let distinct: std::collections::BTreeSet<i32> = integers.iter().copied().collect();
    assert!(distinct.len() > 50, "{distinct:?}");
}

/// Two convolutions and a product in floats: with weights of 8 bits and scales of activations from
/// examples all of it is integers, and near the floats on other inputs.
#[test]
fn activations_have_scales_from_examples_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(29);
    let mut numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|_| (random.below(2001) as f32 - 1000.0) / 4000.0).collect() };
    let shape = TensorProto {
        data_type: Some(7),
        raw_data: Some([0i64, -1].iter().flat_map(|extent| extent.to_le_bytes()).collect()),
        ..tensor("flat", &[2], &[])
    };
    let initializers = vec![
        tensor("first", &[32, 16, 3, 3], &numbers(32 * 16 * 9)),
        tensor("first.bias", &[32], &numbers(32)),
        tensor("second", &[32, 32, 3, 3], &numbers(32 * 32 * 9)),
        tensor("third", &[32 * 16, 24], &numbers(32 * 16 * 24)),
        shape,
    ];
    let nodes = vec![
        node("Conv", &["x", "first", "first.bias"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("Conv", &["b", "second"], &["c"]),
        node("Relu", &["c"], &["d"]),
        node("Reshape", &["d", "flat"], &["e"]),
        node("MatMul", &["e", "third"], &["y"]),
    ];
    let graph = graph(vec![port("x", &["n", "16", "8", "8"])], initializers, nodes, vec![port("y", &["n", "24"])]);
    let onnx = folder.path().join("model.onnx");
    std::fs::write(&onnx, support::model(graph)).unwrap();
    let sources = [Source { entry: "main".to_string(), path: onnx }];
    let mut example = |count: usize| {
        let x: Vec<f32> = numbers(count * 16 * 64).iter().map(|value| value * 3.0 + 0.2).collect();
        vec![("x".to_string(), Value::from(Tensor::from_elements(&[count, 16, 8, 8], &x).unwrap()))]
    };
    let (seen, other) = (example(4), example(3));
    let found = |options: &CompileOptions| {
        let ipu = folder.path().join("model.ipu");
        compile(&sources, &ipu, options).unwrap();
        let model = open(&ipu).unwrap();
        let steps: Vec<&'static str> = model.manifest().blocks[0].steps.iter().map(|step| step.op.name()).collect();
        let mut session = Session::new(&model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
        let outputs = session.run(None, other.clone()).unwrap();
        (steps, outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec())
    };
    let (_, floats) = found(&CompileOptions::default());
    let weights = WeightOptions { precision: Some("i8".parse().unwrap()), ..WeightOptions::default() };
    let mut options = CompileOptions { weights, activations: Activations::I8Static, ..CompileOptions::default() };
    let error = compile(&sources, &folder.path().join("none.ipu"), &options).unwrap_err().to_string();
    let expected = "activations of 8 bits with one scale take calibration, which shows what products read";
    assert!(error.contains(expected), "{error}");
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    calibrator.run(None, seen).unwrap();
    options.calibration = Arc::new(calibrator.finish().unwrap());
    let (steps, integers) = found(&options);
    // Channels lie side by side for both, and in planes behind them; the second has the activation, too.
    let convolutions = ["integer_convolution", "integer_convolution"];
    let expected = [
        &["quantize", "reshape", "transpose"],
        &convolutions[..],
        &["transpose", "reshape", "reshape", "quantize", "integer_matmul"],
    ];
    assert_eq!(steps, expected.concat());
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
    let wrong = square(&mut integers.iter().zip(&floats).map(|(integer, float)| integer - float));
    let share = (wrong / square(&mut floats.iter().copied())).sqrt();
    assert!(share < 0.02, "{share}");
}
