//! Several texts side by side: each pass reads the weights once for all of them, and a text that ends makes room for another.

use super::continuation::{Continuation, Ended, Limits, Token, Usage};
use super::error::GenerateError;
use super::generator::{Generator, GeneratorOptions};
use super::model::TextModel;
use super::sampling::Sampling;
use super::scores::Scores;
use ipuc_runtime::PassReport;
use std::time::Instant;

/// Texts of one model that share passes. Each has the tokens that a [`Generator`] alone would give it.
pub struct Batch {
    model: TextModel,
    prefill_tokens: usize,
    lanes: Vec<Lane>,
    begun: u64,
    passes: usize,
    read_bytes: u64,
}

/// A context, and the text that goes on from it.
struct Lane {
    generator: Generator,
    text: Option<Text>,
}

/// A text that is generated.
struct Text {
    number: u64,
    continuation: Continuation,
    /// Tokens that are to be read before the next one can be chosen: the rest of the prompt, or the last token.
    unread: Vec<u32>,
    /// Tokens that the running pass reads behind them.
    guesses: Vec<u32>,
    since: Instant,
}

/// How a text went on.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The number that [`Batch::begin`] gave.
    pub text: u64,
    /// Another token; none where the text was cancelled.
    pub token: Option<Token>,
    /// Why it ended, where it did.
    pub ended: Option<Ended>,
    /// What it took so far. Bytes of a pass are divided among its texts.
    pub usage: Usage,
}

impl Batch {
    /// Room for `size` texts at a time.
    ///
    /// # Errors
    /// [`GenerateError::Run`] where threads cannot be started, [`GenerateError::Input`] where the model answers to an input.
    pub fn new(model: &TextModel, options: &GeneratorOptions, size: usize) -> Result<Batch, GenerateError> {
        if model.settings().encoder.is_some() {
            return Err(GenerateError::Input {
                reason: "a model that answers to an input generates one text at a time",
            });
        }
        let lane = |_| Ok(Lane { generator: Generator::new(model, options)?, text: None });
        Ok(Batch {
            model: model.clone(),
            prefill_tokens: options.prefill_tokens(),
            lanes: (0..size.max(1)).map(lane).collect::<Result<_, GenerateError>>()?,
            begun: 0,
            passes: 0,
            read_bytes: 0,
        })
    }

    /// Whether another text can begin.
    pub fn has_room(&self) -> bool {
        self.lanes.iter().any(|lane| lane.text.is_none())
    }

    /// Whether a text is generated.
    pub fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.text.is_some())
    }

    /// Passes so far.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// Bytes of weights that all passes have read from the file.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// What the last pass read, and where it waited; `None` where the model has no budget.
    pub fn last_pass(&self) -> Option<PassReport> {
        self.lanes.first().and_then(|lane| lane.generator.session().last_pass())
    }

    /// Begin a text; gives its number, or `None` where there is no room. What its prompt has in common with a context that
    /// is there is not read again.
    ///
    /// # Errors
    /// [`GenerateError`] where there is no prompt, no room behind it, or a number has no meaning.
    pub fn begin(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limits: &Limits,
    ) -> Result<Option<u64>, GenerateError> {
        let mut continuation = Continuation::new(&self.model, prompt, sampling, limits)?;
        let common = |lane: &Lane| lane.generator.common(&prompt[..prompt.len() - 1]);
        let free = (0..self.lanes.len()).filter(|&at| self.lanes[at].text.is_none());
        let Some(free) = free.max_by_key(|&at| common(&self.lanes[at])) else { return Ok(None) };
        let best = (0..self.lanes.len()).max_by_key(|&at| common(&self.lanes[at])).unwrap_or(free);
        if common(&self.lanes[best]) > common(&self.lanes[free]) {
            self.lanes[free].generator = self.lanes[best].generator.fork();
        }
        let lane = &mut self.lanes[free];
        let known = lane.generator.keep_common(prompt)?;
        continuation.usage.prompt_known = known;
        self.begun += 1;
        let (unread, guesses) = (prompt[known..].to_vec(), Vec::new());
        lane.text = Some(Text { number: self.begun, continuation, unread, guesses, since: Instant::now() });
        Ok(Some(self.begun))
    }

    /// End a text early.
    pub fn cancel(&mut self, text: u64) {
        let texts = self.lanes.iter_mut().filter_map(|lane| lane.text.as_mut());
        for text in texts.filter(|one| one.number == text) {
            text.continuation.ended = Some(Ended::Cancelled);
        }
    }

    /// Take all texts a pass further; gives what came of it, in the order in which they began. A text that ended is there no more.
    ///
    /// # Errors
    /// [`GenerateError`] where the pass fails: all texts have ended then.
    pub fn pass(&mut self) -> Result<Vec<Progress>, GenerateError> {
        let mut progress = self.ended();
        let further = self.pass_of_running();
        if further.is_err() {
            self.lanes.iter_mut().for_each(|lane| lane.text = None);
        }
        progress.extend(further?);
        progress.sort_by_key(|one| one.text);
        Ok(progress)
    }

    /// Texts that were cancelled, or may have no tokens.
    fn ended(&mut self) -> Vec<Progress> {
        let ended =
            self.lanes.iter_mut().filter_map(|lane| lane.text.take_if(|text| text.continuation.ended.is_some()));
        ended.map(|text| text.progress(None)).collect()
    }

    fn pass_of_running(&mut self) -> Result<Vec<Progress>, GenerateError> {
        let mut running: Vec<(&mut Generator, &mut Text)> =
            self.lanes.iter_mut().filter_map(|lane| Some((&mut lane.generator, lane.text.as_mut()?))).collect();
        if running.is_empty() {
            return Ok(Vec::new());
        }
        let reads_prompts = running.iter().any(|(_, text)| text.unread.len() > 1);
        let passes = plan(&mut running, reads_prompts, self.prefill_tokens)?;
        let settings = self.model.settings();
        let entry =
            if reads_prompts { settings.prefill.as_ref().unwrap_or(&settings.decode) } else { &settings.decode };
        let tokens: Vec<&[u32]> = passes.iter().map(Vec::as_slice).collect();
        let mut generators: Vec<&mut Generator> = running.iter_mut().map(|(generator, _)| &mut **generator).collect();
        let rows = Generator::pass_together(&mut generators, entry, &tokens)?;
        let count = generators.len() as u64;
        let report = generators[0].session().last_pass();
        self.passes += 1;
        self.read_bytes += report.as_ref().map_or(0, PassReport::bytes_read);
        let mut progress = Vec::new();
        for (((generator, text), pass), rows) in running.into_iter().zip(&passes).zip(rows) {
            text.went_on(generator, pass, rows, (report.clone(), count), &mut progress)?;
        }
        for lane in &mut self.lanes {
            lane.text.take_if(|text| text.continuation.ended.is_some());
        }
        Ok(progress)
    }
}

/// The tokens of each text in the next pass: those that are unread, at most so many of prompts together; behind them
/// guesses, where no prompt is read.
fn plan(
    running: &mut [(&mut Generator, &mut Text)],
    reads_prompts: bool,
    prefill_tokens: usize,
) -> Result<Vec<Vec<u32>>, GenerateError> {
    let mut left = prefill_tokens;
    let mut passes = Vec::with_capacity(running.len());
    for (generator, text) in running {
        generator.settle()?;
        let count = text.unread.len().min(left.max(1));
        left = left.saturating_sub(count);
        let mut pass = text.unread[..count].to_vec();
        text.guesses = match (reads_prompts, text.unread.as_slice()) {
            (false, &[token]) if text.continuation.usage.tokens > 0 => {
                generator.guesses(token, &mut text.continuation)?
            }
            _ => Vec::new(),
        };
        pass.extend(&text.guesses);
        passes.push(pass);
    }
    Ok(passes)
}

impl Text {
    fn progress(&self, token: Option<Token>) -> Progress {
        let Text { number, continuation, .. } = self;
        Progress { text: *number, token, ended: continuation.ended, usage: continuation.usage }
    }

    /// A pass has read these tokens, the guesses last.
    fn went_on(
        &mut self,
        generator: &mut Generator,
        pass: &[u32],
        rows: Vec<Scores>,
        (report, texts): (Option<PassReport>, u64),
        progress: &mut Vec<Progress>,
    ) -> Result<(), GenerateError> {
        let read = pass.len() - self.guesses.len();
        generator.took(&pass[..read]);
        self.unread.drain(..read);
        let chosen = self.continuation.usage.tokens > 0;
        if chosen {
            self.continuation.usage.count_pass(report, texts);
        }
        if self.unread.is_empty() {
            self.continuation.follow(&self.guesses, rows, generator.tokens().len())?;
        }
        let took = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        match chosen {
            true => self.continuation.usage.time += took,
            false => self.continuation.usage.prompt_time += took,
        }
        while let Some(token) = self.continuation.choose(generator.tokens().len())? {
            let number = token.number;
            progress.push(self.progress(Some(token)));
            if self.continuation.ended.is_none() {
                match self.continuation.was_guessed(number) {
                    true => generator.took(&[number]),
                    false => self.unread.push(number),
                }
            }
        }
        Ok(())
    }
}
