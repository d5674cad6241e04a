//! A model with its tokenizer and chat template.

use super::error::GenerateError;
use super::grammar::{Followed, Grammar, Vocabulary};
use super::template::{Message, Template};
use crate::generation::{CHAT_TEMPLATE, EncoderSettings, GENERATION, GenerationSettings, TOKENIZER};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Shape;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::Model;
use std::sync::{Arc, OnceLock};
use tokenizers::Tokenizer;

/// A language model that is opened; copies share it.
#[derive(Clone)]
pub struct TextModel {
    shared: Arc<Shared>,
}

struct Shared {
    model: Model,
    tokenizer: Tokenizer,
    template: Option<Template>,
    settings: GenerationSettings,
    /// What grammars are compiled with, made for the first one.
    vocabulary: OnceLock<Vocabulary>,
    /// Element type of tokens, masks and positions.
    integers: DType,
}

impl TextModel {
    /// A model with what its file has for text.
    ///
    /// # Errors
    /// [`GenerateError`] where the file has no tokenizer or settings, these are malformed, or do not fit its program.
    pub fn new(model: Model) -> Result<TextModel, GenerateError> {
        let manifest = model.manifest();
        let attachment =
            |attachment| manifest.attachment(attachment).ok_or(GenerateError::NoLanguageModel { attachment });
        let (settings, tokenizer) = (attachment(GENERATION)?, attachment(TOKENIZER)?);
        let settings: GenerationSettings = serde_json::from_slice(settings)
            .map_err(|error| GenerateError::Attachment { attachment: GENERATION, reason: error.to_string() })?;
        let tokenizer = Tokenizer::from_bytes(tokenizer)
            .map_err(|error| GenerateError::Attachment { attachment: TOKENIZER, reason: error.to_string() })?;
        let template = manifest.attachment(CHAT_TEMPLATE).map(|source| Template::new(source, &settings)).transpose()?;
        let mut integers = check_entry(&model, &settings, &settings.decode)?;
        let start = settings.encoder.as_ref().and_then(|encoder| encoder.start.as_ref());
        for entry in settings.prefill.iter().chain(start) {
            integers = check_entry(&model, &settings, entry)?;
        }
        if let Some(encoder) = &settings.encoder {
            check_encoder(&model, encoder)?;
        }
        let vocabulary = OnceLock::new();
        Ok(TextModel { shared: Arc::new(Shared { model, tokenizer, template, settings, vocabulary, integers }) })
    }

    /// The program and its weights.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// What the file says about generating.
    pub fn settings(&self) -> &GenerationSettings {
        &self.shared.settings
    }

    /// The inputs of a pass over tokens, behind so many positions of the cache; of a model that answers to an input, of so
    /// many tokens of that.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where there are too many.
    pub fn inputs(
        &self,
        cached: usize,
        tokens: &[u32],
        input_tokens: Option<usize>,
    ) -> Result<Vec<(String, Value)>, GenerateError> {
        let settings = self.settings();
        let decoder_mask = settings.encoder.as_ref().and_then(|encoder| encoder.decoder_mask.as_deref());
        let decoder_mask = decoder_mask.zip(input_tokens).map(|(mask, count)| (mask, vec![1; count]));
        let rows = settings.token_inputs().rows(cached, tokens).chain(decoder_mask);
        rows.map(|(name, row)| Ok((name.to_string(), self.row(row)?))).collect()
    }

    /// The inputs of the encoder for a text.
    pub(super) fn encoder_inputs(&self, tokens: &[u32]) -> Result<Vec<(String, Value)>, GenerateError> {
        let encoder = self.settings().encoder.as_ref();
        let named = encoder.and_then(|encoder| encoder.tokens.as_ref().zip(Some(&encoder.attention_mask)));
        let (name, mask) = named.ok_or(GenerateError::Input { reason: "the model's input is no text" })?;
        let mut inputs = vec![(name.clone(), self.row(tokens.iter().map(|&token| i64::from(token)).collect())?)];
        if let Some(mask) = mask {
            inputs.push((mask.clone(), self.row(vec![1; tokens.len()])?));
        }
        Ok(inputs)
    }

    fn row(&self, numbers: Vec<i64>) -> Result<Value, GenerateError> {
        let shape = [1, numbers.len()];
        let tensor = match self.shared.integers {
            DType::I32 => {
                let narrow: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
                Tensor::from_elements(&shape, &narrow)
            }
            _ => Tensor::from_elements(&shape, &numbers),
        };
        tensor.map(Value::from).map_err(|error| GenerateError::Tokens { reason: error.to_string() })
    }

    /// Most tokens that a pass of an entry takes, where the model says.
    pub(super) fn most_pass_tokens(&self, entry: &str) -> Option<usize> {
        let settings = self.settings();
        let entry = self.model().entry(Some(entry)).ok()?;
        let port = self.model().inputs(entry).into_iter().find(|port| port.name == settings.tokens)?;
        let (_, Shape::Ranked(dims)) = port.kind.as_tensor()? else { return None };
        dims.get(1)?.as_known().and_then(|count| usize::try_from(count).ok())
    }

    /// Tokens of a text, with those that begin a text where the model has such.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, GenerateError> {
        self.tokens(text, true)
    }

    /// Tokens of a text that stands behind another.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, GenerateError> {
        self.tokens(text, false)
    }

    /// Tokens of a chat and of the beginning of its next answer.
    ///
    /// # Errors
    /// [`GenerateError::NoTemplate`] where the model has no chat template, [`GenerateError::Template`] where that fails.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, GenerateError> {
        let template = self.shared.template.as_ref().ok_or(GenerateError::NoTemplate)?;
        self.tokens(&template.render(messages)?, false)
    }

    fn tokens(&self, text: &str, begin: bool) -> Result<Vec<u32>, GenerateError> {
        let encoding = self.shared.tokenizer.encode_fast(text, begin);
        let encoding = encoding.map_err(|error| GenerateError::Tokens { reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, GenerateError> {
        let text = self.shared.tokenizer.decode(tokens, true);
        text.map_err(|error| GenerateError::Tokens { reason: error.to_string() })
    }
}

impl TextModel {
    /// The beginning of a text of a form.
    ///
    /// # Errors
    /// [`GenerateError::Grammar`] where the form is malformed, or the model cannot follow any.
    pub(super) fn follow(&self, grammar: &Grammar) -> Result<Followed, GenerateError> {
        if let Some(vocabulary) = self.shared.vocabulary.get() {
            return vocabulary.follow(grammar);
        }
        let tokenizer = self.model().manifest().attachment(TOKENIZER);
        let tokenizer = tokenizer.ok_or(GenerateError::NoLanguageModel { attachment: TOKENIZER })?;
        let vocabulary = Vocabulary::new(tokenizer, &self.settings().end_tokens)?;
        self.shared.vocabulary.get_or_init(|| vocabulary).follow(grammar)
    }

    /// Whether both have the same tokens.
    pub(super) fn has_tokens_of(&self, other: &TextModel) -> bool {
        self.shared.tokenizer.get_vocab(true) == other.shared.tokenizer.get_vocab(true)
    }

    /// Whether a number is one of a token.
    pub(super) fn has_token(&self, number: u32) -> bool {
        self.shared.tokenizer.id_to_token(number).is_some()
    }
}

/// An entry takes what the settings name, and nothing else; gives the element type of its tokens.
fn check_entry(model: &Model, settings: &GenerationSettings, name: &str) -> Result<DType, GenerateError> {
    let failure = |reason: String| GenerateError::Entry { entry: name.to_string(), reason };
    let entry = model.entry(Some(name)).map_err(|error| failure(error.to_string()))?;
    let decoder_mask = settings.encoder.as_ref().and_then(|encoder| encoder.decoder_mask.as_ref());
    let known =
        [Some(&settings.tokens), settings.attention_mask.as_ref(), settings.position_ids.as_ref(), decoder_mask];
    let mut integers = None;
    for port in model.inputs(entry) {
        if !known.into_iter().flatten().any(|known| *known == port.name) {
            return Err(failure(format!("its input `{}` has no known meaning", port.name)));
        }
        let found = match port.kind.as_tensor() {
            Some((dtype @ (DType::I64 | DType::I32), shape)) if shape.rank() == Some(2) => dtype,
            Some(_) | None => {
                return Err(failure(format!("its input `{}` is {}, not a matrix of integers", port.name, port.kind)));
            }
        };
        if *integers.get_or_insert(found) != found {
            return Err(failure("its inputs have several types of integers".to_string()));
        }
    }
    if !model.outputs(entry).contains(&settings.logits) {
        return Err(failure(format!("it has no output `{}`", settings.logits)));
    }
    integers.ok_or_else(|| failure("it has no inputs".to_string()))
}

/// The entry that reads an input takes what the settings name, where that is a text.
fn check_encoder(model: &Model, encoder: &EncoderSettings) -> Result<(), GenerateError> {
    let failure = |reason: String| GenerateError::Entry { entry: encoder.entry.clone(), reason };
    let entry = model.entry(Some(&encoder.entry)).map_err(|error| failure(error.to_string()))?;
    let ports = model.inputs(entry);
    let known = [encoder.tokens.as_ref(), encoder.attention_mask.as_ref()];
    let is_known = |name: &String| known.into_iter().flatten().any(|known| known == name);
    let unknown = ports.iter().find(|port| encoder.tokens.is_some() && !is_known(&port.name));
    match unknown {
        Some(port) => Err(failure(format!("its input `{}` has no known meaning", port.name))),
        None if ports.is_empty() => Err(failure("it has no inputs".to_string())),
        None => Ok(()),
    }
}
