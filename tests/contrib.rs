//! Operators that ONNX Runtime defines beside ONNX, against the outputs that it computes.
//!
//! `tests/contrib/make.py` says what a case is, and writes them.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::folding::{self, Elements};
use ipuc::compare::{Tolerance, compare};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::onnx::read_value;
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto, type_proto};
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Session, SessionOptions};
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib")
}

fn compiled(bytes: &[u8]) -> Result<Model, String> {
    let folder = tempfile::tempdir().unwrap();
    let (path, output) = (folder.path().join("model.onnx"), folder.path().join("model.ipu"));
    std::fs::write(&path, bytes).unwrap();
    let source = Source { entry: "main".to_string(), path };
    compile(&[source], &output, &CompileOptions::default()).map_err(|error| error.to_string())?;
    Ok(ipuc::open(output).unwrap())
}

/// The tensors of a case, by name and type; those of one set have its number in front.
struct Data(BTreeMap<String, Vec<u8>>);

impl Data {
    fn load(name: &str) -> Data {
        let graph = GraphProto::decode(&std::fs::read(folder().join(name)).unwrap()[..]).unwrap();
        let named =
            |tensor: ipuc_formats::onnx::schema::TensorProto| (tensor.name().to_string(), tensor.encode_to_vec());
        Data(graph.initializer.into_iter().map(named).collect())
    }

    fn get(&self, set: usize, role: &str, name: &str, kind: &Type) -> Option<Value> {
        self.0.get(&format!("{set}.{role}.{name}")).map(|bytes| read_value(bytes, kind).unwrap())
    }

    fn sets(&self) -> usize {
        (0..).take_while(|set| self.0.keys().any(|name| name.starts_with(&format!("{set}.")))).count()
    }
}

/// Half floats round differently on the way: within two units in the last place of the largest.
fn tolerance(value: &Value) -> Tolerance {
    let half = value.as_tensor().is_some_and(|tensor| tensor.dtype() == DType::F16);
    let bound = if half { 2e-3 } else { 1e-5 };
    Tolerance { relative: Some(bound), absolute: Some(bound), ..Tolerance::default() }
}

fn all_cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.extension().is_some_and(|extension| extension == "onnx"));
    cases.sort();
    cases
}

#[test]
fn every_case_agrees_with_onnx_runtime() {
    let cases = all_cases();
    assert!(cases.len() > 550, "{} cases", cases.len());
    let wrong: Vec<String> = cases.iter().filter_map(|case| disagreement(case).err()).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Run a case with one thread and with two.
fn disagreement(case: &Path) -> Result<(), String> {
    let name = case.file_stem().unwrap().to_str().unwrap();
    let model = compiled(&std::fs::read(case).unwrap()).map_err(|error| format!("{name}: {error}"))?;
    let data = Data::load(&format!("{name}.data"));
    let ports = model.inputs(model.entry(None).unwrap());
    assert!(data.sets() > 0, "{name} has no data");
    for threads in [1, 2] {
        let mut session = Session::new(&model, &SessionOptions { threads, seed: 0 }).unwrap();
        let mut before: BTreeMap<String, Value> = BTreeMap::new();
        for set in 0..data.sets() {
            let input = |port: &ipuc_runtime::Port| {
                let past = || before.get(&port.name.replace("past", "present")).cloned();
                let given = data.get(set, "in", &port.name, &port.kind).or_else(past);
                given
                    .map(|given| (port.name.clone(), given))
                    .ok_or_else(|| format!("{name}, set {set}: no input `{}`", port.name))
            };
            let inputs: Vec<_> = ports.iter().map(input).collect::<Result<_, _>>()?;
            let outputs = session.run(None, inputs).map_err(|error| format!("{name}, set {set}: {error}"))?;
            for (output, found) in &outputs {
                let expected = data.get(set, "out", output, &found.kind()).unwrap();
                compare(output, found, &expected, tolerance(found))
                    .map_err(|mismatch| format!("{name}, set {set}: {mismatch}"))?;
            }
            before = outputs.into_iter().collect();
        }
    }
    Ok(())
}

/// What is computed while compiling is what a run computes: the first set of each case, stored in its model.
#[test]
fn a_case_that_is_computed_while_compiling_is_the_same() {
    let mut wrong = Vec::new();
    for (name, single) in folding::beside_onnx() {
        for &elements in Elements::ALL {
            if let Err(error) = single.check(elements) {
                wrong.push(format!("{name}, {elements:?}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// The model of a case with a change of its node.
fn changed(case: &str, change: impl FnOnce(&mut NodeProto)) -> Vec<u8> {
    let bytes = std::fs::read(folder().join(format!("{case}.onnx"))).unwrap();
    let mut model = ModelProto::decode(&bytes[..]).unwrap();
    let node = &mut model.graph.as_mut().unwrap().node[0];
    let before = node.attribute.len();
    change(node);
    // An attribute that is added takes the place of one of its name.
    let added: Vec<String> = node.attribute[before..].iter().map(|attribute| attribute.name().to_string()).collect();
    let mut index = 0;
    node.attribute.retain(|attribute| {
        index += 1;
        index > before || !added.iter().any(|name| name == attribute.name())
    });
    model.encode_to_vec()
}

fn refusal(case: &str, change: impl FnOnce(&mut NodeProto)) -> String {
    match compiled(&changed(case, change)) {
        Err(error) => error,
        Ok(_) => panic!("{case} is compiled"),
    }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    let kind = attribute_proto::AttributeType::Int as i32;
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), i: Some(value), ..AttributeProto::default() }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (case, name, value) in [
        ("gqa_growing", "sliding_window_cache", 1),
        ("gqa_growing", "qk_output", 1),
        ("gqa_scores_1_growing", "qk_output", 3),
        ("gqa_sliding_tight", "qk_output", 1),
        ("gqa_growing", "kv_cache_bit_width", 8),
        ("gqa_growing", "local_window_size", 0),
        ("gqa_growing", "smooth_softmax", 2),
        ("gqa_growing", "beam_width", 1),
        ("greedy_plain", "model_type", 1),
        ("greedy_plain", "vocab_size", 10),
        ("greedy_plain", "decoder_start_token_id", 3),
        ("beams_plain", "model_type", 2),
        ("sampling_share", "model_type", 1),
        ("beams_plain", "decoder_start_token_id", 3),
        ("rotary_flat", "rotary_embedding_dim", 8),
        ("skip_layer", "axis", 1),
        ("attention_plain", "do_rotary", 1),
        ("attention_plain", "past_present_share_buffer", 1),
        ("attention_plain", "rotary_embedding_dim", 32),
        ("qattention_plain", "do_rotary", 1),
        ("causal_conv_plain", "state_window", 2),
        ("causal_conv_plain", "ndim", 2),
        ("causal_conv_plain", "dilation", 0),
        ("linear_attention_linear", "state_window", 2),
        ("qmoe_rows", "weights_prepacked", 1),
        ("qmoe_rows", "fc1_expert_weight_bits", 3),
        ("bnb4_0", "training_mode", 1),
        ("bnb4_0", "transB", 0),
        ("branch_after", "num_branches", -1),
        ("delta_net", "state_update_capacity", 2),
        ("router_plain", "top_k", 9),
        ("unfold", "size", 8),
        ("unfold", "step", 0),
        ("words", "conv_window_size", 3),
        ("tokens_characters", "mincharnum", 2),
        ("tokens_spaces", "mark", 2),
        ("rfft", "normalized", 1),
        ("rfft", "onesided", 0),
        ("skip_group_norm_whole", "channels_last", 0),
        ("gelu", "approximate", 1),
        ("nhwc_max_pool_upper_strides", "ceil_mode", 1),
    ] {
        let error = refusal(case, |node| node.attribute.push(integer(name, value)));
        let subject = if name == "fc1_expert_weight_bits" { "expert weights of 3 bits" } else { name };
        assert!(error.contains(subject), "{case} with {name}: {error}");
    }
    let quantized = |name: &str| {
        let kind = attribute_proto::AttributeType::String as i32;
        let s = Some(b"PER_TENSOR".to_vec());
        AttributeProto { name: Some(name.to_string()), r#type: Some(kind), s, ..AttributeProto::default() }
    };
    for name in ["k_quant_type", "v_quant_type"] {
        let error = refusal("gqa_growing", |node| node.attribute.push(quantized(name)));
        assert!(error.contains(name), "{error}");
    }
    let error = refusal("gqa_growing", |node| {
        node.input.resize(12, String::new());
        node.input.push("query".to_string());
    });
    assert!(error.contains("k_scale"), "{error}");
    for (case, input, name) in [
        ("mha_plain", 8, "past_sequence_length"),
        ("mha_plain", 9, "cache_indirection"),
        ("mha_buffer_steps", 9, "cache_indirection"),
        ("decoder_buffer", 8, "beam_width"),
        ("decoder_buffer_mask", 9, "cache_indirection"),
        ("gqa_without_past", 16, "query_seqlens"),
        ("moe_silu", 6, "fc3_experts_weights"),
        ("qmoe_rows", 15, "fc1_global_scale"),
        ("router_plain", 2, "projection_weight"),
        ("delta_net", 3, "cu_seqlens"),
        ("delta_net", 8, "dt_bias"),
    ] {
        let error = refusal(case, |node| {
            node.input.resize(input, String::new());
            node.input.push(node.input[0].clone());
        });
        assert!(error.contains(name), "{case}: {error}");
    }
    let error = refusal("gqa_growing", |node| {
        node.output.resize(4, String::new());
        node.output[3] = "further".to_string();
    });
    assert!(error.contains("output_qk"), "{error}");
}

#[test]
fn padding_beside_that_of_the_extents_is_refused() {
    let pads = AttributeProto {
        name: Some("pads".to_string()),
        r#type: Some(attribute_proto::AttributeType::Ints as i32),
        ints: vec![1, 0, 0, 0],
        ..AttributeProto::default()
    };
    for case in ["nhwc_max_pool_upper", "nhwc_max_pool_upper_dilations", "nhwc_max_pool_lower_strides"] {
        let error = refusal(case, |node| node.attribute.push(pads.clone()));
        assert!(error.contains("none beside `auto_pad`"), "{case}: {error}");
    }
}

/// Heads and their sizes come from the file: their products do not fit in 64 bits.
#[test]
fn heads_that_no_row_holds_are_refused() {
    let bytes = std::fs::read(folder().join("delta_net.onnx")).unwrap();
    let mut model = ModelProto::decode(&bytes[..]).unwrap();
    let huge = Dimension { value: Some(dimension::Value::DimValue(1 << 40)), ..Dimension::default() };
    for (input, axis) in [(0, 1), (5, 1), (5, 3)] {
        let port = &mut model.graph.as_mut().unwrap().input[input];
        let Some(type_proto::Value::TensorType(tensor)) = port.r#type.as_mut().and_then(|kind| kind.value.as_mut())
        else {
            panic!("an input is a tensor")
        };
        tensor.shape.as_mut().unwrap().dim[axis] = huge.clone();
    }
    let error = compiled(&model.encode_to_vec()).err().unwrap();
    assert!(error.contains("a state of 1099511627776 heads of 6 by 1099511627776"), "{error}");
}
