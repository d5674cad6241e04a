//! Attention with a window: state behind it is forgotten, and everything gives the bits of a run that keeps all.

use super::text::{compiled_folder, least_bytes, opened};
use crate::support::language::write_windowed_folder;
use crate::support::{Random, graph, node, port, write};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::generate::{Batch, Generator, GeneratorOptions, Limits, Sampling, TextModel, Token};
use ipuc::{RunError, Session, SessionOptions, Tensor, Value, open};
use ipuc_formats::onnx::schema::{
    AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, attribute_proto,
};
use ipuc_formats::ops::RowScheme;
use prost::Message as _;
use std::path::{Path, PathBuf};

/// Keys that a query sees, with its own.
const WINDOW: i64 = 200;
/// Bytes of a page of f32: 128 positions of 2 heads of 32.
const PAGE_BYTES: u64 = 128 * 2 * 32 * 4;
/// Pages of a windowed state: of the positions from 128 + 199 before the last on, which need not begin with a page.
const MOST_PAGES: u64 = 4;

fn compiled(folder: &Path, windows: [i64; 2], cache: Option<RowScheme>) -> PathBuf {
    write_windowed_folder(folder, windows);
    compiled_folder(folder, CompileOptions { cache, ..CompileOptions::default() })
}

/// Run tokens of a text behind `past` others; gives the bits of their scores.
fn step(session: &mut Session, past: usize, count: usize) -> Result<Vec<u8>, RunError> {
    let tokens: Vec<i64> = (past..past + count).map(|position| (position * 37 % 500 + 2) as i64).collect();
    let named = |name: &str, tensor: Tensor| (name.to_string(), Value::from(tensor));
    let inputs = vec![
        named("input_ids", Tensor::from_elements(&[1, count], &tokens).unwrap()),
        named("attention_mask", Tensor::from_elements(&[1, past + count], &vec![1i64; past + count]).unwrap()),
    ];
    Ok(session.run(Some("decode"), inputs)?[0].1.as_tensor().unwrap().bytes().to_vec())
}

fn sessions(model: &TextModel) -> [Session; 2] {
    [false, true].map(|forgets| {
        let mut session = Session::new(model.model(), &SessionOptions { threads: 1, seed: 0 }).unwrap();
        session.forget_behind_windows(forgets);
        session
    })
}

/// Bytes of the four states at `past` positions, the last of which a run appended: where all is kept, and where windows are.
fn state_bytes(past: usize, windowed: u64) -> [u64; 2] {
    let pages = past.div_ceil(128) as u64;
    let forgotten = (past - 1).saturating_sub(WINDOW as usize - 1 + 128) as u64 / 128;
    [4 * pages * PAGE_BYTES, (4 * pages - windowed * forgotten) * PAGE_BYTES]
}

#[test]
fn thousands_of_tokens_keep_a_window_of_state() {
    for (windows, windowed) in [([WINDOW; 2], 4), ([-1, WINDOW], 2), ([-1; 2], 0)] {
        let folder = tempfile::tempdir().unwrap();
        let model = opened(&compiled(folder.path(), windows, None), None);
        let [mut keeps, mut forgets] = sessions(&model);
        let mut past = 0;
        for count in [500, 500, 500, 100].into_iter().chain([1; 500]) {
            let found = step(&mut forgets, past, count).unwrap();
            assert!(found == step(&mut keeps, past, count).unwrap(), "{windows:?}: {count} tokens behind {past}");
            past += count;
            if count == 1 {
                let expected = state_bytes(past, windowed);
                assert_eq!([keeps.state_bytes(), forgets.state_bytes()], expected, "{windows:?}: {past} tokens");
            }
        }
        assert_eq!(past, 2100);
        if windowed == 4 {
            assert!(forgets.state_bytes() <= 4 * MOST_PAGES * PAGE_BYTES, "{} bytes", forgets.state_bytes());
        }
    }
}

#[test]
fn what_is_forgotten_is_an_error_and_what_a_run_appended_can_be_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path(), [WINDOW; 2], None), None);
    let [mut keeps, mut forgets] = sessions(&model);
    for (past, count) in [(0, 600), (600, 100), (700, 300)] {
        assert!(step(&mut forgets, past, count).unwrap() == step(&mut keeps, past, count).unwrap());
    }
    // 700 positions are the past of the last run: those from 700 - 199 - 128 on stay.
    let name = "past_key_values.0.key";
    assert_eq!(
        forgets.state(name).unwrap_err().to_string(),
        "state `past_key_values.0.key`: position 0 of the state is read, and those before 256 are forgotten, behind the window of attention"
    );
    assert_eq!((forgets.can_truncate(454), forgets.can_truncate(455), forgets.can_truncate(0)), (false, true, true));
    let refused = forgets.truncate(454).unwrap_err().to_string();
    assert_eq!(refused, "state `past_key_values.0.key`: positions before 256 are forgotten, behind its window");
    let mut saved = Vec::new();
    forgets.save(&mut saved).unwrap();
    for positions in [1000, 999, 700, 640, 455] {
        let [mut one, mut other] = [forgets.fork(), keeps.fork()];
        let mut restored = sessions(&model).into_iter().next_back().unwrap();
        restored.restore(&mut saved.as_slice()).unwrap();
        assert_eq!(restored.state_bytes(), forgets.state_bytes());
        for session in [&mut one, &mut other, &mut restored] {
            session.truncate(positions).unwrap();
        }
        for past in positions..positions + 3 {
            let expected = step(&mut other, past, 1).unwrap();
            assert!(step(&mut one, past, 1).unwrap() == expected, "{past} of {positions}");
            assert!(step(&mut restored, past, 1).unwrap() == expected, "{past} of {positions}, restored");
        }
    }
    forgets.truncate(0).unwrap();
    keeps.reset();
    assert!(step(&mut forgets, 0, 5).unwrap() == step(&mut keeps, 0, 5).unwrap());
}

/// A prompt of several windows that repeats itself.
fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|position| 10 + position * position % 83).collect()
}

fn limits() -> Limits {
    Limits { tokens: Some(60), ignore_end: true, probabilities: Some(2), ..Limits::default() }
}

fn text(generator: &mut Generator, prompt: &[u32]) -> (Vec<Token>, usize) {
    let mut tokens = generator.generate(prompt, &Sampling::greedy(), &limits()).unwrap();
    let chosen = tokens.by_ref().map(Result::unwrap).collect();
    (chosen, tokens.usage().prompt_known)
}

#[test]
fn one_text_whatever_is_forgotten() {
    for (windows, cache) in [([WINDOW; 2], None), ([WINDOW, -1], Some(RowScheme::I8))] {
        let folder = tempfile::tempdir().unwrap();
        let path = compiled(folder.path(), windows, cache);
        let model = opened(&path, None);
        let new = |model: &TextModel, options: &GeneratorOptions| Generator::new(model, options).unwrap();
        let prompt = prompt(1100);
        // In one pass nothing is forgotten before the text begins.
        let whole = GeneratorOptions { threads: 1, prefill_chunk: 1100, lookup: 0 };
        let (expected, _) = text(&mut new(&model, &whole), &prompt);
        for (memory, prefill_chunk, lookup) in
            [(None, 64, 0), (None, 100, 5), (Some(least_bytes(&path) + (1 << 20)), 64, 3)]
        {
            let options = GeneratorOptions { threads: 1, prefill_chunk, lookup };
            let model = opened(&path, memory);
            let mut generator = new(&model, &options);
            assert!(text(&mut generator, &prompt).0 == expected, "{windows:?} {memory:?} {options:?}");
            let mut saved = Vec::new();
            generator.save(&mut saved).unwrap();
            // What lies far back is read anew, what lies near is not.
            let (again, known) = text(&mut generator, &prompt);
            assert!(again == expected && known == prompt.len() - 1, "{known}");
            assert_eq!(text(&mut generator, &prompt[..700]).1, 0);
            let mut restored = new(&model, &options);
            restored.restore(&mut saved.as_slice()).unwrap();
            let (again, known) = text(&mut restored, &prompt);
            assert!(again == expected && known == prompt.len() - 1, "{known}");
        }
        let mut draft = new(&model, &GeneratorOptions { threads: 1, ..GeneratorOptions::default() });
        draft.set_draft(&model, 4).unwrap();
        assert!(text(&mut draft, &prompt).0 == expected, "{windows:?}");
        let mut batch = Batch::new(&model, &whole, 2).unwrap();
        for _ in 0..2 {
            batch.begin(&prompt, &Sampling::greedy(), &limits()).unwrap().unwrap();
        }
        let mut texts = [Vec::new(), Vec::new()];
        while batch.is_busy() {
            for progress in batch.pass().unwrap() {
                texts[progress.text as usize - 1].extend(progress.token);
            }
        }
        assert!(texts.iter().all(|text| *text == expected), "{windows:?}");
    }
}

/// ONNX's own attention with a window of 100 keys over a cache, and what reads the cache besides.
fn attention(outputs: &[&str], further: Option<(NodeProto, ValueInfoProto)>) -> Vec<u8> {
    let attributes = [("is_causal", 1), ("left_window_size", 99)].map(|(name, value)| AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    });
    let attention = node("Attention", &["q", "k", "v", "", "past.key", "past.value"], outputs);
    let mut nodes = vec![NodeProto { attribute: attributes.to_vec(), ..attention }];
    let rows = |name: &str, heads: &str, length: &str| port(name, &["1", heads, length, "16"]);
    let inputs = vec![rows("q", "4", "n"), rows("k", "2", "n"), rows("v", "2", "n")];
    let inputs = inputs.into_iter().chain(["past.key", "past.value"].map(|name| rows(name, "2", "past"))).collect();
    let mut results = vec![rows("y", "4", "n"), rows("present.key", "2", "all"), rows("present.value", "2", "all")];
    results.extend(outputs.get(3).map(|scores| port(scores, &["1", "4", "n", "all"])));
    if let Some((node, result)) = further {
        nodes.push(node);
        results.push(result);
    }
    let opset = OperatorSetIdProto { domain: None, version: Some(25) };
    let graph = Some(graph(inputs, Vec::new(), nodes, results));
    ModelProto { ir_version: Some(11), opset_import: vec![opset], graph, ..ModelProto::default() }.encode_to_vec()
}

/// Bytes of state after 1,000 tokens where all is kept, and where windows are; all outputs have the same bits.
fn attended(model: &[u8]) -> [u64; 2] {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.onnx", model);
    let (path, output) = (folder.path().join("model.onnx"), folder.path().join("model.ipu"));
    let options = CompileOptions { states: vec!["past.*=present.*".to_string()], ..CompileOptions::default() };
    compile(&[Source { entry: "main".to_string(), path }], &output, &options).unwrap();
    let model = open(&output).unwrap();
    let mut random = Random::new(3);
    let mut sessions = [false, true].map(|forgets| {
        let mut session = Session::new(&model, &SessionOptions { threads: 1, seed: 0 }).unwrap();
        session.forget_behind_windows(forgets);
        session
    });
    for count in [400, 1, 300, 200, 1, 97, 1] {
        let mut rows = |name: &str, heads: usize| {
            let elements =
                (0..heads * count * 16).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect::<Vec<_>>();
            (name.to_string(), Value::from(Tensor::from_elements(&[1, heads, count, 16], &elements).unwrap()))
        };
        let inputs = vec![rows("q", 4), rows("k", 2), rows("v", 2)];
        let [keeps, forgets] = sessions.each_mut().map(|session| session.run(None, inputs.clone()).unwrap());
        assert!(keeps == forgets);
    }
    sessions.each_ref().map(Session::state_bytes)
}

#[test]
fn state_that_something_else_reads_stays_whole() {
    // 999 positions are the past of the last run, and those from 999 - 99 - 128 on stay: 2 of 8 pages. A page has 16 KiB.
    const ALL: u64 = 2 * 8 * (16 << 10);
    let usual = ["y", "present.key", "present.value"];
    assert_eq!(attended(&attention(&usual, None)), [ALL, 2 * 2 * (16 << 10)]);
    let scores = ["y", "present.key", "present.value", "scores"];
    assert_eq!(attended(&attention(&scores, None)), [ALL, ALL]);
    let sum = || (node("ReduceSum", &["present.key"], &["sum"]), port("sum", &["1", "1", "1", "1"]));
    assert_eq!(attended(&attention(&usual, Some(sum()))), [ALL, ALL / 2 + 2 * (16 << 10)]);
    let copied = (node("Identity", &["past.value"], &["copied"]), port("copied", &["1", "2", "past", "16"]));
    assert_eq!(attended(&attention(&usual, Some(copied))), [ALL, ALL / 2 + 2 * (16 << 10)]);
}
