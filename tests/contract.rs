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
use ipuc_kernels::simd::{INSTRUCTIONS_VARIABLE, Instructions};
use prost::Message as _;
use std::path::{Path, PathBuf};
use std::process::Command;
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

fn compiled(folder: &Path, graph: GraphProto) -> (PathBuf, PathBuf) {
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_string()), version: Some(version) };
    let opset_import = vec![opset("", 21), opset("com.microsoft", 1)];
    let model = ModelProto { ir_version: Some(10), opset_import, graph: Some(graph), ..ModelProto::default() };
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

#[test]
fn one_set_of_bits_comes_from_memory_and_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    for (name, graph) in [("float", model()), ("rounded", rounded_model())] {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (_, ipu) = compiled(&folder, graph);
        let alone = bits_of_every_residency(&ipu, 1);
        let five = bits_of_every_residency(&ipu, 5);
        assert_eq!(five[..LAST], alone, "{name}: a row alone");
    }
}

/// Where a process writes its bits that computes with the instruction set of its environment.
const BITS_FOLDER: &str = "IPUC_TEST_BITS_FOLDER";

#[test]
#[ignore = "a process of its own of `instruction_sets_agree_where_sums_are_exact`"]
fn bits_of_one_instruction_set() {
    let folder = PathBuf::from(std::env::var_os(BITS_FOLDER).unwrap());
    for (name, graph) in [("float", model()), ("rounded", rounded_model())] {
        let (_, ipu) = compiled(&folder, graph);
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
        process.args(["bits_of_one_instruction_set", "--exact", "--ignored"]);
        process.env(BITS_FOLDER, folder.path()).env(INSTRUCTIONS_VARIABLE, instructions.name());
        let output = process.output().unwrap();
        assert!(output.status.success(), "{}: {}", instructions.name(), String::from_utf8_lossy(&output.stdout));
        let elements = |name: &str| -> Vec<f32> {
            let bytes = std::fs::read(folder.path().join(name)).unwrap();
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        (elements("float"), elements("rounded"))
    };
    let (float, rounded) = bits(Instructions::available()[0]);
    let largest = float.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for &instructions in &Instructions::available()[1..] {
        let (other, same) = bits(instructions);
        assert_eq!(same, rounded, "{}", instructions.name());
        let near = |(one, two): (&f32, &f32)| (one - two).abs() <= 1e-4 * largest;
        assert!(float.iter().zip(&other).all(near), "{}: {float:?} and {other:?}", instructions.name());
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
