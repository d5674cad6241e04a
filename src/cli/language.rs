//! What `generate`, `chat` and `serve` share: opening a language model, choosing tokens, and telling what a text took.

use super::arguments::{Size, threads};
use super::opening;
use super::output::{Output, bytes, seconds};
use crate::generate::{Ended, Generator, GeneratorOptions, Grammar, Sampling, TextModel, Usage};
use crate::open::{OpenOptions, open_pair, open_with};
use anyhow::Context;
use clap::Args;
use ipuc_runtime::Model;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Which model generates, and within what.
#[derive(Debug, Args)]
pub(super) struct LanguageArguments {
    /// The language model: an .ipu file that was compiled from a folder with a tokenizer
    #[arg(value_name = "MODEL.ipu")]
    pub(super) model: PathBuf,
    /// Threads that share the work [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Memory for weights, activations and the cache, as 512MiB, 2GB or bytes; weights that do not fit are streamed from the
    /// file [default: what the machine has available]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// The folder for the file that the cache goes to when the memory holds nothing else any more [default: the system's for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Most tokens of a prompt that a pass takes: fewer need less memory, more read the weights less often
    #[arg(long, value_name = "N", default_value = "512")]
    prefill_chunk: std::num::NonZeroU16,
    /// Guess up to N tokens from what followed the same tokens before and verify them in one pass; the text is the same
    #[arg(long, value_name = "N", default_value = "0")]
    lookup: u8,
}

impl LanguageArguments {
    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            memory_bytes: self.memory.map(|size| size.bytes),
            spill_folder: self.spill.clone(),
            ..OpenOptions::default()
        }
    }

    pub(super) fn open(&self, output: &Output) -> anyhow::Result<TextModel> {
        let loading = opening::begin(self.memory, output);
        let model = language_model(&self.model, open_with(&self.model, self.open_options())?)?;
        opening::end(loading, self.memory, model.model(), output);
        Ok(model)
    }

    pub(super) fn generator_options(&self) -> GeneratorOptions {
        GeneratorOptions {
            threads: self.threads.unwrap_or(0),
            prefill_chunk: usize::from(self.prefill_chunk.get()),
            lookup: usize::from(self.lookup),
        }
    }
}

/// What a file has for text.
pub(super) fn language_model(path: &Path, model: Model) -> anyhow::Result<TextModel> {
    TextModel::new(model).with_context(|| format!("cannot make text with `{}`", path.display()))
}

/// A model that guesses.
#[derive(Debug, Args)]
pub(super) struct DraftArguments {
    /// A smaller model with the same tokens, which guesses tokens that are verified in one pass; the text is the same
    #[arg(long, value_name = "MODEL.ipu")]
    pub(super) draft: Option<PathBuf>,
    /// With --draft: guess up to N tokens at a time
    #[arg(long, value_name = "N", default_value = "4")]
    draft_tokens: std::num::NonZeroU8,
}

impl DraftArguments {
    /// The model, a generator for it, and the time that opening took.
    pub(super) fn generator(
        &self,
        language: &LanguageArguments,
        output: &Output,
    ) -> anyhow::Result<(TextModel, Generator, Duration)> {
        let begun = Instant::now();
        let options = language.generator_options();
        let Some(draft_path) = &self.draft else {
            let model = language.open(output)?;
            return Ok((model.clone(), Generator::new(&model, &options)?, begun.elapsed()));
        };
        let loading = opening::begin(language.memory, output);
        let (model, draft) = open_pair(&language.model, draft_path, language.open_options())?;
        let (model, draft) = (language_model(&language.model, model)?, language_model(draft_path, draft)?);
        opening::end(loading, language.memory, model.model(), output);
        let mut generator = Generator::new(&model, &options)?;
        generator.set_draft(&draft, usize::from(self.draft_tokens.get()))?;
        Ok((model, generator, begun.elapsed()))
    }
}

/// How tokens are chosen.
#[derive(Debug, Args)]
pub(super) struct SamplingArguments {
    /// Divide scores by T before a token is drawn; 0 takes the most likely token always [default: as the model says, else 0]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Draw from the K most likely tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the most likely tokens that have the probability P together
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Leave out tokens that are less likely than the share P of the most likely one's probability
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Divide positive scores of tokens that have occurred by R, and multiply negative ones
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f32>,
    /// Draw with this seed: the same one gives the same text
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
}

impl SamplingArguments {
    /// What the user says, and what the model says of the rest.
    pub(super) fn sampling(&self, model: &TextModel) -> Sampling {
        let of_model = Sampling::of_model(model.settings());
        Sampling {
            temperature: self.temperature.unwrap_or(of_model.temperature),
            top_k: self.top_k.unwrap_or(of_model.top_k),
            top_p: self.top_p.unwrap_or(of_model.top_p),
            min_p: self.min_p.unwrap_or(of_model.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(of_model.repetition_penalty),
            seed: self.seed,
        }
    }
}

/// The word for why a text ended.
pub(super) fn ended(ended: Option<Ended>) -> &'static str {
    match ended {
        Some(Ended::End) => "end",
        Some(Ended::Stop) => "stop",
        Some(Ended::Length) => "length",
        Some(Ended::Cancelled) | None => "cancelled",
    }
}

/// Bytes for weights, activations and state: the most at a time.
pub(super) fn memory_bytes(model: &TextModel) -> u64 {
    let model = model.model();
    let weights = model.manifest().extents.iter().map(|extent| extent.length).sum();
    let resident: u64 = if model.residency().is_some() { 0 } else { weights };
    resident + model.memory().peak_bytes
}

/// The form of texts.
#[derive(Debug, Args)]
pub(super) struct GrammarArguments {
    /// Make the text a JSON value that the JSON schema in FILE describes
    #[arg(long, value_name = "FILE", conflicts_with = "ignore_end")]
    json_schema: Option<PathBuf>,
    /// Make the text one that the grammar in FILE describes, in Lark's syntax
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json_schema", "ignore_end"])]
    grammar: Option<PathBuf>,
}

impl GrammarArguments {
    pub(super) fn grammar(&self) -> anyhow::Result<Option<Grammar>> {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", quoted(path)));
        match (&self.json_schema, &self.grammar) {
            (Some(path), _) => {
                let schema = serde_json::from_str(&read(path)?);
                let schema = schema.with_context(|| format!("the schema {} is no JSON", quoted(path)))?;
                Ok(Some(Grammar::JsonSchema(schema)))
            }
            (None, Some(path)) => Ok(Some(Grammar::Lark(read(path)?))),
            (None, None) => Ok(None),
        }
    }
}

/// Tokens a second.
pub(super) fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Say what a text took.
pub(super) fn tell(usage: &Usage, model: &TextModel, output: &Output) {
    let read = usage.prompt_tokens - usage.prompt_known;
    let known = match usage.prompt_known {
        0 => String::new(),
        known => format!(" ({known} known)"),
    };
    let guessed = match usage.guessed {
        0 => String::new(),
        guessed => format!(", {} of {guessed} guesses right", usage.accepted),
    };
    let found = match usage.chosen_bytes {
        0 => String::new(),
        chosen => {
            format!(
                ", {:.1} % of chosen rows and experts were in memory",
                usage.found_bytes as f64 * 100.0 / chosen as f64
            )
        }
    };
    let per_token = usage.read_bytes / (usage.tokens.max(1) as u64);
    output.note(format_args!(
        "prompt: {} tokens{known} in {} ({:.1} tokens/s); text: {} tokens in {} ({:.1} tokens/s{guessed}); {} of memory at \
        most, {} read a token{found}",
        usage.prompt_tokens,
        seconds(usage.prompt_time),
        rate(read, usage.prompt_time),
        usage.tokens,
        seconds(usage.time),
        rate(usage.tokens, usage.time),
        bytes(memory_bytes(model)),
        bytes(per_token)
    ));
}

/// How messages call a file.
pub(super) fn quoted(path: &Path) -> String {
    format!("`{}`", path.display())
}
