//! `ipuc serve`: a language model behind HTTP.

use super::Outcome;
use super::arguments::Size;
use super::failure::{Code, Failure};
use super::language::LanguageArguments;
use super::output::Output;
use crate::serve::{Server, ServerOptions};
use clap::Args;
use serde_json::json;
use std::time::Duration;

/// Answer requests of OpenAI's API with a language model: /v1/completions, /v1/chat/completions, /v1/models
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    language: LanguageArguments,
    /// Where to listen; other machines can connect only to an address that is not of this machine alone, and need a key
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// The environment variable that holds the key that clients must present
    #[arg(long, value_name = "NAME", default_value = "IPUC_API_KEY")]
    key_variable: String,
    /// What the model is called [default: the name of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Texts that are generated at a time
    #[arg(long, value_name = "N", default_value = "1")]
    parallel: std::num::NonZeroU8,
    /// Connections at a time, those that wait included; further ones are refused
    #[arg(long, value_name = "N", default_value = "64")]
    connections: std::num::NonZeroU16,
    /// Most tokens of a text
    #[arg(long, value_name = "N", default_value = "4096")]
    max_tokens: usize,
    /// Most bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    max_request: Size,
    /// Longest time from a request to the end of its reply, in seconds
    #[arg(long, value_name = "N", default_value = "600")]
    max_seconds: u32,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let model = arguments.language.open(output)?;
    let stem = arguments.language.model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let key = match std::env::var(&arguments.key_variable) {
        Ok(key) if key.is_empty() => None,
        Ok(key) => Some(key),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(Failure::usage(format!("the key in {} is no text", arguments.key_variable)).into());
        }
    };
    let options = ServerOptions {
        address: arguments.listen.clone(),
        key,
        name: arguments.name.clone().or(stem).unwrap_or_else(|| "model".to_string()),
        parallel: usize::from(arguments.parallel.get()),
        connections: usize::from(arguments.connections.get()),
        body_bytes: usize::try_from(arguments.max_request.bytes).unwrap_or(usize::MAX),
        tokens: arguments.max_tokens,
        time: Duration::from_secs(u64::from(arguments.max_seconds)),
        generator: arguments.language.generator_options(),
    };
    let server = Server::bind(&model, options)?;
    output.line(format_args!("listening on http://{}", server.address()))?;
    output.json(&json!({"address": server.address().to_string()}))?;
    output.flush()?;
    server.run()?;
    Ok(Code::Success)
}
