//! Texts of a form that is asked for, from a model that would write nonsense.

use super::text::{compiled, compiled_folder, opened};
use crate::support::language::write_folder_of_bytes;
use ipuc::compile::CompileOptions;
use ipuc::generate::{Batch, Ended, GenerateError, Generator, GeneratorOptions, Grammar, Limits, Sampling, TextModel};
use serde_json::{Value, json};

fn model(folder: &std::path::Path) -> TextModel {
    write_folder_of_bytes(folder);
    opened(&compiled_folder(folder, CompileOptions::default()), None)
}

fn schema() -> Grammar {
    Grammar::JsonSchema(json!({
        "x-guidance": {"whitespace_flexible": false},
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
        },
    }))
}

fn sampling(seed: u64) -> Sampling {
    Sampling { temperature: 100.0, seed, ..Sampling::greedy() }
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let object = value.as_object().unwrap();
    assert_eq!(object.keys().collect::<Vec<_>>(), ["name", "age", "tags"], "{text}");
    assert!(object["age"].as_u64().unwrap() <= 150, "{text}");
    assert!(object["name"].as_str().unwrap().chars().count() <= 6, "{text}");
    let tags = object["tags"].as_array().unwrap();
    assert!((1..=3).contains(&tags.len()) && tags.iter().all(|tag| tag == "red" || tag == "green"), "{text}");
}

#[test]
fn texts_are_what_the_schema_describes() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let prompt = model.encode("A person: ").unwrap();
    let limits = Limits { tokens: Some(400), grammar: Some(schema()), ..Limits::default() };
    let mut alone = Vec::new();
    let mut generator = Generator::new(&model, &GeneratorOptions { lookup: 3, ..Default::default() }).unwrap();
    for seed in 0..6 {
        let mut tokens = generator.generate(&prompt, &sampling(seed), &limits).unwrap();
        let text: String = tokens.by_ref().map(|token| token.unwrap().text).collect();
        assert_eq!(tokens.ended(), Some(Ended::End), "{text}");
        check(&text);
        alone.push(text);
    }
    assert!(alone.windows(2).any(|pair| pair[0] != pair[1]), "one text for all seeds: {alone:?}");

    let mut batch = Batch::new(&model, &GeneratorOptions::default(), 6).unwrap();
    for seed in 0..6 {
        batch.begin(&prompt, &sampling(seed), &limits).unwrap().unwrap();
    }
    let mut texts = vec![String::new(); 6];
    while batch.is_busy() {
        for progress in batch.pass().unwrap() {
            texts[progress.text as usize - 1].extend(progress.token.map(|token| token.text));
        }
    }
    assert_eq!(texts, alone);
}

#[test]
fn texts_are_what_the_grammar_describes() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let prompt = model.encode("yes or no? ").unwrap();
    let grammar = Grammar::Lark("start: (\"yes\" | \"no\") \"!\"".to_string());
    let limits = Limits { grammar: Some(grammar), ..Limits::default() };
    for seed in 0..4 {
        let tokens = generator.generate(&prompt, &sampling(seed), &limits).unwrap();
        let text: String = tokens.map(|token| token.unwrap().text).collect();
        assert!(text == "yes!" || text == "no!", "{text}");
    }
}

#[test]
fn grammars_that_cannot_be_followed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let words = opened(&compiled(folder.path()), None);
    let mut generator = Generator::new(&words, &GeneratorOptions::default()).unwrap();
    let limits = Limits { grammar: Some(schema()), ..Limits::default() };
    let refused = generator.generate(&[5], &Sampling::greedy(), &limits).err().unwrap();
    let GenerateError::Attachment { attachment: "tokenizer.json", reason } = refused else { panic!("{refused}") };
    assert!(reason.starts_with("its tokens are not known as bytes: "), "{reason}");

    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let limits = Limits { grammar: Some(Grammar::JsonSchema(json!({"type": 7}))), ..Limits::default() };
    let refused = generator.generate(&[5], &Sampling::greedy(), &limits).err().unwrap();
    assert!(matches!(refused, GenerateError::Grammar { .. }), "{refused}");
}
