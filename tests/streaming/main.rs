//! Weights within a budget: the same bits, the bytes of the plan, and errors that end a run but not a session.
#![allow(clippy::unwrap_used, reason = "tests panic")]

mod arrival;
mod faults;
mod growth;
mod models;
mod rows;
mod watched;

use self::models::{
    WIDTH, WORKING_BYTES, all_inputs, bits, chain, chain_bits, chain_inputs, everything, manifest, node, open,
    open_port, session, stream_bytes, weight, write,
};
use self::watched::Watched;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::files::DirectFile;
use ipuc_formats::onnx::schema::GraphProto;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, ModelOptions, OpenError, RunError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
            session.run(None, chain_inputs()).unwrap();
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
fn what_comes_first_in_the_next_run_is_read_after_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 16);
    let expected = chain_bits(&path);
    let file = Arc::new(Watched::queued(&path));
    let options = ModelOptions { memory_bytes: Some(stream_bytes(&path) / 4), readers: 2, ..ModelOptions::default() };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 2);
    let mut reads = 0;
    for _ in 0..4 {
        assert!(bits(&session.run(None, chain_inputs()).unwrap()) == expected);
        reads += session.last_pass().unwrap().reads as usize;
    }
    let begun = Instant::now();
    while file.completed.load(Ordering::SeqCst) == reads && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(file.completed.load(Ordering::SeqCst) > reads, "nobody reads between runs");
    assert!(bits(&session.run(None, chain_inputs()).unwrap()) == expected);
}

#[test]
fn the_bits_are_the_same_however_many_passes_follow_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 16);
    let expected = chain_bits(&path);
    let chunks = manifest(&path).chunks;
    let model = open(&path, Some(stream_bytes(&path) / 10 + WORKING_BYTES));
    let mut session = session(&model, 2);
    let mut read_bytes = 0;
    while read_bytes < 1000 * chunks[0].length {
        assert!(bits(&session.run(None, chain_inputs()).unwrap()) == expected, "after {read_bytes} bytes");
        read_bytes += session.last_pass().unwrap().stream_bytes;
    }
}

#[test]
fn a_pass_over_weights_that_fit_reads_and_checks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 4);
    let file = Arc::new(Watched::new(&path));
    let options =
        ModelOptions { memory_bytes: Some(stream_bytes(&path) + (1 << 20)), readers: 1, ..ModelOptions::default() };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    session.run(None, chain_inputs()).unwrap();
    let before = file.reads.lock().unwrap().len();
    session.run(None, chain_inputs()).unwrap();
    assert_eq!(file.reads.lock().unwrap().len(), before);
    let report = session.last_pass().unwrap();
    assert_eq!((report.bytes_read(), report.checked_bytes, report.reads), (0, 0, 0));
}

#[test]
fn a_bounded_dimension_is_planned_for_when_the_file_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let rows = open_port("x", "seq", WIDTH as i64);
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
    let budget = ModelOptions { memory_bytes: Some(4 << 20), ..ModelOptions::default() };
    let open = |path: &Path| Model::open_with(Arc::new(DirectFile::open(path).unwrap()), budget.clone());
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
    let file: Arc<DirectFile> = Arc::new(DirectFile::open(&path).unwrap());
    let open =
        |bytes| Model::open_with(file.clone(), ModelOptions { memory_bytes: Some(bytes), ..ModelOptions::default() });
    let Err(OpenError::Budget { needed_bytes, budget_bytes: 1000 }) = open(1000) else { panic!("1000 bytes suffice") };
    let model = open(needed_bytes).unwrap();
    let mut session = session(&model, 1);
    let outputs = session.run(None, chain_inputs()).unwrap();
    assert_eq!(outputs.len(), 1);
    let Err(OpenError::Budget { needed_bytes: same, budget_bytes }) = open(needed_bytes - 1) else {
        panic!("{needed_bytes} bytes are not needed")
    };
    assert_eq!((same, budget_bytes), (needed_bytes, needed_bytes - 1));
}

#[test]
fn sessions_share_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let model = open(&path, Some(stream_bytes(&path) / 3 + WORKING_BYTES));
    let expected = chain_bits(&path);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut session = session(&model, 1);
                for _ in 0..5 {
                    assert!(bits(&session.run(None, chain_inputs()).unwrap()) == expected);
                }
            });
        }
    });
}

#[test]
fn mapped_weights_give_the_same_bits_and_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let options = ipuc::OpenOptions { resident: ipuc::Resident::Map, ..ipuc::OpenOptions::default() };
    let run = |model: &Model| session(model, 1).run(None, all_inputs(true, [3, 4])).map(|outputs| bits(&outputs));
    let expected = run(&open(&path, None)).unwrap();
    assert!(run(&ipuc::open_with(&path, options.clone()).unwrap()).unwrap() == expected);
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
        session.run(None, chain_inputs()).unwrap();
        session.last_pass().unwrap()
    };
    let trace = Arc::new(ipuc_runtime::Trace::default());
    run(Some(trace.clone()));
    run(None);
    let spans = trace.spans();
    let on = |wanted: fn(&ipuc_runtime::Track) -> bool| spans.iter().filter(move |span| wanted(&span.track));
    assert_eq!(on(|track| *track == ipuc_runtime::Track::Steps).count(), 8, "8 products with their activations");
    let runs: Vec<&str> = on(|track| *track == ipuc_runtime::Track::Runs).map(|span| span.name.as_str()).collect();
    assert_eq!(runs, ["run main"]);
    let read: u64 = on(|track| matches!(track, ipuc_runtime::Track::Reader(_))).filter_map(|span| span.bytes).sum();
    assert!(read >= stream_bytes(&path), "the first pass reads everything");
    assert!(on(|track| matches!(track, ipuc_runtime::Track::Worker(_))).count() > 0);
    let count = spans.len();
    run(None);
    assert_eq!(trace.spans().len(), count, "nothing is noted after the trace has ended");
}

/// Reads of a slow file, one after another: steps wait, and say for what.
#[test]
fn waits_name_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let memory_bytes = Some(stream_bytes(&path) / 2 + (128 << 10));
    let options = ipuc_runtime::ModelOptions { memory_bytes, ..ipuc_runtime::ModelOptions::default() };
    let model = Model::open_with(Arc::new(watched::Watched::queued(&path)), options).unwrap();
    let mut session = session(&model, 1);
    let trace = Arc::new(ipuc_runtime::Trace::default());
    session.set_trace(Some(trace.clone()));
    session.run(None, chain_inputs()).unwrap();
    let spans = trace.spans();
    let waits: Vec<&str> =
        spans.iter().filter(|span| span.track == ipuc_runtime::Track::Stalls).map(|span| span.name.as_str()).collect();
    assert!(waits.iter().any(|wait| wait.ends_with(" of w0")), "the first weight is waited for: {waits:?}");
    let names_weight = |wait: &&str| {
        let (part, weight) = wait.strip_prefix("part ").unwrap().split_once(" of w").unwrap();
        part.parse::<usize>().is_ok() && weight.parse::<usize>().is_ok_and(|weight| weight < 8)
    };
    assert!(waits.iter().all(names_weight), "{waits:?}");
    // Steps that waited are told by number, which `--program` shows.
    let stalls = session.last_pass().unwrap().stalls;
    assert!(stalls.iter().any(|stall| (stall.block, stall.step) == (0, 0)), "{stalls:?}");
}
