//! Decoders of several models, each of which reads what those before it give.
//!
//! | folder | models |
//! | --- | --- |
//! | onnxruntime-genai, `model.embedding` | tokens become rows of numbers, which the decoder reads |
//! | onnxruntime-genai, `model.decoder.pipeline` | the stages, of which some are for prompts and some for single tokens |
//! | Optimum, transformers | `embed_tokens.onnx` before the decoder |
//!
//! Models of images and sound, whose results a model of embeddings puts among the rows, are left out: there are none of their rows.

use super::files::{Files, FolderError, Ports, exported_decoder, genai_file, graph, refuse_others};
use super::settings::DECODE;
use crate::compile::Source;
use crate::compile::opened::empty_shape;
use ipuc_formats::onnx::schema::tensor_shape_proto::dimension;
use ipuc_formats::onnx::schema::{GraphProto, type_proto};
use ipuc_passes::options::{Joined, Part};
use ipuc_passes::prefill::PREFILL;
use serde_json::Value as Json;
use std::path::PathBuf;

/// Optimum's and transformers' model of embeddings, and models beside it that text does without.
const EMBEDDINGS: &str = "embed_tokens.onnx";
const OTHERS: &[&str] = &["vision_encoder.onnx", "audio_encoder.onnx"];
/// The parts of `genai_config.json` that text does without where there is a model of embeddings.
const OTHER_PARTS: &[&str] = &["vision", "speech"];

/// A model of a chain.
pub(super) struct Stage {
    pub(super) name: String,
    path: PathBuf,
    pub(super) ports: Ports,
    renamed: Vec<(String, String)>,
    /// Inputs for what the chain does without.
    pub(super) without_rows: Vec<String>,
    runs_on_prompts: bool,
    runs_on_tokens: bool,
}

/// The models of a decoder.
pub(super) struct Stages {
    pub(super) stages: Vec<Stage>,
    /// The input for tokens.
    pub(super) tokens: String,
    /// Models that are left out.
    pub(super) left_out: Vec<String>,
}

impl Stages {
    /// The models that run on prompts, or on single tokens.
    fn chain(&self, prompts: bool) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(move |stage| if prompts { stage.runs_on_prompts } else { stage.runs_on_tokens })
    }

    /// Whether prompts are read by other models than single tokens are.
    fn parts_with_prompts(&self) -> bool {
        let models = |prompts| self.chain(prompts).map(|stage| (&stage.path, &stage.renamed)).collect::<Vec<_>>();
        models(true) != models(false)
    }

    /// The models as sources, and the entries that are made of them.
    pub(super) fn joined(&self) -> (Vec<Source>, Vec<Joined>) {
        let two = self.parts_with_prompts();
        let used = self.stages.iter().filter(|stage| stage.runs_on_tokens || two);
        let source = |stage: &Stage| Source { entry: stage.name.clone(), path: stage.path.clone() };
        let part = |stage: &Stage| Part { entry: stage.name.clone(), renamed: stage.renamed.clone() };
        let entry = |(entry, prompts): (&str, bool)| Joined {
            entry: entry.to_string(),
            parts: self.chain(prompts).map(part).collect(),
        };
        let entries = [(DECODE, false)].into_iter().chain(two.then_some((PREFILL, true)));
        (used.map(source).collect(), entries.map(entry).collect())
    }

    /// What each entry reads and gives.
    pub(super) fn ports(&self) -> Vec<Ports> {
        let of_chain = |prompts| {
            let (mut ports, mut read) = (Ports::default(), Vec::new());
            for stage in self.chain(prompts) {
                for input in stage.ports.inputs.iter().filter(|input| !stage.without_rows.contains(input)) {
                    if ports.outputs.contains(input) {
                        read.push(input.clone());
                    } else if !ports.inputs.contains(input) {
                        ports.inputs.push(input.clone());
                    }
                }
                ports.outputs.extend(stage.ports.outputs.iter().map(|name| stage.name_of(name).to_string()));
            }
            ports.outputs.retain(|output| !read.contains(output));
            ports
        };
        let two = self.parts_with_prompts();
        [false].into_iter().chain(two.then_some(true)).map(of_chain).collect()
    }
}

impl Stage {
    fn new(files: &Files<'_>, name: &str, path: PathBuf) -> Result<Stage, FolderError> {
        let ports = Ports::of(&graph(files, &path)?);
        Ok(Stage {
            name: name.to_string(),
            path,
            ports,
            renamed: Vec::new(),
            without_rows: Vec::new(),
            runs_on_prompts: true,
            runs_on_tokens: true,
        })
    }

    /// The name of an output for others.
    fn name_of<'a>(&'a self, output: &'a str) -> &'a str {
        self.renamed.iter().find(|(own, _)| own == output).map_or(output, |(_, other)| other)
    }
}

/// The models of a decoder of onnxruntime-genai; `None` where it is one.
pub(super) fn genai_stages(files: &Files<'_>, config: &Json) -> Result<Option<Stages>, FolderError> {
    let (model, decoder) = (&config["model"], &config["model"]["decoder"]);
    let (embedding, pipeline) = (model.get("embedding"), decoder.get("pipeline"));
    if embedding.is_none() && pipeline.is_none() {
        return Ok(None);
    }
    if embedding.is_none() {
        refuse_others(files, model)?;
    }
    let name = |json: &Json, default: &str| json.as_str().unwrap_or(default).to_string();
    let mut stages =
        Stages { stages: Vec::new(), tokens: name(&decoder["inputs"]["input_ids"], "input_ids"), left_out: Vec::new() };
    if let Some(embedding) = embedding {
        let stage = genai_embedding(files, embedding, decoder)?;
        stages.tokens = name(&embedding["inputs"]["input_ids"], "input_ids");
        stages.stages.push(stage);
        let parts = OTHER_PARTS.iter().filter(|part| model.get(**part).is_some());
        stages.left_out = parts.map(|part| (*part).to_string()).collect();
    }
    match pipeline {
        Some(pipeline) => stages.stages.extend(genai_pipeline(files, decoder, pipeline)?),
        None => stages.stages.push(Stage::new(files, "decoder", genai_file(files, "decoder", decoder)?)?),
    }
    for (at, stage) in stages.stages.iter().enumerate() {
        if stages.stages[..at].iter().any(|other| other.name == stage.name) {
            let path = files.folder.join("genai_config.json");
            return Err(files.fault(&path, format!("two models of its decoder are called `{}`", stage.name)));
        }
    }
    Ok(Some(stages))
}

/// The model of embeddings, which has no rows of images and sound.
fn genai_embedding(files: &Files<'_>, described: &Json, decoder: &Json) -> Result<Stage, FolderError> {
    let name = |json: &Json| json.as_str().unwrap_or("inputs_embeds").to_string();
    let mut stage = Stage::new(files, "embedding", genai_file(files, "embedding", described)?)?;
    let (own, other) = (name(&described["outputs"]["inputs_embeds"]), name(&decoder["inputs"]["inputs_embeds"]));
    if own != other {
        stage.renamed.push((own, other));
    }
    let graph = graph(files, &stage.path)?;
    let inputs = described["inputs"].as_object().into_iter().flatten();
    for input in inputs.filter(|(kind, _)| *kind != "input_ids").filter_map(|(_, input)| input.as_str()) {
        let Some(port) = graph.input.iter().find(|port| port.name.as_deref() == Some(input)) else { continue };
        // f32, f16 and bf16.
        match empty_shape(port) {
            Some((1 | 10 | 16, _)) => stage.without_rows.push(input.to_string()),
            Some(_) | None => {
                return Err(files.unsupported(format!("rows of the input `{input}`, whose length it does not say")));
            }
        }
    }
    Ok(stage)
}

/// The stages of a pipeline: a list of objects, each of which describes models by their names.
fn genai_pipeline(files: &Files<'_>, decoder: &Json, pipeline: &Json) -> Result<Vec<Stage>, FolderError> {
    if decoder.get("sliding_window").is_some() {
        return Err(files.unsupported("a pipeline that reads prompts window by window (`sliding_window`)"));
    }
    let parts = pipeline.as_array().into_iter().flatten().filter_map(Json::as_object).flatten();
    let tokens = decoder["inputs"]["input_ids"].as_str().unwrap_or("input_ids");
    let mut stages = Vec::new();
    for (name, described) in parts {
        let mut stage = Stage::new(files, name, genai_file(files, &format!("decoder.pipeline.{name}"), described)?)?;
        let renamed = described["output_names_forwarder"].as_object().into_iter().flatten();
        stage.renamed = renamed.filter_map(|(own, other)| Some((own.clone(), other.as_str()?.to_string()))).collect();
        stage.runs_on_prompts = described["run_on_prompt"].as_bool().unwrap_or(true);
        stage.runs_on_tokens = described["run_on_token_gen"].as_bool().unwrap_or(true);
        if let Some(count) = fixed_tokens(&graph(files, &stage.path)?, tokens) {
            return Err(files.unsupported(format!("prompts of {count} tokens at a time (`{name}`)")));
        }
        stages.push(stage);
    }
    Ok(stages)
}

/// How many tokens a model takes, where it takes no other number but one.
fn fixed_tokens(graph: &GraphProto, tokens: &str) -> Option<i64> {
    let input = graph.input.iter().find(|input| input.name.as_deref() == Some(tokens))?;
    let Some(type_proto::Value::TensorType(tensor)) = &input.r#type.as_ref()?.value else { return None };
    match tensor.shape.as_ref()?.dim.get(1)?.value {
        Some(dimension::Value::DimValue(count)) if count > 1 => Some(count),
        Some(_) | None => None,
    }
}

/// The models of a folder of Optimum or transformers; `None` where there is no model of embeddings.
pub(super) fn exported_stages(files: &Files<'_>) -> Result<Option<Stages>, FolderError> {
    let Some(path) = files.find(EMBEDDINGS) else { return Ok(None) };
    let embedding = Stage::new(files, "embed_tokens", path)?;
    let decoder = Stage::new(files, "decoder", exported_decoder(files)?)?;
    let left_out = OTHERS.iter().filter(|name| files.find(name).is_some()).map(|name| (*name).to_string()).collect();
    Ok(Some(Stages { stages: vec![embedding, decoder], tokens: "input_ids".to_string(), left_out }))
}
