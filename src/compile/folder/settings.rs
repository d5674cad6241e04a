//! What the configurations of a folder say about generating, and the names of caches.

use super::files::{Files, FolderError};
use crate::compile::{Branch, Source};
use crate::generation::GenerationSettings;
use ipuc_passes::options::Joined;
use ipuc_passes::prefill::PREFILL;
use serde_json::Value as Json;

/// Name of the entry that computes the scores of all positions.
pub(super) const DECODE: &str = "decode";

/// What a folder is compiled from, and how.
pub(super) struct Parts {
    pub(super) sources: Vec<Source>,
    /// Patterns of past and present.
    pub(super) states: Vec<String>,
    /// What entries take of a decoder that is merged of two.
    pub(super) branches: Vec<Branch>,
    /// Entries that are made of several sources.
    pub(super) joined: Vec<Joined>,
    /// Models that are left out.
    pub(super) left_out: Vec<String>,
    pub(super) settings: GenerationSettings,
}

/// Patterns of past and present as `genai_config.json` has them, with `%d` for the layer.
pub(super) fn genai_states(decoder: &Json) -> Vec<String> {
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

/// Settings from all files that have some; onnxruntime-genai's come first.
pub(super) fn settings(
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
        encoder: None,
        prefill: Some(PREFILL.to_string()),
        decode: DECODE.to_string(),
        start_tokens: Vec::new(),
        context: whole(&genai["model"]["context_length"])
            .or_else(|| whole(&config["max_position_embeddings"]))
            .or_else(|| whole(&config["text_config"]["max_position_embeddings"])),
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
