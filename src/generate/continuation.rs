//! A text that grows: which token comes next, what of it is text, and where it ends. It knows the scores of tokens, not where
//! they come from.

use super::error::GenerateError;
use super::grammar::{Followed, Grammar};
use super::model::TextModel;
use super::sampling::{Chooser, Sampling, log_probabilities};
use super::scores::Scores;
use super::text::TextPieces;
use ipuc_runtime::PassReport;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// What a text may be: where it ends at the latest, and its form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens; as many as the model has room for where `None`.
    pub tokens: Option<usize>,
    /// Texts before which the text ends.
    pub stop: Vec<String>,
    /// Go on behind tokens that end a text.
    pub ignore_end: bool,
    /// How many of the most likely tokens each token comes with; no probabilities where `None`.
    pub probabilities: Option<usize>,
    /// The form that the text has, unless it ends early.
    pub grammar: Option<Grammar>,
}

/// A token that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its number.
    pub number: u32,
    /// The text that is certain with it: nothing, or that of several tokens, where characters span tokens.
    pub text: String,
    /// The natural logarithm of its probability.
    pub log_probability: Option<f32>,
    /// The most likely tokens with the logarithms of their probabilities, from the most likely on.
    pub likely: Vec<(u32, f32)>,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The model chose a token that ends texts.
    End,
    /// A stop text came.
    Stop,
    /// It has as many tokens as it may have.
    Length,
    /// The caller cancelled it.
    Cancelled,
}

/// What a text took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that had been read before.
    pub prompt_known: usize,
    /// Time for the others.
    pub prompt_time: Duration,
    /// Tokens that were chosen.
    pub tokens: usize,
    /// Time for them, without that for the prompt and of the caller between them.
    pub time: Duration,
    /// Passes behind the prompt.
    pub passes: usize,
    /// Bytes of weights that these passes read from the file.
    pub read_bytes: u64,
    /// Bytes of rows that these passes chose by index: lines of embeddings, experts.
    pub chosen_bytes: u64,
    /// What of these was in memory.
    pub found_bytes: u64,
    /// Tokens that were guessed.
    pub guessed: usize,
    /// Those of them that the model chose too.
    pub accepted: usize,
}

impl Usage {
    /// Count a pass behind the prompt that `texts` texts share; a model without a budget has no report of it.
    pub(super) fn count_pass(&mut self, report: Option<PassReport>, texts: u64) {
        let report = report.unwrap_or_default();
        self.passes += 1;
        self.read_bytes += report.bytes_read() / texts;
        self.chosen_bytes += report.chosen_bytes / texts;
        self.found_bytes += report.found_bytes / texts;
    }
}

/// What follows a prompt, so far.
pub(super) struct Continuation {
    pub(super) chooser: Chooser,
    /// Tokens that have occurred.
    pub(super) seen: BTreeSet<u32>,
    pieces: TextPieces,
    followed: Option<Followed>,
    limits: Limits,
    most: usize,
    end_tokens: Vec<u32>,
    /// Scores of the next token.
    scores: Option<Scores>,
    /// Tokens that were read as if they came behind the last one, with the scores behind each.
    guesses: VecDeque<(u32, Scores)>,
    pub(super) ended: Option<Ended>,
    pub(super) usage: Usage,
}

impl Continuation {
    /// # Errors
    /// [`GenerateError`] where there is no prompt, no room behind it, or a number has no meaning.
    pub(super) fn new(
        model: &TextModel,
        prompt: &[u32],
        sampling: &Sampling,
        limits: &Limits,
    ) -> Result<Continuation, GenerateError> {
        sampling.check()?;
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let context = model.settings().context.unwrap_or(u64::MAX);
        let room = usize::try_from(context).unwrap_or(usize::MAX).saturating_sub(prompt.len());
        if room == 0 {
            return Err(GenerateError::Context { tokens: prompt.len(), context });
        }
        let most = limits.tokens.unwrap_or(usize::MAX).min(room);
        Ok(Continuation {
            chooser: Chooser::new(sampling),
            seen: prompt.iter().copied().collect(),
            pieces: TextPieces::new(model, &limits.stop),
            followed: limits.grammar.as_ref().map(|grammar| model.follow(grammar)).transpose()?,
            limits: limits.clone(),
            most,
            end_tokens: model.settings().end_tokens.clone(),
            scores: None,
            guesses: VecDeque::new(),
            ended: (most == 0).then_some(Ended::Length),
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
        })
    }

    /// Most tokens that are still to come.
    pub(super) fn left(&self) -> usize {
        self.most - self.usage.tokens
    }

    /// The scores behind the last token, and behind each of the guesses that were read with it.
    ///
    /// # Errors
    /// [`GenerateError::Scores`] where there are fewer than tokens; `tokens` are before them.
    pub(super) fn follow(&mut self, guesses: &[u32], rows: Vec<Scores>, tokens: usize) -> Result<(), GenerateError> {
        let mut rows = rows.into_iter();
        // A pass that guesses nothing may give the scores behind each of its tokens, or behind the last one.
        let scores = if guesses.is_empty() { rows.next_back() } else { rows.next() };
        self.scores = Some(scores.filter(|_| rows.len() >= guesses.len()).ok_or(GenerateError::Scores { tokens })?);
        self.guesses = guesses.iter().copied().zip(rows).collect();
        self.usage.guessed += guesses.len();
        Ok(())
    }

    /// The next token; `None` where no scores are known. `tokens` are before it.
    ///
    /// # Errors
    /// [`GenerateError`] where scores are no numbers, or tokens have no text.
    pub(super) fn choose(&mut self, tokens: usize) -> Result<Option<Token>, GenerateError> {
        let Some(scores) = self.scores.take() else { return Ok(None) };
        let scores = scores.values();
        let allowed = self.followed.as_mut().map(|followed| followed.allowed(scores)).transpose()?;
        let number = self.chooser.choose(allowed.as_deref().unwrap_or(scores), &self.seen);
        let number = number.ok_or(GenerateError::Scores { tokens })?;
        self.seen.insert(number);
        self.usage.tokens += 1;
        let ends_texts = self.end_tokens.contains(&number);
        let is_complete = match &mut self.followed {
            Some(followed) if !ends_texts => followed.took(number)?,
            Some(_) => true,
            None => false,
        };
        let is_end = is_complete || ends_texts && !self.limits.ignore_end;
        let is_last = is_end || self.usage.tokens == self.most;
        let text = self.pieces.push(number, is_last)?;
        self.ended = match (self.pieces.stopped(), is_end, is_last) {
            (true, _, _) => Some(Ended::Stop),
            (false, true, _) => Some(Ended::End),
            (false, false, true) => Some(Ended::Length),
            (false, false, false) => None,
        };
        let (log_probability, likely) = match self.limits.probabilities {
            Some(count) => {
                let (chosen, likely) = log_probabilities(scores, number, count);
                (Some(chosen), likely)
            }
            None => (None, Vec::new()),
        };
        Ok(Some(Token { number, text, log_probability, likely }))
    }

    /// Whether a token was guessed: the scores behind it are known then.
    pub(super) fn was_guessed(&mut self, token: u32) -> bool {
        match self.guesses.pop_front() {
            Some((guess, scores)) if guess == token => {
                self.usage.accepted += 1;
                self.scores = Some(scores);
                true
            }
            Some(_) | None => {
                self.guesses.clear();
                false
            }
        }
    }
}
