//! Language models compared by a text: how well each tells a token from those before it.

use super::page::Page;
use crate::accuracy::Prediction;
use crate::cli::Outcome;
use crate::cli::execute::Loaded;
use crate::cli::failure::{Code, Failure};
use crate::cli::language::language_model;
use crate::cli::output::{Output, count};
use crate::cli::progress::{Bar, Unit};
use crate::generate::{GenerateError, Generator};
use anyhow::Context;
use serde::Serialize;
use std::path::Path;

/// Tokens whose scores are in memory at a time.
const PASS_TOKENS: usize = 128;

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    model: &'a Path,
    reference: &'a Path,
    text: &'a Path,
    tokens: u64,
    windows: usize,
    perplexity: f64,
    reference_perplexity: f64,
    log_ratio: f64,
    log_ratio_error: f64,
    divergence: f64,
    greatest_divergence: f64,
    same_first: u64,
}

/// What the page draws.
#[derive(Serialize)]
struct Plots {
    windows: Vec<Window>,
}

#[derive(Serialize)]
struct Window {
    perplexity: f64,
    reference_perplexity: f64,
    divergence: f64,
}

impl Window {
    fn of(prediction: &Prediction) -> Window {
        Window {
            perplexity: prediction.perplexity(),
            reference_perplexity: prediction.reference_perplexity(),
            divergence: prediction.divergence(),
        }
    }
}

pub(super) fn run(
    path: &Path,
    (window, most): (usize, Option<usize>),
    found: &Loaded,
    reference: &Loaded,
    html: Option<&Path>,
    output: &mut Output,
) -> Outcome {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let mut generator = Scorer::new(found, &text, window)?;
    let mut reference_generator = Scorer::new(reference, &text, window)?;
    if generator.tokens != reference_generator.tokens {
        let (found, reference) = (found.path.display(), reference.path.display());
        return Err(Failure::usage(format!("`{found}` and `{reference}` make other tokens of the text")).into());
    }
    let tokens = std::mem::take(&mut generator.tokens);
    let tokens = &tokens[..tokens.len().min(most.unwrap_or(usize::MAX))];
    // A window of one token has nothing to tell.
    let windows: Vec<&[u32]> = tokens.chunks(window).filter(|window| window.len() > 1).collect();
    if windows.is_empty() {
        let message = format!("`{}` has no token behind another in a window", path.display());
        return Err(Failure::usage(message).with_hint("give a longer text, or larger --window and --tokens").into());
    }
    let mut prediction = Prediction::default();
    let mut drawn = Vec::with_capacity(windows.len());
    let bar = Bar::new(output, "comparing", Unit::Items);
    for (index, window) in windows.iter().enumerate() {
        bar.set(index as u64, windows.len() as u64);
        generator.generator.clear()?;
        reference_generator.generator.clear()?;
        let last = window.len() - 1;
        let mut own_prediction = Prediction::default();
        for first in (0..last).step_by(PASS_TOKENS) {
            let read = &window[first..last.min(first + PASS_TOKENS)];
            let scores = generator.score(read)?.into_iter().zip(reference_generator.score(read)?);
            for (place, (own, right)) in scores.enumerate() {
                if !own_prediction.add(&own, &right, window[first + place + 1] as usize) {
                    let tokens = prediction.tokens + own_prediction.tokens;
                    return Err(unusable(own.len(), right.len(), tokens).into());
                }
            }
        }
        prediction.merge(&own_prediction);
        drawn.push(Window::of(&own_prediction));
    }
    drop(bar);
    show(&prediction, windows.len(), output)?;
    let (log_ratio, log_ratio_error) = prediction.log_ratio();
    let summary = Summary {
        model: &found.path,
        reference: &reference.path,
        text: path,
        tokens: prediction.tokens,
        windows: windows.len(),
        perplexity: prediction.perplexity(),
        reference_perplexity: prediction.reference_perplexity(),
        log_ratio,
        log_ratio_error,
        divergence: prediction.divergence(),
        greatest_divergence: prediction.greatest_divergence,
        same_first: prediction.same_first,
    };
    if let Some(path) = html {
        Page { result: &summary, plots: Plots { windows: drawn } }.write(path)?;
    }
    output.json(&summary)?;
    Ok(Code::Success)
}

/// A model that scores, and the tokens that it makes of the text.
struct Scorer<'a> {
    generator: Generator,
    tokens: Vec<u32>,
    path: &'a Path,
}

impl Scorer<'_> {
    fn new<'a>(loaded: &'a Loaded, text: &str, window: usize) -> anyhow::Result<Scorer<'a>> {
        let model = language_model(&loaded.path, loaded.model.clone())?;
        let context = model.settings().context.unwrap_or(u64::MAX);
        if window as u64 > context {
            let message =
                format!("a window of {window} tokens does not fit: `{}` takes {context}", loaded.path.display());
            return Err(Failure::usage(message).into());
        }
        let tokens = model.encode(text)?;
        let generator = Generator::new(&model, &loaded.generator_options())?;
        Ok(Scorer { generator, tokens, path: &loaded.path })
    }

    fn score(&mut self, tokens: &[u32]) -> anyhow::Result<Vec<Vec<f32>>> {
        let scores: Result<_, GenerateError> = self.generator.score(tokens);
        scores.with_context(|| format!("cannot read the text with `{}`", self.path.display()))
    }
}

/// Why scores cannot be compared.
fn unusable(found: usize, reference: usize, tokens: u64) -> Failure {
    Failure::file(match found == reference {
        true => format!("the scores behind {tokens} tokens are no numbers, or not of the tokens of the text"),
        false => format!("the models have scores of {found} and {reference} tokens"),
    })
}

/// With a power of ten where a model tells nothing.
fn readable(perplexity: f64) -> String {
    if perplexity < 1e6 { format!("{perplexity:.4}") } else { format!("{perplexity:.3e}") }
}

fn show(prediction: &Prediction, windows: usize, output: &mut Output) -> anyhow::Result<()> {
    let (ratio, error) = prediction.log_ratio();
    let row = |name: &str, number: String| [name.to_string(), number];
    output.table(vec![
        row("tokens", format!("{} in {}", prediction.tokens, count(windows, "window"))),
        row("perplexity", readable(prediction.perplexity())),
        row("reference's perplexity", readable(prediction.reference_perplexity())),
        row("logarithm of their ratio", format!("{ratio:.6} ± {error:.6}")),
        row("divergence from the reference", format!("{:.6}", prediction.divergence())),
        row("largest of one token", format!("{:.6}", prediction.greatest_divergence)),
        row("same token first", format!("{}/{}", prediction.same_first, prediction.tokens)),
    ])
}
