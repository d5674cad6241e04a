//! A model of any size: products of one row with square f32 matrices, one after another.

use anyhow::Result;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};
use prost::Message;
use std::io::Write;
use std::path::{Path, PathBuf};

pub const WIDTH: u64 = 4096;
pub const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;

/// Compile a chain of this many layers. All weights lie in one seeded file of little more than a layer, each a row further.
pub fn chain(folder: &Path, layers: u64) -> Result<PathBuf> {
    let mut state = 1u64;
    let mut data = std::io::BufWriter::new(std::fs::File::create(folder.join("weights.bin"))?);
    for _ in 0..WIDTH * WIDTH + WIDTH * layers {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        data.write_all(&(value / 32.0).to_le_bytes())?;
    }
    data.into_inner()?.sync_all()?;
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
    let weight = |layer: u64| TensorProto {
        name: Some(format!("w{layer}")),
        dims: vec![WIDTH as i64; 2],
        data_type: Some(1),
        data_location: Some(1),
        external_data: vec![
            entry("location", "weights.bin".to_string()),
            entry("offset", (layer * WIDTH * 4).to_string()),
            entry("length", LAYER_BYTES.to_string()),
        ],
        ..TensorProto::default()
    };
    let product = |layer: u64| NodeProto {
        op_type: Some("MatMul".to_string()),
        name: Some(format!("product {layer}")),
        input: vec![format!("h{layer}"), format!("w{layer}")],
        output: vec![format!("h{}", layer + 1)],
        ..NodeProto::default()
    };
    let port = |name: String| {
        let extent =
            |extent: u64| Dimension { value: Some(dimension::Value::DimValue(extent as i64)), ..Dimension::default() };
        let shape = TensorShapeProto { dim: vec![extent(1), extent(WIDTH)] };
        let tensor = type_proto::Tensor { elem_type: Some(1), shape: Some(shape) };
        let value = Some(type_proto::Value::TensorType(tensor));
        let r#type = Some(TypeProto { value, ..TypeProto::default() });
        ValueInfoProto { name: Some(name), r#type, ..ValueInfoProto::default() }
    };
    let graph = GraphProto {
        name: Some("chain".to_string()),
        node: (0..layers).map(product).collect(),
        initializer: (0..layers).map(weight).collect(),
        input: vec![port("h0".to_string())],
        output: vec![port(format!("h{layers}"))],
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        graph: Some(graph),
        ..ModelProto::default()
    };
    let path = folder.join("chain.onnx");
    std::fs::write(&path, model.encode_to_vec())?;
    let compiled = folder.join("chain.ipu");
    compile(&[Source { entry: "main".to_string(), path }], &compiled, &CompileOptions::default())?;
    Ok(compiled)
}
