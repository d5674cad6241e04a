//! `ipuc generate --batch`: prompts of a file, several at a time.

use crate::cli::Outcome;
use crate::cli::failure::Code;
use crate::cli::language::{ended, memory_bytes, quoted, rate};
use crate::cli::output::{Output, bytes, count, seconds};
use crate::cli::progress::{Waiting, waiting};
use crate::generate::{Batch, Ended, GeneratorOptions, Limits, Sampling, TextModel, Usage};
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Which prompts, and how many at a time.
#[derive(Debug, Args)]
pub(super) struct BatchArguments {
    /// Continue each prompt of FILE: a line each, as it is or as a JSON string; - for stdin
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["prompt", "context", "save_context", "logprobs", "draft"])]
    batch: Option<PathBuf>,
    /// With --batch: most texts at a time; all of them share each reading of the weights
    #[arg(long, value_name = "N", default_value = "8")]
    batch_size: std::num::NonZeroU16,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    texts: Vec<TextSummary>,
    tokens: usize,
    seconds: f64,
    tokens_per_second: f64,
    memory_bytes: u64,
    read_bytes: u64,
    passes: usize,
}

#[derive(Serialize)]
struct TextSummary {
    text: String,
    ended: &'static str,
    prompt_tokens: usize,
    prompt_known: usize,
    tokens: usize,
    numbers: Vec<u32>,
}

/// A text as far as it is known.
#[derive(Default)]
struct Growing {
    text: String,
    numbers: Vec<u32>,
    ended: Option<Ended>,
    usage: Usage,
}

impl BatchArguments {
    /// The prompts, where there is a file of them. Empty lines are none.
    pub(super) fn prompts(&self) -> anyhow::Result<Option<Vec<String>>> {
        let Some(path) = &self.batch else { return Ok(None) };
        let mut text = String::new();
        if path.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
        } else {
            text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", quoted(path)))?;
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let prompt = |(at, line): (usize, &str)| {
            if !line.starts_with('"') {
                return Ok(line.to_string());
            }
            serde_json::from_str(line).with_context(|| format!("line {} of {} is no JSON string", at + 1, quoted(path)))
        };
        let prompts = lines.map(prompt).collect::<anyhow::Result<Vec<String>>>()?;
        if prompts.is_empty() {
            bail!("{} has no prompts", quoted(path));
        }
        Ok(Some(prompts))
    }

    /// Generate, and print the texts in the order of their prompts.
    pub(super) fn run(
        &self,
        model: &TextModel,
        options: &GeneratorOptions,
        prompts: &[Vec<u32>],
        sampling: &Sampling,
        limits: &Limits,
        output: &mut Output,
    ) -> Outcome {
        let begun = Instant::now();
        let mut batch = Batch::new(model, options, usize::from(self.batch_size.get()).min(prompts.len()))?;
        let mut texts: Vec<Growing> = Vec::new();
        texts.resize_with(prompts.len(), Growing::default);
        let mut running: BTreeMap<u64, usize> = BTreeMap::new();
        let (mut next, mut printed) = (0, 0);
        let mut shown = Some(begin(output, 0, texts.len()));
        while printed < texts.len() {
            while next < prompts.len()
                && let Some(number) = batch.begin(&prompts[next], sampling, limits)?
            {
                running.insert(number, next);
                next += 1;
            }
            for progress in batch.pass()? {
                let Some(&at) = running.get(&progress.text) else { continue };
                let text = &mut texts[at];
                if let Some(token) = progress.token {
                    text.text.push_str(&token.text);
                    text.numbers.push(token.number);
                }
                (text.ended, text.usage) = (progress.ended, progress.usage);
            }
            if texts.get(printed).is_none_or(|text| text.ended.is_none()) {
                continue;
            }
            // Texts are printed where the line was.
            drop(shown.take());
            while let Some(text) = texts.get(printed).filter(|text| text.ended.is_some()) {
                printed += 1;
                output.line(format_args!("[{printed}] {}", text.text))?;
            }
            output.flush()?;
            shown = Some(begin(output, printed, texts.len()));
        }
        drop(shown);
        tell(&batch, &texts, model, begun.elapsed(), output)
    }
}

fn begin(output: &Output, printed: usize, all: usize) -> Waiting {
    waiting(output, format_args!("generating: {printed} of {} done", count(all, "text")))
}

fn tell(batch: &Batch, texts: &[Growing], model: &TextModel, time: Duration, output: &mut Output) -> Outcome {
    let tokens: usize = texts.iter().map(|text| text.usage.tokens).sum();
    output.note(format_args!(
        "{} texts, {tokens} tokens in {} ({:.1} tokens/s, prompts included); {} passes, {} of memory at most, {} read a token",
        texts.len(),
        seconds(time),
        rate(tokens, time),
        batch.passes(),
        bytes(memory_bytes(model)),
        bytes(batch.read_bytes() / tokens.max(1) as u64)
    ));
    let summary = |text: &Growing| TextSummary {
        text: text.text.clone(),
        ended: ended(text.ended),
        prompt_tokens: text.usage.prompt_tokens,
        prompt_known: text.usage.prompt_known,
        tokens: text.usage.tokens,
        numbers: text.numbers.clone(),
    };
    output.json(&Summary {
        texts: texts.iter().map(summary).collect(),
        tokens,
        seconds: time.as_secs_f64(),
        tokens_per_second: rate(tokens, time),
        memory_bytes: memory_bytes(model),
        read_bytes: batch.read_bytes(),
        passes: batch.passes(),
    })?;
    Ok(Code::Success)
}
