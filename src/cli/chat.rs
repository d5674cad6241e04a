//! `ipuc chat`: a conversation on the terminal.

use super::failure::Code;
use super::language::{DraftArguments, LanguageArguments, SamplingArguments, ended, tell};
use super::output::{Output, count};
use super::progress::waiting;
use super::{Outcome, interrupt};
use crate::generate::{Ended, GenerateError, Limits, Message, TextModel, Usage};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

/// Talk with a language model: a line a turn; Ctrl-C ends a turn, the end of the input the chat
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    language: LanguageArguments,
    #[command(flatten)]
    draft: DraftArguments,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// What the model is told before the chat begins
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer [default: as many as the model has room for]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    model: String,
    load_seconds: f64,
    turns: Vec<Turn>,
}

/// What the user said, and the answer.
#[derive(Serialize)]
struct Turn {
    prompt: String,
    text: String,
    ended: &'static str,
    prompt_tokens: usize,
    prompt_known: usize,
    prompt_seconds: f64,
    tokens: usize,
    seconds: f64,
}

impl Turn {
    fn new(prompt: String, text: String, reason: Option<Ended>, usage: &Usage) -> Turn {
        Turn {
            prompt,
            text,
            ended: ended(reason),
            prompt_tokens: usage.prompt_tokens,
            prompt_known: usage.prompt_known,
            prompt_seconds: usage.prompt_time.as_secs_f64(),
            tokens: usage.tokens,
            seconds: usage.time.as_secs_f64(),
        }
    }
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let (model, mut generator, load_time) = arguments.draft.generator(&arguments.language, output)?;
    let sampling = arguments.sampling.sampling(&model);
    let limits = Limits { tokens: arguments.max_tokens, ..Limits::default() };
    let message = |role: &str, content: String| Message { role: role.to_string(), content };
    let mut messages: Vec<Message> = arguments.system.iter().map(|text| message("system", text.clone())).collect();
    let mut turns = Vec::new();
    let shown = io::stdin().is_terminal();
    let mut lines = io::stdin().lock().lines();
    loop {
        if shown {
            output.piece("> ")?;
        }
        let Some(line) = lines.next() else { break };
        let line = line.context("cannot read stdin")?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(message("user", line.clone()));
        let prompt = prompt(&model, &mut messages, output)?;
        let turn = interrupt::ends(generator.cancel());
        let mut reading = Some(waiting(output, format_args!("reading {}", count(prompt.len(), "token"))));
        let mut tokens = generator.generate(&prompt, &sampling, &limits)?;
        let mut answer = String::new();
        for token in tokens.by_ref() {
            let token = token?;
            drop(reading.take());
            output.piece(&token.text)?;
            answer.push_str(&token.text);
        }
        drop((turn, reading));
        output.line("")?;
        output.flush()?;
        tell(&tokens.usage(), &model, output);
        turns.push(Turn::new(line, answer.clone(), tokens.ended(), &tokens.usage()));
        messages.push(message("assistant", answer));
    }
    output.json(&summary(arguments, load_time, turns))?;
    Ok(Code::Success)
}

fn summary(arguments: &Arguments, load_time: Duration, turns: Vec<Turn>) -> Summary {
    let model = arguments.language.model.display().to_string();
    Summary { model, load_seconds: load_time.as_secs_f64(), turns }
}

/// The tokens of the chat. Where they leave too little room for an answer, its oldest turns are forgotten; what the model was
/// told before it began, and the last turn, stay.
fn prompt(model: &TextModel, messages: &mut Vec<Message>, output: &Output) -> Result<Vec<u32>, GenerateError> {
    let context = model.settings().context.unwrap_or(u64::MAX);
    let (begin, whole) = (usize::from(messages.first().is_some_and(|first| first.role == "system")), messages.len());
    loop {
        let tokens = model.encode_chat(messages)?;
        // An answer has at least a quarter of the room.
        if (tokens.len() as u64) < context - context / 4 || messages.len() == begin + 1 {
            match whole - messages.len() {
                0 => {}
                forgotten => output.note(format_args!(
                    "note: the chat leaves too little of the {context} tokens that the model takes for an answer: its first \
                     {forgotten} messages are forgotten"
                )),
            }
            return Ok(tokens);
        }
        // A turn is what the user says, and the answer to it.
        messages.drain(begin..messages.len().min(begin + 2).min(messages.len() - 1));
    }
}
