//! A model with its tokenizer and chat template.

use super::error::GenerateError;
use super::template::{Message, Template};
use crate::generation::{CHAT_TEMPLATE, GENERATION, GenerationSettings, TOKENIZER};
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::Model;
use std::sync::Arc;
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
        if let Some(prefill) = &settings.prefill {
            integers = check_entry(&model, &settings, prefill)?;
        }
        Ok(TextModel { shared: Arc::new(Shared { model, tokenizer, template, settings, integers }) })
    }

    /// The program and its weights.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// What the file says about generating.
    pub fn settings(&self) -> &GenerationSettings {
        &self.shared.settings
    }

    /// The inputs of a pass over tokens, behind so many positions of the cache.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where there are too many.
    pub fn inputs(&self, cached: usize, tokens: &[u32]) -> Result<Vec<(String, Value)>, GenerateError> {
        let settings = self.settings();
        let end = cached + tokens.len();
        let row = |numbers: Vec<i64>| -> Result<Value, GenerateError> {
            let shape = [1, numbers.len()];
            let tensor = match self.shared.integers {
                DType::I32 => {
                    let narrow: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
                    Tensor::from_elements(&shape, &narrow)
                }
                _ => Tensor::from_elements(&shape, &numbers),
            };
            tensor.map(Value::from).map_err(|error| GenerateError::Tokens { reason: error.to_string() })
        };
        let mut inputs = vec![(settings.tokens.clone(), row(tokens.iter().map(|&token| i64::from(token)).collect())?)];
        if let Some(mask) = &settings.attention_mask {
            inputs.push((mask.clone(), row(vec![1; end])?));
        }
        if let Some(positions) = &settings.position_ids {
            inputs.push((positions.clone(), row((cached as i64..end as i64).collect())?));
        }
        Ok(inputs)
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

/// An entry takes what the settings name, and nothing else; gives the element type of its tokens.
fn check_entry(model: &Model, settings: &GenerationSettings, name: &str) -> Result<DType, GenerateError> {
    let failure = |reason: String| GenerateError::Entry { entry: name.to_string(), reason };
    let entry = model.entry(Some(name)).map_err(|error| failure(error.to_string()))?;
    let known = [Some(&settings.tokens), settings.attention_mask.as_ref(), settings.position_ids.as_ref()];
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
