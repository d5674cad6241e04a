//! Decoders of several models: a model of embeddings before them, and pipelines. The text is that of the one model that they were
//! cut from, bit by bit.

use super::text::{compiled_folder, limits, opened};
use crate::support::language::{small_model, write_small_folder, write_tokenizer};
use crate::support::{graph, integers, node, port, tensor, write};
use ipuc::compile::CompileOptions;
use ipuc::compile::folder;
use ipuc::generate::{Generator, GeneratorOptions, Sampling, Token};
use ipuc_formats::onnx::schema::tensor_shape_proto::dimension::Value;
use ipuc_formats::onnx::schema::*;
use prost::Message as _;
use std::path::Path;

/// The model cut into three: `input_ids` to `inputs_embeds`, these to `hidden`, and that to `logits`.
struct Parts {
    embedding: ModelProto,
    text: ModelProto,
    head: ModelProto,
}

fn with_graph(model: &ModelProto, graph: GraphProto) -> ModelProto {
    ModelProto { graph: Some(graph), ..model.clone() }
}

/// A name in place of another in what steps read and give.
fn rename(nodes: &mut [NodeProto], from: &str, to: &str) {
    let names = nodes.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
    names.filter(|name| *name == from).for_each(|name| *name = to.to_string());
}

fn parts() -> Parts {
    let model = small_model();
    let GraphProto { mut node, mut input, mut output, initializer, .. } = model.graph.clone().unwrap();
    let weight = |name: &str| initializer.iter().find(|weight| weight.name() == name).unwrap().clone();
    let mut embed = vec![node.remove(node.iter().position(|node| node.output == ["x0"]).unwrap())];
    let mut head = vec![node.pop().unwrap()];
    let rows = |name: &str, batch: &str, length: &str| port(name, &[batch, length, "128"]);
    rename(&mut embed, "x0", "inputs_embeds");
    rename(&mut node, "x0", "inputs_embeds");
    for nodes in [&mut node, &mut head] {
        rename(nodes, "x2", "hidden");
    }
    let tokens = input.remove(0);
    let logits = output.remove(0);
    // Each model has names of its own for extents.
    let shapes = input.iter_mut().filter_map(|input| match &mut input.r#type.as_mut()?.value {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_mut(),
        _ => None,
    });
    for dim in shapes.flat_map(|shape| &mut shape.dim) {
        if let Some(Value::DimParam(name)) = &mut dim.value
            && name == "batch"
        {
            *name = "batch_size".to_string();
        }
    }
    input.insert(0, rows("inputs_embeds", "batch_size", "sequence_length"));
    output.insert(0, rows("hidden", "batch_size", "sequence_length"));
    let embedding =
        graph(vec![tokens], vec![weight("embedding")], embed, vec![rows("inputs_embeds", "batch", "sequence")]);
    let head = graph(vec![rows("hidden", "b", "n")], vec![weight("head")], head, vec![logits]);
    let kept = |weight: &TensorProto| weight.name() != "embedding" && weight.name() != "head";
    let text = graph(input, initializer.iter().filter(|weight| kept(weight)).cloned().collect(), node, output);
    Parts { embedding: with_graph(&model, embedding), text: with_graph(&model, text), head: with_graph(&model, head) }
}

/// Text and head as one model.
fn decoder(parts: &Parts) -> ModelProto {
    let (mut text, head) = (parts.text.clone().graph.unwrap(), parts.head.clone().graph.unwrap());
    text.node.extend(head.node);
    text.initializer.extend(head.initializer);
    text.output[0] = head.output[0].clone();
    with_graph(&parts.text, text)
}

/// The model of embeddings with rows of images in the places of tokens below 0; they have `length` elements.
fn with_images(parts: &Parts, length: &str) -> ModelProto {
    let mut graph = parts.embedding.clone().graph.unwrap();
    let zero = TensorProto { data_type: Some(7), raw_data: Some(vec![0; 8]), ..tensor("zero", &[], &[]) };
    graph.initializer.push(zero);
    rename(&mut graph.node, "input_ids", "words");
    rename(&mut graph.node, "inputs_embeds", "rows");
    graph.node.insert(0, node("Max", &["input_ids", "zero"], &["words"]));
    graph.node.extend([
        node("Less", &["input_ids", "zero"], &["is_image"]),
        node("NonZero", &["is_image"], &["places"]),
        node("Transpose", &["places"], &["indices"]),
        node("ScatterND", &["rows", "indices", "image_features"], &["inputs_embeds"]),
    ]);
    graph.input.push(port("image_features", &["images", length]));
    with_graph(&parts.embedding, graph)
}

const PORTS: &str = r#""attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value"}, "outputs": {"logits": "logits",
    "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}"#;

fn genai(decoder: &str, others: &str) -> String {
    format!(
        r#"{{"model": {{"context_length": 1024, "eos_token_id": 0, "decoder": {{{decoder}}}{others}}},
        "search": {{"do_sample": false, "top_k": 50}}}}"#
    )
}

const EMBEDDING: &str = r#", "embedding": {"filename": "embedding.onnx", "inputs": {"input_ids": "input_ids",
    "image_features": "image_features"}, "outputs": {"inputs_embeds": "inputs_embeds"}}"#;

fn pipeline(context: &str, iterator: &str) -> String {
    let stages = format!(
        r#""pipeline": [{{"embeddings": {{"filename": "embedding.onnx", "inputs": ["input_ids"], "outputs": ["inputs_embeds"]}},
        "context": {{"filename": "{context}", "run_on_prompt": true, "run_on_token_gen": false}},
        "iterator": {{"filename": "{iterator}", "run_on_prompt": false, "run_on_token_gen": true}}}},
        {{"lm_head": {{"filename": "head.onnx", "is_lm_head": true, "output_names_forwarder": {{"scores": "logits"}}}}}}]"#
    );
    genai(&format!(r#"{stages}, "inputs": {{"input_ids": "input_ids", {PORTS}"#), "")
}

fn put(folder: &Path, name: &str, model: &ModelProto) {
    write(folder, name, &model.encode_to_vec());
}

fn text(folder: &Path) -> Vec<Token> {
    let model = opened(&compiled_folder(folder, CompileOptions::default()), None);
    let options = GeneratorOptions { threads: 1, prefill_chunk: 8, lookup: 3 };
    let mut generator = Generator::new(&model, &options).unwrap();
    let prompt: Vec<u32> = (10..40).collect();
    let tokens = generator.generate(&prompt, &Sampling::greedy(), &limits()).unwrap();
    tokens.map(Result::unwrap).collect()
}

/// A folder of parts with this configuration, and what is left out of it.
fn folder_of(parts: &Parts, write_models: &dyn Fn(&Path, &Parts)) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path());
    write_models(folder.path(), parts);
    let left_out = folder::read(folder.path()).unwrap().left_out;
    (folder, left_out)
}

#[test]
fn parts_give_the_text_of_the_whole() {
    let whole = tempfile::tempdir().unwrap();
    write_small_folder(whole.path());
    let expected = text(whole.path());
    let parts = parts();
    type Case<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&Path, &Parts));
    let cases: [Case; 4] = [
        ("genai, embedding", &["vision"], &|folder, parts| {
            let config = genai(
                &format!(r#""filename": "text.onnx", "inputs": {{"inputs_embeds": "inputs_embeds", {PORTS}"#),
                &format!(r#"{EMBEDDING}, "vision": {{"filename": "vision.onnx"}}"#),
            );
            write(folder, "genai_config.json", config.as_bytes());
            put(folder, "embedding.onnx", &with_images(parts, "128"));
            put(folder, "text.onnx", &decoder(parts));
        }),
        ("genai, pipeline", &[], &|folder, parts| {
            write(folder, "genai_config.json", pipeline("text.onnx", "text.onnx").as_bytes());
            stages(folder, parts, &["text.onnx"]);
        }),
        ("genai, pipeline of two", &[], &|folder, parts| {
            write(folder, "genai_config.json", pipeline("context.onnx", "iterator.onnx").as_bytes());
            stages(folder, parts, &["context.onnx", "iterator.onnx"]);
        }),
        ("Optimum", &["vision_encoder.onnx"], &|folder, parts| {
            write(folder, "config.json", br#"{"eos_token_id": 0, "text_config": {"max_position_embeddings": 1024}}"#);
            put(folder, "onnx/embed_tokens.onnx", &parts.embedding);
            put(folder, "onnx/decoder_model_merged.onnx", &decoder(parts));
            write(folder, "onnx/vision_encoder.onnx", b"");
        }),
    ];
    for (name, left_out, write_models) in cases {
        let (folder, found) = folder_of(&parts, write_models);
        assert_eq!(found, left_out, "{name}");
        assert!(text(folder.path()) == expected, "{name}");
        let model = opened(&folder.path().join("model.ipu"), None);
        let manifest = model.model().manifest();
        let entries: Vec<&str> = manifest.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(entries, ["decode", "prefill"], "{name}");
        assert_eq!(manifest.entries[0].states, manifest.entries[1].states, "{name}");
        assert!(manifest.states.iter().all(|state| state.growth.is_some()), "{name}");
        assert_eq!(model.settings().context, Some(1024), "{name}");
        let bytes = |path: &Path| std::fs::metadata(path.join("model.ipu")).unwrap().len();
        // Both entries have the same weights, but for those that the folder has in two files.
        let (found, one) = (bytes(folder.path()), bytes(whole.path()));
        let once = found < one + one / 8;
        assert_eq!(once, name != "genai, pipeline of two", "{name}: {found} bytes, {one} of the whole");
    }
}

/// The models of a pipeline, whose last one has a name of its own for scores.
fn stages(folder: &Path, parts: &Parts, texts: &[&str]) {
    put(folder, "embedding.onnx", &parts.embedding);
    texts.iter().for_each(|name| put(folder, name, &parts.text));
    let mut head = parts.head.clone().graph.unwrap();
    rename(&mut head.node, "logits", "scores");
    head.output[0].name = Some("scores".to_string());
    put(folder, "head.onnx", &with_graph(&parts.head, head));
}

#[test]
fn parts_that_text_cannot_do_without_are_refused() {
    let parts = parts();
    let refused = |write_models: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        write_tokenizer(folder.path());
        stages(folder.path(), &parts, &["text.onnx"]);
        write_models(folder.path());
        let error = folder::read(folder.path()).err().unwrap();
        error.to_string().replace(&folder.path().display().to_string(), "DIR")
    };
    let config = |config: String| move |folder: &Path| write(folder, "genai_config.json", config.as_bytes());
    let text = format!(r#""filename": "text.onnx", "inputs": {{"inputs_embeds": "inputs_embeds", {PORTS}"#);
    let unsized_rows = |folder: &Path| {
        config(genai(&text, EMBEDDING))(folder);
        put(folder, "embedding.onnx", &with_images(&parts, "width"));
    };
    assert_eq!(
        refused(&unsized_rows),
        "the model in `DIR` needs rows of the input `image_features`, whose length it does not say, which is not supported"
    );
    let windowed = pipeline("text.onnx", "text.onnx")
        .replace(r#""pipeline""#, r#""sliding_window": {"window_size": 64}, "pipeline""#);
    assert_eq!(
        refused(&config(windowed)),
        "the model in `DIR` needs a pipeline that reads prompts window by window (`sliding_window`), which is not supported"
    );
    let nameless = pipeline("text.onnx", "text.onnx").replace(r#""filename": "head.onnx", "#, "");
    assert_eq!(
        refused(&config(nameless)),
        "cannot use `DIR/genai_config.json`: it names no file as `model.decoder.pipeline.lm_head.filename`"
    );
    let twice = pipeline("text.onnx", "text.onnx").replace("lm_head", "context");
    assert_eq!(
        refused(&config(twice)),
        "cannot use `DIR/genai_config.json`: two models of its decoder are called `context`"
    );
    let counted = |folder: &Path| {
        config(pipeline("counted.onnx", "counted.onnx"))(folder);
        let mut graph = parts.text.clone().graph.unwrap();
        graph.input.push(integers("past_seq_len", &["1"]));
        put(folder, "counted.onnx", &with_graph(&parts.text, graph));
    };
    assert_eq!(refused(&counted), "the model in `DIR` needs the input `past_seq_len`, which is not supported");
    let fixed = |folder: &Path| {
        config(pipeline("text.onnx", "text.onnx"))(folder);
        let mut graph = parts.embedding.clone().graph.unwrap();
        graph.input[0] = integers("input_ids", &["1", "64"]);
        put(folder, "embedding.onnx", &with_graph(&parts.embedding, graph));
    };
    assert_eq!(
        refused(&fixed),
        "the model in `DIR` needs prompts of 64 tokens at a time (`embeddings`), which is not supported"
    );
    let beside = "the model in `DIR` needs a model `vision` beside its decoder, which is not supported";
    let images = pipeline("text.onnx", "text.onnx").replace(r#""context_length""#, r#""vision": {}, "context_length""#);
    assert_eq!(refused(&config(images)), beside);
    let only_images = genai(&text, r#", "vision": {"filename": "vision.onnx"}"#);
    assert_eq!(refused(&config(only_images)), beside);
}
