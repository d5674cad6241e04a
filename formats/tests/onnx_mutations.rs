//! Damaged ONNX files: whatever happens to the bytes, reading them gives a value or an error.

#[path = "../fuzz/fuzz_targets/exercise_onnx.rs"]
mod exercise_onnx;

use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{
    AttributeProto, FunctionProto, GraphProto, MapProto, ModelProto, NodeProto, OperatorSetIdProto, OptionalProto,
    SequenceProto, SparseTensorProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType, tensor_shape_proto, type_proto,
};
use ipuc_formats::onnx::{TensorData, TensorSource};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use prost::Message as _;

fn tensor(dtype: DType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some("w".into()),
        data_type: Some(dtype.onnx_code()),
        dims: dims.to_vec(),
        ..TensorProto::default()
    }
}

/// Tensors of every data field, some large enough to be left in the file.
fn tensors() -> Vec<TensorProto> {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    vec![
        TensorProto { raw_data: Some(vec![1; 12]), ..tensor(DType::F32, &[3]) },
        TensorProto { raw_data: Some(vec![1; 1024]), ..tensor(DType::Bool, &[32, 32]) },
        TensorProto { raw_data: Some(vec![0xff; 9]), ..tensor(DType::F6E3M2, &[11]) },
        TensorProto { float_data: vec![f32::from_bits(0x3e3e_3e3e); 300], ..tensor(DType::C64, &[150]) },
        TensorProto { int32_data: vec![-1; 3], ..tensor(DType::I8, &[3]) },
        TensorProto { int32_data: vec![63; 7], ..tensor(DType::F6E2M3, &[7]) },
        TensorProto { int32_data: vec![0x21; 1100], ..tensor(DType::U4, &[2199]) },
        TensorProto { int64_data: vec![i64::MIN, 0, i64::MAX], ..tensor(DType::I64, &[3]) },
        TensorProto { double_data: vec![0.25; 2], ..tensor(DType::F64, &[2]) },
        TensorProto { uint64_data: vec![7; 4], ..tensor(DType::U32, &[2, 2]) },
        TensorProto { string_data: vec![b"one".to_vec(), Vec::new()], ..tensor(DType::String, &[2]) },
        TensorProto {
            data_location: Some(1),
            external_data: vec![entry("location", "w.bin"), entry("offset", "0"), entry("length", "8")],
            ..tensor(DType::F64, &[1])
        },
    ]
}

fn sparse() -> SparseTensorProto {
    SparseTensorProto {
        values: Some(TensorProto { float_data: vec![1.0, 2.0], ..tensor(DType::F32, &[2]) }),
        indices: Some(TensorProto { int64_data: vec![0, 1, 1, 2], ..tensor(DType::I64, &[2, 2]) }),
        dims: vec![2, 3],
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..AttributeProto::default() }
}

/// A model that has something of everything.
fn model() -> ModelProto {
    let dimension = |value| tensor_shape_proto::Dimension { value: Some(value), ..Default::default() };
    let dim = vec![
        dimension(tensor_shape_proto::dimension::Value::DimParam("batch".into())),
        dimension(tensor_shape_proto::dimension::Value::DimValue(4)),
    ];
    let tensor_type = type_proto::Tensor { elem_type: Some(1), shape: Some(TensorShapeProto { dim }) };
    let kind = TypeProto { value: Some(type_proto::Value::TensorType(tensor_type)), ..TypeProto::default() };
    let value = ValueInfoProto { name: Some("x".into()), r#type: Some(kind), ..ValueInfoProto::default() };
    let body = GraphProto { initializer: tensors(), output: vec![value.clone()], ..GraphProto::default() };
    let attributes = vec![
        AttributeProto { f: Some(1.5), ..attribute("alpha", AttributeType::Float) },
        AttributeProto { ints: vec![1, -1, 300], ..attribute("pads", AttributeType::Ints) },
        AttributeProto { s: Some(b"SAME".to_vec()), ..attribute("auto_pad", AttributeType::String) },
        AttributeProto { t: Some(Box::new(tensors().swap_remove(1))), ..attribute("value", AttributeType::Tensor) },
        AttributeProto { g: Some(Box::new(body)), ..attribute("body", AttributeType::Graph) },
        AttributeProto { sparse_tensor: Some(Box::new(sparse())), ..attribute("s", AttributeType::SparseTensor) },
    ];
    let node = NodeProto {
        input: vec!["x".into(), String::new(), "w".into()],
        output: vec!["y".into()],
        op_type: Some("Loop".into()),
        attribute: attributes,
        ..NodeProto::default()
    };
    let reference = AttributeProto { ref_attr_name: Some("alpha".into()), ..attribute("alpha", AttributeType::Float) };
    let function = FunctionProto {
        name: Some("F".into()),
        node: vec![NodeProto { attribute: vec![reference], ..NodeProto::default() }],
        ..FunctionProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        initializer: tensors(),
        sparse_initializer: vec![sparse()],
        input: vec![value],
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(21) }],
        functions: vec![function],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// A sequence, an optional and a map.
fn values() -> [Vec<u8>; 3] {
    let sequence = SequenceProto { elem_type: Some(1), tensor_values: tensors(), ..SequenceProto::default() };
    let optional =
        OptionalProto { elem_type: Some(3), sequence_value: Some(sequence.clone()), ..OptionalProto::default() };
    let nested =
        SequenceProto { elem_type: Some(3), sequence_values: vec![sequence.clone()], ..SequenceProto::default() };
    let map = MapProto { key_type: Some(7), keys: vec![-1], values: Some(nested), ..MapProto::default() };
    [sequence.encode_to_vec(), optional.encode_to_vec(), map.encode_to_vec()]
}

#[test]
fn the_whole_model_is_read() {
    let before = model();
    let after = exercise_onnx::model(&before.encode_to_vec()).expect("the model is valid");
    let tensors = &after.graph.expect("the graph is there").initializer;
    let in_file = |tensor: &&TensorProto| {
        matches!(TensorSource::of(tensor).map(|source| source.data().clone()), Ok(TensorData::InFile { .. }))
    };
    let left_in_file = tensors.iter().filter(in_file).count();
    assert_eq!((tensors.len(), left_in_file), (12, 3));
}

/// Indices of the bytes that are not in the midst of equal ones, where all damage is alike.
fn places(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let alike = |index: usize| {
        let around = bytes.get(index.saturating_sub(8)..index + 8);
        around.is_some_and(|around| around.iter().all(|byte| *byte == bytes[index]))
    };
    (0..bytes.len()).filter(move |index| !alike(*index))
}

#[test]
fn every_truncated_model_is_refused() {
    let bytes = model().encode_to_vec();
    for length in places(&bytes) {
        // The functions come last and may be missing as a whole.
        if let Ok(read) = exercise_onnx::model(&bytes[..length]) {
            assert!(read.functions.is_empty() && read.graph.is_some(), "{length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn every_damaged_byte_is_survived() {
    let bytes = model().encode_to_vec();
    let mut damaged = bytes.clone();
    for index in places(&bytes) {
        for mask in [0x01, 0x08, 0x80, 0xff] {
            damaged[index] = bytes[index] ^ mask;
            let _ = exercise_onnx::model(&damaged);
        }
        damaged[index] = bytes[index];
    }
}

#[test]
fn every_damaged_value_is_survived() {
    for bytes in values() {
        let mut damaged = bytes.clone();
        for index in places(&bytes) {
            exercise_onnx::value(&bytes[..index]);
            for mask in [0x01, 0x08, 0x80] {
                damaged[index] = bytes[index] ^ mask;
                exercise_onnx::value(&damaged);
            }
            damaged[index] = bytes[index];
        }
    }
}

/// One change to a file: bytes put, taken out, or copied elsewhere.
#[derive(Clone, Debug)]
enum Damage {
    Put(prop::sample::Index, Vec<u8>),
    TakeOut(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Copy(prop::sample::Index, prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let bytes = || prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(0x80), Just(0)], 1..12);
    prop_oneof![
        (index(), bytes()).prop_map(|(at, bytes)| Damage::Put(at, bytes)),
        (index(), 1usize..40).prop_map(|(at, count)| Damage::TakeOut(at, count)),
        (index(), bytes()).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (index(), index(), 1usize..200).prop_map(|(from, to, count)| Damage::Copy(from, to, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    match damage {
        Damage::Put(at, new) => {
            let start = at.index(bytes.len());
            let end = bytes.len().min(start + new.len());
            bytes[start..end].copy_from_slice(&new[..end - start]);
        }
        Damage::TakeOut(at, count) => {
            let start = at.index(bytes.len());
            let end = bytes.len().min(start + count);
            bytes.drain(start..end);
        }
        Damage::Insert(at, new) => {
            let start = at.index(bytes.len());
            bytes.splice(start..start, new.iter().copied());
        }
        Damage::Copy(from, to, count) => {
            let start = from.index(bytes.len());
            let part = bytes[start..bytes.len().min(start + count)].to_vec();
            let target = to.index(bytes.len());
            bytes.splice(target..target, part);
        }
    }
}

#[test]
fn combined_damage_is_survived() {
    let whole = model().encode_to_vec();
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
    // The same damage at every run.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let damages = prop::collection::vec(damage(), 1..6);
    let result = runner.run(&damages, |damages| {
        let mut bytes = whole.clone();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        let _ = exercise_onnx::model(&bytes);
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}
