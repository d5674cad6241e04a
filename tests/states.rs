//! State that grows, in a language model: prefill and decode share a cache; under a budget weights leave for it, then full pages
//! go to disk; forks go their own ways; what is saved goes on in another session. All of it gives the bits of one run in memory.
//!
//! The model is one of a folder of cases (`IPUC_CASES`, or beside this checkout); without it the tests are skipped.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use crate::support::{self, npy};
use ipuc::compile::{Activations, CompileOptions, Source, compile};
use ipuc::{OpenFileError, OpenOptions, open_with};
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{
    AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use ipuc_formats::ops::RowScheme;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, OpenError, RunError, SavedStateError, Session, SessionOptions};
use prost::Message as _;
use std::path::{Path, PathBuf};

/// Tokens of the prompt, which one pass takes.
const PROMPT: usize = 18;
/// Tokens after the prompt: the second page of each state begins with the 111th.
const TOKENS: usize = 140;
/// Token after which the session is forked and saved.
const FORK: usize = 100;

/// Room for activations of the prompt, and for less than the state after all tokens.
const ROOM_BYTES: u64 = 5 << 18;

fn case() -> Option<PathBuf> {
    let model = support::cases().join("llama_genai_int4/model.onnx");
    if !model.is_file() {
        eprintln!("skipped: there is no {} (set IPUC_CASES)", model.display());
        return None;
    }
    Some(model)
}

/// The case with its past and present as state.
fn compiled(folder: &Path) -> Option<PathBuf> {
    compiled_with(folder, None, Activations::Model)
}

/// [`compiled`], with rows of the caches rounded.
fn compiled_with(folder: &Path, cache: Option<RowScheme>, activations: Activations) -> Option<PathBuf> {
    let output = folder.join("model.ipu");
    let states = vec!["auto".to_string()];
    let options =
        CompileOptions { states, cache, activations, chunk_bytes: Some(64 << 10), ..CompileOptions::default() };
    compile(&[Source { entry: "main".to_string(), path: case()? }], &output, &options).unwrap();
    Some(output)
}

/// A token that depends on its position and on which text it is of.
fn token(position: usize, text: usize) -> i64 {
    ((position * 37 + text * 101 + 11) % 4096) as i64
}

/// Run `count` tokens from `position` on; gives the bits of the scores of the last one.
fn step(session: &mut Session, position: usize, count: usize, text: usize) -> Result<Vec<u8>, RunError> {
    step_of(session, None, position, count, text)
}

/// The tokens from `position` on, and a mask that hides none.
fn inputs(position: usize, count: usize, text: usize) -> Vec<(String, Value)> {
    let tokens: Vec<i64> = (position..position + count).map(|position| token(position, text)).collect();
    let mask = vec![1i64; position + count];
    vec![
        ("input_ids".to_string(), Tensor::from_elements(&[1, count], &tokens).unwrap().into()),
        ("attention_mask".to_string(), Tensor::from_elements(&[1, position + count], &mask).unwrap().into()),
    ]
}

/// [`step`] in an entry.
fn step_of(
    session: &mut Session,
    entry: Option<&str>,
    position: usize,
    count: usize,
    text: usize,
) -> Result<Vec<u8>, RunError> {
    let outputs = session.run(entry, inputs(position, count, text))?;
    assert_eq!(outputs.len(), 1, "state is no output");
    let bytes = outputs[0].1.as_tensor().unwrap().bytes();
    Ok(bytes[bytes.len() / count * (count - 1)..].to_vec())
}

/// The least budget that the file can be opened with.
fn least_bytes(path: &Path) -> u64 {
    let error = open_with(path, OpenOptions { memory_bytes: Some(1 << 10), ..OpenOptions::default() }).err();
    let Some(OpenFileError::Model { error: OpenError::Budget { needed_bytes, .. }, .. }) = error else {
        panic!("{error:?}")
    };
    needed_bytes
}

fn session(model: &Model, threads: usize) -> Session {
    Session::new(model, &SessionOptions { threads, seed: 0 }).unwrap()
}

/// Scores of the first `count` tokens of a text, in a session of its own with all weights in memory. Texts part after [`FORK`]
/// tokens.
fn expected(path: &Path, text: usize, count: usize) -> Vec<Vec<u8>> {
    let mut session = session(&open_with(path, OpenOptions::default()).unwrap(), 1);
    step(&mut session, 0, PROMPT, 0).unwrap();
    let text_of = |index: usize| if index < FORK { 0 } else { text };
    (0..count).map(|index| step(&mut session, PROMPT + index, 1, text_of(index)).unwrap()).collect()
}

#[test]
fn caches_grow_by_pages_and_nothing_copies_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let manifest = model.manifest();
    assert_eq!(manifest.states.len(), 8);
    for state in &manifest.states {
        let growth = state.growth.unwrap();
        assert_eq!((growth.axis, growth.page), (2, 128), "{}", state.name);
    }
    let block = &manifest.blocks[0];
    let count = |name: &str| block.steps.iter().filter(|step| step.op.name() == name).count();
    assert_eq!((count("append"), count("cache_scatter"), count("concat")), (8, 0, 0));
    let mut session = session(&model, 1);
    step(&mut session, 0, PROMPT, 0).unwrap();
    step(&mut session, PROMPT, 1, 0).unwrap();
    let before = model.memory().in_use_bytes;
    for index in 1..50 {
        step(&mut session, PROMPT + index, 1, 0).unwrap();
    }
    // Masks and positions grow; keys and values, of which a token has 2 KiB, do not.
    let grown = model.memory().in_use_bytes.saturating_sub(before);
    assert!(grown <= 16 << 10, "{grown} bytes more for 49 tokens that fit in the pages of the prompt");
}

#[test]
fn one_set_of_bits_with_budgets_forks_and_saved_state() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    let scores = [0, 1].map(|text| expected(&path, text, TOKENS));
    let expected = |text: usize, index: usize| &scores[text][index];
    let stream: u64 = {
        let model = open_with(&path, OpenOptions::default()).unwrap();
        model.manifest().chunks.iter().map(|chunk| chunk.length).sum()
    };
    for (threads, memory_bytes, spills) in [
        (1, None, false),
        (2, None, false),
        (1, Some(stream * 3 / 4), false),
        (2, Some(least_bytes(&path) + ROOM_BYTES), true),
    ] {
        let place = format!("{threads} threads, {memory_bytes:?}");
        let options = OpenOptions { memory_bytes, spill_folder: Some(folder.path().to_owned()), ..Default::default() };
        let model = open_with(&path, options.clone()).unwrap();
        let mut first = session(&model, threads);
        step(&mut first, 0, PROMPT, 0).unwrap();
        for index in 0..FORK {
            assert!(step(&mut first, PROMPT + index, 1, 0).unwrap() == *expected(0, index), "{place}: {index}");
        }
        let mut second = first.fork();
        let mut saved = Vec::new();
        first.save(&mut saved).unwrap();
        for index in FORK..TOKENS {
            assert!(step(&mut first, PROMPT + index, 1, 0).unwrap() == *expected(0, index), "{place}: {index}");
            assert!(step(&mut second, PROMPT + index, 1, 1).unwrap() == *expected(1, index), "{place}: {index}");
        }
        assert_eq!(first.spilled_bytes() > 0, spills, "{place}: {} bytes are spilled", first.spilled_bytes());
        if let Some(limit) = memory_bytes {
            assert!(model.memory().peak_bytes <= limit, "{place}: {:?}", model.memory());
        }
        drop((first, second));
        let mut third = session(&open_with(&path, options).unwrap(), threads);
        third.restore(&mut saved.as_slice()).unwrap();
        for index in FORK..FORK + 20 {
            assert!(step(&mut third, PROMPT + index, 1, 1).unwrap() == *expected(1, index), "{place}: {index}");
        }
    }
}

/// Bytes of the rows of all caches that a session holds.
fn cache_bytes(session: &Session, model: &Model, row_bytes: impl Fn(usize) -> usize) -> usize {
    let rows = model.manifest().states.iter().map(|state| {
        let contents = session.state(&state.name).unwrap().unwrap();
        let &[batch, heads, positions, size] = contents.as_tensor().unwrap().shape() else { panic!("{}", state.kind) };
        batch * heads * positions * row_bytes(size)
    });
    rows.sum()
}

/// Activations stay floats: rounded to 8 bits, a difference in the last places of a cache would become one of a code.
#[test]
fn rounded_rows_have_one_set_of_bits_and_fewer_bytes() {
    for (scheme, least_cosine) in [(RowScheme::F16, 0.9999), (RowScheme::I8, 0.99)] {
        let folder = tempfile::tempdir().unwrap();
        let exact_folder = tempfile::tempdir().unwrap();
        let Some(path) = compiled_with(folder.path(), Some(scheme), Activations::Keep) else { return };
        let exact =
            open_with(compiled_with(exact_folder.path(), None, Activations::Keep).unwrap(), OpenOptions::default())
                .unwrap();
        let model = open_with(&path, OpenOptions::default()).unwrap();
        let stream: u64 = model.manifest().chunks.iter().map(|chunk| chunk.length).sum();
        let memory_bytes = Some(stream * 3 / 4);
        let tight = open_with(&path, OpenOptions { memory_bytes, ..Default::default() }).unwrap();
        let (mut exact, mut whole, mut tight) = (session(&exact, 1), session(&model, 1), session(&tight, 2));
        for session in [&mut exact, &mut whole, &mut tight] {
            step(session, 0, PROMPT, 0).unwrap();
        }
        let mut restored = None;
        for index in 0..TOKENS {
            let expected = step(&mut whole, PROMPT + index, 1, 0).unwrap();
            assert!(
                step(&mut tight, PROMPT + index, 1, 0).unwrap() == expected,
                "{scheme:?}, token {index}, in a budget"
            );
            let found =
                restored.as_mut().is_none_or(|session| step(session, PROMPT + index, 1, 0).unwrap() == expected);
            assert!(found, "{scheme:?}, token {index}, restored");
            let reference = step(&mut exact, PROMPT + index, 1, 0).unwrap();
            let cosine = cosine(&expected, &reference);
            assert!(cosine >= least_cosine, "{scheme:?}, token {index}: cosine {cosine}");
            assert!(expected != reference, "{scheme:?} rounds nothing");
            if index == FORK {
                let mut saved = Vec::new();
                tight.save(&mut saved).unwrap();
                let positions = PROMPT + FORK + 1;
                let rows = cache_bytes(&tight, &model, |size| scheme.row_bytes(size).unwrap());
                // A checksum for each page; number, rank, four extents and pages forgotten for each state; and the header.
                assert_eq!(saved.len(), rows + 8 * (48 + 4 * positions.div_ceil(128)) + 60);
                let mut session = session(&model, 1);
                session.restore(&mut saved.as_slice()).unwrap();
                restored = Some(session);
            }
        }
    }
}

fn cosine(one: &[u8], other: &[u8]) -> f64 {
    let floats = |bytes: &[u8]| -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    };
    let (one, other) = (floats(one), floats(other));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&one, &other) / (dot(&one, &one) * dot(&other, &other)).sqrt()
}

/// The page that a session fills is never spilled: what is spilled before it has filled one is of the others.
#[test]
fn pages_of_idle_sessions_make_room_for_the_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    // One full page of each state, and ten tokens more.
    let filled = 128 - PROMPT;
    let scores = expected(&path, 0, filled + 10);
    let expected = |index: usize| &scores[index];
    let limit = least_bytes(&path) + ROOM_BYTES;
    let spill_folder = Some(folder.path().to_owned());
    let options = OpenOptions { memory_bytes: Some(limit), spill_folder, ..Default::default() };
    let model = open_with(&path, options).unwrap();
    let mut idle = session(&model, 1);
    step(&mut idle, 0, PROMPT, 0).unwrap();
    for index in 0..filled {
        step(&mut idle, PROMPT + index, 1, 0).unwrap();
    }
    let mut saved = Vec::new();
    idle.save(&mut saved).unwrap();
    let mut other = session(&model, 1);
    other.restore(&mut saved.as_slice()).unwrap();
    let before = idle.spilled_bytes();
    let mut running = session(&model, 1);
    step(&mut running, 0, PROMPT, 0).unwrap();
    for index in 0..20 {
        assert!(step(&mut running, PROMPT + index, 1, 0).unwrap() == *expected(index), "token {index}");
    }
    let spilled = running.spilled_bytes();
    assert!(spilled > before, "{spilled} of {before} bytes");
    drop(running);
    for mut session in [idle, other] {
        for index in filled..filled + 10 {
            assert!(step(&mut session, PROMPT + index, 1, 0).unwrap() == *expected(index), "token {index}");
        }
    }
    assert!(model.memory().peak_bytes <= limit, "{:?}", model.memory());
}

#[test]
fn a_prefill_entry_and_a_decode_entry_share_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let Some(onnx) = case() else { return };
    let path = folder.path().join("entries.ipu");
    let source = |entry: &str| Source { entry: entry.to_string(), path: onnx.clone() };
    let options = CompileOptions { states: vec!["auto".to_string()], ..CompileOptions::default() };
    compile(&[source("prefill"), source("decode")], &path, &options).unwrap();
    let one = compiled(folder.path()).unwrap();
    let mut alone = session(&open_with(&one, OpenOptions::default()).unwrap(), 1);
    step(&mut alone, 0, PROMPT, 0).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    assert_eq!((model.manifest().entries.len(), model.manifest().states.len()), (2, 8));
    let mut shared = session(&model, 1);
    step_of(&mut shared, Some("prefill"), 0, PROMPT, 0).unwrap();
    for index in 0..20 {
        let expected = step(&mut alone, PROMPT + index, 1, 0).unwrap();
        assert!(step_of(&mut shared, Some("decode"), PROMPT + index, 1, 0).unwrap() == expected, "token {index}");
    }
}

#[test]
fn another_process_goes_on_from_saved_state() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    let mut alone = session(&open_with(&path, OpenOptions::default()).unwrap(), 1);
    let (state, outputs) = (folder.path().join("state"), folder.path().join("outputs"));
    for (position, count) in [(0, PROMPT), (PROMPT, 1), (PROMPT + 1, 1)] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.arg("run").arg(&path).args(["--quiet", "--threads", "1", "--save-state"]).arg(&state);
        command.arg("--output").arg(&outputs);
        if position > 0 {
            command.arg("--load-state").arg(&state);
        }
        for (name, value) in inputs(position, count, 0) {
            let file = folder.path().join(format!("{name}.npy"));
            let tensor = value.as_tensor().unwrap();
            let shape = format!("({}, {})", tensor.shape()[0], tensor.shape()[1]);
            std::fs::write(&file, npy("<i8", &shape, tensor.bytes())).unwrap();
            command.arg("--input").arg(format!("{name}={}", file.display()));
        }
        let found = command.output().unwrap();
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        let expected = step(&mut alone, position, count, 0).unwrap();
        let logits = std::fs::read(outputs.join("logits.npy")).unwrap();
        assert!(logits.ends_with(&expected), "position {position}");
    }
}

#[test]
fn what_is_no_saved_state_of_this_model_is_refused_and_the_state_stays() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let mut session = session(&model, 1);
    step(&mut session, 0, PROMPT, 0).unwrap();
    let mut saved = Vec::new();
    session.save(&mut saved).unwrap();
    let mut refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = saved.clone();
        change(&mut changed);
        session.restore(&mut changed.as_slice()).unwrap_err().to_string()
    };
    assert_eq!(refused(&|bytes| bytes.truncate(30)), "this is no saved state: it ends early");
    assert_eq!(refused(&|bytes| bytes[0] = b'x'), "this is no saved state: it does not begin with `ipu state 2`");
    assert_eq!(refused(&|bytes| bytes[20] ^= 1), "this is no saved state: the checksum of its header does not match");
    assert_eq!(refused(&|bytes| bytes.truncate(bytes.len() - 1)), "this is no saved state: it ends early");
    assert_eq!(refused(&|bytes| bytes.push(0)), "this is no saved state: bytes follow the last state");
    let name = &model.manifest().states[0].name;
    let damaged = format!("this is no saved state: state `{name}`: a checksum does not match");
    assert_eq!(refused(&|bytes| bytes[60 + 40 + 100] ^= 1), damaged);
    let forgotten = format!("this is no saved state: state `{name}`: more positions are forgotten than are never read");
    assert_eq!(refused(&|bytes| bytes[60 + 40] = 1), forgotten);
    // Extents that nothing fits in: nothing is allocated for them.
    let huge = refused(&|bytes| bytes[60 + 8 + 16..60 + 8 + 24].copy_from_slice(&(1u64 << 50).to_le_bytes()));
    assert!(huge.starts_with("this is no saved state: "), "{huge}");
    // Another model.
    let other = folder.path().join("other.ipu");
    let onnx = case().unwrap();
    compile(&[Source { entry: "other".to_string(), path: onnx }], &other, &CompileOptions::default()).unwrap();
    let mut elsewhere =
        Session::new(&open_with(&other, OpenOptions::default()).unwrap(), &SessionOptions::default()).unwrap();
    let error = elsewhere.restore(&mut saved.as_slice()).unwrap_err();
    assert!(matches!(error, SavedStateError::OtherModel { .. }), "{error}");
    let expected = step(&mut session.fork(), PROMPT, 1, 0).unwrap();
    assert!(step(&mut session, PROMPT, 1, 0).unwrap() == expected);
}

#[test]
fn a_run_that_places_new_keys_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = compiled(folder.path()) else { return };
    let mut session = session(&open_with(&path, OpenOptions::default()).unwrap(), 1);
    step(&mut session, 0, PROMPT, 0).unwrap();
    let mut fork = session.fork();
    // The mask says that there is a token less than the state holds.
    let error = step(&mut session, PROMPT - 1, 1, 0).unwrap_err();
    assert!(matches!(error, RunError::Step { .. } | RunError::Obligation { .. }), "{error}");
    let expected = step(&mut fork, PROMPT, 1, 0).unwrap();
    assert!(step(&mut session, PROMPT, 1, 0).unwrap() == expected, "the state is what it was before");
}

/// A cache of a capacity, of which a run writes positions of each of the batch.
fn static_cache() -> Vec<u8> {
    let scatter = NodeProto {
        attribute: vec![AttributeProto {
            name: Some("axis".to_string()),
            r#type: Some(2),
            i: Some(-2),
            ..AttributeProto::default()
        }],
        ..support::node("TensorScatter", &["past.0", "x", "first"], &["present.0"])
    };
    let nodes = vec![scatter, support::node("Exp", &["present.0"], &["y"])];
    let inputs = vec![
        support::port("x", &["2", "n", "64"]),
        integers("first", &["2"]),
        support::port("past.0", &["2", "1000", "64"]),
    ];
    let outputs = ["y", "present.0"].map(|name| support::port(name, &["2", "1000", "64"])).to_vec();
    let opset = OperatorSetIdProto { domain: None, version: Some(24) };
    let graph = Some(support::graph(inputs, Vec::new(), nodes, outputs));
    ModelProto { ir_version: Some(11), opset_import: vec![opset], graph, ..ModelProto::default() }.encode_to_vec()
}

/// The same cache as torch writes it: positions first, `ScatterND`, turned back. A run writes one position of all the batch.
fn cache_at_positions() -> Vec<u8> {
    let turn = |from: &str, to: &str| NodeProto {
        attribute: vec![AttributeProto {
            name: Some("perm".to_string()),
            r#type: Some(7),
            ints: vec![1, 0, 2],
            ..AttributeProto::default()
        }],
        ..support::node("Transpose", &[from], &[to])
    };
    let nodes = vec![
        turn("past.0", "turned"),
        support::node("ScatterND", &["turned", "at", "x"], &["written"]),
        turn("written", "present.0"),
        support::node("Exp", &["present.0"], &["y"]),
    ];
    let inputs = vec![
        support::port("x", &["1", "2", "64"]),
        integers("at", &["1", "1"]),
        support::port("past.0", &["2", "1000", "64"]),
    ];
    let outputs = ["y", "present.0"].map(|name| support::port(name, &["2", "1000", "64"])).to_vec();
    let opset = OperatorSetIdProto { domain: None, version: Some(18) };
    let graph = Some(support::graph(inputs, Vec::new(), nodes, outputs));
    ModelProto { ir_version: Some(11), opset_import: vec![opset], graph, ..ModelProto::default() }.encode_to_vec()
}

#[test]
fn a_cache_written_at_positions_is_overwritten_in_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    support::write(folder.path(), "cache.onnx", &cache_at_positions());
    let source = || Source { entry: "main".to_string(), path: folder.path().join("cache.onnx") };
    let path = folder.path().join("cache.ipu");
    let options = CompileOptions { states: vec!["past.*=present.*".to_string()], ..CompileOptions::default() };
    compile(&[source()], &path, &options).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let growth = model.manifest().states[0].growth.unwrap();
    assert_eq!((growth.axis, growth.page, growth.overwritten), (1, 128, true));
    let plain = folder.path().join("plain.ipu");
    compile(&[source()], &plain, &CompileOptions::default()).unwrap();
    let plain = open_with(&plain, OpenOptions::default()).unwrap();
    let (mut session, mut without) = (session(&model, 1), session(&plain, 1));
    let mut cache: Value = Tensor::zeros(DType::F32, &[2, 1000, 64]).unwrap().into();
    for at in [0i64, 1, 999, 500, 1] {
        let x: Vec<f32> = (0..128).map(|index| (index + at) as f32 * 0.01).collect();
        let x: Value = Tensor::from_elements(&[1, 2, 64], &x).unwrap().into();
        let at: Value = Tensor::from_elements(&[1, 1], &[at]).unwrap().into();
        let inputs = vec![("x".to_string(), x), ("at".to_string(), at)];
        let outputs = session.run(None, inputs.clone()).unwrap();
        let expected = without.run(None, [inputs, vec![("past.0".to_string(), cache)]].concat()).unwrap();
        assert_eq!(outputs[0], expected[0]);
        cache = expected[1].1.clone();
    }
    let at: Value = Tensor::from_elements(&[1, 1], &[1000i64]).unwrap().into();
    let x: Value = Tensor::zeros(DType::F32, &[1, 2, 64]).unwrap().into();
    let error = session.run(None, vec![("x".to_string(), x), ("at".to_string(), at)]).unwrap_err();
    assert!(error.to_string().contains("a position of the cache is 1000"), "{error}");
}

fn integers(name: &str, shape: &[&str]) -> ValueInfoProto {
    let shape = Some(TensorShapeProto { dim: support::dims(shape) });
    let tensor = type_proto::Tensor { elem_type: Some(7), shape };
    let kind = TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}

#[test]
fn a_cache_of_a_capacity_is_overwritten_in_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    support::write(folder.path(), "cache.onnx", &static_cache());
    let source = Source { entry: "main".to_string(), path: folder.path().join("cache.onnx") };
    let path = folder.path().join("cache.ipu");
    let options = CompileOptions { states: vec!["past.*=present.*".to_string()], ..CompileOptions::default() };
    compile(&[source], &path, &options).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let growth = model.manifest().states[0].growth.unwrap();
    assert_eq!((growth.axis, growth.page, growth.overwritten), (1, 128, true));
    let mut first = session(&model, 1);
    let write = |session: &mut Session, starts: [i64; 2], count: usize, value: f32| {
        let x = Tensor::from_elements(&[2, count, 64], &vec![value; 2 * count * 64]).unwrap();
        let inputs = vec![("x".to_string(), x.into()), ("first".to_string(), Tensor::vector_i64(&starts).into())];
        let outputs = session.run(None, inputs)?;
        Ok::<Vec<f32>, RunError>(outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec())
    };
    let mut expected = vec![1.0f32; 2 * 1000 * 64];
    let mut fill = |starts: [i64; 2], count: usize, value: f32| {
        for (batch, start) in starts.into_iter().enumerate() {
            expected[(batch * 1000 + start as usize) * 64..][..count * 64].fill(value.exp());
        }
        expected.clone()
    };
    assert!(write(&mut first, [0, 500], 300, 1.0).unwrap() == fill([0, 500], 300, 1.0));
    let mut other = first.fork();
    let Err(RunError::Step { .. }) = write(&mut first, [990, 0], 20, 9.0) else { panic!("beyond the capacity") };
    let wanted = fill([300, 800], 1, 2.0);
    let before = model.memory().in_use_bytes;
    assert!(write(&mut first, [300, 800], 1, 2.0).unwrap() == wanted);
    // Two of eight pages of 128 positions.
    let grown = model.memory().in_use_bytes.saturating_sub(before);
    assert!(grown <= 2 * 128 * 2 * 64 * 4, "{grown} bytes");
    let mut saved = Vec::new();
    other.save(&mut saved).unwrap();
    assert!(write(&mut other, [300, 800], 1, 2.0).unwrap() == wanted, "a fork goes its own way");
    let mut restored = session(&model, 1);
    restored.restore(&mut saved.as_slice()).unwrap();
    assert!(write(&mut restored, [300, 800], 1, 2.0).unwrap() == wanted);
}

/// A model with branches is run for one session after the other, all the same.
#[test]
fn sessions_run_together_give_what_each_gives_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/silero_vad_16k_op15/model.onnx");
    let source = Source { entry: "main".to_string(), path: fixture };
    let path = folder.path().join("model.ipu");
    let states = vec!["state=stateN".to_string()];
    compile(&[source], &path, &CompileOptions { states, ..CompileOptions::default() }).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let inputs = |number: usize, rate: i64| -> Vec<(String, Value)> {
        let samples: Vec<f32> = (0..576).map(|at| ((at * (number + 3)) as f32 * 0.01).sin()).collect();
        let input = Tensor::from_vec(&[1, 576], samples).unwrap();
        vec![("input".to_string(), input.into()), ("sr".to_string(), Tensor::scalar(rate).into())]
    };
    let sessions = || -> Vec<Session> { (0..3).map(|_| session(&model, 1)).collect() };
    let (mut alone, mut together) = (sessions(), sessions());
    let both = |alone: &mut [Session], together: &mut [Session]| {
        let expected: Vec<_> =
            alone.iter_mut().enumerate().map(|(at, one)| one.run(None, inputs(at, 16_000)).unwrap()).collect();
        let mut all: Vec<&mut Session> = together.iter_mut().collect();
        let found = Session::run_together(&mut all, None, (0..3).map(|at| inputs(at, 16_000)).collect()).unwrap();
        assert_eq!(found, expected);
    };
    both(&mut alone, &mut together);
    both(&mut alone, &mut together);
    // Where one fails, the state of all is what it was.
    let mut all: Vec<&mut Session> = together.iter_mut().collect();
    let mut given: Vec<_> = (0..3).map(|at| inputs(at, 16_000)).collect();
    given[2].remove(0);
    let failed = Session::run_together(&mut all, None, given).unwrap_err();
    assert!(matches!(&failed, RunError::MissingInput { name, .. } if name == "input"), "{failed}");
    both(&mut alone, &mut together);

    let other = open_with(&path, OpenOptions::default()).unwrap();
    let mut stranger = session(&other, 1);
    let refused =
        Session::run_together(&mut [&mut alone[0], &mut stranger], None, vec![inputs(0, 16_000), inputs(1, 16_000)]);
    assert!(matches!(refused, Err(RunError::OtherModel)), "{refused:?}");
}

/// Random numbers that a branch draws; an input says which one.
fn drawn_in_a_branch() -> Vec<u8> {
    let branch = |name: &str, operator: &str| AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(5),
        g: Some(Box::new(support::graph(
            Vec::new(),
            Vec::new(),
            vec![support::node(operator, &["x"], &["drawn"])],
            vec![support::port("drawn", &["4"])],
        ))),
        ..AttributeProto::default()
    };
    let to_bool =
        AttributeProto { name: Some("to".to_string()), r#type: Some(2), i: Some(9), ..AttributeProto::default() };
    let nodes = vec![
        NodeProto { attribute: vec![to_bool], ..support::node("Cast", &["uniform"], &["condition"]) },
        NodeProto {
            attribute: vec![branch("then_branch", "RandomUniformLike"), branch("else_branch", "RandomNormalLike")],
            ..support::node("If", &["condition"], &["y"])
        },
    ];
    let inputs = vec![support::port("x", &["4"]), integers("uniform", &[])];
    let opset = OperatorSetIdProto { domain: None, version: Some(18) };
    let graph = Some(support::graph(inputs, Vec::new(), nodes, vec![support::port("y", &["4"])]));
    ModelProto { ir_version: Some(9), opset_import: vec![opset], graph, ..ModelProto::default() }.encode_to_vec()
}

/// A pass that fails for one session takes back the random numbers that the others have drawn.
#[test]
fn a_pass_that_fails_draws_no_random_numbers() {
    let folder = tempfile::tempdir().unwrap();
    support::write(folder.path(), "drawn.onnx", &drawn_in_a_branch());
    let source = Source { entry: "main".to_string(), path: folder.path().join("drawn.onnx") };
    let path = folder.path().join("drawn.ipu");
    compile(&[source], &path, &CompileOptions::default()).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let inputs = |uniform: i64| -> Vec<(String, Value)> {
        let x = Tensor::zeros(DType::F32, &[4]).unwrap();
        vec![("x".to_string(), x.into()), ("uniform".to_string(), Tensor::scalar(uniform).into())]
    };
    let expected = [session(&model, 1).run(None, inputs(1)).unwrap(), session(&model, 1).run(None, inputs(0)).unwrap()];
    assert_ne!(expected[0], expected[1]);
    let (mut first, mut second) = (session(&model, 1), session(&model, 1));
    let incomplete = inputs(0)[1..].to_vec();
    let failed = Session::run_together(&mut [&mut first, &mut second], None, vec![inputs(1), incomplete]).unwrap_err();
    assert!(matches!(&failed, RunError::MissingInput { name, .. } if name == "x"), "{failed}");
    let outputs = Session::run_together(&mut [&mut first, &mut second], None, vec![inputs(1), inputs(0)]).unwrap();
    assert_eq!(outputs, expected);
}
