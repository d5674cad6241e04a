//! A small language model as a folder: two layers of attention over a cache with random weights, and a tokenizer of words.

use super::{Random, graph, node, port, tensor, write};
use ipuc_formats::onnx::schema::*;
use prost::Message as _;
use std::path::Path;

/// Words of the vocabulary: `w2`, `w3` .. behind the end of a text and the unknown word.
pub const VOCABULARY: usize = 512;
const HIDDEN: usize = 128;
/// Elements between both products of a layer: most weights are theirs.
const INNER: usize = 2048;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const CACHE_HEADS: usize = 2;
const HEAD: usize = HIDDEN / HEADS;
/// Most positions.
pub const CONTEXT: usize = 1024;

const I64: i32 = 7;
const I32: i32 = 6;

/// Most positions of [`write_windowed_folder`].
pub const WINDOWED_CONTEXT: usize = 4096;

/// What decoders have of their own.
#[derive(Clone, Copy)]
struct Decoder {
    seed: u64,
    inner: usize,
    context: usize,
    /// Keys that a query sees, with its own; -1 where it sees all before.
    windows: [i64; LAYERS],
}

const PLAIN: Decoder = Decoder { seed: 7, inner: INNER, context: CONTEXT, windows: [-1; LAYERS] };

/// Write the folder, as onnxruntime-genai has it.
pub fn write_folder(folder: &Path) {
    write_folder_with(folder, PLAIN, &tokenizer());
}

/// Write a folder with other weights.
pub fn write_other_folder(folder: &Path) {
    write_folder_with(folder, Decoder { seed: 8, ..PLAIN }, &tokenizer());
}

/// Write a folder with a quarter of the weights, for what goes over all of them again and again.
pub fn write_small_folder(folder: &Path) {
    write_folder_with(folder, Decoder { inner: INNER / 16, ..PLAIN }, &tokenizer());
}

/// Write a small folder whose layers see so many keys, all of those before where -1.
pub fn write_windowed_folder(folder: &Path, windows: [i64; LAYERS]) {
    let decoder = Decoder { inner: INNER / 16, context: WINDOWED_CONTEXT, windows, ..PLAIN };
    write_folder_with(folder, decoder, &tokenizer());
}

/// Write a folder whose tokens are bytes.
pub fn write_folder_of_bytes(folder: &Path) {
    write_folder_with(folder, PLAIN, &byte_tokenizer());
}

fn write_folder_with(folder: &Path, decoder: Decoder, tokenizer: &str) {
    write(folder, "model.onnx", &model(decoder).encode_to_vec());
    write_texts(folder, tokenizer);
    write(folder, "genai_config.json", genai_config(decoder.context).as_bytes());
}

/// The model of [`write_small_folder`].
pub fn small_model() -> ModelProto {
    model(Decoder { inner: INNER / 16, ..PLAIN })
}

/// Write what belongs to text beside models of any folder.
pub fn write_tokenizer(folder: &Path) {
    write_texts(folder, &tokenizer());
}

fn write_texts(folder: &Path, tokenizer: &str) {
    write(folder, "tokenizer.json", tokenizer.as_bytes());
    write(folder, "tokenizer_config.json", br#"{"bos_token": null, "eos_token": {"content": "<end>"}}"#);
    write(folder, "chat_template.jinja", b"{% for message in messages %}{{ message.content.strip() }} w2 {% endfor %}");
}

fn genai_config(context: usize) -> String {
    format!(
        r#"{{"model": {{"context_length": {context}, "eos_token_id": 0, "decoder": {{"filename": "model.onnx",
        "inputs": {{"input_ids": "input_ids", "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}},
        "outputs": {{"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}}}}}},
        "search": {{"do_sample": false, "top_k": 50}}}}"#
    )
}

fn tokenizer() -> String {
    let words: Vec<String> = (2..VOCABULARY).map(|word| format!("\"w{word}\": {word}")).collect();
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{{"id": 0, "content": "<end>",
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}], "normalizer": null,
        "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": null, "decoder": null,
        "model": {{"type": "WordLevel", "vocab": {{"<end>": 0, "<unk>": 1, {}}}, "unk_token": "<unk>"}}}}"#,
        words.join(", ")
    )
}

/// A token for each byte, as byte-level tokenizers write it: printable ones as they are, others from U+0100 on.
fn byte_tokenizer() -> String {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printable(byte)).zip(0x100..);
    let mut letters: Vec<(u8, u32)> = (0..=255u8).filter(printable).map(|byte| (byte, u32::from(byte))).collect();
    letters.extend(others);
    let letter = |&(byte, letter): &(u8, u32)| {
        let letter = char::from_u32(letter).unwrap().to_string();
        (letter, serde_json::json!(u32::from(byte) + 1))
    };
    let vocabulary: serde_json::Map<String, serde_json::Value> = letters.iter().map(letter).collect();
    let byte_level =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
    .to_string()
}

fn integers(name: &str, kind: i32, shape: &[&str]) -> ValueInfoProto {
    let mut port = port(name, shape);
    if let Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), .. }) = &mut port.r#type {
        tensor.elem_type = Some(kind);
    }
    port
}

fn attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    }
}

fn with(mut node: NodeProto, attributes: &[(&str, i64)]) -> NodeProto {
    node.attribute = attributes.iter().map(|&(name, value)| attribute(name, value)).collect();
    node
}

fn constant(name: &str, shape: &[i64], value: i64) -> TensorProto {
    let raw_data = Some(value.to_le_bytes().to_vec());
    TensorProto { data_type: Some(I64), raw_data, ..tensor(name, shape, &[]) }
}

/// The model, with the inputs, outputs and operators of onnxruntime-genai's builder.
fn model(Decoder { seed, inner, context, windows }: Decoder) -> ModelProto {
    let mut random = Random::new(seed);
    let mut weight = |name: &str, rows: usize, columns: usize, scale: f32| {
        let elements: Vec<f32> =
            (0..rows * columns).map(|_| (random.below(2001) as f32 / 1000.0 - 1.0) * scale).collect();
        tensor(name, &[rows as i64, columns as i64], &elements)
    };
    let angle = |at: usize| (at / (HEAD / 2)) as f32 / 100f32.powf((at % (HEAD / 2)) as f32 / (HEAD / 2) as f32);
    let rotations =
        |function: fn(f32) -> f32| (0..context * HEAD / 2).map(|at| function(angle(at))).collect::<Vec<_>>();
    let rotary = [context as i64, HEAD as i64 / 2];
    let mut weights = vec![
        constant("axis", &[1], 1),
        constant("one", &[], 1),
        tensor("cos_cache", &rotary, &rotations(f32::cos)),
        tensor("sin_cache", &rotary, &rotations(f32::sin)),
        weight("embedding", VOCABULARY, HIDDEN, 1.0),
        weight("head", HIDDEN, VOCABULARY, 1.0),
    ];
    let mut nodes = vec![
        with(node("ReduceSum", &["attention_mask", "axis"], &["total"]), &[("keepdims", 0)]),
        node("Sub", &["total", "one"], &["last"]),
        with(node("Cast", &["last"], &["seqlens"]), &[("to", i64::from(I32))]),
        node("Shape", &["attention_mask"], &["mask_shape"]),
        with(node("Gather", &["mask_shape", "one"], &["positions"]), &[("axis", 0)]),
        with(node("Cast", &["positions"], &["total_length"]), &[("to", i64::from(I32))]),
        node("Gather", &["embedding", "input_ids"], &["x0"]),
    ];
    let mut inputs =
        vec![integers("input_ids", I64, &["batch", "sequence"]), integers("attention_mask", I64, &["batch", "total"])];
    let mut outputs = vec![port("logits", &["batch", "sequence", &VOCABULARY.to_string()])];
    for (layer, window) in windows.into_iter().enumerate() {
        let named = |name: &str| format!("{name}{layer}");
        for (name, rows, columns) in [
            ("query", HIDDEN, HIDDEN),
            ("key", HIDDEN, CACHE_HEADS * HEAD),
            ("value", HIDDEN, CACHE_HEADS * HEAD),
            ("out", HIDDEN, HIDDEN),
            ("up", HIDDEN, inner),
            ("down", inner, HIDDEN),
        ] {
            weights.push(weight(&named(name), rows, columns, 0.2));
        }
        let product = |x: &str, weight: &str, y: &str| node("MatMul", &[&named(x), &named(weight)], &[&named(y)]);
        let cache = |time: &str, what: &str| format!("{time}.{layer}.{what}");
        let [past_key, past_value] = ["key", "value"].map(|what| cache("past_key_values", what));
        let [present_key, present_value] = ["key", "value"].map(|what| cache("present", what));
        let attention = NodeProto {
            domain: Some("com.microsoft".to_string()),
            ..node(
                "GroupQueryAttention",
                &[
                    &named("q"),
                    &named("k"),
                    &named("v"),
                    &past_key,
                    &past_value,
                    "seqlens",
                    "total_length",
                    "cos_cache",
                    "sin_cache",
                ],
                &[&named("a"), &present_key, &present_value],
            )
        };
        let heads = [
            ("num_heads", HEADS as i64),
            ("kv_num_heads", CACHE_HEADS as i64),
            ("do_rotary", 1),
            ("local_window_size", window),
        ];
        nodes.extend([
            product("x", "query", "q"),
            product("x", "key", "k"),
            product("x", "value", "v"),
            with(attention, &heads),
            product("a", "out", "o"),
            node("Add", &[&named("x"), &named("o")], &[&named("y")]),
            product("y", "up", "u"),
            node("Tanh", &[&named("u")], &[&named("t")]),
            product("t", "down", "d"),
            node("Add", &[&named("y"), &named("d")], &[&format!("x{}", layer + 1)]),
        ]);
        let shape = |length| ["batch", "2", length, "32"];
        inputs.extend([&past_key, &past_value].map(|name| port(name, &shape("past"))));
        outputs.extend([&present_key, &present_value].map(|name| port(name, &shape("total"))));
    }
    nodes.push(node("MatMul", &[&format!("x{LAYERS}"), "head"], &["logits"]));
    let opsets = [(None, 17), (Some("com.microsoft".to_string()), 1)];
    ModelProto {
        ir_version: Some(8),
        opset_import: opsets.map(|(domain, version)| OperatorSetIdProto { domain, version: Some(version) }).to_vec(),
        graph: Some(graph(inputs, weights, nodes, outputs)),
        ..ModelProto::default()
    }
}
