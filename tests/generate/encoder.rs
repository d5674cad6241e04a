//! Models that read an input and answer it: their greedy texts are those of transformers, whatever the memory.

use super::text::opened;
use ipuc::compile::folder::{self, FolderError};
use ipuc::compile::{CompileOptions, compile};
use ipuc::generate::{Batch, GenerateError, Generator, GeneratorOptions, Limits, Sampling, TextModel};
use ipuc::{Tensor, Value};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn compiled(name: &str, folder: &Path) -> PathBuf {
    compiled_folder(&fixture(name), folder)
}

fn compiled_folder(from: &Path, folder: &Path) -> PathBuf {
    let mut options = CompileOptions { chunk_bytes: Some(16 << 10), ..CompileOptions::default() };
    let sources = folder::read(from).unwrap().apply(&mut options);
    let path = folder.join("model.ipu");
    compile(&sources, &path, &options).unwrap();
    path
}

/// What transformers generates: texts, where the input is one, and the numbers of the answers' tokens.
fn expected(name: &str) -> Vec<(Option<String>, Vec<u32>)> {
    let bytes = std::fs::read(fixture(name).join("expected.json")).unwrap();
    let cases: Vec<Json> = serde_json::from_slice(&bytes).unwrap();
    let numbers = |case: &Json| serde_json::from_value(case["numbers"].clone()).unwrap();
    cases.iter().map(|case| (case["text"].as_str().map(str::to_string), numbers(case))).collect()
}

fn features() -> Tensor {
    let bytes = std::fs::read(fixture("whisper_tiny").join("input_features.npy")).unwrap();
    let elements: Vec<f32> = bytes[bytes.len() - 8 * 40 * 4..]
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    Tensor::from_vec(&[1, 8, 40], elements).unwrap()
}

fn answer(generator: &mut Generator, begun: &[u32], tokens: usize) -> Vec<u32> {
    let limits = Limits { tokens: Some(tokens), ignore_end: true, ..Limits::default() };
    let found = generator.generate(begun, &Sampling::greedy(), &limits).unwrap();
    found.map(|token| token.unwrap().number).collect()
}

/// All weights in memory, and as few as there can be.
fn models(path: &Path) -> [TextModel; 2] {
    [opened(path, None), opened(path, Some(super::text::least_bytes(path) + (160 << 10)))]
}

#[test]
fn a_text_is_answered_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    answers_texts(&compiled("t5_tiny", folder.path()));
}

#[test]
fn a_decoder_that_is_merged_of_two_answers_alike() {
    let (folder, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = |from: PathBuf, name: &str| std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
    for file in ["encoder_model.onnx", "tokenizer.json", "config.json", "generation_config.json"] {
        copy(fixture("t5_tiny"), file);
    }
    copy(fixture("t5_merged"), "decoder_model_merged.onnx");
    let path = compiled_folder(folder.path(), output.path());
    answers_texts(&path);
    // Nothing of the choice is left, and the weights of both branches are in the file once.
    let apart = tempfile::tempdir().unwrap();
    let [merged, two] = [path, compiled("t5_tiny", apart.path())].map(|path| opened(&path, None));
    let mut steps = merged.model().manifest().blocks.iter().flat_map(|block| &block.steps);
    assert!(steps.all(|step| step.op.blocks().is_empty()));
    let bytes = |model: &TextModel| model.model().manifest().extents.iter().map(|extent| extent.length).sum::<u64>();
    assert_eq!(bytes(&merged), bytes(&two));
}

/// The texts and answers of `t5_tiny`.
fn answers_texts(path: &Path) {
    let manifest_entries = |model: &TextModel| -> Vec<String> {
        model.model().manifest().entries.iter().map(|entry| entry.name.clone()).collect()
    };
    for model in models(path) {
        assert_eq!(manifest_entries(&model), ["encode", "start", "decode"]);
        assert_eq!(model.settings().start_tokens, [0]);
        let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
        // One after the other: an answer leaves nothing behind for the next input.
        for (text, numbers) in expected("t5_tiny").into_iter().chain(expected("t5_tiny")) {
            generator.encode_text(&model.encode(&text.unwrap()).unwrap()).unwrap();
            assert_eq!(answer(&mut generator, &[0], numbers.len()), numbers);
            // The same input once more; and with a part of the answer given, token by token and at once.
            assert_eq!(answer(&mut generator, &[0], 3), numbers[..3]);
            let begun: Vec<u32> = [0].into_iter().chain(numbers[..9].iter().copied()).collect();
            assert_eq!(answer(&mut generator, &begun, numbers.len() - 9), numbers[9..]);
        }
    }
}

#[test]
fn features_are_answered_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = compiled("whisper_tiny", folder.path());
    let (_, numbers) = expected("whisper_tiny").remove(0);
    for model in models(&path) {
        let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
        let inputs = || vec![("input_features".to_string(), Value::from(features()))];
        generator.encode(inputs()).unwrap();
        assert_eq!(answer(&mut generator, &[0], numbers.len()), numbers);
        // Another input, then the first again.
        let louder: Vec<f32> = features().elements::<f32>().unwrap().iter().map(|value| value * -3.0).collect();
        let louder = Tensor::from_vec(&[1, 8, 40], louder).unwrap();
        generator.encode(vec![("input_features".to_string(), louder.into())]).unwrap();
        assert_ne!(answer(&mut generator, &[0], numbers.len()), numbers);
        generator.encode(inputs()).unwrap();
        assert_eq!(answer(&mut generator, &[0], numbers.len()), numbers);
    }
}

#[test]
fn an_encoder_that_gives_the_cache_is_answered_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = compiled("whisper_genai", folder.path());
    let (_, numbers) = expected("whisper_tiny").remove(0);
    for model in models(&path) {
        let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
        generator.encode(vec![("audio_features".to_string(), Value::from(features()))]).unwrap();
        assert_eq!(answer(&mut generator, &[0], numbers.len()), numbers);
        // A part of the answer in one pass.
        let begun: Vec<u32> = [0].into_iter().chain(numbers[..9].iter().copied()).collect();
        assert_eq!(answer(&mut generator, &begun, numbers.len() - 9), numbers[9..]);
    }
}

#[test]
fn what_is_no_input_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled("whisper_tiny", folder.path()), None);
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let refused = |error: Option<GenerateError>| error.unwrap().to_string();
    let unread = generator.generate(&[0], &Sampling::greedy(), &Limits::default()).err();
    assert_eq!(refused(unread), "the model answers to an input, which must be given first");
    assert_eq!(refused(generator.encode_text(&[3]).err()), "the model's input is no text");
    assert_eq!(refused(generator.encode(Vec::new()).err()), "input `input_features` (f32[1, 8, 40]) is missing");
    let batch = Batch::new(&model, &GeneratorOptions::default(), 2).err();
    assert_eq!(refused(batch), "a model that answers to an input generates one text at a time");

    let folder = tempfile::tempdir().unwrap();
    let plain = opened(&super::text::compiled(folder.path()), None);
    let mut generator = Generator::new(&plain, &GeneratorOptions::default()).unwrap();
    assert_eq!(refused(generator.encode_text(&[3]).err()), "the model's input is no text");
    assert_eq!(refused(generator.encode(Vec::new()).err()), "the model answers to no input beside its prompt");
}

#[test]
fn folders_without_a_decoder_for_the_encoder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["encoder_model.onnx", "decoder_model.onnx", "tokenizer.json"] {
        std::fs::copy(fixture("t5_tiny").join(file), folder.path().join(file)).unwrap();
    }
    let error = folder::read(folder.path()).unwrap_err();
    assert!(matches!(&error, FolderError::Missing { file, .. } if file == "decoder_with_past_model.onnx"), "{error}");
}
