//! Seeded models: chains of matrices with weights inline or in a file beside, and networks of many small nodes.

use anyhow::Result;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use prost::Message;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Width of the layers: a weight of one has 64 MiB.
const WIDTH: u64 = 4096;
const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;
/// Outputs of the last layer: its weight has 384 MiB, more than a compilation holds at once.
const HEAD_OUTPUTS: u64 = 24_576;
pub const HEAD_BYTES: u64 = WIDTH * HEAD_OUTPUTS * 4;
/// Numbers of the ONNX element type f32, and of attributes that are integers.
const FLOAT: i32 = 1;
const INTEGER_ATTRIBUTE: i32 = 2;
/// Inline weights are limited by protobuf.
pub const INLINE_LIMIT: u64 = (2048 - 64) * MIB;

/// A residual network without weights: each layer is four nodes of which one reads a small constant.
pub fn chain(count: usize) -> ModelProto {
    let mut graph = graph("x", &format!("v{}", count - 1));
    graph.initializer.push(TensorProto {
        name: Some("scale".to_string()),
        data_type: Some(FLOAT),
        dims: vec![1],
        float_data: vec![0.5],
        ..TensorProto::default()
    });
    for index in 0..count {
        let before = |distance: usize| match index.checked_sub(distance) {
            Some(earlier) => format!("v{earlier}"),
            None => "x".to_string(),
        };
        let (operator, inputs) = match index % 4 {
            0 => ("Mul", vec![before(1), "scale".to_string()]),
            1 => ("Tanh", vec![before(1)]),
            2 => ("Sigmoid", vec![before(2)]),
            _ => ("Add", vec![before(1), before(2)]),
        };
        graph.node.push(node(operator, inputs, format!("v{index}")));
    }
    model(graph)
}

/// A chain of matrix products with weights of both orientations, and a wide last one. Gives the files, the model first.
pub fn generate(folder: &Path, place: &str, size: u64) -> Result<Vec<PathBuf>> {
    let layers = size.saturating_sub(HEAD_BYTES).div_ceil(LAYER_BYTES);
    let mut graph = graph("x", "logits");
    let mut last = "x".to_string();
    let mut weights = Vec::new();
    for layer in 0..layers {
        let (weight, output) = (format!("layer{layer}.weight"), format!("h{layer}"));
        // Exporters write both: `MatMul` reads [inputs, outputs], `Gemm` with `transB` reads [outputs, inputs].
        let mut product =
            node(if layer % 2 == 0 { "MatMul" } else { "Gemm" }, vec![last, weight.clone()], output.clone());
        if layer % 2 == 1 {
            product.attribute.push(AttributeProto {
                name: Some("transB".to_string()),
                r#type: Some(INTEGER_ATTRIBUTE),
                i: Some(1),
                ..AttributeProto::default()
            });
        }
        graph.node.push(product);
        weights.push((weight, vec![WIDTH as i64, WIDTH as i64]));
        last = output;
    }
    graph.node.push(node("MatMul", vec![last, "head.weight".to_string()], "logits".to_string()));
    weights.push(("head.weight".to_string(), vec![WIDTH as i64, HEAD_OUTPUTS as i64]));
    let path = folder.join(format!("{place}.onnx"));
    if place == "inline" {
        write_inline(&path, graph, &weights)?;
        return Ok(vec![path]);
    }
    let data = folder.join("external.data");
    let mut file = BufWriter::with_capacity(MIB as usize, File::create(&data)?);
    let mut offset = 0;
    for (index, (name, dims)) in weights.iter().enumerate() {
        let length = dims.iter().product::<i64>() as u64 * 4;
        write_random(&mut file, index as u64 + 1, length)?;
        let entry =
            |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
        graph.initializer.push(TensorProto {
            data_location: Some(1),
            external_data: vec![
                entry("location", "external.data".to_string()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            ..tensor(name, dims)
        });
        offset += length;
    }
    file.flush()?;
    std::fs::write(&path, model(graph).encode_to_vec())?;
    Ok(vec![path, data])
}

/// Write a model whose weights stand in `raw_data`, without holding them.
fn write_inline(path: &Path, graph: GraphProto, weights: &[(String, Vec<i64>)]) -> Result<()> {
    const RAW_DATA: u32 = 9;
    const INITIALIZER: u32 = 5;
    const GRAPH: u32 = 7;
    let key = |field: u32, length: u64| {
        let mut bytes = Vec::new();
        prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(length, &mut bytes);
        bytes
    };
    // What stands before the elements of each weight: key and length of the tensor, the tensor, key and length of them.
    let mut heads = Vec::new();
    for (name, dims) in weights {
        let length = dims.iter().product::<i64>() as u64 * 4;
        let mut head = tensor(name, dims).encode_to_vec();
        head.extend(key(RAW_DATA, length));
        let mut framed = key(INITIALIZER, head.len() as u64 + length);
        framed.extend(head);
        heads.push((framed, length));
    }
    let skeleton = graph.encode_to_vec();
    let graph_bytes =
        heads.iter().map(|(head, length)| head.len() as u64 + length).sum::<u64>() + skeleton.len() as u64;
    let mut file = BufWriter::with_capacity(MIB as usize, File::create(path)?);
    file.write_all(&ModelProto { graph: None, ..model(GraphProto::default()) }.encode_to_vec())?;
    file.write_all(&key(GRAPH, graph_bytes))?;
    file.write_all(&skeleton)?;
    for (index, (head, length)) in heads.iter().enumerate() {
        file.write_all(head)?;
        write_random(&mut file, index as u64 + 1, *length)?;
    }
    Ok(file.flush()?)
}

/// Seeded bytes that no layer of storage compresses.
fn write_random(file: &mut impl Write, seed: u64, length: u64) -> Result<()> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = vec![0u8; MIB as usize];
    let mut left = length as usize;
    while left > 0 {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        let count = left.min(block.len());
        file.write_all(&block[..count])?;
        left -= count;
    }
    Ok(())
}

fn tensor(name: &str, dims: &[i64]) -> TensorProto {
    let name = Some(name.to_string());
    TensorProto { name, data_type: Some(FLOAT), dims: dims.to_vec(), ..TensorProto::default() }
}

fn node(operator: &str, input: Vec<String>, output: String) -> NodeProto {
    let op_type = Some(operator.to_string());
    NodeProto { op_type, input, output: vec![output], ..NodeProto::default() }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    ModelProto { ir_version: Some(8), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

/// A graph from `input: f32[batch, WIDTH]` to an output of unstated shape.
fn graph(input: &str, output: &str) -> GraphProto {
    use tensor_shape_proto::dimension::Value::{DimParam, DimValue};
    let dimension = |value| tensor_shape_proto::Dimension { value: Some(value), denotation: None };
    let dim = vec![dimension(DimParam("batch".to_string())), dimension(DimValue(WIDTH as i64))];
    let typed = |name: &str, shape: Option<TensorShapeProto>| {
        let tensor = type_proto::Tensor { elem_type: Some(FLOAT), shape };
        let value = Some(type_proto::Value::TensorType(tensor));
        let r#type = Some(TypeProto { denotation: None, value });
        ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
    };
    GraphProto {
        name: Some("bench".to_string()),
        input: vec![typed(input, Some(TensorShapeProto { dim }))],
        output: vec![typed(output, None)],
        ..GraphProto::default()
    }
}
