//! Several texts side by side: each is what it is alone, and the weights are read once for all of them.

use super::text::{compiled, limits, opened, quarter_bytes, sampled};
use crate::support::language::write_folder;
use ipuc::generate::{
    Batch, Ended, GenerateError, Generator, GeneratorOptions, Limits, Progress, Sampling, TextModel, Token,
};
use std::collections::BTreeMap;

const PROMPTS: usize = 12;
const TOKENS: usize = 20;

/// Prompts of 1 to 40 tokens, some with a common beginning.
fn prompts() -> Vec<Vec<u32>> {
    let prompt = |at: u32| {
        let length = 1 + at * 37 % 40;
        (0..length)
            .map(move |position| if position < 6 { 30 + position } else { 100 + (at * 31 + position * 17) % 300 })
    };
    (0..PROMPTS as u32).map(|at| prompt(at).collect()).collect()
}

/// Texts of different lengths, so that they end at different passes.
fn limits_of(text: usize) -> Limits {
    Limits { tokens: Some(TOKENS - text % 7), ..limits() }
}

fn alone(model: &TextModel, prompt: &[u32], sampling: &Sampling, limits: &Limits) -> Vec<Token> {
    let mut generator = Generator::new(model, &GeneratorOptions::default()).unwrap();
    generator.generate(prompt, sampling, limits).unwrap().map(Result::unwrap).collect()
}

/// All prompts through a batch, each as soon as there is room; gives their tokens.
fn together(batch: &mut Batch, prompts: &[Vec<u32>], sampling: &Sampling) -> Vec<Vec<Token>> {
    let mut tokens: Vec<Vec<Token>> = vec![Vec::new(); prompts.len()];
    let (mut running, mut next) = (BTreeMap::new(), 0);
    while next < prompts.len() || batch.is_busy() {
        while next < prompts.len()
            && let Some(number) = batch.begin(&prompts[next], sampling, &limits_of(next)).unwrap()
        {
            running.insert(number, next);
            next += 1;
        }
        for Progress { text, token, ended, usage } in batch.pass().unwrap() {
            let at = running[&text];
            tokens[at].extend(token);
            if ended.is_some() {
                assert_eq!((ended, usage.tokens), (Some(Ended::Length), tokens[at].len()));
                assert_eq!(usage.prompt_tokens, prompts[at].len());
            }
        }
    }
    tokens
}

#[test]
fn each_text_is_what_it_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = compiled(folder.path());
    let prompts = prompts();
    let model = opened(&path, None);
    for sampling in [Sampling::greedy(), sampled()] {
        let of = |(at, prompt): (usize, &Vec<u32>)| alone(&model, prompt, &sampling, &limits_of(at));
        let expected: Vec<Vec<Token>> = prompts.iter().enumerate().map(of).collect();
        for (memory, threads, prefill_chunk, lookup, size) in
            [(None, 1, 0, 0, 4), (None, 2, 8, 3, 3), (Some(quarter_bytes(&path) + (4 << 20)), 2, 16, 0, 5)]
        {
            let model = opened(&path, memory);
            let options = GeneratorOptions { threads, prefill_chunk, lookup };
            let mut batch = Batch::new(&model, &options, size).unwrap();
            // Probabilities are equal only where scores are.
            assert_eq!(together(&mut batch, &prompts, &sampling), expected, "{memory:?} {options:?} {size}");
            assert!(!batch.is_busy() && batch.has_room());
        }
    }
}

#[test]
fn a_pass_reads_the_weights_once_for_all_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = compiled(folder.path());
    let bytes_a_token = |size: usize| {
        // As much for weights, whatever the texts keep.
        let model = opened(&path, Some(quarter_bytes(&path) + size as u64 * (320 << 10)));
        let mut batch = Batch::new(&model, &GeneratorOptions { threads: 1, ..GeneratorOptions::default() }, 8).unwrap();
        for text in 0..size as u32 {
            batch.begin(&[40 + text, 7, 9], &Sampling::greedy(), &limits()).unwrap().unwrap();
        }
        // Passes after the prompts are alike.
        batch.pass().unwrap();
        batch.pass().unwrap();
        let decode = model.model().manifest().entries.iter().position(|entry| entry.name == "decode").unwrap();
        for _ in 0..10 {
            assert_eq!(batch.pass().unwrap().len(), size);
            let (pass, residency) = (batch.last_pass().unwrap(), model.model().residency().unwrap());
            assert_eq!(
                (pass.stream_bytes, pass.unplanned_bytes),
                (residency.bytes_per_pass[decode], 0),
                "{size} texts"
            );
            assert!(pass.stream_bytes > residency.weights_bytes / 2, "little streams: {residency:?}");
        }
        batch.last_pass().unwrap().stream_bytes / size as u64
    };
    let (one, eight) = (bytes_a_token(1), bytes_a_token(8));
    assert!(one >= 5 * eight, "{one} bytes a token alone, {eight} of eight");
}

#[test]
fn what_texts_have_in_common_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&compiled(folder.path()), None);
    let common: Vec<u32> = (20..70).collect();
    let prompt = |last: u32| common.iter().copied().chain([last]).collect::<Vec<u32>>();
    let mut batch = Batch::new(&model, &GeneratorOptions::default(), 3).unwrap();
    let begin = |batch: &mut Batch, last| batch.begin(&prompt(last), &Sampling::greedy(), &limits()).unwrap();
    assert_eq!(begin(&mut batch, 100), Some(1));
    let first = batch.pass().unwrap();
    assert_eq!((first.len(), first[0].usage.prompt_known), (1, 0));
    // The second goes on from a copy of what the first has read, while that runs.
    assert_eq!(begin(&mut batch, 101), Some(2));
    let second = batch.pass().unwrap();
    assert_eq!(second.iter().map(|one| (one.text, one.usage.prompt_known)).collect::<Vec<_>>(), [(1, 0), (2, 50)]);
    let mut found: Vec<Token> = second.into_iter().filter(|one| one.text == 2).filter_map(|one| one.token).collect();
    batch.cancel(1);
    let cancelled = batch.pass().unwrap();
    let ends: Vec<_> = cancelled.iter().map(|one| (one.text, one.ended, one.token.is_some())).collect();
    assert_eq!(ends, [(1, Some(Ended::Cancelled), false), (2, None, true)]);
    found.extend(cancelled.into_iter().filter_map(|one| one.token));
    while batch.is_busy() {
        found.extend(batch.pass().unwrap().into_iter().filter_map(|one| one.token));
    }
    assert_eq!(found, alone(&model, &prompt(101), &Sampling::greedy(), &limits()));
}

#[test]
fn a_full_batch_and_prompts_without_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path());
    let model = opened(&compiled(folder.path()), None);
    let mut batch = Batch::new(&model, &GeneratorOptions::default(), 1).unwrap();
    let refused = batch.begin(&[], &Sampling::greedy(), &limits());
    assert!(matches!(refused, Err(GenerateError::EmptyPrompt)), "{refused:?}");
    assert_eq!(batch.begin(&[5], &Sampling::greedy(), &limits()).unwrap(), Some(1));
    assert_eq!(batch.begin(&[5], &Sampling::greedy(), &limits()).unwrap(), None);
    assert!(!batch.has_room());
}
