//! Models of one decoder.

use super::files::{Files, FolderError, genai_file, graph, input_names, refuse_others};
use super::settings::{DECODE, Parts, genai_states, settings};
use crate::compile::{Branch, Source};
use crate::generation::GenerationSettings;
use ipuc_formats::onnx::schema::GraphProto;
use serde_json::Value as Json;
use std::fs;
use std::path::PathBuf;

/// Names of decoders with a cache, as Optimum and transformers export them; the first that is there is taken.
const DECODERS: &[&str] = &["decoder_model_merged.onnx", "decoder_with_past_model.onnx", "model.onnx"];
/// Models without which such a decoder gives no text.
const PARTNERS: &[(&str, &str)] = &[("embed_tokens.onnx", "a model of embeddings")];
/// The input by which merged decoders choose the branch that reads the cache; the cache of a decoder alone may be empty.
pub(super) const CACHE_BRANCH: &str = "use_cache_branch";

/// A decoder that is the whole model.
pub(super) fn alone(files: &Files<'_>, genai: Option<Json>, tokenizer: &[u8]) -> Result<Parts, FolderError> {
    let (path, decoder) = match &genai {
        Some(genai) => genai_decoder(files, genai)?,
        None => (exported_decoder(files)?, Json::Null),
    };
    let mut settings = settings(files, &genai.unwrap_or(Json::Null), &decoder, tokenizer)?;
    let patterns = genai_states(&decoder);
    let branches = check_ports(files, &graph(files, &path)?, &patterns, &mut settings)?;
    let states = if patterns.is_empty() { vec!["auto".to_string()] } else { patterns };
    Ok(Parts { sources: vec![Source { entry: DECODE.to_string(), path }], states, branches, settings })
}

/// Path and description of the decoder of a folder of onnxruntime-genai.
fn genai_decoder(files: &Files<'_>, config: &Json) -> Result<(PathBuf, Json), FolderError> {
    let decoder = config["model"]["decoder"].clone();
    refuse_others(files, &config["model"])?;
    Ok((genai_file(files, "decoder", &decoder)?, decoder))
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

/// Keep the settings of inputs that the model has, and refuse inputs of no known meaning; gives the branch that is taken.
fn check_ports(
    files: &Files<'_>,
    graph: &GraphProto,
    patterns: &[String],
    settings: &mut GenerationSettings,
) -> Result<Vec<Branch>, FolderError> {
    let inputs = input_names(graph);
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
        None => Ok(inputs.contains(&CACHE_BRANCH).then(|| with_cache(DECODE, true)).into_iter().collect()),
    }
}

/// The branch of a merged decoder that reads the cache, or the other one.
pub(super) fn with_cache(entry: &str, reads: bool) -> Branch {
    let constant_inputs = vec![(CACHE_BRANCH.to_string(), reads)];
    Branch { entry: entry.to_string(), constant_inputs, ..Branch::default() }
}
