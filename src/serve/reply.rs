//! What clients get, in the words of OpenAI's API.

use super::request::Wanted;
use crate::generate::{Ended, GenerateError, TextModel, Token, Usage};
use serde_json::{Value as Json, json};

/// What is the same in all pieces of a reply.
pub(super) struct Reply<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) model: &'a TextModel,
    /// What the model is called.
    pub(super) name: &'a str,
    /// The number of the request.
    pub(super) number: u64,
    /// When the request came, in seconds since 1970.
    pub(super) created: u64,
}

/// An error as clients expect it.
pub(super) fn error(status: u16, message: &str) -> Json {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
}

/// The list of models.
pub(super) fn models(name: &str) -> Json {
    json!({"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "ipuc"}]})
}

fn finished(ended: Option<Ended>) -> Json {
    match ended {
        Some(Ended::End | Ended::Stop) => json!("stop"),
        Some(Ended::Length | Ended::Cancelled) => json!("length"),
        None => Json::Null,
    }
}

fn used(usage: &Usage) -> Json {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.tokens,
        "total_tokens": usage.prompt_tokens + usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.prompt_known},
    })
}

impl Reply<'_> {
    /// The whole text.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub(super) fn whole(&self, tokens: &[Token], ended: Option<Ended>, usage: &Usage) -> Result<Json, GenerateError> {
        let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
        let mut choice = json!({"index": 0, "finish_reason": finished(ended), "logprobs": self.logprobs(tokens)?});
        let kind = if self.wanted.chat {
            choice["message"] = json!({"role": "assistant", "content": text, "refusal": null});
            "chat.completion"
        } else {
            choice["text"] = json!(text);
            "text_completion"
        };
        let mut reply = self.object(kind, vec![choice]);
        reply["usage"] = used(usage);
        Ok(reply)
    }

    /// What comes before the first token: who speaks, in a chat.
    pub(super) fn first(&self) -> Option<Json> {
        let delta = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
        self.wanted.chat.then(|| self.object("chat.completion.chunk", vec![delta]))
    }

    /// A piece of the text: one token; the reason of the end comes with the last.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub(super) fn piece(&self, token: &Token, ended: Option<Ended>) -> Result<Json, GenerateError> {
        let logprobs = self.logprobs(std::slice::from_ref(token))?;
        let mut choice = json!({"index": 0, "finish_reason": finished(ended), "logprobs": logprobs});
        if self.wanted.chat {
            choice["delta"] = json!({"content": token.text});
            return Ok(self.object("chat.completion.chunk", vec![choice]));
        }
        choice["text"] = json!(token.text);
        Ok(self.object("text_completion", vec![choice]))
    }

    /// What the text took, behind its last piece.
    pub(super) fn usage(&self, usage: &Usage) -> Json {
        let kind = if self.wanted.chat { "chat.completion.chunk" } else { "text_completion" };
        let mut reply = self.object(kind, Vec::new());
        reply["usage"] = used(usage);
        reply
    }

    fn object(&self, kind: &str, choices: Vec<Json>) -> Json {
        let id = if self.wanted.chat { "chatcmpl" } else { "cmpl" };
        json!({
            "id": format!("{id}-{}", self.number),
            "object": kind,
            "created": self.created,
            "model": self.name,
            "choices": choices,
        })
    }

    fn logprobs(&self, tokens: &[Token]) -> Result<Json, GenerateError> {
        if self.wanted.limits.probabilities.is_none() {
            return Ok(Json::Null);
        }
        let text = |number: u32| self.model.decode(&[number]);
        if !self.wanted.chat {
            let likely = |token: &Token| -> Result<Json, GenerateError> {
                let likely = token.likely.iter().map(|&(number, value)| Ok((text(number)?, json!(value))));
                Ok(Json::Object(likely.collect::<Result<_, GenerateError>>()?))
            };
            let texts = tokens.iter().map(|token| text(token.number)).collect::<Result<Vec<_>, _>>()?;
            return Ok(json!({
                "tokens": texts,
                "token_logprobs": tokens.iter().map(|token| token.log_probability).collect::<Vec<_>>(),
                "top_logprobs": tokens.iter().map(likely).collect::<Result<Vec<_>, _>>()?,
                "text_offset": [],
            }));
        }
        let one = |number: u32, value: Option<f32>| -> Result<Json, GenerateError> {
            let text = text(number)?;
            Ok(json!({"token": text, "bytes": text.as_bytes(), "logprob": value}))
        };
        let entry = |token: &Token| -> Result<Json, GenerateError> {
            let mut entry = one(token.number, token.log_probability)?;
            let likely = token.likely.iter().map(|&(number, value)| one(number, Some(value)));
            entry["top_logprobs"] = likely.collect::<Result<Json, _>>()?;
            Ok(entry)
        };
        Ok(json!({"content": tokens.iter().map(entry).collect::<Result<Json, _>>()?, "refusal": null}))
    }
}
