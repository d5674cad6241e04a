//! What is written does not depend on threads or memory, and what fails while writing fails clearly.
//!
//! A model with weights of every way into the file (read across rows, along rows, rows alone, widened, varints, computed)
//! is written to memory through readers and writers that fail.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_formats::encodings::EncodingError;
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, tensor_shape_proto, type_proto,
};
use ipuc_formats::onnx::{TensorSource, read_model};
use ipuc_formats::read_at::ReadAt;
use ipuc_passes::emit::{EmitError, EmitOptions, Emitted, NoProgress, Output, emit};
use ipuc_passes::import::{ExternalFiles, Model, import};
use ipuc_passes::ir::{ConstantData, Graph};
use ipuc_passes::options::Options;
use ipuc_passes::pipeline::run;
use prost::Message;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

const FLOAT: i32 = 1;
const HALF: i32 = 10;
const BYTE: i32 = 3;

/// Chunks are small, so that small weights have many parts.
const CHUNK_BYTES: u64 = 32 << 10;

fn tensor(name: &str, data_type: i32, dims: &[i64]) -> TensorProto {
    let name = Some(name.to_string());
    let (data_type, dims) = (Some(data_type), dims.to_vec());
    let tensor = TensorProto { name, data_type, dims, ..TensorProto::default() };
    let count = tensor.dims.iter().product::<i64>() as u32;
    let value = |index: u32| (index.wrapping_mul(2_654_435_761) >> 20) as f32 / 64.0;
    match data_type {
        Some(FLOAT) => {
            let raw_data = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
            TensorProto { raw_data: Some(raw_data), ..tensor }
        }
        Some(HALF) => {
            // Normal numbers of any kind.
            let raw_data = (0..count).flat_map(|index| (0x3000 + (index % 4096) as u16).to_le_bytes()).collect();
            TensorProto { raw_data: Some(raw_data), ..tensor }
        }
        _ => TensorProto { int32_data: (0..count as i32).map(|index| index % 100 - 50).collect(), ..tensor },
    }
}

fn node(operator: &str, input: &[&str], output: &str) -> NodeProto {
    let input = input.iter().map(|name| (*name).to_string()).collect();
    NodeProto { op_type: Some(operator.to_string()), input, output: vec![output.to_string()], ..NodeProto::default() }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: Some(name.to_string()), r#type: Some(2), i: Some(value), ..AttributeProto::default() }
}

fn integers(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { name: Some(name.to_string()), r#type: Some(7), ints: ints.to_vec(), ..AttributeProto::default() }
}

fn value(name: &str, elem_type: i32, dims: &[i64]) -> ValueInfoProto {
    let dimension = |&value: &i64| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(value)),
        denotation: None,
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dimension).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(elem_type), shape };
    let r#type = Some(TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) });
    ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
}

/// Weights of every way into the file; the model's bytes.
fn model() -> Vec<u8> {
    let with = |node: NodeProto, attribute| NodeProto { attribute: vec![attribute], ..node };
    let nodes = vec![
        // 300 outputs are 18 panels and a part of one, which are cut into several parts.
        node("MatMul", &["x", "across"], "a"),
        with(node("Gemm", &["a", "along"], "b"), integer("transB", 1)),
        node("Gather", &["table", "rows"], "c"),
        node("Add", &["b", "c"], "d"),
        with(node("Cast", &["half"], "wide"), integer("to", 1)),
        node("MatMul", &["d", "wide"], "e"),
        with(node("Cast", &["varints"], "varints_wide"), integer("to", 1)),
        node("Add", &["e", "varints_wide"], "f"),
        with(node("Transpose", &["turned"], "unturned"), integers("perm", &[1, 2, 0])),
        node("Add", &["f", "unturned"], "y"),
    ];
    let weights = vec![
        tensor("across", FLOAT, &[256, 300]),
        tensor("along", FLOAT, &[520, 300]),
        tensor("table", FLOAT, &[100, 520]),
        tensor("half", HALF, &[520, 528]),
        // Over a mebibyte once widened, so that it is not folded.
        tensor("varints", BYTE, &[600, 1, 528]),
        tensor("turned", FLOAT, &[528, 600, 1]),
    ];
    encoded(nodes, weights, vec![value("x", FLOAT, &[1, 256]), value("rows", 7, &[1])])
}

/// A model with the output `y`; its bytes.
fn encoded(node: Vec<NodeProto>, initializer: Vec<TensorProto>, input: Vec<ValueInfoProto>) -> Vec<u8> {
    let name = Some("weights".to_string());
    let output = vec![ValueInfoProto { r#type: None, ..value("y", FLOAT, &[]) }];
    let graph = GraphProto { name, node, initializer, input, output, ..GraphProto::default() };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() }.encode_to_vec()
}

struct NoFiles;

impl ExternalFiles for NoFiles {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        Err(format!("{} is not here", tensor.name()))
    }
}

fn graph(bytes: Arc<dyn ReadAt>) -> Graph {
    let proto = read_model(&*bytes).unwrap();
    let model =
        Model { entry: "main", file_name: "model.onnx", proto: &proto, bytes, files: &NoFiles, overridable: &[] };
    let mut graph = import(&[model]).unwrap();
    // Weights lie in the order of the steps as they are written here.
    run(&mut graph, &Options { unfused: true, ..Options::default() }, &mut |_, _| {}).unwrap();
    graph
}

/// A file in memory that is full after some bytes.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    room: AtomicI64,
}

impl Memory {
    fn of(room: i64) -> Self {
        Memory { bytes: Mutex::default(), room: AtomicI64::new(room) }
    }
}

impl Output for Memory {
    fn write_at(&self, offset: u64, written: &[u8]) -> io::Result<()> {
        if self.room.fetch_sub(written.len() as i64, Ordering::Relaxed) < written.len() as i64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut bytes = self.bytes.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + written.len());
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[start..end].copy_from_slice(written);
        Ok(())
    }
}

fn options(chunk_bytes: u64, memory_bytes: u64) -> EmitOptions {
    EmitOptions { chunk_bytes, memory_bytes, piece_bytes: memory_bytes, ..EmitOptions::default() }
}

fn emitted(graph: &Graph, options: &EmitOptions, threads: usize) -> Result<(Emitted, Vec<u8>), EmitError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let file = Memory::of(i64::MAX);
    let emitted = pool.install(|| emit(graph, options, &file, &NoProgress))?;
    Ok((emitted, file.bytes.into_inner().unwrap()))
}

/// The least memory that is enough, as the refusal of too little says.
fn least_memory(graph: &Graph) -> u64 {
    match emitted(graph, &options(CHUNK_BYTES, 0), 1) {
        Err(EmitError::Memory { memory_bytes: 0, needed_bytes }) => needed_bytes,
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn bytes_depend_neither_on_threads_nor_on_memory() {
    let graph = graph(Arc::new(model()));
    let least = least_memory(&graph);
    let (first, bytes) = emitted(&graph, &options(CHUNK_BYTES, least), 1).unwrap();
    assert_eq!(bytes.len() as u64, first.file_bytes);
    let (_, manifest) = read_manifest(&bytes).unwrap();
    assert!(manifest.chunks.len() > 30, "{} chunks", manifest.chunks.len());
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        let range = chunk.offset as usize..(chunk.offset + chunk.length) as usize;
        manifest.check_chunk(index as u32, &bytes[range]).unwrap();
    }
    for threads in [1, 2, 5] {
        for memory_bytes in [least, 2 * least, 8 << 20, 1 << 30] {
            let (_, again) = emitted(&graph, &options(CHUNK_BYTES, memory_bytes), threads).unwrap();
            assert!(again == bytes, "{threads} threads, {memory_bytes} bytes");
        }
    }
}

#[test]
fn too_little_memory_is_refused_by_name_of_what_is_enough() {
    let graph = graph(Arc::new(model()));
    let least = least_memory(&graph);
    emitted(&graph, &options(CHUNK_BYTES, least), 3).unwrap();
    let error = emitted(&graph, &options(CHUNK_BYTES, least - 1), 3);
    let Err(EmitError::Memory { memory_bytes, needed_bytes }) = error else { panic!("{:?}", error.err()) };
    assert_eq!((memory_bytes, needed_bytes), (least - 1, least));
}

#[test]
fn weights_are_those_of_the_model() {
    let graph = graph(Arc::new(model()));
    let (_, bytes) = emitted(&graph, &options(CHUNK_BYTES, 8 << 20), 2).unwrap();
    let (_, manifest) = read_manifest(&bytes).unwrap();
    let stored = |manifest: &Manifest, name: &str| {
        let weight = manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap();
        let part = |part: usize| {
            let extent = &manifest.extents[weight.parts[part].extent as usize];
            Ok::<_, EncodingError>(&bytes[extent.offset as usize..(extent.offset + extent.length) as usize])
        };
        (weight.encoding.clone(), weight.decode(part).unwrap())
    };
    for name in ["across", "along", "table"] {
        let (encoding, found) = stored(&manifest, name);
        let constant = graph.constants.iter().find(|constant| constant.name.as_deref() == Some(name)).unwrap();
        let ConstantData::Stored(wanted) = &constant.data else { panic!("{name} is in memory") };
        let wanted = wanted.tensor.load(&*graph.sources[0].bytes).unwrap();
        assert!(found.bytes() == wanted.bytes() && found.shape() == wanted.shape(), "{name}");
        assert_eq!(encoding.as_panels().is_some(), name != "table", "{name}");
    }
}

#[test]
fn the_hash_of_weights_is_that_of_their_tensors() {
    let graph = graph(Arc::new(model()));
    let (one, _) = emitted(&graph, &options(CHUNK_BYTES, 8 << 20), 2).unwrap();
    let (other, _) = emitted(&graph, &options(8 * CHUNK_BYTES, 8 << 20), 1).unwrap();
    assert_ne!(one.root_hash, other.root_hash);
    let found = one.manifest.provenance.weights_hash;
    assert_eq!(found, other.manifest.provenance.weights_hash);
    let mut hasher = blake3::Hasher::new();
    for (name, data_type, dims) in [
        ("across", FLOAT, &[256, 300][..]),
        ("along", FLOAT, &[520, 300]),
        ("table", FLOAT, &[100, 520]),
        ("half", HALF, &[520, 528]),
        ("varints", BYTE, &[600, 1, 528]),
        ("turned", FLOAT, &[528, 600, 1]),
    ] {
        let tensor = tensor(name, data_type, dims);
        let bytes = tensor.raw_data.unwrap_or_else(|| tensor.int32_data.iter().map(|&value| value as u8).collect());
        hasher.update(blake3::hash(&bytes).as_bytes());
    }
    assert_eq!(found, *hasher.finalize().as_bytes());
}

/// A fill and what is computed element by element, each of more than a mebibyte, read across rows and along them.
fn computed_model() -> Vec<u8> {
    let with = |node: NodeProto, attribute| NodeProto { attribute: vec![attribute], ..node };
    let nodes = vec![
        node("ConstantOfShape", &["shape"], "filled"),
        node("MatMul", &["x", "filled"], "a"),
        node("Mul", &["stored", "factor"], "scaled"),
        node("Sigmoid", &["scaled"], "bent"),
        node("Reshape", &["bent", "shape"], "matrix"),
        node("MatMul", &["a", "matrix"], "b"),
        with(node("Cast", &["matrix"], "half"), integer("to", 10)),
        with(node("Cast", &["half"], "rough"), integer("to", 1)),
        node("Add", &["b", "rough"], "y"),
    ];
    let shape = TensorProto { int64_data: vec![600, 600], ..tensor("shape", 7, &[2]) };
    let weights = vec![
        TensorProto { int32_data: Vec::new(), ..shape },
        tensor("stored", FLOAT, &[360, 1000]),
        tensor("factor", FLOAT, &[1]),
    ];
    encoded(nodes, weights, vec![value("x", FLOAT, &[1, 600])])
}

#[test]
fn large_constants_are_computed_in_pieces() {
    let graph = graph(Arc::new(computed_model()));
    let recipes = graph.constants.iter().filter(|constant| matches!(constant.data, ConstantData::Recipe { .. }));
    let most = recipes.map(|constant| constant.byte_count()).max().unwrap();
    assert!(most >= 600 * 600 * 4, "{most} bytes");
    let least = least_memory(&graph);
    assert!(least < most, "{least} bytes are needed for constants of {most}");
    let (_, whole) = emitted(&graph, &options(CHUNK_BYTES, 1 << 30), 1).unwrap();
    for (memory_bytes, threads) in [(least, 1), (least, 3), (2 * least, 2)] {
        let (_, pieces) = emitted(&graph, &options(CHUNK_BYTES, memory_bytes), threads).unwrap();
        assert!(pieces == whole, "{memory_bytes} bytes, {threads} threads");
    }
}

/// A model's bytes, and where they have been read.
struct Watched {
    bytes: Vec<u8>,
    reads: Mutex<Vec<Range<u64>>>,
}

impl ReadAt for Watched {
    fn length(&self) -> u64 {
        self.bytes.length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.lock().unwrap().push(offset..offset + buffer.len() as u64);
        self.bytes.read_exact_at(offset, buffer)
    }
}

/// How often the bytes of tensors are read while a model is written.
fn times_read(model: Vec<u8>, names: &[&str], chunk_bytes: u64, memory_bytes: impl Fn(&Graph) -> u64) -> Vec<u64> {
    let source = Arc::new(Watched { bytes: model, reads: Mutex::default() });
    let graph = graph(source.clone());
    let memory_bytes = memory_bytes(&graph);
    source.reads.lock().unwrap().clear();
    emitted(&graph, &options(chunk_bytes, memory_bytes), 2).unwrap();
    let reads = source.reads.lock().unwrap();
    let times = names.iter().map(|&name| {
        let constant = graph.constants.iter().find(|constant| constant.name.as_deref() == Some(name)).unwrap();
        let ConstantData::Stored(stored) = &constant.data else { panic!("{name} is in memory") };
        let (start, length) = (stored.tensor.source_offset().unwrap(), stored.tensor.length_bytes());
        let inside = reads.iter().filter(|read| (start..start + length).contains(&read.start));
        let read_bytes: u64 = inside.map(|read| read.end - read.start).sum();
        assert_eq!(read_bytes % length, 0, "{name}");
        read_bytes / length
    });
    times.collect()
}

#[test]
fn tensors_are_read_once_where_memory_allows() {
    let names = ["across", "along", "table", "half"];
    assert_eq!(times_read(model(), &names, CHUNK_BYTES, |_| 1 << 30), [1, 1, 1, 1]);
    // What is read across its rows has to be in memory as a whole, else it is hashed before.
    assert_eq!(times_read(model(), &names, CHUNK_BYTES, least_memory), [2, 1, 1, 2]);
}

#[test]
fn tensors_are_hashed_before_where_packing_reads_them_in_another_order() {
    let with = |node: NodeProto, attribute| NodeProto { attribute: vec![attribute], ..node };
    let nodes = vec![
        with(node("Gemm", &["x", "wide"], "a"), integer("transB", 1)),
        with(node("Gemm", &["a", "tall"], "b"), integer("transB", 1)),
        with(node("Gemm", &["b", "wider"], "c"), integer("transB", 1)),
        node("Gather", &["table", "rows"], "d"),
        node("Add", &["c", "d"], "y"),
    ];
    let weights = vec![
        tensor("wide", FLOAT, &[48, 8000]),
        tensor("tall", FLOAT, &[9000, 48]),
        tensor("wider", FLOAT, &[48, 9000]),
        tensor("table", FLOAT, &[9000, 48]),
    ];
    let model = || encoded(nodes.clone(), weights.clone(), vec![value("x", FLOAT, &[1, 8000]), value("rows", 7, &[1])]);
    let names = ["wide", "tall", "wider", "table"];
    assert_eq!(times_read(model(), &names, 1 << 20, |_| 1 << 30), [1, 1, 2, 1]);
    // Smaller chunks cut panels between inputs, and tensors into more chunks than a piece has.
    assert_eq!(times_read(model(), &names, 16 << 10, |_| 1 << 30), [2, 2, 2, 2]);
}

#[test]
fn what_lies_between_two_uses_of_a_tensor_is_packed_by_itself() {
    let to_float = |node: NodeProto| NodeProto { attribute: vec![integer("to", 1)], ..node };
    let nodes = vec![
        node("Gather", &["table", "rows"], "a"),
        to_float(node("Cast", &["a"], "b")),
        node("MatMul", &["b", "between"], "c"),
        // As a matrix, the table has another encoding than as rows.
        to_float(node("Cast", &["table"], "matrix")),
        node("MatMul", &["c", "matrix"], "y"),
    ];
    let weights = vec![tensor("table", HALF, &[528, 520]), tensor("between", FLOAT, &[520, 528])];
    let model = encoded(nodes, weights, vec![value("rows", 7, &[1])]);
    // A panel fills a chunk, which has no room for parts of two weights.
    assert_eq!(times_read(model, &["table", "between"], 40 << 10, |_| 1 << 30), [2, 1]);
}

#[test]
fn a_full_disk_ends_with_its_error() {
    let graph = graph(Arc::new(model()));
    let (whole, _) = emitted(&graph, &options(CHUNK_BYTES, 8 << 20), 1).unwrap();
    let total = whole.file_bytes as i64;
    for threads in [1, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // The last of them has room for the stream and not for the manifest.
        for room in [0, 1, total / 3, total / 2, total - 4096 - 1] {
            let file = Memory::of(room);
            let failed = pool.install(|| emit(&graph, &options(CHUNK_BYTES, 8 << 20), &file, &NoProgress));
            match failed {
                Err(EmitError::Write { error, .. }) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
                other => panic!("{threads} threads, room {room}: {:?}", other.err()),
            }
        }
    }
}

/// A model's bytes that fail from some read on, or give fewer bytes than they have.
struct Failing {
    bytes: Vec<u8>,
    reads_left: AtomicI64,
    kind: io::ErrorKind,
}

impl ReadAt for Failing {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.reads_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(self.kind.into());
        }
        self.bytes.read_exact_at(offset, buffer)
    }
}

#[test]
fn a_source_that_cannot_be_read_ends_with_its_name() {
    for kind in [io::ErrorKind::Other, io::ErrorKind::UnexpectedEof] {
        let source = Arc::new(Failing { bytes: model(), reads_left: AtomicI64::new(i64::MAX), kind });
        let graph = graph(source.clone());
        source.reads_left.store(i64::MAX, Ordering::Relaxed);
        emitted(&graph, &options(CHUNK_BYTES, 8 << 20), 1).unwrap();
        let reads = i64::MAX - source.reads_left.load(Ordering::Relaxed);
        assert!(reads > 100, "{reads} reads");
        for threads in [1, 3] {
            for allowed in (0..reads).step_by(reads as usize / 23) {
                source.reads_left.store(allowed, Ordering::Relaxed);
                let failed = emitted(&graph, &options(CHUNK_BYTES, 8 << 20), threads).unwrap_err();
                assert!(matches!(failed, EmitError::Constant(_)), "{failed}");
                let text = failed.to_string();
                assert!(text.contains("`model.onnx`") && text.contains("at offset"), "{text}");
            }
        }
    }
}
