//! Models of one node with one change, and what importing them gives.

use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::onnx::schema::attribute_proto::AttributeType;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, type_proto,
};
use ipuc_formats::onnx::{TensorSource, read_model};
use ipuc_formats::read_at::ReadAt;
use ipuc_passes::import::{ExternalFiles, Model, import};
use ipuc_passes::ir::text::print;
use prost::Message as _;
use std::sync::Arc;

struct NoFiles;

impl ExternalFiles for NoFiles {
    fn open(&self, _: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        Err("there are no other files".to_string())
    }
}

/// What a model becomes: its steps and constants without the signature, and the types of its outputs.
#[derive(PartialEq)]
pub struct Imported {
    pub steps: String,
    pub outputs: Vec<Option<Type>>,
}

/// Import a model.
pub fn imported(model: &ModelProto) -> Result<Imported, String> {
    let bytes = model.encode_to_vec();
    let proto = read_model(&bytes).map_err(|error| error.to_string())?;
    let bytes: Arc<dyn ReadAt> = Arc::new(bytes);
    let model =
        Model { entry: "main", file_name: "model.onnx", proto: &proto, bytes, files: &NoFiles, overridable: &[] };
    let graph = import(&[model]).map_err(|error| error.to_string())?;
    let block = graph.block(graph.entries[0].block);
    let outputs = block.results.iter().map(|&result| graph.fact(result).map(|fact| fact.kind)).collect();
    let text = print(&graph);
    let lines = text.lines().filter(|line| !line.starts_with("block 0(") && !line.starts_with("entry "));
    let steps = lines.filter(|line| !line.starts_with("symbol ")).collect::<Vec<_>>().join("\n");
    Ok(Imported { steps, outputs })
}

pub fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

pub fn node(model: &mut ModelProto) -> &mut NodeProto {
    &mut graph(model).node[0]
}

/// The model with its node changed.
pub fn with_node(model: &ModelProto, change: impl FnOnce(&mut NodeProto)) -> ModelProto {
    let mut model = model.clone();
    change(node(&mut model));
    model
}

/// The model with an attribute put in place of any of its name.
pub fn with_attribute(model: &ModelProto, attribute: &AttributeProto) -> ModelProto {
    with_node(model, |node| {
        node.attribute.retain(|given| given.name != attribute.name);
        node.attribute.push(attribute.clone());
    })
}

pub fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind as i32), ..AttributeProto::default() }
}

/// An attribute of another type than the schema says.
pub fn of_wrong_type(name: &str, kind: &str) -> AttributeProto {
    if kind == "TYPE_PROTO" {
        return AttributeProto { i: Some(1), ..attribute(name, AttributeType::Int) };
    }
    let tensor =
        TypeProto { value: Some(type_proto::Value::TensorType(type_proto::Tensor::default())), denotation: None };
    AttributeProto { tp: Some(Box::new(tensor)), ..attribute(name, AttributeType::TypeProto) }
}

/// An attribute that is a text.
pub fn worded(name: &str, text: &str) -> AttributeProto {
    AttributeProto { s: Some(text.into()), ..attribute(name, AttributeType::String) }
}

/// Values of an attribute of a schema's type, with texts that it may be.
pub fn values(name: &str, kind: &str, texts: &[&str]) -> Vec<AttributeProto> {
    let ints = |ints: &[i64]| AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) };
    let floats = |floats: &[f32]| AttributeProto { floats: floats.to_vec(), ..attribute(name, AttributeType::Floats) };
    match kind {
        "INT" => [0, 1, 2, 3, -1, 7]
            .map(|value| AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) })
            .to_vec(),
        "FLOAT" => [0.25, 2.0, 0.0]
            .map(|value| AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) })
            .to_vec(),
        "STRING" => ["none of these", ""].iter().chain(texts).map(|text| worded(name, text)).collect(),
        "INTS" => vec![ints(&[1]), ints(&[2, 2]), ints(&[1, 1, 2, 2]), ints(&[])],
        "FLOATS" => vec![floats(&[0.25]), floats(&[0.5, 2.0]), floats(&[])],
        "STRINGS" => {
            let strings = vec!["none of these".into()];
            vec![AttributeProto { strings, ..attribute(name, AttributeType::Strings) }]
        }
        _ => Vec::new(),
    }
}

/// A tensor type without a shape, or what holds such, of a schema's text such as `seq(tensor(float))`.
pub fn type_of(text: &str) -> Option<TypeProto> {
    let inner = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
    let value = if let Some(element) = inner("tensor(") {
        type_proto::Value::TensorType(type_proto::Tensor { elem_type: Some(element_type(element)?), shape: None })
    } else if let Some(element) = inner("seq(") {
        let elem_type = Some(Box::new(type_of(element)?));
        type_proto::Value::SequenceType(Box::new(type_proto::Sequence { elem_type }))
    } else {
        let elem_type = Some(Box::new(type_of(inner("optional(")?)?));
        type_proto::Value::OptionalType(Box::new(type_proto::Optional { elem_type }))
    };
    Some(TypeProto { value: Some(value), denotation: None })
}

/// The number of an element type by its name in schemas.
pub fn element_type(name: &str) -> Option<i32> {
    let names = [
        "undefined",
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
        "float8e4m3fn",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "uint4",
        "int4",
        "float4e2m1",
        "float8e8m0",
        "uint2",
        "int2",
    ];
    names.iter().position(|known| *known == name).and_then(|number| i32::try_from(number).ok())
}

/// The type with the shape of another, where both have one.
pub fn with_shape_of(mut kind: TypeProto, other: &TypeProto) -> TypeProto {
    match (&mut kind.value, &other.value) {
        (Some(type_proto::Value::TensorType(tensor)), Some(type_proto::Value::TensorType(shaped))) => {
            tensor.shape.clone_from(&shaped.shape);
        }
        (Some(type_proto::Value::SequenceType(items)), Some(type_proto::Value::SequenceType(shaped))) => {
            if let (Some(item), Some(shaped)) = (&mut items.elem_type, &shaped.elem_type) {
                **item = with_shape_of((**item).clone(), shaped);
            }
        }
        (Some(type_proto::Value::OptionalType(one)), Some(type_proto::Value::OptionalType(shaped))) => {
            if let (Some(item), Some(shaped)) = (&mut one.elem_type, &shaped.elem_type) {
                **item = with_shape_of((**item).clone(), shaped);
            }
        }
        _ => {}
    }
    kind
}

/// Give a value of the graph, an input or an initializer, this type; where it changes, elements become zeros.
pub fn retype(graph: &mut GraphProto, name: &str, kind: &TypeProto) {
    for input in graph.input.iter_mut().filter(|input| input.name() == name) {
        let shaped = input.r#type.clone().map_or_else(|| kind.clone(), |own| with_shape_of(kind.clone(), &own));
        input.r#type = Some(shaped);
    }
    let Some(type_proto::Value::TensorType(type_proto::Tensor { elem_type: Some(number), .. })) = kind.value else {
        return;
    };
    let of_other_type = |tensor: &&mut TensorProto| tensor.name() == name && tensor.data_type != Some(number);
    for tensor in graph.initializer.iter_mut().filter(of_other_type) {
        *tensor = zeros(name, &tensor.dims, number);
    }
}

fn zeros(name: &str, dims: &[i64], number: i32) -> TensorProto {
    let count: i64 = dims.iter().product();
    let mut tensor = TensorProto {
        name: Some(name.to_string()),
        dims: dims.to_vec(),
        data_type: Some(number),
        ..TensorProto::default()
    };
    match DType::from_onnx(number) {
        Some(DType::String) => tensor.string_data = vec![b"0".to_vec(); usize::try_from(count).unwrap()],
        Some(dtype) => tensor.raw_data = Some(vec![0; dtype.packed_bytes(usize::try_from(count).unwrap()).unwrap()]),
        None => {}
    }
    tensor
}

/// An input of the graph.
pub fn input(name: &str, kind: TypeProto) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}
