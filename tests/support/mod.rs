//! Small models, written with the schema: what tests feed to the program.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

pub mod folding;
pub mod language;
pub mod memory;
pub mod numbers;

use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::*;
use prost::Message as _;
use std::path::{Path, PathBuf};

const F32: i32 = 1;
const I64: i32 = 7;
const BOOL: i32 = 9;

/// The folder of further cases: that which `IPUC_CASES` names, else the one beside this checkout. It may not be there.
pub fn cases() -> PathBuf {
    std::env::var_os("IPUC_CASES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases"), PathBuf::from)
}

/// A dimension: a number, or a name.
pub fn dims(dims: &[&str]) -> Vec<Dimension> {
    let dimension = |text: &&str| Dimension {
        denotation: None,
        value: Some(match text.parse() {
            Ok(number) => dimension::Value::DimValue(number),
            Err(_) => dimension::Value::DimParam((*text).to_string()),
        }),
    };
    dims.iter().map(dimension).collect()
}

/// An f32 input or output.
pub fn port(name: &str, shape: &[&str]) -> ValueInfoProto {
    typed(name, F32, shape)
}

/// An input or output of i64.
pub fn integers(name: &str, shape: &[&str]) -> ValueInfoProto {
    typed(name, I64, shape)
}

/// An input or output of one boolean.
pub fn truth(name: &str) -> ValueInfoProto {
    typed(name, BOOL, &[])
}

fn typed(name: &str, elem_type: i32, shape: &[&str]) -> ValueInfoProto {
    let shape = Some(TensorShapeProto { dim: dims(shape) });
    let tensor = type_proto::Tensor { elem_type: Some(elem_type), shape };
    let kind = TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}

pub fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let strings = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    NodeProto {
        name: Some(format!("{operator}_{}", outputs.first().unwrap_or(&""))),
        op_type: Some(operator.to_string()),
        input: strings(inputs),
        output: strings(outputs),
        ..NodeProto::default()
    }
}

pub fn tensor(name: &str, shape: &[i64], elements: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.to_string()),
        dims: shape.to_vec(),
        data_type: Some(F32),
        raw_data: Some(elements.iter().flat_map(|element| element.to_le_bytes()).collect()),
        ..TensorProto::default()
    }
}

/// A tensor whose bytes lie in another file.
pub fn external(name: &str, shape: &[i64], location: &str) -> TensorProto {
    let entry = StringStringEntryProto { key: Some("location".to_string()), value: Some(location.to_string()) };
    TensorProto { raw_data: None, external_data: vec![entry], data_location: Some(1), ..tensor(name, shape, &[]) }
}

pub fn graph(
    inputs: Vec<ValueInfoProto>,
    weights: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
) -> GraphProto {
    let name = Some("graph".to_string());
    GraphProto { name, input: inputs, initializer: weights, node: nodes, output: outputs, ..GraphProto::default() }
}

pub fn model(graph: GraphProto) -> Vec<u8> {
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    let model =
        ModelProto { ir_version: Some(8), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() };
    model.encode_to_vec()
}

/// y = x · w + b with x: `[batch, 3]`, w: `[3, 2]`.
pub fn linear(w: TensorProto) -> Vec<u8> {
    let b = tensor("b", &[2], &[0.5, -0.5]);
    let nodes = vec![node("MatMul", &["x", "w"], &["product"]), node("Add", &["product", "b"], &["y"])];
    model(graph(vec![port("x", &["batch", "3"])], vec![w, b], nodes, vec![port("y", &["batch", "2"])]))
}

pub fn linear_weight() -> TensorProto {
    tensor("w", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
}

/// Branches inside branches.
pub fn nested(levels: usize) -> Vec<u8> {
    let condition = || TensorProto { data_type: Some(9), raw_data: Some(vec![1]), ..tensor("condition", &[], &[]) };
    let mut inner = graph(Vec::new(), Vec::new(), vec![node("Relu", &["x"], &["y0"])], vec![port("y0", &["2"])]);
    for level in 1..=levels {
        let branch = |name: &str, graph: GraphProto| AttributeProto {
            name: Some(name.to_string()),
            r#type: Some(attribute_proto::AttributeType::Graph as i32),
            g: Some(Box::new(graph)),
            ..AttributeProto::default()
        };
        let output = format!("y{level}");
        let other = format!("other{level}");
        let simple = graph(Vec::new(), Vec::new(), vec![node("Relu", &["x"], &[&other])], vec![port(&other, &["2"])]);
        let attribute = vec![branch("then_branch", inner), branch("else_branch", simple)];
        let chosen = NodeProto { attribute, ..node("If", &["condition"], &[&output]) };
        inner = graph(Vec::new(), Vec::new(), vec![chosen], vec![port(&output, &["2"])]);
    }
    inner.input.push(port("x", &["2"]));
    inner.initializer.push(condition());
    model(inner)
}

/// A tensor file as in ONNX test data.
pub fn tensor_file(shape: &[i64], elements: &[f32]) -> Vec<u8> {
    tensor("", shape, elements).encode_to_vec()
}

/// An `.npy` file.
pub fn npy(descriptor: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Numbers that look random and are the same in every run: SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Less than `bound`, which is above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
