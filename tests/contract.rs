//! Codes from the model to the product: what is stored is what the model has, wherever it is read from, and one set of bits
//! comes out however weights are held and however many threads there are.
//!
//! A chain of products by codes of 8 bits with a scale for each output and of 4 bits with a scale for each 32 inputs; chunks
//! of 64 KiB cut its panels between inputs.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{Random, graph, node, port, tensor};
use ipuc::compile::{Activations, CompileOptions, Source, compile};
use ipuc::{OpenOptions, Resident, Session, SessionOptions, Tensor, Value, open_with};
use ipuc_formats::encodings::EncodingError;
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, attribute_proto,
};
use ipuc_kernels::simd::{INSTRUCTIONS_VARIABLE, Instructions};
use prost::Message as _;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// `x: [n, 4608]` by codes of 4 bits in blocks, activations rounded to 8 bits; the result, rounded to codes, by i8 as integers.
fn rounded_model() -> GraphProto {
    let mut random = Random::new(23);
    let random = &mut random;
    let bytes = |random: &mut Random, name: &str, shape: &[i64], data_type: i32| TensorProto {
        data_type: Some(data_type),
        raw_data: Some((0..shape.iter().product::<i64>()).map(|_| random.below(256) as u8).collect()),
        ..tensor(name, shape, &[])
    };
    let (u8_type, i8_type) = (2, 3);
    let blocks = (WIDE / BLOCK) as i64;
    let one = |name: &str, value: f32| tensor(name, &[], &[value]);
    let zero = |name: &str, value: u8, data_type| TensorProto {
        data_type: Some(data_type),
        raw_data: Some(vec![value]),
        ..tensor(name, &[], &[])
    };
    let weights = vec![
        bytes(random, "a", &[NARROW as i64, blocks, BLOCK as i64 / 2], u8_type),
        scales(random, "a.scale", &[NARROW * WIDE / BLOCK]),
        bytes(random, "b", &[NARROW as i64, LAST as i64], i8_type),
        one("step", 0.25),
        zero("middle", 128, u8_type),
        one("b.scale", 0.01),
        zero("b.zero", 0, i8_type),
        one("y.step", 0.5),
    ];
    let attributes = [("K", WIDE), ("N", NARROW), ("bits", 4), ("block_size", BLOCK), ("accuracy_level", 4)];
    let by_codes = NodeProto {
        domain: Some("com.microsoft".to_string()),
        attribute: attributes.map(|(name, value)| integer(name, value as i64)).to_vec(),
        ..node("MatMulNBits", &["x", "a", "a.scale"], &["xa"])
    };
    let operands = ["q", "step", "middle", "b", "b.scale", "b.zero", "y.step", "middle"];
    let nodes = vec![
        by_codes,
        node("QuantizeLinear", &["xa", "step", "middle"], &["q"]),
        node("QLinearMatMul", &operands, &["p"]),
        node("DequantizeLinear", &["p", "y.step", "middle"], &["y"]),
    ];
    graph(vec![port("x", &["n", &WIDE.to_string()])], weights, nodes, vec![port("y", &["n", &LAST.to_string()])])
}

/// Codes that are floats, their number in `TensorProto`, and what keeps random bytes finite and small.
const E4M3: (i32, u8) = (17, 0xbf);
const E5M2: (i32, u8) = (19, 0xbf);
const E2M1: (i32, u8) = (23, 0xff);
const E8M0: (i32, u8) = (24, 0x7f);

/// Random floats of a type; `mask` keeps the bytes finite and small.
fn narrow(random: &mut Random, name: &str, shape: [usize; 2], (data_type, mask): (i32, u8)) -> TensorProto {
    let bytes = shape[0] * shape[1] / if data_type == E2M1.0 { 2 } else { 1 };
    let byte = |random: &mut Random| match data_type {
        // Powers of two about 2^-7.
        24 => 116 + random.below(8) as u8,
        _ => random.below(256) as u8 & mask,
    };
    let bytes = (0..bytes).map(|_| byte(random)).collect();
    let shape = shape.map(|extent| extent as i64);
    TensorProto { data_type: Some(data_type), raw_data: Some(bytes), ..tensor(name, &shape, &[]) }
}

fn decoded(inputs: &[&str], output: &str, axis: i64, block: usize) -> NodeProto {
    NodeProto {
        attribute: vec![integer("axis", axis), integer("block_size", block as i64), integer("output_dtype", 1)],
        ..node("DequantizeLinear", inputs, &[output])
    }
}

/// Products by floats of 8 bits with a scale for each output, of 4 bits with a power of two for each 32 inputs, and of 4 bits
/// with a float of 8 bits for each 16 inputs, which have one factor.
fn floats_model() -> GraphProto {
    let mut random = Random::new(29);
    let random = &mut random;
    let zeros = vec![0; NARROW];
    let weights = vec![
        narrow(random, "a", [WIDE, NARROW], E4M3),
        scales(random, "a.scale", &[NARROW]),
        // Exporters write zero points of floats.
        TensorProto { data_type: Some(E4M3.0), raw_data: Some(zeros), ..tensor("a.zero", &[NARROW as i64], &[]) },
        narrow(random, "b", [NARROW, WIDE], E2M1),
        narrow(random, "b.scale", [NARROW / BLOCK, WIDE], E8M0),
        narrow(random, "c", [WIDE, LAST], E2M1),
        narrow(random, "c.code", [WIDE / 16, LAST], E4M3),
        tensor("c.factor", &[], &[0.015]),
        narrow(random, "d", [LAST, NARROW], E5M2),
        scales(random, "d.scale", &[NARROW]),
    ];
    let nodes = vec![
        decoded(&["a", "a.scale", "a.zero"], "a.value", 1, 0),
        decoded(&["b", "b.scale"], "b.value", 0, BLOCK),
        decoded(&["c.code", "c.factor"], "c.scale", 0, 0),
        decoded(&["c", "c.scale"], "c.value", 0, 16),
        decoded(&["d", "d.scale"], "d.value", 1, 0),
        node("MatMul", &["x", "a.value"], &["xa"]),
        node("MatMul", &["xa", "b.value"], &["xb"]),
        node("MatMul", &["xb", "c.value"], &["xc"]),
        node("MatMul", &["xc", "d.value"], &["y"]),
    ];
    graph(vec![port("x", &["n", &WIDE.to_string()])], weights, nodes, vec![port("y", &["n", &NARROW.to_string()])])
}

/// Products by floats of 4 bits alone.
fn four_bits_model() -> GraphProto {
    let mut random = Random::new(37);
    let random = &mut random;
    let weights = vec![
        narrow(random, "c", [WIDE, LAST], E2M1),
        narrow(random, "c.code", [WIDE / 16, LAST], E4M3),
        tensor("c.factor", &[], &[0.015]),
        narrow(random, "e", [LAST, NARROW], E2M1),
        narrow(random, "e.scale", [LAST.div_ceil(BLOCK), NARROW], E8M0),
    ];
    let nodes = vec![
        decoded(&["c.code", "c.factor"], "c.scale", 0, 0),
        decoded(&["c", "c.scale"], "c.value", 0, 16),
        decoded(&["e", "e.scale"], "e.value", 0, BLOCK),
        node("MatMul", &["x", "c.value"], &["xc"]),
        node("MatMul", &["xc", "e.value"], &["y"]),
    ];
    graph(vec![port("x", &["n", &WIDE.to_string()])], weights, nodes, vec![port("y", &["n", &NARROW.to_string()])])
}

fn compiled(folder: &Path, graph: GraphProto) -> (PathBuf, PathBuf) {
    compiled_with(folder, graph, Activations::Model)
}

fn compiled_with(folder: &Path, graph: GraphProto, activations: Activations) -> (PathBuf, PathBuf) {
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_string()), version: Some(version) };
    let opset_import = vec![opset("", 25), opset("com.microsoft", 1)];
    let model = ModelProto { ir_version: Some(10), opset_import, graph: Some(graph), ..ModelProto::default() };
    let (onnx, ipu) = (folder.join("model.onnx"), folder.join("model.ipu"));
    std::fs::write(&onnx, model.encode_to_vec()).unwrap();
    let options = CompileOptions { chunk_bytes: Some(CHUNK_BYTES), activations, ..CompileOptions::default() };
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

#[test]
fn floats_and_their_scales_are_the_bytes_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let graph = floats_model();
    let given = |name: &str| {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
        match tensor.raw_data.clone() {
            Some(bytes) if !bytes.is_empty() => bytes,
            _ => tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    };
    let (_, ipu) = compiled(folder.path(), graph.clone());
    let (bytes, manifest) = manifest(&ipu);
    assert_eq!(manifest.weights.len(), 4, "no float copy of a weight, and no scale by itself");
    let planes = [
        ("a", &[("a.scale", "scale f32 0")][..]),
        ("b", &[("b.scale", "scale f8e8m0 32")]),
        ("c", &[("c.factor", "scale f32 0"), ("c.code", "scale f8e4m3fn 16")]),
        ("d", &[("d.scale", "scale f32 0")]),
    ];
    for (weight, (name, planes)) in manifest.weights.iter().zip(planes) {
        let part = |part: usize| {
            let extent = &manifest.extents[weight.parts[part].extent as usize];
            Ok::<_, EncodingError>(&bytes[extent.offset as usize..(extent.offset + extent.length) as usize])
        };
        let elements = weight.unpack(part).unwrap();
        assert!(elements.stored.bytes() == given(name), "codes of {name}");
        let texts: Vec<String> = weight.encoding.encoding().planes().iter().map(ToString::to_string).collect();
        assert_eq!(texts, planes.iter().map(|(_, text)| *text).collect::<Vec<_>>());
        for (plane, (name, _)) in elements.planes.iter().zip(planes) {
            // One factor is that of each output.
            let given = given(name);
            let repeated = plane.bytes().chunks(given.len()).all(|bytes| bytes == given);
            assert!(repeated, "{name}");
        }
    }
}

/// What the reference of operators gives for the products, step by step in f64.
#[test]
fn products_with_floats_are_near_those_of_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ipu) = compiled(folder.path(), floats_model());
    let (bytes, manifest) = manifest(&ipu);
    let model = open_with(&ipu, OpenOptions::default()).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads: 1, seed: 0 }).unwrap();
    let found = session.run(None, input(1)).unwrap();
    let found = found[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
    let mut row: Vec<f64> = {
        let (_, x) = input(1).remove(0);
        x.as_tensor().unwrap().elements::<f32>().unwrap().iter().map(|&value| value.into()).collect()
    };
    for weight in &manifest.weights {
        let part = |part: usize| {
            let extent = &manifest.extents[weight.parts[part].extent as usize];
            Ok::<_, EncodingError>(&bytes[extent.offset as usize..(extent.offset + extent.length) as usize])
        };
        let values = weight.decode(part).unwrap();
        let values = values.elements::<f32>().unwrap();
        let columns = values.len() / row.len();
        let sum = |column: usize| {
            row.iter().enumerate().map(|(input, x)| x * f64::from(values[input * columns + column])).sum()
        };
        row = (0..columns).map(sum).collect();
    }
    let largest = row.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&row) {
        assert!((f64::from(*found) - expected).abs() < 1e-5 * largest, "{found} for {expected}");
    }
}

/// Byte `at` of the elements of a record of codes of `bits` bits: the code of one input and output, as the model has it.
fn stored_code(bytes: &[u8], bits: usize, input: usize, output: usize) -> u8 {
    let in_line = 32 / bits;
    let byte = bytes[input / in_line * 64 + output * 4 + input % in_line % 4];
    let code = byte >> (input % in_line / 4 * bits);
    if bits == 8 { code } else { code & 15 ^ 8 }
}

/// What `inspect --records` says is compared with the bytes of the file and of the model, code by code and scale by scale.
#[test]
fn records_lie_where_inspect_says() {
    let folder = tempfile::tempdir().unwrap();
    let graph = model();
    let (_, ipu) = compiled(folder.path(), graph.clone());
    let file = std::fs::read(&ipu).unwrap();
    for (name, [inputs, outputs], bits, block) in
        [("a", [WIDE, NARROW], 8, WIDE), ("b", [NARROW, WIDE], 4, BLOCK), ("c", [WIDE, LAST], 8, WIDE)]
    {
        let tensor = |name: &str| {
            let tensor = graph.initializer.iter().find(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
            tensor.raw_data.clone().unwrap()
        };
        let (codes, scales) = (tensor(name), tensor(&format!("{name}.scale")));
        let given_code = |input: usize, output: usize| {
            let at = input * outputs + output;
            if bits == 8 { codes[at] } else { codes[at / 2] >> (at % 2 * 4) & 15 }
        };
        let mut program = Command::new(env!("CARGO_BIN_EXE_ipuc"));
        let shown = program
            .args(["inspect", ipu.to_str().unwrap(), "--records", &format!("{name}.value"), "--json"])
            .output()
            .unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let (mut seen_codes, mut seen_scales) = (0, 0);
        for record in shown["records"].as_array().unwrap() {
            let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
            let (panel, first) = (number(&record["units"][0]), number(&record["inputs"][0]));
            let wanted = (outputs - panel * 16).min(16);
            for piece in record["pieces"].as_array().unwrap() {
                let bytes = &file[number(&piece["offset"])..][..number(&piece["bytes"])];
                if piece["plane"].is_null() {
                    for (input, output) in
                        (first..number(&record["inputs"][1])).flat_map(|i| (0..wanted).map(move |o| (i, o)))
                    {
                        let stored = stored_code(bytes, bits, input - first, output);
                        assert_eq!(
                            stored,
                            given_code(input, panel * 16 + output),
                            "{name}: {input}, {panel}, {output}"
                        );
                        seen_codes += 1;
                    }
                    continue;
                }
                for (row, stored) in bytes.chunks(64).enumerate() {
                    let at = ((first / block + row) * outputs + panel * 16) * 4;
                    assert!(stored[..wanted * 4] == scales[at..at + wanted * 4], "{name}: scales {at}");
                    seen_scales += wanted;
                }
            }
        }
        assert_eq!((seen_codes, seen_scales), (inputs * outputs, scales.len() / 4), "{name}");
    }
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

/// The bits of the outputs for `rows` rows; the same ones come from memory, from a map and within three budgets, on one thread
/// and on two.
fn bits_of_every_residency(ipu: &Path, rows: usize) -> Vec<u32> {
    let (_, manifest) = manifest(ipu);
    let stream: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
    let expected = run(ipu, OpenOptions::default(), 1, rows);
    assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    for threads in [1, 2] {
        let mapped = OpenOptions { resident: Resident::Map, ..OpenOptions::default() };
        assert_eq!(run(ipu, mapped, threads, rows), expected, "mapped, {threads} threads");
        for share in [60, 75, 90] {
            let memory_bytes = Some(stream * share / 100 + (1 << 20));
            let streamed = OpenOptions { memory_bytes, ..OpenOptions::default() };
            assert_eq!(run(ipu, streamed, threads, rows), expected, "{share} % in memory, {threads} threads");
        }
    }
    expected
}

/// Models by name, and how their activations are computed. Sums of the first and the third are those of floats.
fn models() -> [(&'static str, GraphProto, Activations); 4] {
    [
        ("float", model(), Activations::Model),
        ("rounded", rounded_model(), Activations::Model),
        ("floats", floats_model(), Activations::Model),
        ("floats_rounded", four_bits_model(), Activations::I8),
    ]
}

#[test]
fn one_set_of_bits_comes_from_memory_and_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    for (name, graph, activations) in models() {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (_, ipu) = compiled_with(&folder, graph, activations);
        let alone = bits_of_every_residency(&ipu, 1);
        let five = bits_of_every_residency(&ipu, 5);
        assert_eq!(five[..alone.len()], alone, "{name}: a row alone");
    }
}

/// Where a process writes its bits that computes with the instruction set of its environment.
const BITS_FOLDER: &str = "IPUC_TEST_BITS_FOLDER";

#[test]
#[ignore = "a process of its own of `instruction_sets_agree_where_sums_are_exact`"]
fn bits_of_one_instruction_set() {
    let folder = PathBuf::from(std::env::var_os(BITS_FOLDER).unwrap());
    for (name, graph, activations) in models() {
        let (_, ipu) = compiled_with(&folder, graph, activations);
        let bits = bits_of_every_residency(&ipu, 5);
        std::fs::write(folder.join(name), bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>())
            .unwrap();
    }
}

/// On each instruction set one set of bits; over all of them where activations are rounded to codes.
#[test]
fn instruction_sets_agree_where_sums_are_exact() {
    let bits = |instructions: Instructions| {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["contract::bits_of_one_instruction_set", "--exact", "--ignored"]);
        process.env(BITS_FOLDER, folder.path()).env(INSTRUCTIONS_VARIABLE, instructions.name());
        let output = process.output().unwrap();
        assert!(output.status.success(), "{}: {}", instructions.name(), String::from_utf8_lossy(&output.stdout));
        let elements = |name: &str| -> Vec<f32> {
            let bytes = std::fs::read(folder.path().join(name)).unwrap();
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        ["float", "floats", "rounded", "floats_rounded"].map(elements)
    };
    let [float, floats, rounded, floats_rounded] = bits(Instructions::available()[0]);
    for &instructions in &Instructions::available()[1..] {
        let [other_float, other_floats, same, same_floats] = bits(instructions);
        assert_eq!(same, rounded, "{}", instructions.name());
        assert_eq!(same_floats, floats_rounded, "{}", instructions.name());
        for (values, others) in [(&float, &other_float), (&floats, &other_floats)] {
            let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let near = |(one, two): (&f32, &f32)| (one - two).abs() <= 1e-4 * largest;
            assert!(values.iter().zip(others).all(near), "{}: {values:?} and {others:?}", instructions.name());
        }
    }
}

#[test]
fn an_instruction_set_that_is_not_here_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ipu) = compiled(folder.path(), rounded_model());
    let mut program = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    program.args(["run", ipu.to_str().unwrap(), "--random", "1", "--dim", "n=1", "--quiet"]);
    let output = program.env(INSTRUCTIONS_VARIABLE, "sse9").output().unwrap();
    let names: Vec<&str> = Instructions::available().iter().map(|instructions| instructions.name()).collect();
    let expected = format!("IPUC_INSTRUCTIONS is `sse9`; this processor has {}", names.join(", "));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && stderr.contains(&expected), "{:?} {stderr}", output.status);
}
