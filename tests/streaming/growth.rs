//! State that grows under a budget: weights make room for it, and only what has left is read again.

use super::models::{KEY_WIDTH, bits, decoder, decoder_inputs, open, session, stream_bytes};
use super::watched::Watched;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::tensor::Tensor;
use ipuc_runtime::{Model, ModelOptions, RunError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LAYERS: usize = 4;
/// Bytes of state that a token appends: a row of keys and one of values in each layer.
const TOKEN_BYTES: u64 = 2 * LAYERS as u64 * KEY_WIDTH as u64 * 4;

#[test]
fn a_thousand_tokens_start_streaming_once_and_read_only_what_does_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = decoder(folder.path(), LAYERS);
    let weights = stream_bytes(&path);
    let file = Arc::new(Watched::new(&path));
    // All weights fit with the first tokens; then they leave.
    let budget = weights + 600 * TOKEN_BYTES;
    let options = ModelOptions { memory_bytes: Some(budget), readers: 2, ..ModelOptions::default() };
    let model = Model::open_with(file.clone(), options).unwrap();
    let (mut streamed, mut resident) = (session(&model, 1), session(&open(&path, None), 1));
    let mut stayed = weights;
    let mut passes_that_leave = 0;
    for token in 0..1000 {
        let found = streamed.run(None, decoder_inputs(1, token)).unwrap();
        let report = streamed.last_pass().unwrap();
        let residency = model.residency().unwrap();
        assert!(residency.pinned_bytes <= stayed, "token {token}: what has left comes back");
        passes_that_leave += u32::from(residency.pinned_bytes < stayed);
        // What leaves in a pass is used in it once more.
        let expected = if token == 0 { weights } else { weights - stayed };
        assert_eq!((report.stream_bytes, report.unplanned_bytes, report.dropped_bytes), (expected, 0, 0), "{token}");
        stayed = residency.pinned_bytes;
        assert_eq!(residency.bytes_per_pass[0], weights - stayed, "token {token}");
        let expected = resident.run(None, decoder_inputs(1, token)).unwrap();
        assert!(bits(&found) == bits(&expected), "token {token}");
    }
    assert!(model.memory().peak_bytes <= budget, "{:?} of {budget}", model.memory());
    assert_eq!(file.queues.load(Ordering::SeqCst), 1);
    assert!(passes_that_leave > 1 && stayed < weights / 2, "{passes_that_leave} {stayed}");
}

/// Pages of all layers are added in the same pass: more than a block, and more than passes add on average.
#[test]
fn room_for_pages_of_many_layers_is_made_before_they_are_added() {
    const LAYERS: usize = 48;
    const ROWS: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let path = decoder(folder.path(), LAYERS);
    let weights = stream_bytes(&path);
    let model = open(&path, Some(weights / 2));
    let mut session = session(&model, 1);
    let mut stayed = 0;
    let mut passes_that_leave = 0;
    for pass in 0..20 {
        session.run(None, decoder_inputs(ROWS, pass)).unwrap();
        let (report, residency) = (session.last_pass().unwrap(), model.residency().unwrap());
        assert_eq!((report.unplanned_bytes, report.dropped_bytes), (0, 0), "pass {pass}");
        passes_that_leave += u32::from(residency.pinned_bytes < stayed);
        stayed = residency.pinned_bytes;
    }
    assert!(passes_that_leave > 0, "{stayed} of {weights} bytes stay");
}

#[test]
fn a_prefill_drops_what_was_read_ahead_and_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = decoder(folder.path(), LAYERS);
    let weights = stream_bytes(&path);
    let model = open(&path, Some(weights / 2 + (2 << 20)));
    let (mut streamed, mut resident) = (session(&model, 2), session(&open(&path, None), 2));
    let ring_bytes = model.residency().unwrap().ring_bytes;
    for (token, rows) in [1, 1, 1, 400, 1, 1, 1].into_iter().enumerate() {
        let expected = resident.run(None, decoder_inputs(rows, token)).unwrap();
        if rows > 1 {
            // So that something is read ahead.
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(bits(&streamed.run(None, decoder_inputs(rows, token)).unwrap()) == bits(&expected), "pass {token}");
        let (report, residency) = (streamed.last_pass().unwrap(), model.residency().unwrap());
        assert!(report.dropped_bytes <= ring_bytes, "pass {token}: {report:?}");
        assert!(token > 3 || (report.dropped_bytes > 0) == (rows > 1), "pass {token}: {report:?}");
        let most = residency.bytes_per_pass[0] + report.dropped_bytes;
        assert!(token == 0 || report.stream_bytes <= most, "pass {token}: {report:?} of {most}");
    }
    // More than there is: an error that says how much would do, and the session goes on as before.
    let error = streamed.run(None, decoder_inputs(20_000, 7)).unwrap_err();
    let RunError::Budget { needed_bytes, budget_bytes, .. } = error else { panic!("{error}") };
    assert!(needed_bytes > budget_bytes && budget_bytes == weights / 2 + (2 << 20), "{needed_bytes} {budget_bytes}");
    let expected = resident.run(None, decoder_inputs(1, 8)).unwrap();
    assert!(bits(&streamed.run(None, decoder_inputs(1, 8)).unwrap()) == bits(&expected));
}

#[test]
fn room_for_a_context_is_kept_from_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let path = decoder(folder.path(), LAYERS);
    let weights = stream_bytes(&path);
    let file = Arc::new(Watched::new(&path));
    let memory_bytes = Some(weights);
    let options = ModelOptions { memory_bytes, context: Some(1000), ..ModelOptions::default() };
    let model = Model::open_with(file, options.clone()).unwrap();
    let before = model.residency().unwrap();
    assert!(before.working_bytes >= 1000 * TOKEN_BYTES && before.pinned_bytes < weights, "{before:?}");
    let mut session = session(&model, 1);
    for token in 0..300 {
        session.run(None, decoder_inputs(1, token)).unwrap();
        assert_eq!(model.residency().unwrap().pinned, before.pinned, "token {token}");
    }
    let error = Model::open_with(Arc::new(Watched::new(&path)), ModelOptions { context: Some(1 << 20), ..options });
    assert!(matches!(error, Err(ipuc_runtime::OpenError::Budget { .. })), "2^20 positions fit");
}

/// Anonymous memory of this process in bytes.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// `IPUC_LANGUAGE_MODEL` is a folder of onnxruntime-genai whose `model.onnx` has weights above 512 MiB.
#[test]
#[ignore = "takes minutes, and a language model"]
fn a_thousand_tokens_of_a_language_model_in_half_of_its_weights() {
    let onnx = std::env::var_os("IPUC_LANGUAGE_MODEL").expect("IPUC_LANGUAGE_MODEL names a folder");
    let onnx = Path::new(&onnx).join("model.onnx");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.ipu");
    let source = Source { entry: "main".to_string(), path: onnx };
    let options = CompileOptions { states: vec!["auto".to_string()], ..CompileOptions::default() };
    compile(&[source], &path, &options).unwrap();
    let weights = stream_bytes(&path);
    assert!(weights > 512 << 20, "{weights} bytes of weights");
    let before = anonymous_bytes();
    let file = Arc::new(Watched::new(&path));
    let budget = weights / 2;
    let options = ModelOptions { memory_bytes: Some(budget), readers: 2, ..ModelOptions::default() };
    let model = Model::open_with(file.clone(), options).unwrap();
    let inputs = |token: usize| {
        let one = |value: i64| Tensor::from_elements(&[1, 1], &[value]).unwrap();
        let mask = Tensor::from_elements(&[1, token + 1], &vec![1i64; token + 1]).unwrap();
        vec![
            ("input_ids".to_string(), one((token * 37 % 4000) as i64).into()),
            ("attention_mask".to_string(), mask.into()),
        ]
    };
    let mut streamed = session(&model, 2);
    let mut expected = Vec::new();
    {
        let resident = open(&path, None);
        let mut session = session(&resident, 2);
        for token in 0..20 {
            expected.push(bits(&session.run(None, inputs(token)).unwrap()));
        }
    }
    let mut stayed = 0;
    for token in 0..1000 {
        let found = streamed.run(None, inputs(token)).unwrap();
        if let Some(expected) = expected.get(token) {
            assert!(bits(&found) == *expected, "token {token}");
        }
        let (report, residency) = (streamed.last_pass().unwrap(), model.residency().unwrap());
        let most = if token == 0 { weights } else { weights - stayed };
        assert!(report.stream_bytes <= most, "token {token}: {} of {most} bytes are read", report.stream_bytes);
        assert_eq!((report.unplanned_bytes, report.dropped_bytes), (0, 0), "token {token}");
        stayed = residency.pinned_bytes;
        let anonymous = anonymous_bytes() - before.min(anonymous_bytes());
        assert!(anonymous <= budget + (64 << 20), "token {token}: {anonymous} bytes of {budget}");
    }
    assert!(model.memory().peak_bytes <= budget, "{:?} of {budget}", model.memory());
    assert_eq!(file.queues.load(Ordering::SeqCst), 1, "streaming starts once");
}
