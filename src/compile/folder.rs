//! Folders of language models: which file is the decoder, what its inputs mean, and what belongs to the text.
//!
//! Three kinds are known: those of onnxruntime-genai (`genai_config.json`), those of Optimum and transformers
//! (`config.json` and known names of models, here or in `onnx/`), and one `.onnx` file beside a `tokenizer.json`. `files` reads
//! them, `settings` knows what configurations say, `decoder` finds models of one decoder, `joined` what it is made of where it is
//! several models, and `encoder` the parts of those that read an input and answer it.

mod decoder;
mod encoder;
mod files;
mod joined;
mod settings;

pub use files::FolderError;

use super::{Branch, CompileOptions, Source};
use crate::generation::{CHAT_TEMPLATE, GENERATION, GenerationSettings, TOKENIZER};
use files::Files;
use ipuc_formats::model::AttachmentRecord;
use ipuc_passes::options::Joined;
use serde_json::Value as Json;
use settings::Parts;
use std::path::Path;

/// A language model as a folder has it.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    /// The decoder, and what belongs to it.
    pub sources: Vec<Source>,
    /// Patterns of past and present, as in [`CompileOptions::states`].
    pub states: Vec<String>,
    /// What entries take of a decoder that is merged of two.
    pub branches: Vec<Branch>,
    /// Entries that are made of several sources.
    pub joined: Vec<Joined>,
    /// Models of the folder that are left out: what they read or give is no text.
    pub left_out: Vec<String>,
    /// Names of ports and entries, and how text is generated.
    pub settings: GenerationSettings,
    /// Tokenizer, chat template and settings.
    pub attachments: Vec<AttachmentRecord>,
}

impl LanguageModel {
    /// Have a compilation make this model; gives what it is compiled from.
    pub fn apply(self, options: &mut CompileOptions) -> Vec<Source> {
        options.states.extend(self.states);
        options.branches.extend(self.branches);
        let own = |name: &String| self.joined.iter().any(|joined| joined.entry == *name);
        options.prefill = self.settings.prefill.filter(|name| !own(name)).map(|_| self.settings.logits);
        options.joined.extend(self.joined);
        options.attachments.extend(self.attachments);
        self.sources
    }
}

/// Read what a folder says of a language model. Weights are not read.
///
/// # Errors
/// [`FolderError`] where files are missing or malformed, or the model is of a kind that is not supported.
pub fn read(folder: &Path) -> Result<LanguageModel, FolderError> {
    let files = Files { folder };
    let tokenizer = files.required(TOKENIZER)?;
    let template = chat_template(&files)?;
    let genai = files.json("genai_config.json")?;
    let read = match encoder::parts(&files, genai.as_ref(), &tokenizer)? {
        Some(parts) => parts,
        None => decoder::alone(&files, genai, &tokenizer)?,
    };
    let Parts { sources, states, branches, joined, left_out, settings } = read;
    let text = serde_json::to_vec_pretty(&settings).map_err(|error| files.fault(folder, error))?;
    let attach = |name: &str, data: Vec<u8>| AttachmentRecord { name: name.to_string(), data: data.into() };
    let mut attachments = vec![attach(TOKENIZER, tokenizer), attach(GENERATION, text)];
    attachments.extend(template.map(|template| attach(CHAT_TEMPLATE, template)));
    Ok(LanguageModel { sources, states, branches, joined, left_out, settings, attachments })
}

/// The template of chats; the one called `default` where there are several.
fn chat_template(files: &Files<'_>) -> Result<Option<Vec<u8>>, FolderError> {
    if let Some(template) = files.bytes(CHAT_TEMPLATE)? {
        return Ok(Some(template));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let Some(config) = files.json(name)? else { continue };
        let template = match &config["chat_template"] {
            Json::String(template) => Some(template.as_str()),
            Json::Array(named) => {
                named.iter().find(|one| one["name"] == "default").and_then(|one| one["template"].as_str())
            }
            Json::Null => None,
            Json::Bool(_) | Json::Number(_) | Json::Object(_) => {
                return Err(files.fault(&files.folder.join(name), "its `chat_template` is no text"));
            }
        };
        if let Some(template) = template {
            return Ok(Some(template.as_bytes().to_vec()));
        }
    }
    Ok(None)
}
