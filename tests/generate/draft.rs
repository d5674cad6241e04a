//! A smaller model guesses: the text is the same, whatever it guesses, and both are within one budget.

use super::text::{compiled, compiled_folder, limits, opened, quarter_bytes, sampled};
use crate::support::language::{write_folder, write_folder_of_bytes, write_other_folder};
use ipuc::compile::CompileOptions;
use ipuc::generate::{GenerateError, Generator, GeneratorOptions, Sampling, TextModel, Token, Usage};
use ipuc::{OpenOptions, open_pair};
use std::path::{Path, PathBuf};

fn text(model: &TextModel, draft: Option<&TextModel>, sampling: &Sampling) -> (Vec<Token>, Usage) {
    let mut generator = Generator::new(model, &GeneratorOptions::default()).unwrap();
    if let Some(draft) = draft {
        generator.set_draft(draft, 4).unwrap();
    }
    let prompt = model.encode("w10 w11 w12 w13 w14").unwrap();
    let mut tokens = generator.generate(&prompt, sampling, &limits()).unwrap();
    let chosen = tokens.by_ref().map(Result::unwrap).collect();
    (chosen, tokens.usage())
}

/// The model with weights of few bits: much like it, and not the same.
fn rounded(folder: &Path) -> PathBuf {
    write_folder(folder);
    let mut options = CompileOptions::default();
    options.weights.precision = Some("i8".parse().unwrap());
    compiled_folder(folder, options)
}

#[test]
fn one_text_whatever_is_guessed() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let path = compiled(folders[0].path());
    write_other_folder(folders[1].path());
    let other = compiled_folder(folders[1].path(), CompileOptions::default());
    let rounded = rounded(folders[2].path());
    for sampling in [Sampling::greedy(), sampled()] {
        let model = opened(&path, None);
        let (expected, plain) = text(&model, None, &sampling);
        let with = |draft: &Path| {
            // Probabilities are equal only where scores are.
            let (found, usage) = text(&model, Some(&opened(draft, None)), &sampling);
            assert_eq!(found, expected, "{}", draft.display());
            assert_eq!(usage.passes + usage.accepted, plain.passes, "{usage:?}");
            usage
        };
        let (same, alike, unlike) = (with(&path), with(&rounded), with(&other));
        // Both draw with the same numbers: the model itself guesses all that it chooses.
        assert_eq!(same.accepted, same.guessed);
        assert!(same.passes <= plain.passes / 5 + 1, "{same:?}");
        assert!(alike.accepted > unlike.accepted && alike.accepted < alike.guessed, "{alike:?} {unlike:?}");
    }
}

#[test]
fn both_are_within_one_budget() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (path, draft) = (compiled(folders[0].path()), rounded(folders[1].path()));
    let (expected, _) = text(&opened(&path, None), None, &sampled());
    let budget = 2 * quarter_bytes(&path);
    let options = OpenOptions { memory_bytes: Some(budget), ..OpenOptions::default() };
    let (model, draft) = open_pair(&path, &draft, options).unwrap();
    let (model, draft) = (TextModel::new(model).unwrap(), TextModel::new(draft).unwrap());
    let (found, usage) = text(&model, Some(&draft), &sampled());
    assert_eq!(found, expected);
    assert!(usage.accepted > 0 && usage.read_bytes > 0, "{usage:?}");
    let (one, other) = (model.model().memory(), draft.model().memory());
    assert_eq!(one, other, "they have budgets of their own");
    assert!(one.peak_bytes <= budget, "{one:?} of {budget}");
}

#[test]
fn other_tokens_are_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let model = opened(&compiled(folders[0].path()), None);
    write_folder_of_bytes(folders[1].path());
    let bytes = opened(&compiled_folder(folders[1].path(), CompileOptions::default()), None);
    let mut generator = Generator::new(&model, &GeneratorOptions::default()).unwrap();
    let Err(GenerateError::Draft { reason }) = generator.set_draft(&bytes, 4) else { panic!("it is taken") };
    assert_eq!(reason, "its tokens are not those of the model");
}
