//! What a compiled language model says of itself beside its program: names of its attachments, and how text is generated.
//!
//! The compiler writes them from a folder ([`crate::compile::folder`]), and whoever generates text reads them. The tables of
//! `FORMAT.md` are their specification.

use serde::{Deserialize, Serialize};

/// The attachment that holds the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// The attachment that holds the template of a chat, in Jinja.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The attachment that holds a [`GenerationSettings`], in JSON.
pub const GENERATION: &str = "generation.json";

/// How text is generated with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationSettings {
    /// Input `[batch, positions]` for numbers of tokens.
    pub tokens: String,
    /// Input `[batch, past and new positions]` for ones, where there is one.
    pub attention_mask: Option<String>,
    /// Input `[batch, positions]` for positions, where there is one.
    pub position_ids: Option<String>,
    /// Output `[batch, positions, vocabulary]` of scores.
    pub logits: String,
    /// What reads the input of a model that answers to one, as of speech or of text in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderSettings>,
    /// The entry whose scores are those of the last position only, where there is one.
    pub prefill: Option<String>,
    /// The entry whose scores are those of all positions.
    pub decode: String,
    /// Tokens that a text begins with where its prompt has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_tokens: Vec<u32>,
    /// Most tokens of a prompt and its continuation, where it is known.
    pub context: Option<u64>,
    /// Tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// The token that begins a text, as text for the chat template.
    pub bos_token: Option<String>,
    /// The token that ends a text, as text for the chat template.
    pub eos_token: Option<String>,
    /// By what scores are divided; 0 where the most likely token is always taken.
    pub temperature: Option<f32>,
    /// How many of the most likely tokens are chosen from; 0 where all are.
    pub top_k: Option<u32>,
    /// The most likely tokens that have this much probability together are chosen from.
    pub top_p: Option<f32>,
    /// By what positive scores of tokens that have occurred are divided, and negative ones multiplied.
    pub repetition_penalty: Option<f32>,
}

#[cfg(feature = "generate")]
impl GenerationSettings {
    /// The inputs of a pass over tokens.
    pub(crate) fn token_inputs(&self) -> TokenInputs<'_> {
        let (mask, positions) = (self.attention_mask.as_deref(), self.position_ids.as_deref());
        TokenInputs { tokens: &self.tokens, attention_mask: mask, position_ids: positions }
    }
}

/// Names of the inputs of a pass over tokens, as [`GenerationSettings`] has them.
#[cfg(feature = "generate")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenInputs<'a> {
    pub(crate) tokens: &'a str,
    pub(crate) attention_mask: Option<&'a str>,
    pub(crate) position_ids: Option<&'a str>,
}

#[cfg(feature = "generate")]
impl<'a> TokenInputs<'a> {
    /// What they hold, for tokens behind so many positions of the cache.
    pub(crate) fn rows(self, cached: usize, tokens: &[u32]) -> impl Iterator<Item = (&'a str, Vec<i64>)> {
        let end = cached + tokens.len();
        let numbers = (self.tokens, tokens.iter().map(|&token| i64::from(token)).collect());
        let mask = self.attention_mask.map(|mask| (mask, vec![1; end]));
        let positions = self.position_ids.map(|positions| (positions, (cached as i64..end as i64).collect()));
        std::iter::once(numbers).chain(mask).chain(positions)
    }
}

/// How a model reads its input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderSettings {
    /// The entry that reads the input.
    pub entry: String,
    /// Its input `[batch, positions]` for numbers of tokens, where the input is a text.
    pub tokens: Option<String>,
    /// Its input for ones, of the same shape, where there is one.
    pub attention_mask: Option<String>,
    /// The entry that reads the first tokens of the answer, where that is another one.
    pub start: Option<String>,
    /// The input of entries that read tokens of the answer for ones, one for each token of the input, where there is one.
    pub decoder_mask: Option<String>,
}
