//! What clients ask for, in the words of OpenAI's API; what is not supported is refused by name.

use super::ServerOptions;
use crate::generate::{GenerateError, Grammar, Limits, Message, Sampling, TextModel};
use serde::Deserialize;
use serde_json::{Value as Json, json};

/// What both kinds of requests have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Common {
    model: Option<String>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<OneOrMore>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    response_format: Option<ResponseFormat>,
    /// Whose request it is: without meaning here.
    #[serde(rename = "user")]
    _user: Option<String>,
    n: Option<u32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    /// A number of likely tokens, or in chats whether probabilities are wanted at all.
    logprobs: Option<Json>,
    top_logprobs: Option<usize>,
    /// Keys of no known meaning.
    #[serde(flatten)]
    others: serde_json::Map<String, Json>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// The form that a text must have.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    schema: Json,
    /// What the schema is called, and for what: without meaning here.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// A text always has the form.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

impl ResponseFormat {
    fn grammar(self) -> Option<Grammar> {
        match self {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(Grammar::JsonSchema(json!({"type": "object"}))),
            ResponseFormat::JsonSchema { json_schema } => Some(Grammar::JsonSchema(json_schema.schema)),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: String,
    content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
}

/// A text to generate.
#[derive(Debug)]
pub(super) struct Wanted {
    /// It answers a chat.
    pub(super) chat: bool,
    pub(super) prompt: Vec<u32>,
    pub(super) sampling: Sampling,
    pub(super) limits: Limits,
    /// It is sent piece by piece.
    pub(super) stream: bool,
    /// What it took is sent behind the last piece.
    pub(super) include_usage: bool,
}

/// Why a request is not honoured: status and reason.
pub(super) type Refusal = (u16, String);

fn invalid(reason: impl Into<String>) -> Refusal {
    (400, reason.into())
}

/// Tokens of a text that states no other number, as OpenAI has it.
const COMPLETION_TOKENS: usize = 16;

/// The request of `/v1/completions` or, for a chat, of `/v1/chat/completions`.
pub(super) fn wanted(body: &[u8], chat: bool, model: &TextModel, options: &ServerOptions) -> Result<Wanted, Refusal> {
    let malformed = |error: serde_json::Error| invalid(format!("the body is no request: {error}"));
    let mut common: Common = serde_json::from_slice(body).map_err(malformed)?;
    let name = if chat { "messages" } else { "prompt" };
    let text = common.others.remove(name).ok_or_else(|| invalid(format!("`{name}` is missing")))?;
    if let Some(name) = common.others.keys().next() {
        return Err(invalid(format!("`{name}` is not supported")));
    }
    if common.model.as_ref().is_some_and(|name| *name != options.name) {
        return Err((404, format!("there is no such model; the model is `{}`", options.name)));
    }
    if common.n.is_some_and(|count| count != 1) {
        return Err(invalid("`n` must be 1"));
    }
    for (name, penalty) in
        [("frequency_penalty", common.frequency_penalty), ("presence_penalty", common.presence_penalty)]
    {
        if penalty.is_some_and(|penalty| penalty != 0.0) {
            return Err(invalid(format!("`{name}` is not supported; `repetition_penalty` is")));
        }
    }
    let prompt = if chat { chat_prompt(text, model)? } else { prompt(text, model)? };
    let probabilities = probabilities(&common, chat)?;
    let default_tokens = if chat { options.tokens } else { COMPLETION_TOKENS };
    let tokens = common.max_completion_tokens.or(common.max_tokens).unwrap_or(default_tokens);
    let stop = match common.stop.take() {
        None => Vec::new(),
        Some(OneOrMore::One(stop)) => vec![stop],
        Some(OneOrMore::More(stops)) => stops,
    };
    let grammar = common.response_format.take().and_then(ResponseFormat::grammar);
    let of_model = Sampling::of_model(model.settings());
    let sampling = Sampling {
        temperature: common.temperature.unwrap_or(of_model.temperature),
        top_k: common.top_k.unwrap_or(of_model.top_k),
        top_p: common.top_p.unwrap_or(of_model.top_p),
        min_p: common.min_p.unwrap_or(of_model.min_p),
        repetition_penalty: common.repetition_penalty.unwrap_or(of_model.repetition_penalty),
        seed: common.seed.unwrap_or(0) as u64,
    };
    Ok(Wanted {
        chat,
        prompt,
        sampling,
        limits: Limits { tokens: Some(tokens.min(options.tokens)), stop, ignore_end: false, probabilities, grammar },
        stream: common.stream.unwrap_or(false),
        include_usage: common.stream_options.is_some_and(|options| options.include_usage),
    })
}

/// How many of the most likely tokens come with each token.
fn probabilities(common: &Common, chat: bool) -> Result<Option<usize>, Refusal> {
    const MOST: usize = 20;
    let count = match (&common.logprobs, chat) {
        (None | Some(Json::Null | Json::Bool(false)), _) => None,
        (Some(Json::Bool(true)), true) => Some(common.top_logprobs.unwrap_or(0)),
        (Some(Json::Number(count)), false) => count.as_u64().and_then(|count| usize::try_from(count).ok()),
        (Some(_), true) => return Err(invalid("`logprobs` must be true or false")),
        (Some(_), false) => return Err(invalid("`logprobs` must be a number")),
    };
    if count.is_some_and(|count| count > MOST) {
        return Err(invalid(format!("at most {MOST} likely tokens are given")));
    }
    Ok(count)
}

fn prompt(text: Json, model: &TextModel) -> Result<Vec<u32>, Refusal> {
    let prompt = serde_json::from_value(text);
    match prompt.map_err(|_| invalid("`prompt` must be a text, a list of one text, or a list of tokens"))? {
        Prompt::Text(text) => model.encode(&text).map_err(refusal),
        Prompt::Tokens(tokens) => Ok(tokens),
        Prompt::Texts(texts) => match texts.as_slice() {
            [text] => model.encode(text).map_err(refusal),
            _ => Err(invalid("`prompt` must hold one text: several are not supported")),
        },
    }
}

fn chat_prompt(messages: Json, model: &TextModel) -> Result<Vec<u32>, Refusal> {
    let messages: Vec<ChatMessage> = serde_json::from_value(messages)
        .map_err(|error| invalid(format!("`messages` must be a list of `role` and `content`: {error}")))?;
    let message = |message: ChatMessage| {
        let content = match message.content {
            Content::Text(text) => text,
            Content::Parts(parts) => match parts.iter().find(|part| part.kind != "text") {
                Some(part) => return Err(invalid(format!("a part `{}` of a message is not supported", part.kind))),
                None => parts.into_iter().map(|part| part.text).collect(),
            },
        };
        Ok(Message { role: message.role, content })
    };
    let messages: Vec<Message> = messages.into_iter().map(message).collect::<Result<_, _>>()?;
    model.encode_chat(&messages).map_err(refusal)
}

/// Status and reason of an error: what a client can change is its own.
pub(super) fn refusal(error: GenerateError) -> Refusal {
    let status = match &error {
        GenerateError::NoTemplate
        | GenerateError::Template { .. }
        | GenerateError::Tokens { .. }
        | GenerateError::EmptyPrompt
        | GenerateError::Context { .. }
        | GenerateError::Grammar { .. }
        | GenerateError::Input { .. }
        | GenerateError::Sampling { .. } => 400,
        GenerateError::NoLanguageModel { .. }
        | GenerateError::Attachment { .. }
        | GenerateError::Draft { .. }
        | GenerateError::Entry { .. }
        | GenerateError::Scores { .. }
        | GenerateError::Run(_) => 500,
    };
    (status, error.to_string())
}
