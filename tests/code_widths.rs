//! Quantized graphs of every width as integers: codes of 2 to 16 bits on both sides, with scales of tensors, outputs and
//! blocks, and scales that only runs know. Each is stored as it is, and its results are not further from what the graph means
//! than those of floats, wherever weights lie.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{Random, dims, graph, node, port, tensor};
use ipuc::compile::{Activations, CompileOptions, Source, compile};
use ipuc::{DType, OpenOptions, Resident, Session, SessionOptions, Tensor, Value, open_with};
use ipuc_formats::model::Manifest;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto, type_proto,
};
use prost::Message as _;
use std::path::Path;

const BLOCK: usize = 32;
const CHUNK_BYTES: u64 = 64 << 10;
const CHANNELS: usize = 16;
const SIDE: usize = 7;

/// Integers of a type that codes have.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Width {
    dtype: DType,
    /// Its number in `TensorProto`.
    number: i32,
    least: i64,
    greatest: i64,
}

const fn width(dtype: DType, number: i32, least: i64, greatest: i64) -> Width {
    Width { dtype, number, least, greatest }
}

const I8: Width = width(DType::I8, 3, -128, 127);
const U8: Width = width(DType::U8, 2, 0, 255);
const I4: Width = width(DType::I4, 22, -8, 7);
const U4: Width = width(DType::U4, 21, 0, 15);
const I2: Width = width(DType::I2, 26, -2, 1);
const U2: Width = width(DType::U2, 25, 0, 3);
const I16: Width = width(DType::I16, 5, -32768, 32767);
const U16: Width = width(DType::U16, 4, 0, 65535);

impl Width {
    fn codes(self, random: &mut Random, count: usize) -> Vec<i64> {
        let range = (self.greatest - self.least + 1) as usize;
        (0..count).map(|_| self.least + random.below(range) as i64).collect()
    }

    fn bytes(self, codes: &[i64]) -> Vec<u8> {
        let bits = self.dtype.bits();
        if bits >= 8 {
            return codes.iter().flat_map(|code| code.to_le_bytes()[..bits / 8].to_vec()).collect();
        }
        let byte = |codes: &[i64]| {
            let bit = |(place, code): (usize, &i64)| ((*code as u8) & ((1 << bits) - 1)) << (place * bits);
            codes.iter().enumerate().map(bit).fold(0, |byte, code| byte | code)
        };
        codes.chunks(8 / bits).map(byte).collect()
    }

    fn initializer(self, name: &str, shape: &[usize], codes: &[i64]) -> TensorProto {
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let raw_data = Some(self.bytes(codes));
        TensorProto { data_type: Some(self.number), raw_data, ..tensor(name, &shape, &[]) }
    }

    fn tensor(self, shape: &[usize], codes: &[i64]) -> Tensor {
        let mut tensor = Tensor::zeros(self.dtype, shape).unwrap();
        tensor.bytes_mut().copy_from_slice(&self.bytes(codes));
        tensor
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Granularity {
    Tensor,
    Outputs,
    Blocks,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Product {
    Matmul,
    /// With a weight `[outputs, inputs]` and a bias.
    Gemm,
    /// With a bias and padding.
    Convolution,
}

/// What activations are decoded with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scales {
    Constant,
    /// Inputs of the graph.
    Given,
    /// Computed by `DynamicQuantizeLinear`.
    Dynamic,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    weight: Width,
    activation: Width,
    granularity: Granularity,
    /// Whether the weight has zero points.
    centred: bool,
    product: Product,
    scales: Scales,
    /// The type of the codes that the result is rounded to.
    target: Option<Width>,
    inputs: usize,
    outputs: usize,
}

impl Case {
    fn new(activation: Width, weight: Width, granularity: Granularity) -> Case {
        let (product, scales) = (Product::Matmul, Scales::Constant);
        Case { weight, activation, granularity, centred: true, product, scales, target: None, inputs: 320, outputs: 40 }
    }

    fn by(self, product: Product) -> Case {
        let inputs = if product == Product::Convolution { CHANNELS * 9 } else { self.inputs };
        Case { product, inputs, ..self }
    }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    let r#type = Some(attribute_proto::AttributeType::Int as i32);
    AttributeProto { name: Some(name.to_string()), i: Some(value), r#type, ..AttributeProto::default() }
}

fn typed(name: &str, number: i32, shape: &[&str]) -> ValueInfoProto {
    let shape = Some(TensorShapeProto { dim: dims(shape) });
    let tensor = type_proto::Tensor { elem_type: Some(number), shape };
    let kind = TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}

/// What a model holds, for the exact result.
struct Model {
    case: Case,
    /// `[inputs][outputs]`.
    codes: Vec<i64>,
    /// `[inputs / block][outputs]`.
    zeros: Vec<i64>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    x_scale: f32,
    x_zero: i64,
    y_scale: f32,
    y_zero: i64,
}

impl Model {
    fn new(case: Case) -> Model {
        let mut random = Random::new(31);
        let Case { weight, activation, inputs, outputs, .. } = case;
        let codes = weight.codes(&mut random, inputs * outputs);
        let count = match case.granularity {
            Granularity::Tensor => 1,
            Granularity::Outputs => outputs,
            Granularity::Blocks => inputs / BLOCK * outputs,
        };
        // About the middle, so that results are on both sides of zero.
        let range = (weight.greatest - weight.least + 1) as usize;
        let mut about = || (weight.least + weight.greatest) / 2 + random.below(range / 4 + 1) as i64 - range as i64 / 8;
        let zeros = (0..count).map(|_| if case.centred { about() } else { 0 }).collect();
        let step = 4.0 / (weight.greatest - weight.least) as f32;
        let scales = (0..count).map(|_| (random.below(900) + 100) as f32 / 1000.0 * step).collect();
        let has_bias = case.product != Product::Matmul;
        let bias =
            (0..outputs).map(|_| if has_bias { random.below(2000) as f32 / 100.0 - 10.0 } else { 0.0 }).collect();
        let x_scale = 9.1 / (activation.greatest - activation.least) as f32;
        let x_zero = activation.least + (activation.greatest - activation.least) * 12 / 25;
        let (y_scale, y_zero) = match case.target {
            Some(target) => (240.0 / (target.greatest - target.least) as f32, (target.greatest + target.least) / 2 + 3),
            None => (1.0, 0),
        };
        Model { case, codes, zeros, scales, bias, x_scale, x_zero, y_scale, y_zero }
    }

    fn block_of(&self, input: usize, output: usize) -> usize {
        match self.case.granularity {
            Granularity::Tensor => 0,
            Granularity::Outputs => output,
            Granularity::Blocks => input / BLOCK * self.case.outputs + output,
        }
    }

    fn weight(&self, input: usize, output: usize) -> f64 {
        let block = self.block_of(input, output);
        let code = self.codes[input * self.case.outputs + output] - self.zeros[block];
        code as f64 * f64::from(self.scales[block])
    }

    /// `[inputs][outputs]`, or the other way around.
    fn turned<T: Copy>(&self, elements: &[T]) -> Vec<T> {
        let outputs = self.case.outputs;
        (0..outputs).flat_map(|output| elements.iter().skip(output).step_by(outputs).copied()).collect()
    }

    fn parameters(&self) -> (Vec<usize>, Vec<f32>, Vec<i64>, i64, i64) {
        let is_turned = self.case.product != Product::Matmul;
        let (axis, blocks) = if is_turned { (0, 1) } else { (1, 0) };
        match self.case.granularity {
            Granularity::Tensor => (vec![], self.scales.clone(), self.zeros.clone(), axis, 0),
            Granularity::Outputs => (vec![self.case.outputs], self.scales.clone(), self.zeros.clone(), axis, 0),
            Granularity::Blocks => {
                let (count, outputs) = (self.case.inputs / BLOCK, self.case.outputs);
                let (scales, zeros) = (self.scales.clone(), self.zeros.clone());
                if is_turned {
                    let (scales, zeros) = (self.turned(&scales), self.turned(&zeros));
                    return (vec![outputs, count], scales, zeros, blocks, BLOCK as i64);
                }
                (vec![count, outputs], scales, zeros, blocks, BLOCK as i64)
            }
        }
    }

    fn initializers(&self) -> Vec<TensorProto> {
        let Case { weight, activation, product, inputs, outputs, .. } = self.case;
        let (shape, codes) = match product {
            Product::Matmul => (vec![inputs, outputs], self.codes.clone()),
            Product::Gemm => (vec![outputs, inputs], self.turned(&self.codes)),
            Product::Convolution => (vec![outputs, CHANNELS, 3, 3], self.turned(&self.codes)),
        };
        let (parameters, scales, zeros, ..) = self.parameters();
        let extents: Vec<i64> = parameters.iter().map(|&extent| extent as i64).collect();
        let mut all = vec![
            weight.initializer("w", &shape, &codes),
            tensor("ws", &extents, &scales),
            weight.initializer("wz", &parameters, &zeros),
            tensor("b", &[outputs as i64], &self.bias),
            tensor("ys", &[], &[self.y_scale]),
        ];
        if let Some(target) = self.case.target {
            all.push(target.initializer("yz", &[], &[self.y_zero]));
        }
        if self.case.scales == Scales::Constant {
            all.push(tensor("xs", &[], &[self.x_scale]));
            all.push(activation.initializer("xz", &[], &[self.x_zero]));
        }
        all
    }

    fn nodes(&self) -> Vec<NodeProto> {
        let mut nodes = Vec::new();
        if self.case.scales == Scales::Dynamic {
            nodes.push(node("DynamicQuantizeLinear", &["x"], &["xq", "xs", "xz"]));
        }
        let codes = if self.case.scales == Scales::Dynamic { "xq" } else { "x" };
        nodes.push(node("DequantizeLinear", &[codes, "xs", "xz"], &["xd"]));
        let (_, _, _, axis, block) = self.parameters();
        let operands: &[&str] = if self.case.centred { &["w", "ws", "wz"] } else { &["w", "ws"] };
        let attribute = vec![integer("axis", axis), integer("block_size", block)];
        nodes.push(NodeProto { attribute, ..node("DequantizeLinear", operands, &["wd"]) });
        let pads = AttributeProto {
            name: Some("pads".to_string()),
            ints: vec![1; 4],
            r#type: Some(attribute_proto::AttributeType::Ints as i32),
            ..AttributeProto::default()
        };
        let last = if self.case.target.is_some() { "r" } else { "y" };
        nodes.push(match self.case.product {
            Product::Matmul => node("MatMul", &["xd", "wd"], &[last]),
            Product::Gemm => {
                NodeProto { attribute: vec![integer("transB", 1)], ..node("Gemm", &["xd", "wd", "b"], &[last]) }
            }
            Product::Convolution => NodeProto { attribute: vec![pads], ..node("Conv", &["xd", "wd", "b"], &[last]) },
        });
        if self.case.target.is_some() {
            nodes.push(node("QuantizeLinear", &["r", "ys", "yz"], &["yq"]));
            nodes.push(node("DequantizeLinear", &["yq", "ys", "yz"], &["y"]));
        }
        nodes
    }

    fn graph(&self) -> GraphProto {
        let Case { activation, product, scales, inputs, outputs, .. } = self.case;
        let [inputs, outputs, side, channels] = [inputs, outputs, SIDE, CHANNELS].map(|extent| extent.to_string());
        let (from, to): (&[&str], &[&str]) = match product {
            Product::Matmul | Product::Gemm => (&["n", &inputs], &["n", &outputs]),
            Product::Convolution => (&["n", &channels, &side, &side], &["n", &outputs, &side, &side]),
        };
        let (mut given, mut results) = (vec![typed("x", activation.number, from)], vec![port("y", to)]);
        match scales {
            Scales::Constant => {}
            Scales::Given => given.extend([port("xs", &["1"]), typed("xz", activation.number, &["1"])]),
            Scales::Dynamic => {
                given = vec![port("x", from)];
                results.extend([
                    typed("xq", activation.number, from),
                    port("xs", &[]),
                    typed("xz", activation.number, &[]),
                ]);
            }
        }
        graph(given, self.initializers(), self.nodes(), results)
    }

    fn write(&self, folder: &Path) {
        let opset = OperatorSetIdProto { domain: None, version: Some(25) };
        let graph = Some(self.graph());
        let onnx = ModelProto { ir_version: Some(10), opset_import: vec![opset], graph, ..ModelProto::default() };
        std::fs::write(folder.join("model.onnx"), onnx.encode_to_vec()).unwrap();
    }

    /// Some rows or images, of codes or of floats, and parameters.
    fn given(&self, count: usize) -> Vec<(String, Value)> {
        let mut random = Random::new(43);
        let shape = match self.case.product {
            Product::Matmul | Product::Gemm => vec![count, self.case.inputs],
            Product::Convolution => vec![count, CHANNELS, SIDE, SIDE],
        };
        let elements = shape.iter().product();
        let named = |name: &str, tensor: Tensor| (name.to_string(), Value::from(tensor));
        if self.case.scales == Scales::Dynamic {
            let x: Vec<f32> = (0..elements).map(|_| random.below(20_000) as f32 / 2000.0 - 4.0).collect();
            return vec![named("x", Tensor::from_elements(&shape, &x).unwrap())];
        }
        let activation = self.case.activation;
        let x = activation.tensor(&shape, &activation.codes(&mut random, elements));
        let mut given = vec![named("x", x)];
        if self.case.scales == Scales::Given {
            given.push(named("xs", Tensor::from_elements(&[1], &[self.x_scale]).unwrap()));
            given.push(named("xz", activation.tensor(&[1], &[self.x_zero])));
        }
        given
    }

    /// Results before they are rounded, in f64, what is added to each, and the sum of the magnitudes that it is made of.
    fn exact(&self, codes: &[i64], scale: f32, zero: i64) -> Vec<[f64; 3]> {
        let Case { inputs, outputs, product, .. } = self.case;
        let weights: Vec<f64> =
            (0..inputs * outputs).map(|place| self.weight(place / outputs, place % outputs)).collect();
        let finish = |row: &[i64], output: usize| {
            let terms = row.iter().enumerate().map(|(input, code)| *code as f64 * weights[input * outputs + output]);
            let terms = terms.map(|term| term * f64::from(scale));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, all), term: f64| (sum + term, all + term.abs()));
            let bias = f64::from(self.bias[output]);
            [sum + bias, bias, magnitude + bias.abs()]
        };
        let centred: Vec<i64> = codes.iter().map(|code| code - zero).collect();
        match product {
            Product::Matmul | Product::Gemm => {
                let rows = centred.chunks(inputs);
                rows.flat_map(|row| (0..outputs).map(move |output| (row, output)))
                    .map(|(row, output)| finish(row, output))
                    .collect()
            }
            Product::Convolution => centred
                .chunks(CHANNELS * SIDE * SIDE)
                .flat_map(|image| {
                    let windows: Vec<Vec<i64>> = (0..SIDE * SIDE).map(|position| window(image, position)).collect();
                    let places =
                        (0..outputs).flat_map(|output| (0..SIDE * SIDE).map(move |position| (output, position)));
                    places.map(|(output, position)| finish(&windows[position], output)).collect::<Vec<_>>()
                })
                .collect(),
        }
    }
}

/// What a filter of 3 by 3 reads at a position, with zeros around the image.
fn window(image: &[i64], position: usize) -> Vec<i64> {
    let (row, column) = (position / SIDE, position % SIDE);
    let tap = |channel: usize, tap: usize| {
        let place = |at: usize, shift: usize| (at + shift).checked_sub(1).filter(|&at| at < SIDE);
        match (place(row, tap / 3), place(column, tap % 3)) {
            (Some(row), Some(column)) => image[(channel * SIDE + row) * SIDE + column],
            _ => 0,
        }
    };
    (0..CHANNELS * 9).map(|index| tap(index / 9, index % 9)).collect()
}

/// A compiled model: its manifest, and the names of its steps.
fn compiled(folder: &Path, activations: Activations) -> (Manifest, Vec<&'static str>) {
    let ipu = folder.join(format!("{activations:?}.ipu"));
    let source = Source { entry: "main".to_string(), path: folder.join("model.onnx") };
    let options = CompileOptions { activations, chunk_bytes: Some(CHUNK_BYTES), ..CompileOptions::default() };
    let manifest = compile(&[source], &ipu, &options).unwrap().emitted.manifest;
    let steps = manifest.blocks[0].steps.iter().map(|step| step.op.name()).collect();
    (manifest, steps)
}

fn run(
    folder: &Path,
    activations: Activations,
    given: &[(String, Value)],
    options: OpenOptions,
    threads: usize,
) -> Vec<(String, Value)> {
    let model = open_with(folder.join(format!("{activations:?}.ipu")), options).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads, seed: 0 }).unwrap();
    session.run(None, given.to_vec()).unwrap()
}

fn found<'a>(values: &'a [(String, Value)], name: &str) -> &'a Tensor {
    values.iter().find(|(own, _)| own == name).unwrap().1.as_tensor().unwrap()
}

fn floats(values: &[(String, Value)], name: &str) -> Vec<f32> {
    found(values, name).elements::<f32>().unwrap().to_vec()
}

fn numbers(tensor: &Tensor) -> Vec<i64> {
    let values = ipuc_formats::ops::scalar::scalars(tensor).unwrap();
    values.into_iter().map(|value| value.to_f64() as i64).collect()
}

/// Compiles a case, looks at what is stored, and compares integers with floats and with the exact result.
fn check(case: Case, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::new(case);
    model.write(folder.path());
    let (manifest, steps) = compiled(folder.path(), Activations::Model);
    let integers = match case.product {
        Product::Matmul | Product::Gemm => "integer_matmul",
        Product::Convolution => "integer_convolution",
    };
    assert!(steps.contains(&integers), "{case:?}: {steps:?}");
    assert!(!steps.iter().any(|step| ["matmul", "convolution"].contains(step)), "{case:?}: {steps:?}");
    let large =
        manifest.weights.iter().filter(|weight| weight.shape.iter().product::<u64>() as usize >= model.codes.len());
    let stored: Vec<DType> = large.map(|weight| weight.encoding.dtype()).collect();
    assert_eq!(stored, [case.weight.dtype], "{case:?}");
    let (_, steps) = compiled(folder.path(), Activations::Keep);
    assert!(!steps.contains(&integers), "{case:?}: {steps:?}");
    // An image has many results.
    let given = model.given(if case.product == Product::Convolution { count.min(8) } else { count });
    let own = run(folder.path(), Activations::Model, &given, OpenOptions::default(), 2);
    let others = run(folder.path(), Activations::Keep, &given, OpenOptions::default(), 2);
    let exact = match case.scales {
        Scales::Constant | Scales::Given => model.exact(&numbers(found(&given, "x")), model.x_scale, model.x_zero),
        Scales::Dynamic => {
            let (scale, zero) = (floats(&own, "xs")[0], numbers(found(&own, "xz"))[0]);
            model.exact(&numbers(found(&own, "xq")), scale, zero)
        }
    };
    compare(&model, &floats(&own, "y"), &floats(&others, "y"), &exact);
}

fn compare(model: &Model, integers: &[f32], floats: &[f32], exact: &[[f64; 3]]) {
    /// What a few roundings of f32 may be off, relative to what a result is made of.
    const ROUNDINGS: f64 = 4.0 / (1 << 24) as f64;
    let case = model.case;
    assert_eq!((integers.len(), floats.len()), (exact.len(), exact.len()), "{case:?}");
    let (mut different, mut squares) = (0, [0.0; 2]);
    for ((&integer, &float), &[exact, bias, magnitude]) in integers.iter().zip(floats).zip(exact) {
        let off = magnitude * ROUNDINGS;
        let Some(target) = case.target else {
            let errors = [integer, float].map(|value| (f64::from(value) - exact).abs());
            let whole = (exact.abs() + 2.0 * bias.abs()) * ROUNDINGS;
            let most = if case.granularity == Granularity::Blocks { off } else { whole };
            assert!(errors[0] <= most, "{case:?}: {integer} for {exact} of {magnitude}, floats {float}");
            squares[0] += errors[0] * errors[0];
            squares[1] += errors[1] * errors[1];
            continue;
        };
        let unit = f64::from(model.y_scale);
        let exact = (exact / unit + model.y_zero as f64).clamp(target.least as f64, target.greatest as f64);
        let code = |value: f32| (f64::from(value) / unit).round() + model.y_zero as f64;
        let distance = |value: f32| (code(value) - exact).abs();
        assert!(distance(integer) <= 0.5 + off / unit, "{case:?}: {integer} for {exact}");
        assert!(distance(integer) <= distance(float) + 2.0 * off / unit, "{case:?}: {integer} and {float} for {exact}");
        assert!((code(integer) - code(float)).abs() <= 1.0, "{case:?}: {integer} and {float} for {exact}");
        // Floats themselves are further than a thousandth from codes of 16 bits.
        let other = if target.dtype.bits() == 16 { exact.round_ties_even() } else { code(float) };
        different += usize::from(code(integer) != other);
    }
    assert!(different * 1000 < integers.len(), "{case:?}: {different} of {} differ", integers.len());
    assert!(squares[0] <= squares[1], "{case:?}: {squares:?}");
    let (least, greatest) = integers.iter().fold((f32::MAX, f32::MIN), |(a, b), &y| (a.min(y), b.max(y)));
    assert!(greatest - least > 10.0, "{case:?}: {least} to {greatest}");
}

#[test]
fn weights_of_few_bits() {
    for weight in [I4, U4, I2, U2] {
        for (granularity, centred) in
            [(Granularity::Tensor, true), (Granularity::Outputs, true), (Granularity::Outputs, false)]
        {
            for product in [Product::Matmul, Product::Gemm, Product::Convolution] {
                let case = Case { centred, ..Case::new(U8, weight, granularity) }.by(product);
                check(case, 3);
                check(Case { activation: I8, target: Some(U8), ..case }, 50);
            }
        }
    }
}

#[test]
fn scales_of_blocks() {
    for weight in [I8, U8, I4, U4, I2] {
        for centred in [true, false] {
            for product in [Product::Matmul, Product::Gemm] {
                let case = Case { centred, ..Case::new(U8, weight, Granularity::Blocks) }.by(product);
                check(case, 3);
                check(Case { activation: I8, target: Some(I8), ..case }, 50);
            }
        }
    }
}

#[test]
fn scales_that_runs_know() {
    for weight in [I8, U8, I4, U4] {
        for scales in [Scales::Given, Scales::Dynamic] {
            for product in [Product::Matmul, Product::Gemm, Product::Convolution] {
                let case = Case { scales, ..Case::new(U8, weight, Granularity::Outputs) }.by(product);
                check(case, 3);
                check(Case { target: Some(U8), ..case }, 50);
            }
            let case = Case { scales, ..Case::new(U8, weight, Granularity::Blocks) };
            check(case, 3);
            check(Case { granularity: Granularity::Tensor, centred: false, ..case }, 3);
        }
    }
}

#[test]
fn codes_of_16_bits() {
    for activation in [I16, U16] {
        for weight in [I8, U8, I4, U4, I16, U16] {
            for product in [Product::Matmul, Product::Gemm, Product::Convolution] {
                let case = Case::new(activation, weight, Granularity::Outputs).by(product);
                check(case, 3);
                check(Case { target: Some(activation), ..case }, 400);
                check(Case { target: Some(U8), ..case }, 50);
            }
        }
        check(Case::new(activation, I4, Granularity::Blocks), 3);
        check(Case { scales: Scales::Given, ..Case::new(activation, I8, Granularity::Outputs) }, 3);
        check(Case { scales: Scales::Given, ..Case::new(activation, U16, Granularity::Tensor) }, 3);
    }
    for weight in [I16, U16] {
        check(Case::new(I8, weight, Granularity::Outputs), 3);
        check(Case { target: Some(U16), ..Case::new(U8, weight, Granularity::Tensor) }, 400);
    }
}

/// Panels are longer than a chunk, so that they come in pieces of their inputs.
#[test]
fn one_set_of_bits_comes_from_memory_and_from_disk() {
    let wide = |activation, weight, granularity| Case {
        inputs: 4608,
        outputs: 96,
        ..Case::new(activation, weight, granularity)
    };
    for case in [
        wide(U8, I4, Granularity::Outputs),
        wide(U8, U4, Granularity::Blocks),
        wide(I16, I8, Granularity::Outputs),
        wide(U16, I16, Granularity::Outputs),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(case);
        model.write(folder.path());
        let (manifest, _) = compiled(folder.path(), Activations::Model);
        let stream: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
        let bits = |options: OpenOptions, threads: usize, rows: usize| -> Vec<u32> {
            let values = run(folder.path(), Activations::Model, &model.given(rows), options, threads);
            floats(&values, "y").into_iter().map(f32::to_bits).collect()
        };
        let expected = bits(OpenOptions::default(), 1, 5);
        assert_eq!(bits(OpenOptions::default(), 2, 1), expected[..case.outputs], "{case:?}: a row alone");
        for threads in [1, 2] {
            let mapped = OpenOptions { resident: Resident::Map, ..OpenOptions::default() };
            assert_eq!(bits(mapped, threads, 5), expected, "{case:?}: mapped");
            for share in [60, 75, 90] {
                let memory_bytes = Some(stream * share / 100 + (1 << 20));
                let streamed = OpenOptions { memory_bytes, ..OpenOptions::default() };
                assert_eq!(bits(streamed, threads, 5), expected, "{case:?}: {share} % in memory");
            }
        }
    }
}
