//! What calibration changes beside rounded weights: biases take out the mean error, and constants before products take on the
//! sizes of channels. No step is added, and errors of results fall.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{Random, graph, model, node, port, tensor};
use ipuc::calibrate::Calibrator;
use ipuc::compile::{CompileOptions, Source, WeightOptions, compile};
use ipuc::{Session, SessionOptions, Tensor, Value, open};
use ipuc_formats::model::Manifest;
use ipuc_formats::onnx::schema::{AttributeProto, GraphProto, NodeProto, attribute_proto};
use std::path::Path;
use std::sync::Arc;

const CHANNELS: usize = 96;
const HIDDEN: usize = 128;
const ROWS: usize = 64;

/// Bell-shaped numbers.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    let mut uniform = || random.below(2001) as f32 / 1000.0 - 1.0;
    (0..count).map(|_| uniform() + uniform() + uniform()).collect()
}

fn weight(random: &mut Random, name: &str, shape: [usize; 2]) -> ipuc_formats::onnx::schema::TensorProto {
    let elements: Vec<f32> = numbers(random, shape[0] * shape[1]).iter().map(|value| value / 16.0).collect();
    tensor(name, &shape.map(|extent| extent as i64), &elements)
}

fn all(precision: &str) -> WeightOptions {
    WeightOptions { precision: Some(precision.parse().unwrap()), ..WeightOptions::default() }
}

/// What a model becomes with these options, without and with calibration: its manifest and what it makes of the examples; before
/// them what the floats make of them.
struct Compared {
    floats: Vec<f32>,
    found: [(Manifest, Vec<f32>); 2],
}

fn compared(folder: &Path, graph: GraphProto, weights: WeightOptions, inputs: &[(String, Value)]) -> Compared {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    let sources = [Source { entry: "main".to_string(), path }];
    let made = |options: &CompileOptions| {
        let file = folder.join("model.ipu");
        let compiled = compile(&sources, &file, options).unwrap();
        let opened = open(&file).unwrap();
        let mut session = Session::new(&opened, &SessionOptions { threads: 2, seed: 0 }).unwrap();
        let outputs = session.run(None, inputs.to_vec()).unwrap();
        (compiled.emitted.manifest, outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec())
    };
    let (_, floats) = made(&CompileOptions::default());
    let mut options = CompileOptions { weights, ..CompileOptions::default() };
    let plain = made(&options);
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    calibrator.run(None, inputs.to_vec()).unwrap();
    options.calibration = Arc::new(calibrator.finish().unwrap());
    let calibrated = made(&options);
    assert!(made(&options).1 == calibrated.1, "a second time the same");
    let operators = |manifest: &Manifest| -> Vec<&str> {
        manifest.blocks.iter().flat_map(|block| &block.steps).map(|step| step.op.name()).collect()
    };
    assert_eq!(operators(&calibrated.0), operators(&plain.0), "no step is added");
    Compared { floats, found: [plain, calibrated] }
}

impl Compared {
    /// Root mean squares of the errors without and with calibration.
    fn errors(&self) -> [f64; 2] {
        self.found.each_ref().map(|(_, found)| {
            let squares = found.iter().zip(&self.floats).map(|(found, float)| f64::from(found - float).powi(2));
            (squares.sum::<f64>() / self.floats.len() as f64).sqrt()
        })
    }

    /// The root mean square of the mean errors of outputs.
    fn mean_errors(&self, outputs: usize) -> [f64; 2] {
        self.found.each_ref().map(|(_, found)| {
            let mean = |output: usize| {
                let errors = found.iter().zip(&self.floats).skip(output).step_by(outputs);
                errors.map(|(found, float)| f64::from(found - float)).sum::<f64>() / ROWS as f64
            };
            ((0..outputs).map(|output| mean(output).powi(2)).sum::<f64>() / outputs as f64).sqrt()
        })
    }

    fn reason(&self, name: &str) -> &str {
        let manifest = &self.found[1].0;
        &manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap().reason
    }
}

/// Inputs that are far from zero: errors of weights shift results, and the bias takes that out.
#[test]
fn biases_take_up_mean_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(3);
    let bias = tensor("b", &[HIDDEN as i64], &numbers(&mut random, HIDDEN));
    let weights = vec![
        weight(&mut random, "w", [CHANNELS, HIDDEN]),
        bias,
        // The last product before an output has 8 bits.
        weight(&mut random, "last", [HIDDEN, HIDDEN]),
    ];
    let nodes = vec![
        node("MatMul", &["x", "w"], &["p"]),
        node("Add", &["p", "b"], &["y"]),
        node("MatMul", &["y", "last"], &["z"]),
    ];
    let (channels, hidden) = (CHANNELS.to_string(), HIDDEN.to_string());
    let outputs = vec![port("y", &["n", &hidden]), port("z", &["n", &hidden])];
    let graph = graph(vec![port("x", &["n", &channels])], weights, nodes, outputs);
    let x: Vec<f32> = numbers(&mut random, ROWS * CHANNELS).iter().map(|value| value + 2.0).collect();
    let inputs = vec![("x".to_string(), Tensor::from_elements(&[ROWS, CHANNELS], &x).unwrap().into())];
    let compared = compared(folder.path(), graph, all("i4"), &inputs);
    assert!(compared.reason("w").contains(", mean error taken out of the bias: "), "{}", compared.reason("w"));
    let ([plain, calibrated], [plain_mean, mean]) = (compared.errors(), compared.mean_errors(HIDDEN));
    assert!(calibrated < 0.7 * plain, "{calibrated} for {plain}");
    assert!(mean < 1e-3 * plain_mean, "{mean} for {plain_mean}");
}

fn convolution(inputs: &[&str], output: &str) -> NodeProto {
    let pads = AttributeProto {
        name: Some("pads".to_string()),
        ints: vec![1; 4],
        r#type: Some(attribute_proto::AttributeType::Ints as i32),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![pads], ..node("Conv", inputs, &[output]) }
}

/// A convolution without a bias gets one; the channels between two convolutions are scaled through what keeps signs.
#[test]
fn convolutions_get_biases_and_scaled_channels() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(5);
    let (outer, inner) = (32i64, 32usize);
    let mut first = numbers(&mut random, 32 * 32 * 9);
    // Some channels of the first are large, and the second has small weights for them.
    let mut second = numbers(&mut random, 32 * 32 * 9);
    let size = |channel: usize| if channel % 8 == 3 { 32.0 } else { 1.0 };
    first.iter_mut().enumerate().for_each(|(at, value)| *value *= size(at / (32 * 9)) / 16.0);
    second.iter_mut().enumerate().for_each(|(at, value)| *value /= size(at / 9 % 32) * 16.0);
    let weights = vec![
        tensor("first", &[inner as i64, outer, 3, 3], &first),
        tensor("first.bias", &[inner as i64], &numbers(&mut random, inner)),
        tensor("second", &[outer, inner as i64, 3, 3], &second),
    ];
    let nodes = vec![
        convolution(&["x", "first", "first.bias"], "c"),
        node("Relu", &["c"], &["r"]),
        convolution(&["r", "second"], "y"),
    ];
    let graph =
        graph(vec![port("x", &["1", "32", "12", "12"])], weights, nodes, vec![port("y", &["1", "32", "12", "12"])]);
    let x = numbers(&mut random, 32 * 144);
    let inputs = vec![("x".to_string(), Tensor::from_elements(&[1, 32, 12, 12], &x).unwrap().into())];
    // Codes whatever they cost: the policy would leave the second one in floats.
    let codes = WeightOptions { each: vec![("*".to_string(), "i8".parse().unwrap())], ..WeightOptions::default() };
    let compared = compared(folder.path(), graph, codes, &inputs);
    let (first, second) = (compared.reason("first"), compared.reason("second"));
    assert!(first.contains(", outputs scaled for second"), "{first}");
    assert!(second.contains(", inputs scaled by powers of two: "), "{second}");
    assert!(second.contains(", mean error taken out of the bias: "), "{second}");
    let [plain, calibrated] = compared.errors();
    assert!(calibrated < 0.4 * plain, "{calibrated} for {plain}");
}

/// Channels of a normalization and of a gated product that are large, with small weights behind them, as in decoders.
#[test]
fn sizes_of_channels_move_into_weights() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(7);
    let size = |channel: usize| if channel % 8 == 5 { 16.0 } else { 1.0 };
    let scale: Vec<f32> = (0..CHANNELS).map(size).collect();
    // Each weight divides the channels that it reads, and `up` makes some of its own large.
    let mut matrix = |name: &str, [inputs, outputs]: [usize; 2], factor: &dyn Fn(usize, usize) -> f32| {
        let mut elements = numbers(&mut random, inputs * outputs);
        elements.iter_mut().enumerate().for_each(|(at, value)| *value *= factor(at / outputs, at % outputs) / 16.0);
        tensor(name, &[inputs as i64, outputs as i64], &elements)
    };
    let weights = [
        matrix("gate", [CHANNELS, HIDDEN], &|input, _| 1.0 / size(input)),
        matrix("up", [CHANNELS, HIDDEN], &|input, output| size(output) / size(input)),
        matrix("down", [HIDDEN, CHANNELS], &|input, _| 1.0 / size(input)),
        matrix("last", [CHANNELS, CHANNELS], &|_, _| 1.0),
    ];
    let epsilon = AttributeProto {
        name: Some("epsilon".to_string()),
        f: Some(1e-5),
        r#type: Some(attribute_proto::AttributeType::Float as i32),
        ..AttributeProto::default()
    };
    let weights = [tensor("scale", &[CHANNELS as i64], &scale)].into_iter().chain(weights).collect();
    let nodes = vec![
        NodeProto { attribute: vec![epsilon], ..node("LayerNormalization", &["x", "scale"], &["h"]) },
        node("MatMul", &["h", "gate"], &["g"]),
        node("MatMul", &["h", "up"], &["u"]),
        node("Sigmoid", &["g"], &["s"]),
        node("Mul", &["s", "u"], &["p"]),
        node("MatMul", &["p", "down"], &["y"]),
        node("MatMul", &["y", "last"], &["z"]),
    ];
    let channels = CHANNELS.to_string();
    let outputs = vec![port("y", &["n", &channels]), port("z", &["n", &channels])];
    let graph = graph(vec![port("x", &["n", &channels])], weights, nodes, outputs);
    let x = numbers(&mut random, ROWS * CHANNELS);
    let inputs = vec![("x".to_string(), Tensor::from_elements(&[ROWS, CHANNELS], &x).unwrap().into())];
    let compared = compared(folder.path(), graph, all("i4"), &inputs);
    for name in ["gate", "up", "down"] {
        let reason = compared.reason(name);
        assert!(reason.contains(", inputs scaled by powers of two: "), "{name}: {reason}");
    }
    assert!(compared.reason("up").contains(", outputs scaled for down"), "{}", compared.reason("up"));
    let [plain, calibrated] = compared.errors();
    assert!(calibrated < 0.5 * plain, "{calibrated} for {plain}");
}
