//! What a program needs of this crate is in this crate: nothing here is named but `ipuc`, and the standard library.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use ipuc::compile::{CompileOptions, Source};
use ipuc::{
    CancelToken, DType, Manifest, Model, OpenOptions, PassReport, Port, Residency, RunError, Session, SessionOptions,
    Shape, Tensor, TensorError, Threads, Trace, Track, Type, Value,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A compiled model with state; the folder holds it.
fn compiled() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("detector.ipu");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/silero_vad_16k_op15/model.onnx");
    let source = Source { entry: "main".to_string(), path: model };
    let options = CompileOptions { states: vec!["state=stateN".to_string()], ..CompileOptions::default() };
    ipuc::compile(&[source], &path, &options).unwrap();
    (folder, path)
}

/// Zeros for every input that a caller gives, of one batch of one window.
fn silence(model: &Model) -> Vec<(String, Value)> {
    let ports: Vec<Port> = model.inputs(model.entry(None).unwrap());
    let zeros = |port: Port| -> (String, Value) {
        let Type::Tensor { dtype, shape: Shape::Ranked(dims) } = &port.kind else { panic!("{}", port.kind) };
        let extent = |(axis, dim): (usize, &ipuc::Dim)| match dim.as_known() {
            Some(extent) => extent as usize,
            None if axis == 0 => 1,
            None => 576,
        };
        let shape: Vec<usize> = dims.iter().enumerate().map(extent).collect();
        // The one integer is the rate of the samples.
        let tensor: Result<Tensor, TensorError> = match dtype {
            DType::I64 => Ok(Tensor::scalar(16000i64)),
            dtype => Tensor::zeros(*dtype, &shape),
        };
        (port.name, tensor.unwrap().into())
    };
    ports.into_iter().map(zeros).collect()
}

#[test]
fn a_session_is_budgeted_traced_and_read() {
    let (_folder, path) = compiled();
    let resident = ipuc::open(&path).unwrap();
    let manifest: &Manifest = resident.manifest();
    assert_eq!(manifest.entries[0].name, "main");
    let residency: Option<Residency> = resident.residency();
    assert!(residency.is_none());
    let options = OpenOptions { memory_bytes: Some(64 << 20), ..OpenOptions::default() };
    let model = ipuc::open_with(&path, options).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let trace = Arc::new(Trace::default());
    session.set_trace(Some(trace.clone()));
    let outputs = session.run(None, silence(&model)).unwrap();
    assert!(trace.spans().iter().any(|span| span.track == Track::Steps));
    let pass: Option<PassReport> = session.last_pass();
    assert!(pass.is_some());
    let (_, value) = &outputs[0];
    assert_eq!(value.as_tensor().unwrap().dtype(), DType::F32);
}

#[test]
fn a_cancelled_run_says_so_and_keeps_the_state() {
    let (_folder, path) = compiled();
    let model = ipuc::open(&path).unwrap();
    let threads = Threads::new(1).unwrap();
    let mut session = Session::on_threads(&model, threads.clone(), 0).unwrap();
    let mut other = Session::on_threads(&model, threads, 0).unwrap();
    session.run(None, silence(&model)).unwrap();
    let before = session.state("state").unwrap();
    assert!(before.is_some());
    let token = CancelToken::default();
    session.set_cancel(Some(token.clone()));
    token.cancel();
    let error: RunError = session.run(None, silence(&model)).unwrap_err();
    assert!(error.to_string().ends_with("cancelled"), "{error}");
    assert!(session.state("state").unwrap() == before);
    session.set_cancel(None);
    other.warm_up(None, silence(&model)).unwrap();
    assert!(other.state("state").unwrap().is_none(), "a warm-up leaves no state");
    let (again, first) = (session.run(None, silence(&model)).unwrap(), other.run(None, silence(&model)).unwrap());
    assert_eq!(again.len(), first.len());
}

#[test]
fn bytes_inside_a_program_are_used_where_they_lie() {
    let (_folder, path) = compiled();
    let bytes = std::fs::read(&path).unwrap();
    // At a multiple of 64, and at none.
    let room: &'static mut [u8] = Box::leak(vec![0; bytes.len() + 128].into_boxed_slice());
    let aligned = room.as_ptr().align_offset(64);
    room[aligned..aligned + bytes.len()].copy_from_slice(&bytes);
    let room: &'static [u8] = room;
    let inside = ipuc::open_static(&room[aligned..aligned + bytes.len()]).unwrap();
    let copied = ipuc::open_bytes(&bytes).unwrap();
    let run = |model: &Model| {
        let mut session = Session::new(model, &SessionOptions::default()).unwrap();
        session.run(None, silence(model)).unwrap()
    };
    assert!(run(&inside) == run(&copied));
    let off: &'static [u8] = Box::leak([&[0][..], &bytes].concat().into_boxed_slice());
    assert!(run(&ipuc::open_static(&off[1..]).unwrap()) == run(&copied));
}
