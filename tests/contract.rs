//! Codes from the model to the product: what is stored is what the model has, wherever it is read from, and one set of bits
//! comes out however weights are held and however many threads there are.
//!
//! A chain of products by codes of 8 bits with a scale for each output and of 4 bits with a scale for each 32 inputs; chunks
//! of 64 KiB cut its panels between inputs.
#![allow(clippy::unwrap_used, reason = "tests panic")]

mod support;

use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{OpenOptions, Resident, Session, SessionOptions, Tensor, Value, open_with};
use ipuc_formats::encodings::EncodingError;
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, attribute_proto,
};
use prost::Message as _;
use std::path::{Path, PathBuf};
use support::{Random, graph, node, port, tensor};

/// Inputs of the first and the last product: their panels of 8 bits are longer than a chunk.
const WIDE: usize = 4608;
const NARROW: usize = 96;
const LAST: usize = 40;
const BLOCK: usize = 32;
const CHUNK_BYTES: u64 = 64 << 10;

fn integer(name: &str, value: i64) -> AttributeProto {
    let r#type = Some(attribute_proto::AttributeType::Int as i32);
    AttributeProto { name: Some(name.to_string()), i: Some(value), r#type, ..AttributeProto::default() }
}

/// Codes of `bits` bits of `[inputs, outputs]`.
fn codes(random: &mut Random, name: &str, shape: [usize; 2], bits: usize) -> TensorProto {
    let bytes = (0..shape[0] * shape[1] * bits / 8).map(|_| random.below(256) as u8).collect();
    let data_type = Some(if bits == 8 { 3 } else { 22 });
    TensorProto { data_type, raw_data: Some(bytes), ..tensor(name, &shape.map(|extent| extent as i64), &[]) }
}

fn scales(random: &mut Random, name: &str, shape: &[usize]) -> TensorProto {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| (random.below(1000) + 1) as f32 / 100_000.0).collect();
    let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    tensor(name, &shape, &values)
}

/// `x: [n, 4608]` by i8 per channel, i4 in blocks, i8 per channel.
fn model() -> GraphProto {
    let mut random = Random::new(7);
    let random = &mut random;
    let dequantized = |weight: &str, axis: i64, block: i64| NodeProto {
        attribute: vec![integer("axis", axis), integer("block_size", block)],
        ..node("DequantizeLinear", &[weight, &format!("{weight}.scale")], &[&format!("{weight}.value")])
    };
    let weights = vec![
        codes(random, "a", [WIDE, NARROW], 8),
        scales(random, "a.scale", &[NARROW]),
        codes(random, "b", [NARROW, WIDE], 4),
        scales(random, "b.scale", &[NARROW / BLOCK, WIDE]),
        codes(random, "c", [WIDE, LAST], 8),
        scales(random, "c.scale", &[LAST]),
    ];
    let nodes = vec![
        dequantized("a", 1, 0),
        dequantized("b", 0, BLOCK as i64),
        dequantized("c", 1, 0),
        node("MatMul", &["x", "a.value"], &["xa"]),
        node("Relu", &["xa"], &["r"]),
        node("MatMul", &["r", "b.value"], &["rb"]),
        node("MatMul", &["rb", "c.value"], &["y"]),
    ];
    graph(vec![port("x", &["n", &WIDE.to_string()])], weights, nodes, vec![port("y", &["n", &LAST.to_string()])])
}

fn compiled(folder: &Path, graph: GraphProto) -> (PathBuf, PathBuf) {
    let opset = OperatorSetIdProto { domain: None, version: Some(21) };
    let model =
        ModelProto { ir_version: Some(10), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() };
    let (onnx, ipu) = (folder.join("model.onnx"), folder.join("model.ipu"));
    std::fs::write(&onnx, model.encode_to_vec()).unwrap();
    let options = CompileOptions { chunk_bytes: Some(CHUNK_BYTES), ..CompileOptions::default() };
    compile(&[Source { entry: "main".to_string(), path: onnx.clone() }], &ipu, &options).unwrap();
    (onnx, ipu)
}

fn manifest(ipu: &Path) -> (Vec<u8>, Manifest) {
    let bytes = std::fs::read(ipu).unwrap();
    let (_, manifest) = read_manifest(&bytes).unwrap();
    (bytes, manifest)
}

#[test]
fn codes_and_scales_are_the_bytes_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let graph = model();
    let given = |name: &str| {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
        tensor.raw_data.clone().unwrap()
    };
    let (onnx, ipu) = compiled(folder.path(), graph.clone());
    let onnx = std::fs::read(onnx).unwrap();
    let (bytes, manifest) = manifest(&ipu);
    let coded: Vec<_> =
        manifest.weights.iter().filter(|weight| !weight.encoding.encoding().planes().is_empty()).collect();
    assert_eq!((coded.len(), manifest.weights.len()), (3, 3), "no float copy of a weight");
    for (weight, name) in coded.iter().zip(["a", "b", "c"]) {
        let part = |part: usize| {
            let extent = &manifest.extents[weight.parts[part].extent as usize];
            Ok::<_, EncodingError>(&bytes[extent.offset as usize..(extent.offset + extent.length) as usize])
        };
        let elements = weight.unpack(part).unwrap();
        let scale = format!("{name}.scale");
        assert!(elements.stored.bytes() == given(name), "codes of {name}");
        assert!(elements.planes[0].bytes() == given(&scale), "scales of {name}");
        for (source, tensor) in weight.sources.iter().zip([name, &scale]) {
            let place = source.offset as usize..(source.offset + source.length) as usize;
            assert!(onnx[place] == given(tensor), "the place of {tensor} in the model");
        }
        let planes: Vec<Option<u32>> = weight.sources.iter().map(|source| source.plane).collect();
        assert_eq!(planes, [None, Some(0)]);
        let cut = weight.parts.iter().any(|part| part.inputs_start > 0);
        assert_eq!(cut, name != "b", "panels of 8 bits are longer than a chunk");
    }
    // Panels of whole lines: payload and scales, and what padding to 16 outputs and to lines adds.
    let stored: u64 = manifest.extents.iter().map(|extent| extent.length).sum();
    let (a, b, c) = (WIDE * NARROW + NARROW * 4, NARROW * WIDE / 2 + NARROW / BLOCK * WIDE * 4, WIDE * 48 + 48 * 4);
    assert_eq!(stored, (a + b + c) as u64);
}

fn input(rows: usize) -> Vec<(String, Value)> {
    let mut random = Random::new(11);
    let values: Vec<f32> = (0..rows * WIDE).map(|_| random.below(2000) as f32 / 1000.0 - 1.0).collect();
    vec![("x".to_string(), Tensor::from_elements(&[rows, WIDE], &values).unwrap().into())]
}

fn run(ipu: &Path, options: OpenOptions, threads: usize, rows: usize) -> Vec<u32> {
    let model = open_with(ipu, options).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads, seed: 0 }).unwrap();
    let outputs = session.run(None, input(rows)).unwrap();
    outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn one_set_of_bits_comes_from_memory_and_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ipu) = compiled(folder.path(), model());
    let (_, manifest) = manifest(&ipu);
    let stream: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
    for rows in [1, 5] {
        let expected = run(&ipu, OpenOptions::default(), 1, rows);
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for threads in [1, 2] {
            let mapped = OpenOptions { resident: Resident::Map, ..OpenOptions::default() };
            assert_eq!(run(&ipu, mapped, threads, rows), expected, "mapped, {threads} threads");
            for share in [60, 75, 90] {
                let memory_bytes = Some(stream * share / 100 + (1 << 20));
                let streamed = OpenOptions { memory_bytes, ..OpenOptions::default() };
                assert_eq!(run(&ipu, streamed, threads, rows), expected, "{share} % in memory, {threads} threads");
            }
        }
        if rows == 5 {
            assert_eq!(expected[..LAST], run(&ipu, OpenOptions::default(), 2, 1), "a row alone");
        }
    }
}
