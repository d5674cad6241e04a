//! A context and its passes: prompts are read into it, and tokens come out.

use super::error::GenerateError;
use super::lookup;
use super::model::TextModel;
use super::sampling::{Chooser, Sampling, log_probabilities};
use super::text::TextPieces;
use ipuc_formats::dtype::DType;
use ipuc_formats::element::{bf16, f16};
use ipuc_formats::tensor::Tensor;
use ipuc_runtime::{CancelToken, RunError, SavedStateError, Session, SessionOptions};
use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::time::{Duration, Instant};

/// Tokens of a prompt that a pass takes, unless told otherwise.
const PREFILL_CHUNK: usize = 512;

/// What a generator may be told.
#[derive(Debug, Clone, Default)]
pub struct GeneratorOptions {
    /// Threads that share a step; all cores where 0.
    pub threads: usize,
    /// Most tokens of a prompt that a pass takes: fewer need less memory, more read the weights less often; 512 where 0.
    pub prefill_chunk: usize,
    /// Most tokens that are guessed from what followed the same tokens before, and verified in one pass. The text is the
    /// same with and without.
    pub lookup: usize,
}

/// Where a text ends at the latest.
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
    /// Tokens that were guessed.
    pub guessed: usize,
    /// Those of them that the model chose too.
    pub accepted: usize,
}

/// A context of a model: the tokens so far and their cache.
pub struct Generator {
    model: TextModel,
    session: Session,
    options: GeneratorOptions,
    /// The tokens of the context; the cache may hold guesses behind them.
    tokens: Vec<u32>,
    /// Positions that the cache holds.
    cached: usize,
    /// Positions can be taken back from the cache.
    shrinks: bool,
    cancel: CancelToken,
}

impl Generator {
    /// A generator with an empty context.
    ///
    /// # Errors
    /// [`GenerateError::Run`] where threads cannot be started.
    pub fn new(model: &TextModel, options: &GeneratorOptions) -> Result<Generator, GenerateError> {
        let session = Session::new(model.model(), &SessionOptions { threads: options.threads, ..Default::default() })?;
        Ok(Generator {
            shrinks: model
                .model()
                .manifest()
                .states
                .iter()
                .all(|state| state.growth.is_some_and(|growth| !growth.overwritten)),
            model: model.clone(),
            session,
            options: options.clone(),
            tokens: Vec::new(),
            cached: 0,
            cancel: CancelToken::default(),
        })
    }

    /// What ends a text of this generator early, after the pass that runs; the next text goes on again.
    pub fn cancel(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The tokens of the context.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The session that runs the passes, for its memory and traces.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Read a prompt and go on from it, token by token. Tokens with which the prompt and the context begin are not read
    /// again; the context goes on with the rest of the prompt in place of its own.
    ///
    /// # Errors
    /// [`GenerateError`] where there is no prompt, no room for it, or a pass fails.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limits: &Limits,
    ) -> Result<Tokens<'_>, GenerateError> {
        sampling.check()?;
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let context = self.model.settings().context.unwrap_or(u64::MAX);
        let room = usize::try_from(context).unwrap_or(usize::MAX).saturating_sub(prompt.len());
        if room == 0 {
            return Err(GenerateError::Context { tokens: prompt.len(), context });
        }
        self.cancel.reset();
        let begun = Instant::now();
        let known = self.keep_common(prompt)?;
        let scores = self.read(&prompt[known..])?;
        let usage = Usage {
            prompt_tokens: prompt.len(),
            prompt_known: known,
            prompt_time: begun.elapsed(),
            ..Usage::default()
        };
        let most = limits.tokens.unwrap_or(usize::MAX).min(room);
        Ok(Tokens {
            chooser: Chooser::new(sampling),
            seen: prompt.iter().copied().collect(),
            pieces: TextPieces::new(&self.model, &limits.stop),
            ended: (most == 0).then_some(Ended::Length),
            most,
            limits: limits.clone(),
            scores,
            usage,
            guesses: VecDeque::new(),
            rows: VecDeque::new(),
            generator: self,
        })
    }

    /// Read tokens behind those of the context in one pass; gives for each of them the scores `[vocabulary]` of the token
    /// that follows it.
    ///
    /// # Errors
    /// [`GenerateError`] where there is no token, or the pass fails.
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, GenerateError> {
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        self.settle()?;
        let entry = self.model.settings().decode.clone();
        let scores = self.pass(&entry, tokens)?;
        if scores.len() != tokens.len() {
            let reason = format!("it gives scores behind {} of {} tokens", scores.len(), tokens.len());
            return Err(GenerateError::Entry { entry, reason });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(scores)
    }

    /// Forget the context.
    ///
    /// # Errors
    /// [`GenerateError::Run`] where the cache cannot be given up.
    pub fn clear(&mut self) -> Result<(), GenerateError> {
        self.tokens.clear();
        Ok(self.settle()?)
    }

    /// Shorten the context to what it has in common with a prompt, less than the whole prompt; gives how many tokens that is.
    fn keep_common(&mut self, prompt: &[u32]) -> Result<usize, GenerateError> {
        let pairs = self.tokens.iter().zip(&prompt[..prompt.len() - 1]);
        let common = pairs.take_while(|(one, other)| one == other).count();
        let shorter = common < self.cached;
        self.tokens.truncate(if shorter && !self.shrinks { 0 } else { common });
        self.settle()?;
        Ok(self.tokens.len())
    }

    /// Take positions back that hold no token of the context.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        if self.tokens.is_empty() {
            self.session.reset();
        } else if self.cached > self.tokens.len() {
            self.session.truncate(self.tokens.len())?;
        }
        self.cached = self.tokens.len();
        Ok(())
    }

    pub(super) fn restore_session(&mut self, from: &mut dyn Read, tokens: Vec<u32>) -> Result<(), SavedStateError> {
        self.session.restore(from)?;
        self.cached = tokens.len();
        self.tokens = tokens;
        Ok(())
    }

    /// Read tokens into the context; gives the scores behind the last one, and fewer where cancelled.
    fn read(&mut self, tokens: &[u32]) -> Result<Option<Vec<f32>>, GenerateError> {
        let chunk = if self.options.prefill_chunk == 0 { PREFILL_CHUNK } else { self.options.prefill_chunk };
        let settings = self.model.settings();
        let entry = settings.prefill.as_ref().unwrap_or(&settings.decode).clone();
        let mut last = None;
        for tokens in tokens.chunks(chunk) {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            last = self.pass(&entry, tokens)?.pop();
            self.tokens.extend_from_slice(tokens);
        }
        Ok(last)
    }

    /// Run an entry on tokens behind those of the cache; gives its rows of scores.
    fn pass(&mut self, entry: &str, tokens: &[u32]) -> Result<Vec<Vec<f32>>, GenerateError> {
        let inputs = self.model.inputs(self.cached, tokens)?;
        let outputs = self.session.run(Some(entry), inputs)?;
        self.cached += tokens.len();
        let logits = &self.model.settings().logits;
        let found = outputs.iter().find(|(name, _)| name == logits).and_then(|(_, value)| value.as_tensor());
        let refused = |reason: String| GenerateError::Entry { entry: entry.to_string(), reason };
        let tensor = found.ok_or_else(|| refused(format!("it gives no `{logits}`")))?;
        let &[1, rows, vocabulary] = tensor.shape() else {
            return Err(refused(format!("its scores have the shape {:?}", tensor.shape())));
        };
        let scores = scores(tensor).ok_or_else(|| refused(format!("its scores are {}", tensor.dtype())))?;
        if rows == 0 || vocabulary == 0 {
            return Err(refused("it gives no scores".to_string()));
        }
        Ok(scores.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect())
    }
}

/// Scores as f32; `None` where they are no floats.
fn scores(tensor: &Tensor) -> Option<Vec<f32>> {
    match tensor.dtype() {
        DType::F32 => Some(tensor.elements::<f32>().ok()?.to_vec()),
        DType::F16 => Some(tensor.elements::<f16>().ok()?.iter().map(|score| score.to_f32()).collect()),
        DType::BF16 => Some(tensor.elements::<bf16>().ok()?.iter().map(|score| score.to_f32()).collect()),
        _ => None,
    }
}

/// The tokens of a text, as they are chosen.
pub struct Tokens<'a> {
    generator: &'a mut Generator,
    chooser: Chooser,
    seen: BTreeSet<u32>,
    pieces: TextPieces,
    limits: Limits,
    most: usize,
    /// Scores of the next token; `None` where the prompt was cancelled.
    scores: Option<Vec<f32>>,
    /// Tokens that the last pass has read behind the last one of the context.
    guesses: VecDeque<u32>,
    /// Scores behind each of the guesses.
    rows: VecDeque<Vec<f32>>,
    ended: Option<Ended>,
    usage: Usage,
}

impl Tokens<'_> {
    /// Why the text ended; `None` while it goes on.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// What the text took so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn choose(&mut self) -> Result<Option<Token>, GenerateError> {
        if self.generator.cancel.is_cancelled() {
            self.ended = Some(Ended::Cancelled);
            return Ok(None);
        }
        let Some(scores) = self.scores.take() else { return Ok(None) };
        let tokens = self.generator.tokens.len();
        let number = self.chooser.choose(&scores, &self.seen).ok_or(GenerateError::Scores { tokens })?;
        self.seen.insert(number);
        self.usage.tokens += 1;
        let is_end = !self.limits.ignore_end && self.generator.model.settings().end_tokens.contains(&number);
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
                let (chosen, likely) = log_probabilities(&scores, number, count);
                (Some(chosen), likely)
            }
            None => (None, Vec::new()),
        };
        if self.ended.is_none() {
            self.scores = Some(self.advance(number)?);
        }
        Ok(Some(Token { number, text, log_probability, likely }))
    }

    /// The scores behind a token that was chosen: they are there where it was guessed.
    fn advance(&mut self, token: u32) -> Result<Vec<f32>, GenerateError> {
        if self.guesses.pop_front() == Some(token)
            && let Some(row) = self.rows.pop_front()
        {
            self.usage.accepted += 1;
            self.generator.tokens.push(token);
            return Ok(row);
        }
        self.guesses.clear();
        self.rows.clear();
        let generator = &mut *self.generator;
        generator.settle()?;
        let mut all = generator.tokens.clone();
        all.push(token);
        // Each guess that is right is a token less to come, and the one behind them comes from the same pass.
        let left = self.most - self.usage.tokens;
        let count = if generator.shrinks { generator.options.lookup.min(left.saturating_sub(1)) } else { 0 };
        self.guesses = lookup::guess(&all, count).iter().copied().collect();
        let mut pass = vec![token];
        pass.extend(&self.guesses);
        let decode = generator.model.settings().decode.clone();
        let mut rows: VecDeque<Vec<f32>> = generator.pass(&decode, &pass)?.into();
        generator.tokens.push(token);
        self.usage.passes += 1;
        self.usage.guessed += self.guesses.len();
        self.usage.read_bytes += generator.session.last_pass().map_or(0, |pass| pass.bytes_read());
        let tokens = generator.tokens.len();
        let row = rows.pop_front().filter(|_| rows.len() == self.guesses.len());
        self.rows = rows;
        row.ok_or(GenerateError::Scores { tokens })
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Token, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended.is_some() {
            return None;
        }
        let begun = Instant::now();
        let chosen = self.choose();
        self.usage.time += begun.elapsed();
        chosen.transpose()
    }
}
