//! `ipuc generate`: a prompt in, its continuation out.

use super::Outcome;
use super::failure::{Code, Failure};
use super::language::{LanguageArguments, SamplingArguments, ended, memory_bytes, opened, quoted, rate, tell};
use super::output::Output;
use crate::files::{OutputFile, SequentialWriter};
use crate::generate::{ContextError, Generator, Limits, Message, TextModel, Token, Usage};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Continue a text with a language model
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    language: LanguageArguments,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// The text to continue; - for stdin
    #[arg(long, value_name = "TEXT|-")]
    prompt: String,
    /// Take the prompt for what a user says, and answer as the model's chat template has it
    #[arg(long, conflicts_with = "context")]
    chat: bool,
    /// Most tokens [default: as many as the model has room for]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// End the text before TEXT
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on behind tokens that end a text
    #[arg(long)]
    ignore_end: bool,
    /// With --json: the probability of each token, and the N most likely tokens in its place
    #[arg(long, value_name = "N")]
    logprobs: Option<u8>,
    /// Go on from the text in this file, which --save-context has stored; it is not read again
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,
    /// Store prompt and text, without the last token, with their cache
    #[arg(long, value_name = "FILE")]
    save_context: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    model: String,
    text: String,
    ended: &'static str,
    prompt_tokens: usize,
    prompt_known: usize,
    tokens: usize,
    load_seconds: f64,
    prompt_seconds: f64,
    prompt_tokens_per_second: f64,
    seconds: f64,
    tokens_per_second: f64,
    memory_bytes: u64,
    read_bytes: u64,
    passes: usize,
    guessed: usize,
    accepted: usize,
    numbers: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Probability>,
}

#[derive(Serialize)]
struct Probability {
    token: u32,
    text: String,
    logprob: Option<f32>,
    likely: Vec<Likely>,
}

#[derive(Serialize)]
struct Likely {
    token: u32,
    text: String,
    logprob: f32,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let (model, load_time) = opened(&arguments.language)?;
    let mut generator = Generator::new(&model, &arguments.language.generator_options())?;
    if let Some(path) = &arguments.context {
        let context = || format!("cannot go on from {}", quoted(path));
        let file = File::open(path).map_err(ContextError::Io).with_context(context)?;
        generator.restore(&mut BufReader::new(file)).with_context(context)?;
    }
    let prompt = prompt(arguments, &model, &generator)?;
    let limits = Limits {
        tokens: arguments.max_tokens,
        stop: arguments.stop.clone(),
        ignore_end: arguments.ignore_end,
        probabilities: arguments.logprobs.map(usize::from),
    };
    let sampling = arguments.sampling.sampling(&model);
    let mut tokens = generator.generate(&prompt, &sampling, &limits)?;
    let mut text = String::new();
    let mut chosen: Vec<Token> = Vec::new();
    for token in tokens.by_ref() {
        let token = token?;
        output.piece(&token.text)?;
        text.push_str(&token.text);
        chosen.push(token);
    }
    output.line("")?;
    let (usage, reason) = (tokens.usage(), ended(tokens.ended()));
    drop(tokens);
    if let Some(path) = &arguments.save_context {
        save(&mut generator, path)?;
    }
    tell(&usage, &model, output);
    output.json(&summary(arguments, &model, load_time, text, reason, &usage, &chosen)?)?;
    Ok(Code::Success)
}

fn prompt(arguments: &Arguments, model: &TextModel, generator: &Generator) -> anyhow::Result<Vec<u32>> {
    let mut text = arguments.prompt.clone();
    if text == "-" {
        text.clear();
        io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    }
    if arguments.chat {
        return Ok(model.encode_chat(&[Message { role: "user".to_string(), content: text }])?);
    }
    if arguments.context.is_none() {
        return Ok(model.encode(&text)?);
    }
    let mut tokens = generator.tokens().to_vec();
    tokens.extend(model.encode_continuation(&text)?);
    Ok(tokens)
}

fn save(generator: &mut Generator, path: &Path) -> anyhow::Result<()> {
    let unwritten = |error: io::Error| Failure::output(format!("cannot write {}", quoted(path)), &error);
    let file = OutputFile::create(path).map_err(unwritten)?;
    let mut writer = BufWriter::new(SequentialWriter::new(&file));
    generator.save(&mut writer)?;
    writer.flush().map_err(unwritten)?;
    drop(writer);
    file.finish().map_err(unwritten)?;
    Ok(())
}

fn summary(
    arguments: &Arguments,
    model: &TextModel,
    load_time: Duration,
    text: String,
    ended: &'static str,
    usage: &Usage,
    chosen: &[Token],
) -> anyhow::Result<Summary> {
    let mut logprobs = Vec::new();
    for token in chosen.iter().filter(|token| token.log_probability.is_some()) {
        let likely = token
            .likely
            .iter()
            .map(|&(likely, logprob)| Ok(Likely { token: likely, text: model.decode(&[likely])?, logprob }));
        logprobs.push(Probability {
            token: token.number,
            text: model.decode(&[token.number])?,
            logprob: token.log_probability,
            likely: likely.collect::<anyhow::Result<_>>()?,
        });
    }
    let read = usage.prompt_tokens - usage.prompt_known;
    Ok(Summary {
        model: arguments.language.model.display().to_string(),
        text,
        ended,
        prompt_tokens: usage.prompt_tokens,
        prompt_known: usage.prompt_known,
        tokens: usage.tokens,
        load_seconds: load_time.as_secs_f64(),
        prompt_seconds: usage.prompt_time.as_secs_f64(),
        prompt_tokens_per_second: rate(read, usage.prompt_time),
        seconds: usage.time.as_secs_f64(),
        tokens_per_second: rate(usage.tokens, usage.time),
        memory_bytes: memory_bytes(model),
        read_bytes: usage.read_bytes,
        passes: usage.passes,
        guessed: usage.guessed,
        accepted: usage.accepted,
        numbers: chosen.iter().map(|token| token.number).collect(),
        logprobs,
    })
}
