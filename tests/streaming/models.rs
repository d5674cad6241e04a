//! The models that are streamed, and sessions that run them.

use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::files::DirectFile;
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::onnx::schema::attribute_proto::AttributeType;
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, ModelOptions, Session, SessionOptions};
use prost::Message;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const WIDTH: usize = 256;
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Columns of keys and values.
pub const KEY_WIDTH: usize = 64;

/// Weights that do not let values grow.
pub fn weight(name: &str, shape: &[usize], seed: u64) -> TensorProto {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count: usize = shape.iter().product();
    let bytes = (0..count).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.2).to_le_bytes()
    });
    TensorProto {
        name: Some(name.to_string()),
        dims: shape.iter().map(|&extent| extent as i64).collect(),
        data_type: Some(1),
        raw_data: Some(bytes.collect()),
        ..TensorProto::default()
    }
}

pub fn scalar(name: &str, value: i64) -> TensorProto {
    let raw_data = Some(value.to_le_bytes().to_vec());
    TensorProto { name: Some(name.to_string()), data_type: Some(7), raw_data, ..TensorProto::default() }
}

pub fn port(name: &str, element: i32, shape: &[i64]) -> ValueInfoProto {
    let value = |&extent: &i64| match extent {
        0.. => dimension::Value::DimValue(extent),
        _ => dimension::Value::DimParam("n".to_string()),
    };
    let dim = shape.iter().map(|extent| Dimension { value: Some(value(extent)), ..Dimension::default() }).collect();
    let shape = TensorShapeProto { dim };
    let tensor = type_proto::Tensor { elem_type: Some(element), shape: Some(shape) };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto {
        name: Some(name.to_string()),
        r#type: Some(TypeProto { value, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

pub fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_string()),
        name: Some(format!("make_{}", outputs[0])),
        input: inputs.iter().map(|name| (*name).to_string()).collect(),
        output: outputs.iter().map(|name| (*name).to_string()).collect(),
        ..NodeProto::default()
    }
}

pub fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(graph)),
        ..AttributeProto::default()
    }
}

pub fn write(folder: &Path, graph: GraphProto) -> PathBuf {
    write_with_states(folder, graph, &[])
}

/// With inputs and outputs that are state, as `IN=OUT`.
pub fn write_with_states(folder: &Path, graph: GraphProto, states: &[&str]) -> PathBuf {
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![
            OperatorSetIdProto { domain: None, version: Some(17) },
            OperatorSetIdProto { domain: Some("com.microsoft".to_string()), version: Some(1) },
        ],
        graph: Some(GraphProto { name: Some("streaming".to_string()), ..graph }),
        ..ModelProto::default()
    };
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let compiled = folder.join("model.ipu");
    let source = Source { entry: "main".to_string(), path };
    let states = states.iter().map(|pair| (*pair).to_string()).collect();
    let options = CompileOptions { chunk_bytes: Some(CHUNK_BYTES), states, ..CompileOptions::default() };
    compile(&[source], &compiled, &options).unwrap();
    compiled
}

/// A chain of products, rectified in between.
pub fn chain(folder: &Path, length: usize) -> PathBuf {
    let mut graph = GraphProto { input: vec![port("x", 1, &[1, WIDTH as i64])], ..GraphProto::default() };
    let mut last = "x".to_string();
    for index in 0..length {
        let (name, product, next) = (format!("w{index}"), format!("p{index}"), format!("h{index}"));
        graph.initializer.push(weight(&name, &[WIDTH, WIDTH], index as u64 + 1));
        graph.node.push(node("MatMul", &[&last, &name], &[&product]));
        graph.node.push(node("Relu", &[&product], &[&next]));
        last = next;
    }
    graph.output.push(port(&last, 1, &[1, WIDTH as i64]));
    write(folder, graph)
}

/// Rows by index, a branch, a loop, a weight that is used at both ends, one that is taken whole, and a chain.
pub fn everything(folder: &Path) -> PathBuf {
    let width = WIDTH as i64;
    let square = [WIDTH, WIDTH];
    let mut graph = GraphProto {
        input: vec![port("x", 1, &[1, width]), port("ids", 7, &[2]), port("flag", 9, &[])],
        output: vec![port("y", 1, &[1, width])],
        initializer: vec![
            weight("table", &[4000, WIDTH], 100),
            weight("shared", &square, 101),
            weight("then_w", &square, 102),
            weight("else_w", &square, 103),
            weight("loop_w", &square, 104),
            weight("whole", &[300, WIDTH], 105),
            scalar("trips", 3),
        ],
        ..GraphProto::default()
    };
    graph.node.push(node("Gather", &["table", "ids"], &["rows"]));
    graph.node.push(NodeProto { attribute: vec![], ..node("ReduceMax", &["whole"], &["most"]) });
    graph.node.push(node("MatMul", &["rows", "shared"], &["mixed"]));
    graph.node.push(node("ReduceMax", &["mixed"], &["peak"]));
    graph.node.push(node("Add", &["x", "peak"], &["a0"]));
    graph.node.push(node("Mul", &["a0", "most"], &["h0"]));
    for index in 0..6 {
        let (name, from, to) = (format!("w{index}"), format!("h{index}"), format!("h{}", index + 1));
        graph.initializer.push(weight(&name, &square, index + 1));
        graph.node.push(node("MatMul", &[&from, &name], &[&to]));
    }
    let branch = |name: &str, weight: &str| GraphProto {
        name: Some(name.to_string()),
        node: vec![node("MatMul", &["h6", weight], &[name])],
        output: vec![port(name, 1, &[1, width])],
        ..GraphProto::default()
    };
    let attribute =
        vec![body("then_branch", branch("taken", "then_w")), body("else_branch", branch("untaken", "else_w"))];
    graph.node.push(NodeProto { attribute, ..node("If", &["flag"], &["b0"]) });
    let iteration = GraphProto {
        name: Some("iteration".to_string()),
        input: vec![port("i", 7, &[]), port("go", 9, &[]), port("before", 1, &[1, width])],
        output: vec![port("go_on", 9, &[]), port("after", 1, &[1, width])],
        node: vec![node("Identity", &["go"], &["go_on"]), node("MatMul", &["before", "loop_w"], &["after"])],
        ..GraphProto::default()
    };
    graph
        .node
        .push(NodeProto { attribute: vec![body("body", iteration)], ..node("Loop", &["trips", "", "b0"], &["c0"]) });
    graph.node.push(node("MatMul", &["c0", "shared"], &["y"]));
    write(folder, graph)
}

/// A port whose first extent is open.
pub fn open_port(name: &str, symbol: &str, width: i64) -> ValueInfoProto {
    let mut open = port(name, 1, &[1, width]);
    let Some(type_proto::Value::TensorType(tensor)) = open.r#type.as_mut().and_then(|kind| kind.value.as_mut()) else {
        panic!("a port is a tensor")
    };
    tensor.shape.as_mut().unwrap().dim[0].value = Some(dimension::Value::DimParam(symbol.to_string()));
    open
}

/// A decoder of `layers` layers without position codes: each appends a row of keys and a row of values for each row of its
/// input to a cache that is state, attends over all of them, and has more products.
pub fn decoder(folder: &Path, layers: usize) -> PathBuf {
    let (width, keys) = (WIDTH as i64, KEY_WIDTH as i64);
    let mut graph = GraphProto { input: vec![open_port("x", "rows", width)], ..GraphProto::default() };
    let mut states = Vec::new();
    let mut last = "x".to_string();
    for layer in 0..layers {
        let named = |name: &str| format!("{name}{layer}");
        let product = |graph: &mut GraphProto, shape: [usize; 2], from: &str, weight_name: &str, to: &str| {
            let name = named(weight_name);
            graph.initializer.push(weight(&name, &shape, graph.initializer.len() as u64 + 1));
            graph.node.push(node("MatMul", &[from, &name], &[&named(to)]));
        };
        product(&mut graph, [WIDTH, KEY_WIDTH], &last, "wq", "q");
        for (weight_name, new, past, present) in [("wk", "k", "pk", "nk"), ("wv", "v", "pv", "nv")] {
            product(&mut graph, [WIDTH, KEY_WIDTH], &last, weight_name, new);
            graph.input.push(open_port(&named(past), "past", keys));
            graph.output.push(open_port(&named(present), "present", keys));
            graph.node.push(NodeProto {
                attribute: vec![integer("axis", 0)],
                ..node("Concat", &[&named(past), &named(new)], &[&named(present)])
            });
            states.push(format!("{}={}", named(past), named(present)));
        }
        graph.node.push(node("Transpose", &[&named("nk")], &[&named("t")]));
        graph.node.push(node("MatMul", &[&named("q"), &named("t")], &[&named("s")]));
        graph.node.push(node("Softmax", &[&named("s")], &[&named("p")]));
        graph.node.push(node("MatMul", &[&named("p"), &named("nv")], &[&named("a")]));
        product(&mut graph, [KEY_WIDTH, WIDTH], &named("a"), "wo", "m0");
        for (weight_name, from, to) in [("w1", "m0", "m1"), ("w2", "m1", "m2"), ("w3", "m2", "m3"), ("w4", "m3", "m4")]
        {
            product(&mut graph, [WIDTH, WIDTH], &named(from), weight_name, to);
        }
        graph.node.push(node("Add", &[&last, &named("m4")], &[&named("h")]));
        last = named("h");
    }
    graph.output.push(open_port(&last, "rows", width));
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    write_with_states(folder, graph, &states)
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    }
}

/// `rows` rows of input that depend on `seed`.
pub fn decoder_inputs(rows: usize, seed: usize) -> Vec<(String, Value)> {
    let value = |index: usize| ((index * 31 + seed * 17) % 101) as f32 / 50.0 - 1.0;
    let values: Vec<u8> = (0..rows * WIDTH).flat_map(|index| value(index).to_le_bytes()).collect();
    let tensor = Tensor::from_bytes(ipuc_formats::dtype::DType::F32, &[rows, WIDTH], &values).unwrap();
    vec![("x".to_string(), tensor.into())]
}

fn x() -> Value {
    let values: Vec<u8> = (0..WIDTH).flat_map(|index| ((index as f32) / 64.0 - 2.0).to_le_bytes()).collect();
    Tensor::from_bytes(ipuc_formats::dtype::DType::F32, &[1, WIDTH], &values).unwrap().into()
}

/// The input of a chain.
pub fn chain_inputs() -> Vec<(String, Value)> {
    vec![("x".to_string(), x())]
}

pub fn all_inputs(flag: bool, ids: [i64; 2]) -> Vec<(String, Value)> {
    use ipuc_formats::dtype::DType;
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    vec![
        ("x".to_string(), x()),
        ("ids".to_string(), Tensor::from_bytes(DType::I64, &[2], &ids).unwrap().into()),
        ("flag".to_string(), Tensor::from_bytes(DType::Bool, &[], &[u8::from(flag)]).unwrap().into()),
    ]
}

pub fn bits(outputs: &[(String, Value)]) -> Vec<u8> {
    outputs.iter().flat_map(|(_, value)| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

pub fn open(path: &Path, memory_bytes: Option<u64>) -> Model {
    Model::open_with(
        Arc::new(DirectFile::open(path).unwrap()),
        ModelOptions { memory_bytes, ..ModelOptions::default() },
    )
    .unwrap()
}

pub fn session(model: &Model, threads: usize) -> Session {
    Session::new(model, &SessionOptions { threads, seed: 0 }).unwrap()
}

/// What a chain gives with all weights in memory.
pub fn chain_bits(path: &Path) -> Vec<u8> {
    bits(&session(&open(path, None), 1).run(None, chain_inputs()).unwrap())
}

pub fn manifest(path: &Path) -> Manifest {
    read_manifest(&DirectFile::open(path).unwrap()).unwrap().1
}

pub fn stream_bytes(path: &Path) -> u64 {
    manifest(path).chunks.iter().map(|chunk| chunk.length).sum()
}

/// Room for activations, inputs and outputs of these models, and for one weight that is taken whole.
pub const WORKING_BYTES: u64 = 512 << 10;
