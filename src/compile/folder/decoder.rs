//! Models of one decoder.

use super::files::{Files, FolderError, Ports, exported_decoder, genai_file, graph, refuse_others};
use super::joined::{Stages, exported_stages, genai_stages};
use super::settings::{DECODE, Parts, genai_states, settings};
use crate::compile::{Branch, Source};
use crate::generation::GenerationSettings;
use serde_json::Value as Json;
use std::path::PathBuf;

/// The input by which merged decoders choose the branch that reads the cache; the cache of a decoder alone may be empty.
pub(super) const CACHE_BRANCH: &str = "use_cache_branch";

/// A decoder that is the whole model.
pub(super) fn alone(files: &Files<'_>, genai: Option<Json>, tokenizer: &[u8]) -> Result<Parts, FolderError> {
    let stages = match &genai {
        Some(genai) => genai_stages(files, genai)?,
        None => exported_stages(files)?,
    };
    if let Some(stages) = stages {
        return of_stages(files, &genai.unwrap_or(Json::Null), stages, tokenizer);
    }
    let (path, decoder) = match &genai {
        Some(genai) => genai_decoder(files, genai)?,
        None => (exported_decoder(files)?, Json::Null),
    };
    let mut settings = settings(files, &genai.unwrap_or(Json::Null), &decoder, tokenizer)?;
    let patterns = genai_states(&decoder);
    let ports = Ports::of(&graph(files, &path)?);
    check_ports(files, &ports, &patterns, &mut settings)?;
    let branches = merged(&ports, DECODE).into_iter().collect();
    let sources = vec![Source { entry: DECODE.to_string(), path }];
    Ok(Parts { sources, states: states(patterns), branches, settings, joined: Vec::new(), left_out: Vec::new() })
}

/// A decoder of several models.
fn of_stages(files: &Files<'_>, genai: &Json, stages: Stages, tokenizer: &[u8]) -> Result<Parts, FolderError> {
    let decoder = &genai["model"]["decoder"];
    let mut settings = settings(files, genai, decoder, tokenizer)?;
    settings.tokens = stages.tokens.clone();
    let patterns = genai_states(decoder);
    for ports in stages.ports() {
        check_ports(files, &ports, &patterns, &mut settings)?;
    }
    let (sources, joined) = stages.joined();
    let mut branches = Vec::new();
    for stage in &stages.stages {
        branches.extend(merged(&stage.ports, &stage.name));
        if !stage.without_rows.is_empty() {
            let (entry, without_rows) = (stage.name.clone(), stage.without_rows.clone());
            branches.push(Branch { entry, without_rows, ..Branch::default() });
        }
    }
    Ok(Parts { sources, states: states(patterns), branches, settings, joined, left_out: stages.left_out })
}

/// Patterns of caches; names that exporters give them where there is none.
fn states(patterns: Vec<String>) -> Vec<String> {
    if patterns.is_empty() { vec!["auto".to_string()] } else { patterns }
}

/// Path and description of the decoder of a folder of onnxruntime-genai.
fn genai_decoder(files: &Files<'_>, config: &Json) -> Result<(PathBuf, Json), FolderError> {
    let decoder = config["model"]["decoder"].clone();
    refuse_others(files, &config["model"])?;
    Ok((genai_file(files, "decoder", &decoder)?, decoder))
}

/// Keep the settings of inputs that the model has, and refuse inputs of no known meaning.
fn check_ports(
    files: &Files<'_>,
    ports: &Ports,
    patterns: &[String],
    settings: &mut GenerationSettings,
) -> Result<(), FolderError> {
    let Ports { inputs, outputs } = ports;
    let has = |name: &str| inputs.iter().any(|input| input == name);
    if !has(&settings.tokens) {
        return Err(files.unsupported(format!("other inputs than tokens (it has no input `{}`)", settings.tokens)));
    }
    settings.attention_mask.take_if(|name| !has(name));
    settings.position_ids.take_if(|name| !has(name));
    if !outputs.contains(&settings.logits) {
        return Err(files.unsupported(format!("other outputs than scores (it has no output `{}`)", settings.logits)));
    }
    let past = |name: &str| {
        let named = |pattern: &String| pattern.split_once('*').is_some_and(|(before, _)| name.starts_with(before));
        // Without patterns the names that exporters give to caches tell.
        if patterns.is_empty() { name.starts_with("past") } else { patterns.iter().any(named) }
    };
    let ports = [Some(&settings.tokens), settings.attention_mask.as_ref(), settings.position_ids.as_ref()];
    let known = |name: &str| name == CACHE_BRANCH || past(name) || ports.into_iter().flatten().any(|port| port == name);
    match inputs.iter().find(|name| !known(name)) {
        Some(name) => Err(files.unsupported(format!("the input `{name}`"))),
        None if !inputs.iter().any(|name| past(name)) => Err(files.unsupported("all tokens at once: it has no cache")),
        None => Ok(()),
    }
}

/// The branch of a model that is taken, where it is merged of two.
fn merged(ports: &Ports, entry: &str) -> Option<Branch> {
    ports.inputs.iter().any(|input| input == CACHE_BRANCH).then(|| with_cache(entry, true))
}

/// The branch of a merged decoder that reads the cache, or the other one.
pub(super) fn with_cache(entry: &str, reads: bool) -> Branch {
    let constant_inputs = vec![(CACHE_BRANCH.to_string(), reads)];
    Branch { entry: entry.to_string(), constant_inputs, ..Branch::default() }
}
