//! Weights within a budget: the same bits, the bytes of the plan, and errors that end a run but not a session.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::files::DirectFile;
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::onnx::schema::attribute_proto::AttributeType;
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, ModelOptions, OpenError, RunError, Session, SessionOptions};
use prost::Message;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const WIDTH: usize = 256;
const CHUNK_BYTES: u64 = 64 << 10;

/// Weights that do not let values grow.
fn weight(name: &str, shape: &[usize], seed: u64) -> TensorProto {
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

fn scalar(name: &str, value: i64) -> TensorProto {
    let raw_data = Some(value.to_le_bytes().to_vec());
    TensorProto { name: Some(name.to_string()), data_type: Some(7), raw_data, ..TensorProto::default() }
}

fn port(name: &str, element: i32, shape: &[i64]) -> ValueInfoProto {
    let value = |extent: &i64| Dimension { value: Some(dimension::Value::DimValue(*extent)), ..Dimension::default() };
    let shape = TensorShapeProto { dim: shape.iter().map(value).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(element), shape: Some(shape) };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto {
        name: Some(name.to_string()),
        r#type: Some(TypeProto { value, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_string()),
        name: Some(format!("make_{}", outputs[0])),
        input: inputs.iter().map(|name| (*name).to_string()).collect(),
        output: outputs.iter().map(|name| (*name).to_string()).collect(),
        ..NodeProto::default()
    }
}

fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(graph)),
        ..AttributeProto::default()
    }
}

fn write(folder: &Path, graph: GraphProto) -> PathBuf {
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        graph: Some(GraphProto { name: Some("streaming".to_string()), ..graph }),
        ..ModelProto::default()
    };
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let compiled = folder.join("model.ipu");
    let source = Source { entry: "main".to_string(), path };
    let options = CompileOptions { chunk_bytes: Some(CHUNK_BYTES), ..CompileOptions::default() };
    compile(&[source], &compiled, &options).unwrap();
    compiled
}

/// A chain of products, rectified in between.
fn chain(folder: &Path, length: usize) -> PathBuf {
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
fn everything(folder: &Path) -> PathBuf {
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

fn x() -> Value {
    let values: Vec<u8> = (0..WIDTH).flat_map(|index| ((index as f32) / 64.0 - 2.0).to_le_bytes()).collect();
    Tensor::from_bytes(ipuc_formats::dtype::DType::F32, &[1, WIDTH], &values).unwrap().into()
}

fn all_inputs(flag: bool, ids: [i64; 2]) -> Vec<(String, Value)> {
    use ipuc_formats::dtype::DType;
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    vec![
        ("x".to_string(), x()),
        ("ids".to_string(), Tensor::from_bytes(DType::I64, &[2], &ids).unwrap().into()),
        ("flag".to_string(), Tensor::from_bytes(DType::Bool, &[], &[u8::from(flag)]).unwrap().into()),
    ]
}

fn bits(outputs: &[(String, Value)]) -> Vec<u8> {
    outputs.iter().flat_map(|(_, value)| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

fn open(path: &Path, memory_bytes: Option<u64>) -> Model {
    Model::open_with(Arc::new(DirectFile::open(path).unwrap()), ModelOptions { memory_bytes, readers: 0 }).unwrap()
}

fn session(model: &Model, threads: usize) -> Session {
    Session::new(model, &SessionOptions { threads, seed: 0 }).unwrap()
}

fn manifest(path: &Path) -> Manifest {
    read_manifest(&DirectFile::open(path).unwrap()).unwrap().1
}

fn stream_bytes(path: &Path) -> u64 {
    manifest(path).chunks.iter().map(|chunk| chunk.length).sum()
}

/// Room for activations, inputs and outputs of these models, and for one weight that is taken whole.
const WORKING_BYTES: u64 = 512 << 10;

#[test]
fn streamed_and_resident_results_are_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let weights = stream_bytes(&path);
    let runs = [(true, [0, 3999]), (false, [17, 17]), (false, [-1, 5]), (true, [1, 2])];
    let mut resident = session(&open(&path, None), 1);
    let expected: Vec<Vec<u8>> =
        runs.iter().map(|&(flag, ids)| bits(&resident.run(None, all_inputs(flag, ids)).unwrap())).collect();
    assert!(expected[0] != expected[1]);
    for percent in [100, 75, 50, 25, 10] {
        for threads in [1, 2] {
            let budget = weights * percent / 100 + WORKING_BYTES;
            let model = open(&path, Some(budget));
            let mut streamed = session(&model, threads);
            for (&(flag, ids), expected) in runs.iter().zip(&expected) {
                let found = bits(&streamed.run(None, all_inputs(flag, ids)).unwrap());
                assert!(found == *expected, "{percent} % of the weights, {threads} threads, {flag} {ids:?}");
                assert_eq!(streamed.last_pass().unwrap().unplanned_bytes, 0, "{percent} %");
            }
            let residency = model.residency().unwrap();
            assert!(residency.pinned_bytes + residency.ring_bytes + residency.working_bytes <= budget.max(weights));
        }
    }
}

#[test]
fn a_pass_reads_what_the_plan_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 16);
    let weights = stream_bytes(&path);
    for percent in [10, 25, 50, 75, 90] {
        let model = open(&path, Some(weights * percent / 100 + (64 << 10)));
        let mut session = session(&model, 2);
        let residency = model.residency().unwrap();
        for pass in 0..4 {
            session.run(None, vec![("x".to_string(), x())]).unwrap();
            let residency = model.residency().unwrap();
            let report = session.last_pass().unwrap();
            let first = if pass == 0 { residency.pinned_bytes } else { 0 };
            assert_eq!(report.stream_bytes, residency.bytes_per_pass[0] + first, "{percent} %, pass {pass}");
            assert_eq!((report.row_bytes, report.unplanned_bytes), (0, 0));
        }
        let streamed = residency.weights_bytes - residency.pinned_bytes;
        assert_eq!(residency.bytes_per_pass[0], streamed, "each streamed chunk is read once");
    }
}

#[test]
fn a_pass_over_weights_that_fit_reads_and_checks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 4);
    let file = Arc::new(Watched::new(&path));
    let options = ModelOptions { memory_bytes: Some(stream_bytes(&path) + (1 << 20)), readers: 1 };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    session.run(None, vec![("x".to_string(), x())]).unwrap();
    let before = file.reads.lock().unwrap().len();
    session.run(None, vec![("x".to_string(), x())]).unwrap();
    assert_eq!(file.reads.lock().unwrap().len(), before);
    let report = session.last_pass().unwrap();
    assert_eq!((report.bytes_read(), report.checked_bytes, report.reads), (0, 0, 0));
}

#[test]
fn only_chosen_rows_and_branches_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let file = Arc::new(Watched::new(&path));
    let options = ModelOptions { memory_bytes: Some(stream_bytes(&path) / 10 + WORKING_BYTES), readers: 2 };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    let manifest = manifest(&path);
    let place = |name: &str| {
        let weight = manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap();
        let extents = weight.parts.iter().map(|part| &manifest.extents[part.extent as usize]);
        extents.map(|extent| extent.offset..extent.offset + extent.length).collect::<Vec<_>>()
    };
    for pass in 0..3 {
        session.run(None, all_inputs(true, [7, 3000])).unwrap();
        // A row of 1 KiB lies in one block of 4 KiB of the weight, which lies in at most two of the file.
        assert!(session.last_pass().unwrap().row_bytes <= 2 * 2 * 4096, "pass {pass}");
    }
    let touched = |places: &[Range<u64>]| {
        let reads = file.reads.lock().unwrap();
        let overlaps = |read: &&Range<u64>| places.iter().any(|place| place.start < read.end && read.start < place.end);
        reads.iter().filter(overlaps).map(|read| read.end - read.start).sum::<u64>()
    };
    assert!(touched(&place("then_w")) > 0);
    // Chunks at its borders hold ends of its neighbours.
    assert!(touched(&place("else_w")[1..3]) == 0, "a branch that is not taken is read");
    assert!(touched(&place("table")) <= 3 * 4 * 4096 + 2 * 3 * CHUNK_BYTES, "the table is read");
}

#[test]
fn rows_that_were_used_last_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let model = open(&path, Some(stream_bytes(&path) / 4 + WORKING_BYTES));
    let mut session = session(&model, 1);
    let mut row_bytes = |ids| {
        session.run(None, all_inputs(true, ids)).unwrap();
        session.last_pass().unwrap().row_bytes
    };
    assert!(row_bytes([7, 3000]) > 0);
    assert_eq!(row_bytes([3000, 7]), 0);
    let one = row_bytes([7, 2000]);
    assert!(one > 0 && one <= 2 * 4096);
    // More rows than there is room for: the oldest has gone.
    let rows_of_room = model.residency().unwrap().kept_rows_bytes / 1024;
    assert!((8..3000).contains(&rows_of_room), "{rows_of_room}");
    for id in 100..(100 + rows_of_room as i64 + 8) {
        row_bytes([id, id]);
    }
    assert!(row_bytes([7, 7]) > 0);
}

#[test]
fn rows_of_weights_that_fit_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let file = Arc::new(Watched::new(&path));
    let options = ModelOptions { memory_bytes: Some(stream_bytes(&path) + 2 * WORKING_BYTES), readers: 1 };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    let table_is_there = (0..2000).any(|id| {
        let before = file.reads.lock().unwrap().len();
        session.run(None, all_inputs(id % 2 == 0, [id, id + 2000])).unwrap();
        file.reads.lock().unwrap().len() == before
    });
    assert!(table_is_there, "every pass reads");
    let before = file.reads.lock().unwrap().len();
    for id in 0..100 {
        session.run(None, all_inputs(true, [2 * id + 1, 3999 - id])).unwrap();
        assert_eq!(session.last_pass().unwrap().bytes_read(), 0, "rows {id}");
    }
    assert_eq!(file.reads.lock().unwrap().len(), before);
}

/// One of several matrices is chosen by index, and is multiplied with.
fn experts(folder: &Path, count: usize, size: usize) -> PathBuf {
    let width = size as i64;
    let graph = GraphProto {
        input: vec![port("h", 1, &[1, width]), port("chosen", 7, &[2])],
        output: vec![port("y", 1, &[2, 1, width])],
        initializer: vec![weight("matrices", &[count, size, size], 7)],
        node: vec![node("Gather", &["matrices", "chosen"], &["matrix"]), node("MatMul", &["h", "matrix"], &["y"])],
        ..GraphProto::default()
    };
    write(folder, graph)
}

#[test]
fn only_chosen_experts_are_read_and_recent_ones_are_kept() {
    use ipuc_formats::dtype::DType;
    let (count, size) = (16, 512);
    let expert_bytes = (size * size * 4) as u64;
    let folder = tempfile::tempdir().unwrap();
    let path = experts(folder.path(), count, size);
    let inputs = |chosen: [i64; 2]| {
        let h: Vec<u8> = (0..size).flat_map(|index| ((index % 7) as f32 - 3.0).to_le_bytes()).collect();
        let chosen: Vec<u8> = chosen.iter().flat_map(|id| id.to_le_bytes()).collect();
        vec![
            ("h".to_string(), Value::from(Tensor::from_bytes(DType::F32, &[1, size], &h).unwrap())),
            ("chosen".to_string(), Tensor::from_bytes(DType::I64, &[2], &chosen).unwrap().into()),
        ]
    };
    let mut resident = session(&open(&path, None), 1);
    // What a run works with, and room for four of the matrices.
    let working_bytes = 3 * expert_bytes;
    let model = open(&path, Some(working_bytes + 4 * expert_bytes));
    let mut streamed = session(&model, 2);
    let most = |experts: u64| experts * (expert_bytes + 2 * 4096);
    for (chosen, experts) in [([3, 9], 2), ([9, 3], 0), ([3, 12], 1), ([5, 5], 1), ([0, 15], 2), ([15, 0], 0)] {
        let found = bits(&streamed.run(None, inputs(chosen)).unwrap());
        assert!(found == bits(&resident.run(None, inputs(chosen)).unwrap()), "{chosen:?}");
        let report = streamed.last_pass().unwrap();
        assert!(
            report.row_bytes >= experts * expert_bytes && report.row_bytes <= most(experts),
            "{chosen:?} {report:?}"
        );
        assert_eq!((report.stream_bytes, report.unplanned_bytes), (0, 0));
    }
}

#[test]
fn a_bounded_dimension_is_planned_for_when_the_file_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = port("x", 1, &[1, WIDTH as i64]);
    let Some(type_proto::Value::TensorType(tensor)) = rows.r#type.as_mut().and_then(|kind| kind.value.as_mut()) else {
        panic!("a port is a tensor")
    };
    tensor.shape.as_mut().unwrap().dim[0].value = Some(dimension::Value::DimParam("seq".to_string()));
    let mut result = rows.clone();
    result.name = Some("y".to_string());
    let graph = GraphProto {
        input: vec![rows],
        output: vec![result],
        initializer: vec![weight("w", &[WIDTH, WIDTH], 3)],
        node: vec![node("MatMul", &["x", "w"], &["y"])],
        ..GraphProto::default()
    };
    let plain = write(folder.path(), graph);
    let bounded = folder.path().join("bounded.ipu");
    let source = Source { entry: "main".to_string(), path: folder.path().join("model.onnx") };
    let ranges = vec![("seq".to_string(), 1, 4096)];
    compile(&[source], &bounded, &CompileOptions { ranges, ..CompileOptions::default() }).unwrap();
    // Input and output of 4096 rows take 8 MiB, which a budget of 4 MiB cannot hold.
    let budget = ModelOptions { memory_bytes: Some(4 << 20), readers: 0 };
    let open = |path: &Path| Model::open_with(Arc::new(DirectFile::open(path).unwrap()), budget);
    let Err(OpenError::Budget { needed_bytes, .. }) = open(&bounded) else { panic!("4 MiB suffice for 4096 rows") };
    assert!(needed_bytes >= 8 << 20, "{needed_bytes}");
    // Where it has no bound, what is too large is refused when it is known, and again says what would do.
    let mut session = session(&open(&plain).unwrap(), 1);
    let input = |rows: usize| {
        let zeros = vec![0u8; rows * WIDTH * 4];
        let zeros = Tensor::from_bytes(ipuc_formats::dtype::DType::F32, &[rows, WIDTH], &zeros).unwrap();
        vec![("x".to_string(), Value::from(zeros))]
    };
    session.run(None, input(16)).unwrap();
    let error = session.run(None, input(4096)).unwrap_err();
    let RunError::Budget { needed_bytes, .. } = error else { panic!("{error}") };
    assert!(needed_bytes >= 8 << 20, "{needed_bytes}");
    session.run(None, input(16)).unwrap();
}

#[test]
fn a_budget_that_is_too_small_names_one_that_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let file: Arc<dyn ReadAt> = Arc::new(DirectFile::open(&path).unwrap());
    let open = |bytes| Model::open_with(file.clone(), ModelOptions { memory_bytes: Some(bytes), readers: 0 });
    let Err(OpenError::Budget { needed_bytes, budget_bytes: 1000 }) = open(1000) else { panic!("1000 bytes suffice") };
    let model = open(needed_bytes).unwrap();
    let mut session = session(&model, 1);
    let outputs = session.run(None, vec![("x".to_string(), x())]).unwrap();
    assert_eq!(outputs.len(), 1);
    assert!(open(needed_bytes - 1).is_err());
}

#[test]
fn sessions_share_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let model = open(&path, Some(stream_bytes(&path) / 3 + WORKING_BYTES));
    let expected = bits(&session(&open(&path, None), 1).run(None, vec![("x".to_string(), x())]).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut session = session(&model, 1);
                for _ in 0..5 {
                    assert!(bits(&session.run(None, vec![("x".to_string(), x())]).unwrap()) == expected);
                }
            });
        }
    });
}

/// A file that remembers what is read, and fails or lies when it is told to.
struct Watched {
    file: DirectFile,
    reads: Mutex<Vec<Range<u64>>>,
    count: AtomicUsize,
    /// The read that fails; none where it is 0.
    failing: AtomicUsize,
    /// Offset of a byte that is read wrongly; none where it is 0.
    flipped: AtomicU64,
    /// Where the file ends for reads; its length where it is 0.
    end: AtomicU64,
}

impl Watched {
    fn new(path: &Path) -> Self {
        Watched {
            file: DirectFile::open(path).unwrap(),
            reads: Mutex::default(),
            count: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            flipped: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }
}

impl ReadAt for Watched {
    fn length(&self) -> u64 {
        self.file.length()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + buffer.len() as u64;
        self.reads.lock().unwrap().push(range.clone());
        let end = self.end.load(Ordering::SeqCst);
        if end != 0 && range.end > end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.failing.load(Ordering::SeqCst) {
            return Err(io::Error::other("Input/output error"));
        }
        self.file.read_exact_at(offset, buffer)?;
        let flipped = self.flipped.load(Ordering::SeqCst);
        if flipped != 0 && range.contains(&flipped) {
            buffer[(flipped - offset) as usize] ^= 1;
        }
        Ok(())
    }
}

#[test]
fn faults_end_a_run_with_a_reason_and_the_session_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let expected = bits(&session(&open(&path, None), 1).run(None, vec![("x".to_string(), x())]).unwrap());
    let last = manifest(&path).extents.last().unwrap().offset;
    for readers in [1, 4] {
        let file = Arc::new(Watched::new(&path));
        let options = ModelOptions { memory_bytes: Some(stream_bytes(&path) / 2 + (128 << 10)), readers };
        let model = Model::open_with(file.clone(), options).unwrap();
        let mut session = session(&model, 2);
        let mut run = || session.run(None, vec![("x".to_string(), x())]);
        let mut fails = |break_it: &dyn Fn(), mend: &dyn Fn(), reason: &str| {
            break_it();
            // What was read ahead may serve one more pass.
            let error = (0..3).find_map(|_| run().err()).expect("a fault goes unnoticed");
            let RunError::Step { error, .. } = &error else { panic!("{error}") };
            let text = error.to_string();
            assert!(text.contains(reason) && text.contains("offset"), "{text}");
            mend();
            for _ in 0..3 {
                assert!(bits(&run().unwrap()) == expected, "after {reason}");
            }
        };
        for read in [1, 3, 7] {
            let next = || file.failing.store(file.count.load(Ordering::SeqCst) + read, Ordering::SeqCst);
            fails(&next, &|| (), "Input/output error");
        }
        let set = |place: &AtomicU64, value: u64| place.store(value, Ordering::SeqCst);
        fails(&|| set(&file.end, last), &|| set(&file.end, 0), "end of file");
        let streamed = model.residency().unwrap().pinned.iter().position(|pinned| !pinned).unwrap();
        let inside = manifest(&path).chunks[streamed].offset + 100;
        fails(&|| set(&file.flipped, inside), &|| set(&file.flipped, 0), "checksum");
    }
}

#[test]
fn a_file_runs_while_it_arrives_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let expected = bits(&session(&open(&path, None), 1).run(None, vec![("x".to_string(), x())]).unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let run = |bytes: &[u8], memory_bytes| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for block in bytes.chunks(50_000) {
                    // Who reads may have seen enough.
                    if std::io::Write::write_all(&mut writer, block).is_err() {
                        break;
                    }
                }
            });
            let options = ipuc::OpenOptions { memory_bytes, ..ipuc::OpenOptions::default() };
            let mut session = session(&ipuc::open_pipe(reader, options).map_err(|error| error.to_string())?, 2);
            let mut run = || session.run(None, vec![("x".to_string(), x())]).map_err(|error| error.to_string());
            run()?;
            Ok::<_, String>(bits(&run()?))
        })
    };
    assert!(run(&bytes, None).unwrap() == expected);
    assert!(run(&bytes, Some(bytes.len() as u64 / 2)).unwrap() == expected, "a second pass reads what is kept");
    let error = run(&bytes[..bytes.len() - 300_000], None).unwrap_err();
    assert!(error.contains("the pipe ends before the file does"), "{error}");
    let error = run(&bytes[..1000], None).unwrap_err();
    assert!(error.contains("the pipe ends before the file does"), "{error}");
    let mut damaged = bytes.clone();
    damaged[bytes.len() - 5000] ^= 1;
    assert!(run(&damaged, None).unwrap_err().contains("checksum"));
}

#[test]
fn a_file_runs_while_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let expected = bits(&session(&open(&path, None), 1).run(None, vec![("x".to_string(), x())]).unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let growing = folder.path().join("growing.ipu");
    let mut file = std::fs::File::create(&growing).unwrap();
    let options =
        ipuc::OpenOptions { follow: Some(std::time::Duration::from_secs(60)), ..ipuc::OpenOptions::default() };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let mut session = session(&ipuc::open_with(&growing, options).unwrap(), 1);
            bits(&session.run(None, vec![("x".to_string(), x())]).unwrap())
        });
        for block in bytes.chunks(bytes.len() / 5) {
            std::io::Write::write_all(&mut file, block).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(run.join().unwrap() == expected);
    });
    std::fs::write(&growing, &bytes[..bytes.len() / 2]).unwrap();
    let options = ipuc::OpenOptions { follow: Some(std::time::Duration::from_millis(100)), ..options };
    let mut session = session(&ipuc::open_with(&growing, options).unwrap(), 1);
    let error = session.run(None, vec![("x".to_string(), x())]).unwrap_err().to_string();
    assert!(error.contains("has not grown"), "{error}");
}

#[test]
fn mapped_weights_give_the_same_bits_and_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let options = ipuc::OpenOptions { resident: ipuc::Resident::Map, ..ipuc::OpenOptions::default() };
    let run = |model: &Model| session(model, 1).run(None, all_inputs(true, [3, 4])).map(|outputs| bits(&outputs));
    let expected = run(&open(&path, None)).unwrap();
    assert!(run(&ipuc::open_with(&path, options).unwrap()).unwrap() == expected);
    let mut bytes = std::fs::read(&path).unwrap();
    let manifest = manifest(&path);
    let used = manifest.weights.iter().find(|weight| weight.name.as_deref() == Some("then_w")).unwrap();
    bytes[manifest.extents[used.parts[0].extent as usize].offset as usize] ^= 1;
    let damaged = folder.path().join("damaged.ipu");
    std::fs::write(&damaged, bytes).unwrap();
    let error = run(&ipuc::open_with(&damaged, options).unwrap()).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

#[test]
fn a_trace_shows_reads_beside_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let model = open(&path, Some(stream_bytes(&path) / 2 + (128 << 10)));
    let mut session = session(&model, 2);
    let mut run = |trace: Option<Arc<ipuc_runtime::Trace>>| {
        session.set_trace(trace);
        session.run(None, vec![("x".to_string(), x())]).unwrap();
        session.last_pass().unwrap()
    };
    let trace = Arc::new(ipuc_runtime::Trace::default());
    run(Some(trace.clone()));
    run(None);
    let spans = trace.spans();
    let on = |wanted: fn(&ipuc_runtime::Track) -> bool| spans.iter().filter(move |span| wanted(&span.track));
    assert_eq!(on(|track| *track == ipuc_runtime::Track::Steps).count(), 16, "8 products, 8 activations");
    let read: u64 = on(|track| matches!(track, ipuc_runtime::Track::Reader(_))).filter_map(|span| span.bytes).sum();
    assert!(read >= stream_bytes(&path), "the first pass reads everything");
    assert!(on(|track| matches!(track, ipuc_runtime::Track::Worker(_))).count() > 0);
    let count = spans.len();
    run(None);
    assert_eq!(trace.spans().len(), count, "nothing is noted after the trace has ended");
}
