//! Folders of language models: which file is the decoder, what its inputs mean, and what belongs to the text.
//!
//! Three kinds are known: those of onnxruntime-genai (`genai_config.json`), those of Optimum and transformers
//! (`config.json` and known names of models, here or in `onnx/`), and one `.onnx` file beside a `tokenizer.json`.

use super::{CompileOptions, Source};
use crate::files::SourceFile;
use crate::generation::{CHAT_TEMPLATE, GENERATION, GenerationSettings, TOKENIZER};
use ipuc_formats::limits::IPU_ATTACHMENT_BYTES;
use ipuc_formats::model::AttachmentRecord;
use ipuc_formats::onnx::read_model;
use ipuc_formats::onnx::schema::GraphProto;
use ipuc_passes::prefill::PREFILL;
use serde_json::Value as Json;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name of the entry that computes the scores of all positions.
const DECODE: &str = "decode";
/// Names of decoders with a cache, as Optimum and transformers export them; the first that is there is taken.
const DECODERS: &[&str] = &["decoder_model_merged.onnx", "decoder_with_past_model.onnx", "model.onnx"];
/// Models without which such a decoder gives no text.
const PARTNERS: &[(&str, &str)] =
    &[("encoder_model.onnx", "an encoder"), ("embed_tokens.onnx", "a model of embeddings")];
/// The input by which merged decoders choose the branch that reads the cache; the cache may be empty.
const CACHE_BRANCH: &str = "use_cache_branch";

/// Why a folder is no language model that can be compiled.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A file that is needed is not there.
    #[error("the folder `{}` has no {file}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The file, or several of which one is needed.
        file: String,
    },
    /// A file cannot be read, or does not say what it should.
    #[error("cannot use `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Several files may be the model.
    #[error("the folder `{}` has several models ({}) and no configuration that tells which is meant", folder.display(), names.join(", "))]
    Several {
        /// The folder.
        folder: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// A kind of model that is not supported.
    #[error("the model in `{}` needs {what}, which is not supported", folder.display())]
    Unsupported {
        /// The folder.
        folder: PathBuf,
        /// What it needs.
        what: String,
    },
}

/// A language model as a folder has it.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    /// The decoder.
    pub source: Source,
    /// Patterns of past and present, as in [`CompileOptions::states`].
    pub states: Vec<String>,
    /// Inputs that always have one value.
    pub constant_inputs: Vec<(String, bool)>,
    /// Names of ports and entries, and how text is generated.
    pub settings: GenerationSettings,
    /// Tokenizer, chat template and settings.
    pub attachments: Vec<AttachmentRecord>,
}

impl LanguageModel {
    /// Have a compilation make this model; gives what it is compiled from.
    pub fn apply(self, options: &mut CompileOptions) -> Source {
        options.states.extend(self.states);
        options.constant_inputs.extend(self.constant_inputs);
        options.prefill = Some(self.settings.logits);
        options.attachments.extend(self.attachments);
        self.source
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
    let (path, decoder) = match &genai {
        Some(genai) => genai_decoder(&files, genai)?,
        None => (exported_decoder(&files)?, Json::Null),
    };
    let model = SourceFile::open(&path).map_err(|error| files.fault(&path, error))?;
    let model = read_model(&model).map_err(|error| files.fault(&path, error))?;
    let mut settings = settings(&files, &genai.unwrap_or(Json::Null), &decoder, &tokenizer)?;
    let patterns = genai_states(&decoder);
    let graph = model.graph.unwrap_or_default();
    let constant_inputs = check_ports(&files, &graph, &patterns, &mut settings)?;
    let text = serde_json::to_vec_pretty(&settings).map_err(|error| files.fault(&path, error))?;
    let attach = |name: &str, data: Vec<u8>| AttachmentRecord { name: name.to_string(), data: data.into() };
    let mut attachments = vec![attach(TOKENIZER, tokenizer), attach(GENERATION, text)];
    attachments.extend(template.map(|template| attach(CHAT_TEMPLATE, template)));
    let states = if patterns.is_empty() { vec!["auto".to_string()] } else { patterns };
    let source = Source { entry: DECODE.to_string(), path };
    Ok(LanguageModel { source, states, constant_inputs, settings, attachments })
}

/// The files of a folder.
struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    fn fault(&self, path: &Path, reason: impl ToString) -> FolderError {
        FolderError::File { path: path.to_owned(), reason: reason.to_string() }
    }

    fn unsupported(&self, what: impl Into<String>) -> FolderError {
        FolderError::Unsupported { folder: self.folder.to_owned(), what: what.into() }
    }

    /// The bytes of a file; `None` where it is not there.
    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.folder.join(name);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.fault(&path, error)),
        };
        let mut bytes = Vec::new();
        let read = file.take(IPU_ATTACHMENT_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.fault(&path, error))?;
        if bytes.len() as u64 > IPU_ATTACHMENT_BYTES {
            return Err(self.fault(&path, format!("it has more than {IPU_ATTACHMENT_BYTES} bytes")));
        }
        Ok(Some(bytes))
    }

    fn required(&self, name: &str) -> Result<Vec<u8>, FolderError> {
        let missing = || FolderError::Missing { folder: self.folder.to_owned(), file: name.to_string() };
        self.bytes(name)?.ok_or_else(missing)
    }

    fn json(&self, name: &str) -> Result<Option<Json>, FolderError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.fault(&self.folder.join(name), error))
    }
}

/// Path and description of the decoder of a folder of onnxruntime-genai.
fn genai_decoder(files: &Files<'_>, config: &Json) -> Result<(PathBuf, Json), FolderError> {
    let path = files.folder.join("genai_config.json");
    let model = &config["model"];
    for part in ["encoder", "embedding", "vision", "speech"] {
        if model.get(part).is_some() {
            return Err(files.unsupported(format!("a model `{part}` beside its decoder")));
        }
    }
    let decoder = model["decoder"].clone();
    if decoder.get("pipeline").is_some() {
        return Err(files.unsupported("a pipeline of several models"));
    }
    let Some(name) = decoder["filename"].as_str() else {
        return Err(files.fault(&path, "it names no file as `model.decoder.filename`"));
    };
    if Path::new(name).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Err(files.fault(&path, format!("the decoder `{name}` is not in the folder")));
    }
    Ok((files.folder.join(name), decoder))
}

/// Path of the decoder among files with known names, or of the only model.
fn exported_decoder(files: &Files<'_>) -> Result<PathBuf, FolderError> {
    let folders = [files.folder.to_owned(), files.folder.join("onnx")];
    for (name, what) in PARTNERS {
        if folders.iter().any(|folder| folder.join(name).is_file()) {
            return Err(files.unsupported(format!("{what} ({name}) beside its decoder")));
        }
    }
    let known = folders.iter().flat_map(|folder| DECODERS.iter().map(|name| folder.join(name)));
    if let Some(path) = known.into_iter().find(|path| path.is_file()) {
        return Ok(path);
    }
    let entries = fs::read_dir(files.folder).map_err(|error| files.fault(files.folder, error))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut models: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    models.sort();
    match models.as_slice() {
        [only] => Ok(only.clone()),
        [] => {
            let file = format!("model: genai_config.json, {} or another .onnx file", DECODERS.join(", "));
            Err(FolderError::Missing { folder: files.folder.to_owned(), file })
        }
        several => {
            let name = |path: &PathBuf| path.file_name().map_or_else(String::new, |name| name.display().to_string());
            let names = several.iter().map(name).collect();
            Err(FolderError::Several { folder: files.folder.to_owned(), names })
        }
    }
}

/// Patterns of past and present as `genai_config.json` has them, with `%d` for the layer.
fn genai_states(decoder: &Json) -> Vec<String> {
    let names = [
        ("past_key_names", "present_key_names"),
        ("past_value_names", "present_value_names"),
        ("past_names", "present_names"),
    ];
    let pattern = |(past, present): (&str, &str)| {
        let past = decoder["inputs"][past].as_str()?.replacen("%d", "*", 1);
        Some(format!("{past}={}", decoder["outputs"][present].as_str()?.replacen("%d", "*", 1)))
    };
    names.into_iter().filter_map(pattern).collect()
}

/// Keep the settings of inputs that the model has, and refuse inputs of no known meaning; gives those that are constant.
fn check_ports(
    files: &Files<'_>,
    graph: &GraphProto,
    patterns: &[String],
    settings: &mut GenerationSettings,
) -> Result<Vec<(String, bool)>, FolderError> {
    let weights: Vec<&str> = graph.initializer.iter().filter_map(|weight| weight.name.as_deref()).collect();
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    let inputs: Vec<&str> = inputs.filter(|name| !weights.contains(name)).collect();
    let has = |name: &str| inputs.contains(&name);
    if !has(&settings.tokens) {
        return Err(files.unsupported(format!("other inputs than tokens (it has no input `{}`)", settings.tokens)));
    }
    settings.attention_mask.take_if(|name| !has(name));
    settings.position_ids.take_if(|name| !has(name));
    if !graph.output.iter().any(|output| output.name.as_ref() == Some(&settings.logits)) {
        return Err(files.unsupported(format!("other outputs than scores (it has no output `{}`)", settings.logits)));
    }
    let past = |name: &str| {
        let named = |pattern: &String| pattern.split_once('*').is_some_and(|(before, _)| name.starts_with(before));
        name.starts_with("past") || patterns.iter().any(named)
    };
    let ports = [Some(&settings.tokens), settings.attention_mask.as_ref(), settings.position_ids.as_ref()];
    let known = |name: &str| name == CACHE_BRANCH || past(name) || ports.into_iter().flatten().any(|port| port == name);
    match inputs.iter().find(|name| !known(name)) {
        Some(name) => Err(files.unsupported(format!("the input `{name}`"))),
        None if !inputs.iter().any(|name| past(name)) => Err(files.unsupported("all tokens at once: it has no cache")),
        None => Ok(inputs.iter().filter(|name| **name == CACHE_BRANCH).map(|name| (name.to_string(), true)).collect()),
    }
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

/// Settings from all files that have some; onnxruntime-genai's come first.
fn settings(
    files: &Files<'_>,
    genai: &Json,
    decoder: &Json,
    tokenizer: &[u8],
) -> Result<GenerationSettings, FolderError> {
    let read = |name: &str| files.json(name).map(|json| json.unwrap_or(Json::Null));
    let (config, generation, special) =
        (read("config.json")?, read("generation_config.json")?, read("tokenizer_config.json")?);
    let name = |json: &Json, default: &str| json.as_str().unwrap_or(default).to_string();
    let token = |key: &str| special[key].as_str().or_else(|| special[key]["content"].as_str()).map(str::to_string);
    let eos_token = token("eos_token");
    let mut end_tokens: Vec<u32> = Vec::new();
    for json in [&genai["model"]["eos_token_id"], &generation["eos_token_id"], &config["eos_token_id"]] {
        let numbers = json.as_array().map_or_else(|| std::slice::from_ref(json), Vec::as_slice);
        end_tokens.extend(numbers.iter().filter_map(|number| u32::try_from(number.as_u64()?).ok()));
    }
    end_tokens.extend(eos_token.as_ref().and_then(|text| number_of(tokenizer, text)));
    end_tokens.sort_unstable();
    end_tokens.dedup();
    let search = if genai.is_null() { &generation } else { &genai["search"] };
    let float = |key: &str| search[key].as_f64().map(|number| number as f32);
    let sampled = search["do_sample"].as_bool().unwrap_or(false);
    let whole = |json: &Json| json.as_u64();
    Ok(GenerationSettings {
        tokens: name(&decoder["inputs"]["input_ids"], "input_ids"),
        attention_mask: Some(name(&decoder["inputs"]["attention_mask"], "attention_mask")),
        position_ids: Some(name(&decoder["inputs"]["position_ids"], "position_ids")),
        logits: name(&decoder["outputs"]["logits"], "logits"),
        prefill: Some(PREFILL.to_string()),
        decode: DECODE.to_string(),
        context: whole(&genai["model"]["context_length"]).or_else(|| whole(&config["max_position_embeddings"])),
        end_tokens,
        bos_token: token("bos_token"),
        eos_token,
        temperature: if sampled { float("temperature").or(Some(1.0)) } else { Some(0.0) },
        top_k: search["top_k"].as_u64().and_then(|count| u32::try_from(count).ok()),
        top_p: float("top_p"),
        repetition_penalty: float("repetition_penalty"),
    })
}

/// The number of a special token, where the tokenizer has it.
fn number_of(tokenizer: &[u8], text: &str) -> Option<u32> {
    let tokenizer: Json = serde_json::from_slice(tokenizer).ok()?;
    let added = tokenizer["added_tokens"].as_array()?.iter().find(|token| token["content"] == text)?;
    u32::try_from(added["id"].as_u64()?).ok()
}
