//! Models that read an input and answer it: an encoder, and a decoder that reads what it gives.
//!
//! | file | entry | reads | gives |
//! | --- | --- | --- | --- |
//! | `encoder_model.onnx` | `encode` | the input | its encoding, for the decoder |
//! | `decoder_model.onnx` | `start` | the first tokens, the encoding | scores, caches of the answer and of the input |
//! | `decoder_with_past_model.onnx` | `decode` | further tokens, both caches | scores, the cache of the answer |
//!
//! Where Optimum has merged both decoders (`decoder_model_merged.onnx`), `start` and `decode` are its two branches.
//!
//! The decoder of onnxruntime-genai is `decode` alone: its encoder gives the cache of
//! the input. What an entry gives to another is state.

use super::decoder::{CACHE_BRANCH, with_cache};
use super::files::{Files, FolderError, genai_file, graph, input_names, refuse_others};
use super::settings::{DECODE, Parts, genai_states, settings};
use crate::compile::{Branch, Source};
use crate::generation::{EncoderSettings, GenerationSettings};
use ipuc_formats::onnx::schema::GraphProto;
use serde_json::Value as Json;
use std::path::PathBuf;

/// Entries that read the input, and the first tokens of the answer.
const ENCODE: &str = "encode";
const START: &str = "start";
/// Optimum's and transformers' names of the files.
const ENCODER: &str = "encoder_model.onnx";
const DECODER: &str = "decoder_model.onnx";
const DECODER_WITH_PAST: &str = "decoder_with_past_model.onnx";
const MERGED_DECODER: &str = "decoder_model_merged.onnx";
/// The input of decoders for the encoding, the output of encoders, and the state that is both.
const ENCODING: &str = "encoder_hidden_states";
const ENCODED: &str = "last_hidden_state";
const ENCODER_MASK: &str = "encoder_attention_mask";
/// Past and present of decoders.
const PAST: (&str, &str) = ("past_key_values", "present");

/// Encoder and decoder; `None` where the folder has no encoder.
pub(super) fn parts(files: &Files<'_>, genai: Option<&Json>, tokenizer: &[u8]) -> Result<Option<Parts>, FolderError> {
    match genai {
        Some(genai) if genai["model"].get("encoder").is_some() => genai_parts(files, genai, tokenizer).map(Some),
        Some(_) => Ok(None),
        None => exported_parts(files, tokenizer),
    }
}

fn source(entry: &str, path: PathBuf) -> Source {
    Source { entry: entry.to_string(), path }
}

/// As Optimum and transformers export them.
fn exported_parts(files: &Files<'_>, tokenizer: &[u8]) -> Result<Option<Parts>, FolderError> {
    let folders = [files.folder.to_owned(), files.folder.join("onnx")];
    let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let Some(encoder) = find(ENCODER) else { return Ok(None) };
    let missing = |file: &str| FolderError::Missing { folder: files.folder.to_owned(), file: file.to_string() };
    let merged = find(MERGED_DECODER);
    let part = |name| find(name).ok_or_else(|| missing(name));
    // Two models say more than one that is merged of them: they come first where both are there.
    let [first, further] = match (part(DECODER), part(DECODER_WITH_PAST), merged) {
        (Ok(first), Ok(further), _) => [first, further],
        (_, _, Some(merged)) => [merged.clone(), merged],
        (Err(error), _, None) | (_, Err(error), None) => return Err(error),
    };
    let mut branches = Vec::new();
    let mut settings = settings(files, &Json::Null, &Json::Null, tokenizer)?;
    let encoder_graph = graph(files, &encoder)?;
    let mut described = encoder_settings(&encoder_graph);
    if !encoder_graph.output.iter().any(|output| output.name.as_deref() == Some(ENCODED)) {
        return Err(files.unsupported(format!("another encoding (its encoder has no output `{ENCODED}`)")));
    }
    for path in [&first, &further] {
        let graph = graph(files, path)?;
        let inputs = input_names(&graph);
        let known = |name: &str| {
            name == settings.tokens
                || [ENCODING, ENCODER_MASK].contains(&name)
                || name.starts_with(PAST.0)
                || name == CACHE_BRANCH && first == further
        };
        if let Some(name) = inputs.iter().find(|name| !known(name)) {
            return Err(files.unsupported(format!("the input `{name}`")));
        }
        if inputs.contains(&ENCODER_MASK) {
            if described.tokens.is_none() {
                return Err(files.unsupported(format!("the input `{ENCODER_MASK}` for an input that is no text")));
            }
            described.decoder_mask = Some(ENCODER_MASK.to_string());
        }
        if first == further {
            branches = merged_branches(&graph, &settings.tokens);
        }
    }
    described.start = Some(START.to_string());
    start_tokens(files, &mut settings)?;
    (settings.attention_mask, settings.position_ids, settings.prefill) = (None, None, None);
    settings.encoder = Some(described);
    let sources = vec![source(ENCODE, encoder), source(START, first), source(DECODE, further)];
    let states = vec![format!("{ENCODING}={ENCODED}"), format!("{}.*={}.*", PAST.0, PAST.1)];
    Ok(Some(Parts { sources, states, branches, settings, joined: Vec::new(), left_out: Vec::new() }))
}

/// The branches of a decoder that is merged of two: the first tokens have no cache, and further ones come one by one and leave
/// that of the input as it is, for which their branch gives placeholders.
fn merged_branches(graph: &GraphProto, tokens: &str) -> Vec<Branch> {
    let inputs = input_names(graph).into_iter().filter(|name| name.starts_with(PAST.0)).map(str::to_string);
    let outputs = graph.output.iter().filter_map(|output| output.name.clone());
    let of_input = |name: &String| name.strip_prefix(PAST.1).is_some_and(|rest| rest.contains(".encoder."));
    vec![
        Branch { left_out: inputs.collect(), ..with_cache(START, false) },
        Branch {
            left_out: outputs.filter(of_input).collect(),
            extents: vec![(tokens.to_string(), 1, 1)],
            ..with_cache(DECODE, true)
        },
    ]
}

/// As onnxruntime-genai has them.
fn genai_parts(files: &Files<'_>, genai: &Json, tokenizer: &[u8]) -> Result<Parts, FolderError> {
    let (encoder, decoder) = (&genai["model"]["encoder"], &genai["model"]["decoder"]);
    refuse_others(files, &genai["model"])?;
    let paths = (genai_file(files, "encoder", encoder)?, genai_file(files, "decoder", decoder)?);
    let mut settings = settings(files, genai, decoder, tokenizer)?;
    let described = encoder_settings(&graph(files, &paths.0)?);
    let mut states = genai_states(decoder);
    for kind in ["key", "value"] {
        let past = decoder["inputs"][format!("cross_past_{kind}_names")].as_str();
        let present = encoder["outputs"][format!("cross_present_{kind}_names")].as_str();
        let Some((past, present)) = past.zip(present) else {
            return Err(files.unsupported("an encoder that gives the decoder no cache"));
        };
        states.push(format!("{}={}", past.replacen("%d", "*", 1), present.replacen("%d", "*", 1)));
    }
    let graph = graph(files, &paths.1)?;
    let known = |name: &str| {
        let past = |pattern: &String| pattern.split_once('*').is_some_and(|(before, _)| name.starts_with(before));
        name == settings.tokens || states.iter().any(past)
    };
    if let Some(name) = input_names(&graph).iter().find(|name| !known(name)) {
        return Err(files.unsupported(format!("the input `{name}`")));
    }
    start_tokens(files, &mut settings)?;
    (settings.attention_mask, settings.position_ids, settings.prefill) = (None, None, None);
    settings.encoder = Some(described);
    let sources = vec![source(ENCODE, paths.0), source(DECODE, paths.1)];
    Ok(Parts { sources, states, branches: Vec::new(), settings, joined: Vec::new(), left_out: Vec::new() })
}

/// What an encoder reads.
fn encoder_settings(graph: &GraphProto) -> EncoderSettings {
    let inputs = input_names(graph);
    let named = |name: &str| inputs.contains(&name).then(|| name.to_string());
    EncoderSettings {
        entry: ENCODE.to_string(),
        tokens: named("input_ids"),
        attention_mask: named("attention_mask"),
        start: None,
        decoder_mask: None,
    }
}

/// The token that an answer begins with, and those that the model's authors want behind it.
fn start_tokens(files: &Files<'_>, settings: &mut GenerationSettings) -> Result<(), FolderError> {
    let (generation, config) = (files.json("generation_config.json")?, files.json("config.json")?);
    let (generation, config) = (generation.unwrap_or(Json::Null), config.unwrap_or(Json::Null));
    let number = |json: &Json| json.as_u64().and_then(|number| u32::try_from(number).ok());
    let first = [&generation, &config].into_iter().find_map(|json| number(&json["decoder_start_token_id"]));
    let forced = generation["forced_decoder_ids"].as_array().or_else(|| config["forced_decoder_ids"].as_array());
    // Pairs of a place and the token there; the one that is detected from the input is none.
    let forced = forced.into_iter().flatten().filter_map(|pair| number(&pair[1]));
    settings.start_tokens = first.into_iter().chain(forced).collect();
    Ok(())
}
