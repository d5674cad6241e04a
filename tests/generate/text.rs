//! Text from a small language model: the same tokens and scores in memory and streamed, with one thread and two, with prompts in
//! one pass or many, with guesses and without, and from a saved context.

use crate::support::language::{CONTEXT, write_folder, write_small_folder};
use crate::support::{linear, linear_weight, write};
use ipuc::calibrate::Calibrator;
use ipuc::compile::folder::{self, FolderError};
use ipuc::compile::{Activations, Budget, CompileOptions, Source, WeightOptions, compile};
use ipuc::generate::{
    ContextError, Ended, GenerateError, Generator, GeneratorOptions, Limits, Message, Sampling, TextModel, Token, Usage,
};
use ipuc::{DType, OpenFileError, OpenOptions, Session, SessionOptions, Tensor, Value, open, open_with};
use ipuc_formats::ops::RowScheme;
use ipuc_runtime::{OpenError, SavedStateError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens of a continuation: more than a page of the cache.
const TOKENS: usize = 130;
const PROMPT: &str = "w10 w11 w12 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20 w21 w22 w23 w24 w25";

/// Compile the folder in place; gives the file.
pub fn compiled(folder: &Path) -> PathBuf {
    write_folder(folder);
    compiled_folder(folder, CompileOptions::default())
}

/// Compile a folder that is written.
pub fn compiled_folder(folder: &Path, options: CompileOptions) -> PathBuf {
    let mut options = CompileOptions { chunk_bytes: Some(64 << 10), ..options };
    let sources = folder::read(folder).unwrap().apply(&mut options);
    let output = folder.join("model.ipu");
    compile(&sources, &output, &options).unwrap();
    output
}

pub fn opened(path: &Path, memory_bytes: Option<u64>) -> TextModel {
    TextModel::new(open_with(path, OpenOptions { memory_bytes, ..OpenOptions::default() }).unwrap()).unwrap()
}

pub fn limits() -> Limits {
    Limits { tokens: Some(TOKENS), ignore_end: true, probabilities: Some(2), ..Limits::default() }
}

fn all(generator: &mut Generator, prompt: &[u32], sampling: &Sampling, limits: &Limits) -> (Vec<Token>, Usage) {
    let mut tokens = generator.generate(prompt, sampling, limits).unwrap();
    let chosen = tokens.by_ref().map(Result::unwrap).collect();
    (chosen, tokens.usage())
}

fn text(tokens: &[Token]) -> String {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

pub fn sampled() -> Sampling {
    Sampling { temperature: 1.0, top_k: 20, top_p: 0.9, seed: 5, ..Sampling::greedy() }
}

#[test]
fn the_file_has_two_entries_over_the_same_weights_and_cache() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let manifest = model.model().manifest();
    let names: Vec<&str> = manifest.attachments.iter().map(|attachment| attachment.name.as_str()).collect();
    assert_eq!(names, ["tokenizer.json", "generation.json", "chat_template.jinja"]);
    let entries: Vec<&str> = manifest.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(entries, ["decode", "prefill"]);
    assert_eq!(manifest.entries[0].states, manifest.entries[1].states);
    assert!(manifest.states.iter().all(|state| state.growth.is_some()), "{:?}", manifest.states);
    let mut named: Vec<_> = manifest.weights.iter().filter_map(|weight| weight.name.as_ref()).collect();
    named.sort();
    let count = named.len();
    named.dedup();
    assert_eq!(named.len(), count, "a weight is there twice");
    assert_eq!(model.settings().end_tokens, [0]);
    assert_eq!(model.settings().context, Some(CONTEXT as u64));
}

#[test]
fn one_text_whatever_the_chunks_guesses_and_threads() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let prompt = model.encode(PROMPT).unwrap();
    for sampling in [Sampling::greedy(), sampled()] {
        let with = |options: GeneratorOptions| {
            all(&mut Generator::new(&model, &options).unwrap(), &prompt, &sampling, &limits())
        };
        let (expected, usage) = with(GeneratorOptions { threads: 1, ..GeneratorOptions::default() });
        assert_eq!((usage.tokens, usage.passes), (TOKENS, TOKENS - 1));
        for (threads, prefill_chunk, lookup) in [(2, 0, 0), (1, 1, 0), (1, 7, 0), (1, 0, 6), (2, 5, 3)] {
            let (found, usage) = with(GeneratorOptions { threads, prefill_chunk, lookup });
            // Probabilities are equal only where scores are.
            assert_eq!(found, expected, "{threads} threads, chunks of {prefill_chunk}, {lookup} guesses");
            assert_eq!(usage.passes, TOKENS - 1 - usage.accepted);
        }
    }
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_passes() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let prompt = model.encode(PROMPT).unwrap();
    let plain = all(
        &mut Generator::new(&model, &GeneratorOptions::default()).unwrap(),
        &prompt,
        &Sampling::greedy(),
        &limits(),
    );
    // The text once more, behind itself: what follows is known.
    let repeated: Vec<u32> =
        prompt.iter().copied().chain(plain.0.iter().map(|token| token.number)).chain(prompt.iter().copied()).collect();
    let options = GeneratorOptions { lookup: 8, ..GeneratorOptions::default() };
    let mut generator = Generator::new(&model, &options).unwrap();
    let (_, usage) = all(&mut generator, &repeated, &Sampling::greedy(), &limits());
    assert!(usage.guessed > 0 && usage.accepted <= usage.guessed, "{usage:?}");
    assert_eq!(usage.passes + usage.accepted, TOKENS - 1);
}

/// The least budget that the file can be opened with.
pub fn least_bytes(path: &Path) -> u64 {
    let error = open_with(path, OpenOptions { memory_bytes: Some(1 << 10), ..OpenOptions::default() }).err();
    let Some(OpenFileError::Model { error: OpenError::Budget { needed_bytes, .. }, .. }) = error else {
        panic!("{error:?}")
    };
    needed_bytes
}

/// The budget for a quarter of the weights, or what the file needs at least.
pub fn quarter_bytes(path: &Path) -> u64 {
    let weights: u64 = opened(path, None).model().manifest().chunks.iter().map(|chunk| chunk.length).sum();
    (weights / 4).max(least_bytes(path)) + (1 << 20)
}

#[test]
fn one_text_within_any_budget() {
    let folder = tempfile::tempdir().unwrap();
    budgets(&compiled(folder.path()), PROMPT, &limits());
}

/// The folder that `IPUC_LANGUAGE_MODEL` names holds a language model of users.
#[test]
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_model_of_users_within_any_budget() {
    let Some(model) = std::env::var_os("IPUC_LANGUAGE_MODEL") else {
        eprintln!("skipped: IPUC_LANGUAGE_MODEL names no folder");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut options = CompileOptions::default();
    let sources = folder::read(Path::new(&model)).unwrap().apply(&mut options);
    let path = folder.path().join("model.ipu");
    compile(&sources, &path, &options).unwrap();
    budgets(&path, "The capital of France is Paris. The capital of", &Limits { tokens: Some(20), ..limits() });
}

/// The same tokens and probabilities with all weights in memory, and with half and a quarter of them.
fn budgets(path: &Path, prompt: &str, limits: &Limits) {
    let model = opened(path, None);
    let prompt = model.encode(prompt).unwrap();
    let options = |threads| GeneratorOptions { threads, prefill_chunk: 8, lookup: 0 };
    let sampling = sampled();
    let (expected, _) = all(&mut Generator::new(&model, &options(1)).unwrap(), &prompt, &sampling, limits);
    let weights: u64 = model.model().manifest().chunks.iter().map(|chunk| chunk.length).sum();
    for percent in [50, 25] {
        for threads in [1, 2] {
            let budget = (weights / 100 * percent).max(least_bytes(path)) + (1 << 20);
            let streamed = opened(path, Some(budget));
            let mut generator = Generator::new(&streamed, &options(threads)).unwrap();
            let (found, usage) = all(&mut generator, &prompt, &sampling, limits);
            assert_eq!(found, expected, "{percent} percent of the weights, {threads} threads");
            assert!(usage.read_bytes > 0, "nothing was streamed within {budget} bytes");
            let peak = streamed.model().memory().peak_bytes;
            assert!(peak <= budget, "{peak} bytes in use of {budget}");
        }
    }
}

#[test]
fn what_was_read_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let (first, second) = (model.encode(PROMPT).unwrap(), model.encode("w10 w11 w40 w41").unwrap());
    let fresh = |prompt: &[u32]| {
        all(&mut Generator::new(&model, &GeneratorOptions::default()).unwrap(), prompt, &Sampling::greedy(), &limits())
            .0
    };
    let (_, usage) = all(&mut generator, &first, &Sampling::greedy(), &limits());
    assert_eq!((usage.prompt_tokens, usage.prompt_known), (19, 0));
    let (found, usage) = all(&mut generator, &second, &Sampling::greedy(), &limits());
    assert_eq!((usage.prompt_tokens, usage.prompt_known), (4, 2));
    assert_eq!(found, fresh(&second));
    let longer: Vec<u32> = second.iter().copied().chain(found.iter().map(|token| token.number)).collect();
    let (found, usage) = all(&mut generator, &longer, &Sampling::greedy(), &limits());
    assert_eq!(usage.prompt_known, longer.len() - 1);
    assert_eq!(found, fresh(&longer));
}

#[test]
fn a_saved_context_goes_on_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = compiled(folder.path());
    let model = opened(&path, None);
    let prompt = model.encode(PROMPT).unwrap();
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let (first, _) = all(&mut generator, &prompt, &Sampling::greedy(), &limits());
    let mut saved = Vec::new();
    generator.save(&mut saved).unwrap();
    let longer: Vec<u32> = prompt.iter().copied().chain(first.iter().map(|token| token.number)).collect();
    let (expected, _) = all(&mut generator, &longer, &Sampling::greedy(), &limits());
    let mut other = Generator::new(&opened(&path, None), &GeneratorOptions::default()).unwrap();
    other.restore(&mut saved.as_slice()).unwrap();
    assert_eq!(other.tokens(), &longer[..longer.len() - 1]);
    let (found, usage) = all(&mut other, &longer, &Sampling::greedy(), &limits());
    assert_eq!(found, expected);
    assert_eq!(usage.prompt_known, longer.len() - 1);

    let mut changed = saved.clone();
    changed[20] ^= 1;
    for (bytes, expected) in [
        (&saved[..10], "it ends early"),
        (&saved[..30], "it ends early"),
        (b"ipu state 1\n and more than that", "it does not begin with `ipu context 1`"),
        (changed.as_slice(), "the checksum of its tokens does not match"),
    ] {
        let Err(ContextError::Malformed(reason)) = other.restore(&mut &*bytes) else { panic!("{expected}") };
        assert_eq!(reason, expected);
    }
    let elsewhere = tempfile::tempdir().unwrap();
    write_folder(elsewhere.path());
    write(elsewhere.path(), "chat_template.jinja", b"{{ messages[0].content }}");
    let mut options = CompileOptions::default();
    let sources = folder::read(elsewhere.path()).unwrap().apply(&mut options);
    let path = elsewhere.path().join("other.ipu");
    compile(&sources, &path, &options).unwrap();
    let mut other = Generator::new(&opened(&path, None), &GeneratorOptions::default()).unwrap();
    let refused = other.restore(&mut saved.as_slice());
    assert!(matches!(refused, Err(ContextError::State(SavedStateError::OtherModel { .. }))), "{refused:?}");
}

#[test]
fn texts_end_where_they_should() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let prompt = model.encode(PROMPT).unwrap();
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let (whole, _) = all(&mut generator, &prompt, &Sampling::greedy(), &limits());
    let whole = text(&whole);
    let words: Vec<&str> = whole.split(' ').collect();
    let stop = words.iter().enumerate().skip(3).find(|(at, word)| !words[..*at].contains(word)).unwrap();
    let limited = Limits { stop: vec![format!(" {} ", stop.1), "never".to_string()], ..limits() };
    let mut tokens = generator.generate(&prompt, &Sampling::greedy(), &limited).unwrap();
    let found: Vec<Token> = tokens.by_ref().map(Result::unwrap).collect();
    assert_eq!(tokens.ended(), Some(Ended::Stop));
    assert_eq!(text(&found), words[..stop.0].join(" "));

    let room = CONTEXT - prompt.len();
    let open = Limits { tokens: None, ..limits() };
    let mut tokens = generator.generate(&prompt, &Sampling::greedy(), &open).unwrap();
    assert_eq!(tokens.by_ref().map(Result::unwrap).count(), room);
    assert_eq!(tokens.ended(), Some(Ended::Length));

    let cancel = generator.cancel();
    let mut tokens = generator.generate(&prompt, &Sampling::greedy(), &limits()).unwrap();
    tokens.next().unwrap().unwrap();
    cancel.cancel();
    assert!(tokens.next().is_none());
    assert_eq!(tokens.ended(), Some(Ended::Cancelled));
}

#[test]
fn chats_become_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let message = |content: &str| Message { role: "user".to_string(), content: content.to_string() };
    let tokens = model.encode_chat(&[message(" w5 "), message("w6")]).unwrap();
    assert_eq!(tokens, [5, 2, 6, 2]);
    assert_eq!(model.decode(&tokens).unwrap(), "w5 w2 w6 w2");
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let mut refused = |prompt: &[u32]| {
        let tokens = generator.generate(prompt, &Sampling::greedy(), &Limits::default());
        tokens.err().unwrap()
    };
    assert!(matches!(refused(&[]), GenerateError::EmptyPrompt));
    let long = vec![3; CONTEXT];
    assert!(matches!(refused(&long), GenerateError::Context { tokens: CONTEXT, context } if context == CONTEXT as u64));
}

/// What is done to a folder.
type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn folders_that_are_no_language_models_are_refused() {
    let refused = |change: Change| {
        let folder = tempfile::tempdir().unwrap();
        write_folder(folder.path());
        change(folder.path());
        let error = folder::read(folder.path()).unwrap_err();
        (error.to_string().replace(&folder.path().display().to_string(), "DIR"), error)
    };
    let remove = |folder: &Path, name: &str| std::fs::remove_file(folder.join(name)).unwrap();
    let cases: [(Change, &str); 7] = [
        (&|folder| remove(folder, "tokenizer.json"), "the folder `DIR` has no tokenizer.json"),
        (
            &|folder| write(folder, "genai_config.json", b"{"),
            "cannot use `DIR/genai_config.json`: EOF while parsing an object at line 1 column 1",
        ),
        (
            &|folder| write(folder, "genai_config.json", br#"{"model": {"decoder": {"filename": "../model.onnx"}}}"#),
            "cannot use `DIR/genai_config.json`: the decoder `../model.onnx` is not in the folder",
        ),
        (
            &|folder| write(folder, "genai_config.json", br#"{"model": {"encoder": {}, "decoder": {}}}"#),
            "cannot use `DIR/genai_config.json`: it names no file as `model.encoder.filename`",
        ),
        (
            &|folder| write(folder, "genai_config.json", br#"{"model": {"vision": {}, "decoder": {}}}"#),
            "the model in `DIR` needs a model `vision` beside its decoder, which is not supported",
        ),
        (
            &|folder| {
                remove(folder, "genai_config.json");
                std::fs::rename(folder.join("model.onnx"), folder.join("one.onnx")).unwrap();
                write(folder, "two.onnx", b"");
            },
            "the folder `DIR` has several models (one.onnx, two.onnx) and no configuration that tells which is meant",
        ),
        (
            &|folder| write(folder, "model.onnx", &linear(linear_weight())),
            "the model in `DIR` needs other inputs than tokens (it has no input `input_ids`), which is not supported",
        ),
    ];
    for (change, expected) in cases {
        let (message, error) = refused(change);
        assert_eq!(message, expected, "{error:?}");
    }
    let (_, error) = refused(&|folder| remove(folder, "tokenizer.json"));
    assert!(matches!(error, FolderError::Missing { .. }), "{error:?}");
}

#[test]
fn templates_with_errors_are_found_when_the_model_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path());
    write(folder.path(), "chat_template.jinja", b"{% if %}");
    let mut options = CompileOptions::default();
    let sources = folder::read(folder.path()).unwrap().apply(&mut options);
    let path = folder.path().join("model.ipu");
    compile(&sources, &path, &options).unwrap();
    let model = open_with(&path, OpenOptions::default()).unwrap();
    let Err(GenerateError::Attachment { attachment, .. }) = TextModel::new(model) else { panic!("it is taken") };
    assert_eq!(attachment, "chat_template.jinja");
}

#[test]
fn a_folder_without_configuration_needs_a_decoder_and_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path());
    std::fs::remove_file(folder.path().join("genai_config.json")).unwrap();
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let mut options = CompileOptions::default();
    let sources = folder::read(folder.path()).unwrap().apply(&mut options);
    let path = folder.path().join("model.ipu");
    compile(&sources, &path, &options).unwrap();
    let model = opened(&path, None);
    assert_eq!((model.settings().context, model.settings().end_tokens.as_slice()), (None, [0].as_slice()));
    assert!(matches!(model.encode_chat(&[]), Err(GenerateError::NoTemplate)));
    let prompt = model.encode(PROMPT).unwrap();
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    assert_eq!(all(&mut generator, &prompt, &Sampling::greedy(), &limits()).0.len(), TOKENS);
}

#[test]
fn scores_of_a_text_are_those_of_its_tokens_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let tokens = model.encode(PROMPT).unwrap();
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let whole = generator.score(&tokens).unwrap();
    assert_eq!(generator.tokens(), tokens);
    generator.clear().unwrap();
    assert!(generator.tokens().is_empty());
    let one_by_one: Vec<Vec<f32>> = tokens.iter().flat_map(|&token| generator.score(&[token]).unwrap()).collect();
    assert_eq!(whole, one_by_one);
    let Err(GenerateError::EmptyPrompt) = generator.score(&[]) else { panic!("nothing has no scores") };
}

/// Moments of a text that the model reads with its own tokenizer, as windows with an empty cache.
#[test]
fn a_text_calibrates() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path());
    let mut options = CompileOptions::default();
    let sources = folder::read(folder.path()).unwrap().apply(&mut options);
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    let words: Vec<String> = (0..700).map(|word| format!("w{}", word * 7 % 90 + 10)).collect();
    assert_eq!(calibrator.run_text(None, &words.join(" "), 600).unwrap(), 600);
    let by_text = calibrator.finish().unwrap();
    assert!(!by_text.is_empty() && by_text.moments.values().all(|moments| moments.rows() == 600));
    // The same as the inputs written out.
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    let file = folder.path().join("plain.ipu");
    compile(&sources, &file, &options).unwrap();
    let model = opened(&file, None);
    let tokens = model.encode(&words.join(" ")).unwrap();
    for window in tokens[..600].chunks(512) {
        let mut inputs = model.inputs(0, window, None).unwrap();
        for port in calibrator.model().inputs(calibrator.model().entry(None).unwrap()) {
            if port.name.starts_with("past") {
                inputs.push((port.name, Tensor::zeros(DType::F32, &[1, 2, 0, 32]).unwrap().into()));
            }
        }
        calibrator.run(None, inputs).unwrap();
    }
    assert!(by_text == calibrator.finish().unwrap());
    let refused = |text: &str| Calibrator::new(&sources, &options).unwrap().run_text(None, text, 10).unwrap_err();
    assert_eq!(refused("").to_string(), "no example was run");
    // A model alone in a folder has no tokens.
    let alone = tempfile::tempdir().unwrap();
    write(alone.path(), "model.onnx", &linear(linear_weight()));
    let path = alone.path().join("model.onnx");
    let mut calibrator =
        Calibrator::new(&[Source { entry: "main".to_string(), path }], &CompileOptions::default()).unwrap();
    let error = calibrator.run_text(None, "w10", 10).unwrap_err().to_string();
    assert!(error.ends_with("has no tokenizer.json to make tokens of a text"), "{error}");
    std::fs::copy(folder.path().join("tokenizer.json"), alone.path().join("tokenizer.json")).unwrap();
    let error = calibrator.run_text(None, "w10", 10).unwrap_err().to_string();
    assert_eq!(error, "a text gives no value to input `x`: give examples of all inputs instead (.npz)");
}

/// What outputs are off by is measured as the file will run: with its state, and rows of caches rounded as it rounds them.
#[test]
fn an_error_is_measured_with_the_caches_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write_small_folder(folder.path());
    let words: Vec<String> = (0..48).map(|word| format!("w{}", word * 7 % 90 + 10)).collect();
    let mut options = CompileOptions {
        cache: Some(RowScheme::I8),
        weights: WeightOptions { budget: Some(Budget::Error(0.04)), ..WeightOptions::default() },
        ..CompileOptions::default()
    };
    let sources = folder::read(folder.path()).unwrap().apply(&mut options);
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    calibrator.set_threads(1);
    calibrator.run_text(None, &words.join(" "), words.len()).unwrap();
    let entry = calibrator.model().entry(None).unwrap().name.clone();
    options.calibration = Arc::new(calibrator.finish().unwrap());
    let path = folder.path().join("within.ipu");
    compile(&sources, &path, &options).unwrap();
    let as_it_is = CompileOptions { unfused: true, activations: Activations::Keep, ..CompileOptions::default() };
    let floats = folder.path().join("floats.ipu");
    compile(&sources, &floats, &as_it_is).unwrap();

    let text = opened(&path, None);
    let inputs = text.inputs(0, &text.encode(&words.join(" ")).unwrap(), None).unwrap();
    let mut given = inputs.clone();
    let reference = open(&floats).unwrap();
    for port in reference.inputs(reference.entry(None).unwrap()) {
        if port.name.starts_with("past") {
            given.push((port.name, Tensor::zeros(DType::F32, &[1, 2, 0, 32]).unwrap().into()));
        }
    }
    let expected = Session::new(&reference, &SessionOptions::default()).unwrap().run(None, given).unwrap();
    let model = open(&path).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let mut found = session.run(Some(&entry), inputs).unwrap();
    for name in expected.iter().filter_map(|(name, _)| name.strip_prefix("present.")) {
        let state = session.state(&format!("past_key_values.{name}")).unwrap();
        found.push((format!("present.{name}"), state.unwrap()));
    }
    let error = expected.iter().map(|(name, expected)| {
        let own = found.iter().find(|(own, _)| own == name).unwrap();
        let of = |value: &Value| value.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
        let (own, expected) = (of(&own.1), of(expected));
        let difference = own.iter().zip(&expected).map(|(own, expected)| f64::from(own - expected).powi(2));
        (difference.sum::<f64>() / expected.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()).sqrt()
    });
    let (found, measured) = (error.fold(0.0, f64::max), options.calibration.output_error.unwrap());
    assert_eq!(expected.len(), 5, "scores and two caches of each layer");
    assert!((found / measured - 1.0).abs() < 1e-6, "{found} and {measured}");
}
