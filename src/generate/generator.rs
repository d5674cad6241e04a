//! A context and its passes: prompts are read into it, and tokens come out.

use super::continuation::{Continuation, Ended, Limits, Token, Usage};
use super::error::GenerateError;
use super::lookup;
use super::model::TextModel;
use super::sampling::Sampling;
use super::scores::Scores;
use ipuc_formats::value::Value;
use ipuc_runtime::{CancelToken, RunError, SavedStateError, Session, SessionOptions};
use std::io::Read;
use std::time::Instant;

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

impl GeneratorOptions {
    /// Most tokens of a prompt that a pass takes.
    pub(super) fn prefill_tokens(&self) -> usize {
        if self.prefill_chunk == 0 { PREFILL_CHUNK } else { self.prefill_chunk }
    }
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
    draft: Option<Draft>,
    encoded: Option<Encoded>,
}

/// What was read of an input.
struct Encoded {
    /// Without tokens of an answer.
    session: Session,
    /// Tokens of the input, where it is a text.
    tokens: Option<usize>,
}

/// A smaller model that guesses.
struct Draft {
    generator: Box<Generator>,
    /// Most tokens that it guesses at a time.
    tokens: usize,
}

impl Generator {
    /// A generator with an empty context.
    ///
    /// # Errors
    /// [`GenerateError::Run`] where threads cannot be started.
    pub fn new(model: &TextModel, options: &GeneratorOptions) -> Result<Generator, GenerateError> {
        let mut session =
            Session::new(model.model(), &SessionOptions { threads: options.threads, ..Default::default() })?;
        session.forget_behind_windows(true);
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
            draft: None,
            encoded: None,
        })
    }

    /// Have a smaller model guess up to so many tokens, which are verified in one pass. It draws with the same numbers, so that
    /// it often guesses what is chosen; the text is the same with and without it.
    ///
    /// # Errors
    /// [`GenerateError::Draft`] where it has other tokens, or positions cannot be taken back from one of the models' caches.
    pub fn set_draft(&mut self, model: &TextModel, tokens: usize) -> Result<(), GenerateError> {
        let options = GeneratorOptions { lookup: 0, ..self.options.clone() };
        let generator = Box::new(Generator::new(model, &options)?);
        let refused = |reason: &str| Err(GenerateError::Draft { reason: reason.to_string() });
        if !self.model.has_tokens_of(model) {
            return refused("its tokens are not those of the model");
        }
        if !self.shrinks || !generator.shrinks {
            return refused("guesses that are wrong cannot be taken back from a cache that is overwritten or replaced");
        }
        self.draft = Some(Draft { generator, tokens });
        Ok(())
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

    /// Read the text that the model answers to; texts that are generated from then on are answers to it.
    ///
    /// # Errors
    /// [`GenerateError::Input`] where the model answers to no text, [`GenerateError::EmptyPrompt`] where there is none,
    /// [`GenerateError::Run`] where the pass fails.
    pub fn encode_text(&mut self, tokens: &[u32]) -> Result<(), GenerateError> {
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        self.encode_inputs(self.model.encoder_inputs(tokens)?, Some(tokens.len()))
    }

    /// Read the input that the model answers to, as features of speech; texts that are generated from then on are answers to it.
    ///
    /// # Errors
    /// [`GenerateError::Input`] where the model answers to no input, or to a text; [`GenerateError::Run`] where it does not fit.
    pub fn encode(&mut self, inputs: Vec<(String, Value)>) -> Result<(), GenerateError> {
        match &self.model.settings().encoder {
            Some(encoder) if encoder.tokens.is_some() => {
                Err(GenerateError::Input { reason: "the model's input is a text" })
            }
            Some(_) | None => self.encode_inputs(inputs, None),
        }
    }

    fn encode_inputs(&mut self, inputs: Vec<(String, Value)>, tokens: Option<usize>) -> Result<(), GenerateError> {
        let encoder = self.model.settings().encoder.as_ref();
        let encoder =
            encoder.ok_or(GenerateError::Input { reason: "the model answers to no input beside its prompt" })?;
        let entry = encoder.entry.clone();
        self.encoded = None;
        self.clear()?;
        self.session.run(Some(&entry), inputs)?;
        self.encoded = Some(Encoded { session: self.session.fork(), tokens });
        Ok(())
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
        let mut continuation = Continuation::new(&self.model, prompt, sampling, limits)?;
        if self.model.settings().encoder.is_some() && self.encoded.is_none() {
            return Err(GenerateError::Input { reason: "the model answers to an input, which must be given first" });
        }
        self.cancel.reset();
        let begun = Instant::now();
        let known = self.keep_common(prompt)?;
        if let Some(scores) = self.read(&prompt[known..])? {
            continuation.follow(&[], vec![scores], prompt.len())?;
        }
        (continuation.usage.prompt_known, continuation.usage.prompt_time) = (known, begun.elapsed());
        Ok(Tokens { continuation, unread: None, generator: self })
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
        Ok(scores.iter().map(|scores| scores.values().to_vec()).collect())
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
    pub(super) fn keep_common(&mut self, prompt: &[u32]) -> Result<usize, GenerateError> {
        self.tokens.truncate(self.common(&prompt[..prompt.len() - 1]));
        self.settle()?;
        Ok(self.tokens.len())
    }

    /// Take positions back that hold no token of the context.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        if self.tokens.is_empty() {
            match &self.encoded {
                Some(encoded) => self.session = encoded.session.fork(),
                None => self.session.reset(),
            }
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
    fn read(&mut self, tokens: &[u32]) -> Result<Option<Scores>, GenerateError> {
        let chunk = self.options.prefill_tokens();
        let settings = self.model.settings();
        let (prefill, decode) =
            (settings.prefill.as_ref().unwrap_or(&settings.decode).clone(), settings.decode.clone());
        let start = settings.encoder.as_ref().and_then(|encoder| encoder.start.clone());
        let further = self.model.most_pass_tokens(&prefill).unwrap_or(chunk).min(chunk);
        let (mut left, mut last) = (tokens, None);
        while !left.is_empty() {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let (entry, most) = match &start {
                Some(start) if self.cached == 0 => (start, chunk),
                _ => (&prefill, further),
            };
            let (tokens, behind) = left.split_at(left.len().min(most));
            let entry = if tokens.len() == 1 && entry == &prefill { &decode } else { entry };
            last = self.pass(entry, tokens)?.pop();
            self.tokens.extend_from_slice(tokens);
            left = behind;
        }
        Ok(last)
    }

    /// Run an entry on tokens behind those of the cache; gives its rows of scores.
    fn pass(&mut self, entry: &str, tokens: &[u32]) -> Result<Vec<Scores>, GenerateError> {
        let rows = Generator::pass_together(&mut [self], entry, &[tokens])?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Run an entry for generators of one model, each on tokens behind those of its cache; gives the rows of scores of each.
    pub(super) fn pass_together(
        generators: &mut [&mut Generator],
        entry: &str,
        tokens: &[&[u32]],
    ) -> Result<Vec<Vec<Scores>>, GenerateError> {
        let inputs = generators.iter().zip(tokens);
        let inputs = inputs.map(|(one, tokens)| {
            let input_tokens = one.encoded.as_ref().and_then(|encoded| encoded.tokens);
            one.model.inputs(one.cached, tokens, input_tokens)
        });
        let inputs = inputs.collect::<Result<_, _>>()?;
        let mut sessions: Vec<&mut Session> = generators.iter_mut().map(|one| &mut one.session).collect();
        let outputs = Session::run_together(&mut sessions, Some(entry), inputs)?;
        let with_outputs = generators.iter_mut().zip(tokens).zip(outputs);
        with_outputs
            .map(|((one, tokens), outputs)| {
                one.cached += tokens.len();
                rows_of_scores(&one.model, entry, &outputs)
            })
            .collect()
    }

    /// Take tokens that a pass has read into the context; guesses behind them are left out.
    pub(super) fn took(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// How many tokens of a prompt the context begins with; none where the cache cannot be shortened to them.
    pub(super) fn common(&self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(one, other)| one == other).count();
        let goes_on = common == self.cached || self.shrinks && self.session.can_truncate(common);
        if goes_on { common } else { 0 }
    }

    /// Another generator with the same context, from which both go their own ways.
    pub(super) fn fork(&self) -> Generator {
        Generator {
            model: self.model.clone(),
            session: self.session.fork(),
            options: self.options.clone(),
            tokens: self.tokens.clone(),
            cached: self.cached,
            shrinks: self.shrinks,
            cancel: CancelToken::default(),
            draft: None,
            encoded: None,
        }
    }

    /// Tokens that may follow the context and the token that was chosen last; those of a draft where nothing repeats itself.
    pub(super) fn guesses(&mut self, token: u32, continuation: &mut Continuation) -> Result<Vec<u32>, GenerateError> {
        // Each guess that is right is a token less to come, and the one behind them comes from the same pass.
        let most = self.model.most_pass_tokens(&self.model.settings().decode).unwrap_or(usize::MAX);
        let left = continuation.left().min(most).saturating_sub(1);
        if !self.shrinks || left == 0 || self.options.lookup == 0 && self.draft.is_none() {
            return Ok(Vec::new());
        }
        let all: Vec<u32> = self.tokens.iter().copied().chain([token]).collect();
        let guesses = lookup::guess(&all, self.options.lookup.min(left)).to_vec();
        match &mut self.draft {
            Some(draft) if guesses.is_empty() => draft.generator.draft(&all, draft.tokens.min(left), continuation),
            Some(_) | None => Ok(guesses),
        }
    }

    /// The tokens that this model would choose behind those, as the continuation of another would choose them.
    fn draft(&mut self, all: &[u32], count: usize, continuation: &mut Continuation) -> Result<Vec<u32>, GenerateError> {
        let context = self.model.settings().context.unwrap_or(u64::MAX);
        let mut guesses = Vec::new();
        if (all.len() + count) as u64 > context {
            return Ok(guesses);
        }
        let (mut chooser, mut seen) = (continuation.chooser.clone(), continuation.seen.clone());
        let known = self.keep_common(all)?;
        let mut scores = self.read(&all[known..])?;
        while guesses.len() < count
            && let Some(token) = scores.and_then(|scores| chooser.choose(scores.values(), &seen))
            && self.model.has_token(token)
        {
            continuation.usage.read_bytes += self.session.last_pass().map_or(0, |pass| pass.bytes_read());
            seen.insert(token);
            guesses.push(token);
            scores = if guesses.len() < count { self.read(&[token])? } else { None };
        }
        Ok(guesses)
    }
}

/// The scores of each token that an entry gives.
fn rows_of_scores(model: &TextModel, entry: &str, outputs: &[(String, Value)]) -> Result<Vec<Scores>, GenerateError> {
    let logits = &model.settings().logits;
    let found = outputs.iter().find(|(name, _)| name == logits).and_then(|(_, value)| value.as_tensor());
    let scores = found.ok_or_else(|| format!("it gives no `{logits}`")).and_then(Scores::of);
    scores.map_err(|reason| GenerateError::Entry { entry: entry.to_string(), reason })
}

/// The tokens of a text, as they are chosen.
pub struct Tokens<'a> {
    generator: &'a mut Generator,
    continuation: Continuation,
    /// The token that was chosen last, where it has not been read yet.
    unread: Option<u32>,
}

impl Tokens<'_> {
    /// Why the text ended; `None` while it goes on.
    pub fn ended(&self) -> Option<Ended> {
        self.continuation.ended
    }

    /// What the text took so far.
    pub fn usage(&self) -> Usage {
        self.continuation.usage
    }

    fn choose(&mut self) -> Result<Option<Token>, GenerateError> {
        if self.generator.cancel.is_cancelled() {
            self.continuation.ended = Some(Ended::Cancelled);
            return Ok(None);
        }
        if let Some(token) = self.unread.take() {
            self.read(token)?;
        }
        let chosen = self.continuation.choose(self.generator.tokens.len())?;
        self.unread = chosen.as_ref().filter(|_| self.continuation.ended.is_none()).map(|token| token.number);
        Ok(chosen)
    }

    /// Read a token, unless it was guessed, with guesses of those behind it.
    fn read(&mut self, token: u32) -> Result<(), GenerateError> {
        let (generator, continuation) = (&mut *self.generator, &mut self.continuation);
        if continuation.was_guessed(token) {
            generator.took(&[token]);
            return Ok(());
        }
        generator.settle()?;
        let guesses = generator.guesses(token, continuation)?;
        let pass: Vec<u32> = [token].into_iter().chain(guesses.iter().copied()).collect();
        let decode = generator.model.settings().decode.clone();
        let rows = generator.pass(&decode, &pass)?;
        generator.took(&[token]);
        continuation.usage.count_pass(generator.session.last_pass(), 1);
        continuation.follow(&guesses, rows, generator.tokens.len())
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Token, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.continuation.ended.is_some() {
            return None;
        }
        let begun = Instant::now();
        let chosen = self.choose();
        self.continuation.usage.time += begun.elapsed();
        chosen.transpose()
    }
}
