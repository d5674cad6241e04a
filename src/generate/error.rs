//! Why there is no text.

use ipuc_runtime::RunError;
use thiserror::Error;

/// Why text cannot be generated.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// The file is a model, but no language model.
    #[error("the file is no language model: it has no `{attachment}`")]
    NoLanguageModel {
        /// The attachment that is missing.
        attachment: &'static str,
    },
    /// An attachment cannot be used.
    #[error("`{attachment}` of the model cannot be used: {reason}")]
    Attachment {
        /// Name of the attachment.
        attachment: &'static str,
        /// Why not.
        reason: String,
    },
    /// The program of the file does not fit its settings.
    #[error("entry `{entry}` generates no text: {reason}")]
    Entry {
        /// Name of the entry.
        entry: String,
        /// Why not.
        reason: String,
    },
    /// The model was made for text alone.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template fails on these messages.
    #[error("the chat template of the model fails: {reason}")]
    Template {
        /// Why.
        reason: String,
    },
    /// Text has no tokens.
    #[error("the text cannot be made into tokens: {reason}")]
    Tokens {
        /// Why not.
        reason: String,
    },
    /// There is nothing to go on from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt leaves no room for a token.
    #[error("the prompt has {tokens} tokens, but the model has room for {context} with what it generates")]
    Context {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the model takes.
        context: u64,
    },
    /// A model answers to an input that it is not given, or to none.
    #[error("{reason}")]
    Input {
        /// What is wrong.
        reason: &'static str,
    },
    /// Texts of a form cannot be generated.
    #[error("the grammar cannot be followed: {reason}")]
    Grammar {
        /// Why not.
        reason: String,
    },
    /// Another model cannot guess tokens for this one.
    #[error("the draft model does not fit: {reason}")]
    Draft {
        /// Why not.
        reason: String,
    },
    /// A number that says how tokens are chosen.
    #[error("{name} is {found}, but must be {expected}")]
    Sampling {
        /// What is wrong.
        name: &'static str,
        /// Its value.
        found: f32,
        /// What it may be.
        expected: &'static str,
    },
    /// The model computes scores that are no numbers.
    #[error("the model's scores after {tokens} tokens are no numbers")]
    Scores {
        /// Tokens before them.
        tokens: usize,
    },
    /// A pass fails.
    #[error(transparent)]
    Run(#[from] RunError),
}
