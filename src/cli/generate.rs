//! `ipuc generate`: a prompt in, its continuation out; or, with `batch`, many side by side.

mod batch;

use super::Outcome;
use super::arguments::NamedFile;
use super::failure::Code;
use super::language::{
    DraftArguments, GrammarArguments, LanguageArguments, SamplingArguments, ended, memory_bytes, quoted, rate, tell,
};
use super::output::{Output, count};
use super::progress::waiting;
use super::written::{self, Written};
use crate::files::numpy::read_npy;
use crate::files::{OutputFile, SequentialWriter};
use crate::generate::{ContextError, Generator, Limits, Message, TextModel, Token, Usage};
use anyhow::Context;
use clap::Args;
use ipuc_formats::value::Value;
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
    draft: DraftArguments,
    #[command(flatten)]
    sampling: SamplingArguments,
    #[command(flatten)]
    grammar: GrammarArguments,
    /// The text to continue; - for stdin
    #[arg(long, value_name = "TEXT|-", required_unless_present_any = ["batch", "input"])]
    prompt: Option<String>,
    /// Answer to this input, an array in a .npy file: of a model that reads more than text; --prompt begins the answer then
    #[arg(long, value_name = "NAME=FILE", conflicts_with_all = ["batch", "context", "chat"])]
    input: Vec<NamedFile>,
    #[command(flatten)]
    batch: batch::BatchArguments,
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
    /// Store prompt and text, without the last token, with their cache; - is stdout, and the text goes to stderr
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
    chosen_bytes: u64,
    found_bytes: u64,
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
    let context = Written { what: "the context", path: arguments.save_context.as_deref(), is_text: false };
    written::prepare(&[context], output)?;
    let grammar = arguments.grammar.grammar()?;
    let (model, mut generator, load_time) = arguments.draft.generator(&arguments.language, output)?;
    let limits = Limits {
        tokens: arguments.max_tokens,
        stop: arguments.stop.clone(),
        ignore_end: arguments.ignore_end,
        probabilities: arguments.logprobs.map(usize::from),
        grammar,
    };
    let sampling = arguments.sampling.sampling(&model);
    if let Some(prompts) = arguments.batch.prompts()? {
        let tokens =
            prompts.iter().map(|text| tokens(&model, text, arguments.chat)).collect::<anyhow::Result<Vec<_>>>()?;
        let options = arguments.language.generator_options();
        return arguments.batch.run(&model, &options, &tokens, &sampling, &limits, output);
    }
    if let Some(path) = &arguments.context {
        let context = || format!("cannot go on from {}", quoted(path));
        let file = File::open(path).map_err(ContextError::Io).with_context(context)?;
        generator.restore(&mut BufReader::new(file)).with_context(context)?;
    }
    let prompt = prompt(arguments, &model, &mut generator)?;
    let mut reading = Some(waiting(output, format_args!("reading {}", count(prompt.len(), "token"))));
    let mut tokens = generator.generate(&prompt, &sampling, &limits)?;
    let mut text = String::new();
    let mut chosen: Vec<Token> = Vec::new();
    for token in tokens.by_ref() {
        let token = token?;
        drop(reading.take());
        output.piece(&token.text)?;
        text.push_str(&token.text);
        chosen.push(token);
    }
    drop(reading);
    output.line("")?;
    let (usage, reason) = (tokens.usage(), ended(tokens.ended()));
    drop(tokens);
    if let Some(path) = &arguments.save_context {
        save(&mut generator, path)?;
    }
    tell(&usage, &model, output);
    if let Some(unmet) = unmet(&arguments.stop, reason, usage.tokens) {
        output.note(unmet);
    }
    output.json(&summary(arguments, &model, load_time, text, reason, &usage, &chosen)?)?;
    Ok(Code::Success)
}

/// What to say where a text should have ended before another, and did not.
fn unmet(stops: &[String], reason: &str, tokens: usize) -> Option<String> {
    let quoted: Vec<String> = stops.iter().map(|stop| format!("{stop:?}")).collect();
    let why = match reason {
        _ if stops.is_empty() => return None,
        "stop" => return None,
        "end" => "the model ended the text itself",
        "length" => "the text ended at its greatest length",
        _ => "the text was cancelled",
    };
    Some(format!("note: {} did not come in {}: {why}", quoted.join(" or "), count(tokens, "token")))
}

/// Has the encoder read its input, where there is one; gives the tokens to go on from.
fn prompt(arguments: &Arguments, model: &TextModel, generator: &mut Generator) -> anyhow::Result<Vec<u32>> {
    let mut text = arguments.prompt.clone().unwrap_or_default();
    if text == "-" {
        text.clear();
        io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    }
    if !arguments.input.is_empty() {
        let value = |file: &NamedFile| -> anyhow::Result<(String, Value)> {
            let mut bytes =
                BufReader::new(File::open(&file.path).with_context(|| format!("cannot read {}", quoted(&file.path)))?);
            let array = read_npy(&mut bytes).with_context(|| format!("cannot read {}", quoted(&file.path)))?;
            Ok((file.name.clone(), array.into()))
        };
        generator.encode(arguments.input.iter().map(value).collect::<anyhow::Result<_>>()?)?;
        let begun = model.encode_continuation(&text)?;
        return Ok(if begun.is_empty() { model.settings().start_tokens.clone() } else { begun });
    }
    if model.settings().encoder.is_some() {
        generator.encode_text(&tokens(model, &text, arguments.chat)?)?;
        return Ok(model.settings().start_tokens.clone());
    }
    if arguments.context.is_none() {
        return tokens(model, &text, arguments.chat);
    }
    let mut tokens = generator.tokens().to_vec();
    tokens.extend(model.encode_continuation(&text)?);
    Ok(tokens)
}

/// The tokens of a prompt, or of what a user says.
fn tokens(model: &TextModel, text: &str, chat: bool) -> anyhow::Result<Vec<u32>> {
    match chat {
        true => Ok(model.encode_chat(&[Message { role: "user".to_string(), content: text.to_string() }])?),
        false => Ok(model.encode(text)?),
    }
}

fn save(generator: &mut Generator, path: &Path) -> anyhow::Result<()> {
    let unwritten = |error| written::unwritten(path, error);
    let file = OutputFile::create(written::destination(path)).map_err(unwritten)?;
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
        chosen_bytes: usage.chosen_bytes,
        found_bytes: usage.found_bytes,
        passes: usage.passes,
        guessed: usage.guessed,
        accepted: usage.accepted,
        numbers: chosen.iter().map(|token| token.number).collect(),
        logprobs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_that_never_came_are_told() {
        let stops = ["END".to_string(), "\n\n".to_string()];
        assert_eq!(unmet(&stops, "stop", 5), None);
        assert_eq!(unmet(&[], "length", 5), None);
        let told = unmet(&stops, "length", 5).unwrap();
        assert_eq!(told, "note: \"END\" or \"\\n\\n\" did not come in 5 tokens: the text ended at its greatest length");
    }
}
