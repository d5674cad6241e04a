//! What the walker knows of the ONNX schema: for every message its fields, each with number, name and kind.
//!
//! A field that is in no table is refused, because it may change what the model means. Documentation and
//! `metadata_props` below the model are dropped: they mean nothing and can be larger than the graph.
//! A test compares the tables with `proto/onnx-ml.proto`.

use super::schema;

/// A message type.
pub(super) struct Message {
    /// Name in the schema.
    pub name: &'static str,
    /// Memory that one decoded message takes, without what its fields point to.
    pub memory_bytes: usize,
    /// Every field that is known.
    pub fields: &'static [Field],
}

/// A field of a message.
pub(super) struct Field {
    /// Number on the wire.
    pub number: u32,
    /// Name in the schema.
    pub name: &'static str,
    /// How it is read.
    pub kind: Kind,
}

/// How the walker reads a field.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// One integer.
    Integer,
    /// Repeated integers, packed or not.
    Integers,
    /// One 32-bit float.
    Float,
    /// Repeated 32-bit floats, packed or not.
    Floats,
    /// UTF-8 text, once or repeated.
    Text,
    /// Bytes, once or repeated.
    Bytes,
    /// Repeated messages.
    Many(&'static Message),
    /// One message; several are merged as protobuf merges.
    One(&'static Message),
    /// A message that may occur once: two tensors are not merged.
    Once(&'static Message),
    /// Elements of a tensor: what is cut out when it is large.
    Data(Elements),
    /// Not part of the result.
    Dropped,
}

/// Wire form of a data field of `TensorProto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elements {
    /// `raw_data`: bytes; the last occurrence counts.
    Raw,
    /// 4 bytes an element.
    Fixed32,
    /// 8 bytes an element.
    Fixed64,
    /// 1 to 10 bytes an element.
    Varint,
}

const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind }
}

macro_rules! message {
    ($table:ident, $Type:path, $name:literal, [$($number:literal $field:literal $kind:expr,)*]) => {
        pub(super) static $table: Message = Message {
            name: $name,
            memory_bytes: size_of::<$Type>(),
            fields: &[$(field($number, $field, $kind),)*],
        };
    };
}

use Kind::{Bytes, Data, Dropped, Float, Floats, Integer, Integers, Once, Text};

const fn many(message: &'static Message) -> Kind {
    Kind::Many(message)
}

const fn one(message: &'static Message) -> Kind {
    Kind::One(message)
}

message!(MODEL, schema::ModelProto, "ModelProto", [
    1 "ir_version" Integer,
    8 "opset_import" many(&OPERATOR_SET),
    2 "producer_name" Text,
    3 "producer_version" Text,
    4 "domain" Text,
    5 "model_version" Integer,
    6 "doc_string" Dropped,
    7 "graph" one(&GRAPH),
    14 "metadata_props" many(&ENTRY),
    20 "training_info" many(&TRAINING),
    25 "functions" many(&FUNCTION),
    26 "configuration" many(&DEVICE_CONFIGURATION),
]);

message!(GRAPH, schema::GraphProto, "GraphProto", [
    1 "node" many(&NODE),
    2 "name" Text,
    5 "initializer" many(&TENSOR),
    15 "sparse_initializer" many(&SPARSE_TENSOR),
    10 "doc_string" Dropped,
    11 "input" many(&VALUE_INFO),
    12 "output" many(&VALUE_INFO),
    13 "value_info" many(&VALUE_INFO),
    14 "quantization_annotation" many(&ANNOTATION),
    16 "metadata_props" Dropped,
    // Reserved: producer fields of the first IR versions.
    3 "ir_version" Dropped,
    4 "producer_version" Dropped,
    6 "producer_tag" Dropped,
    7 "domain" Dropped,
]);

message!(NODE, schema::NodeProto, "NodeProto", [
    1 "input" Text,
    2 "output" Text,
    3 "name" Text,
    4 "op_type" Text,
    7 "domain" Text,
    8 "overload" Text,
    5 "attribute" many(&ATTRIBUTE),
    6 "doc_string" Dropped,
    9 "metadata_props" Dropped,
    10 "device_configurations" many(&NODE_DEVICE_CONFIGURATION),
]);

message!(ATTRIBUTE, schema::AttributeProto, "AttributeProto", [
    1 "name" Text,
    20 "type" Integer,
    21 "ref_attr_name" Text,
    13 "doc_string" Dropped,
    2 "f" Float,
    3 "i" Integer,
    4 "s" Bytes,
    5 "t" Once(&TENSOR),
    6 "g" one(&GRAPH),
    22 "sparse_tensor" Once(&SPARSE_TENSOR),
    14 "tp" one(&TYPE),
    7 "floats" Floats,
    8 "ints" Integers,
    9 "strings" Bytes,
    10 "tensors" many(&TENSOR),
    11 "graphs" many(&GRAPH),
    23 "sparse_tensors" many(&SPARSE_TENSOR),
    15 "type_protos" many(&TYPE),
]);

message!(TENSOR, schema::TensorProto, "TensorProto", [
    1 "dims" Integers,
    2 "data_type" Integer,
    3 "segment" one(&SEGMENT),
    4 "float_data" Data(Elements::Fixed32),
    5 "int32_data" Data(Elements::Varint),
    6 "string_data" Bytes,
    7 "int64_data" Data(Elements::Varint),
    8 "name" Text,
    9 "raw_data" Data(Elements::Raw),
    10 "double_data" Data(Elements::Fixed64),
    11 "uint64_data" Data(Elements::Varint),
    12 "doc_string" Dropped,
    13 "external_data" many(&ENTRY),
    14 "data_location" Integer,
    16 "metadata_props" Dropped,
]);

message!(SEGMENT, schema::tensor_proto::Segment, "Segment", [
    1 "begin" Integer,
    2 "end" Integer,
]);

message!(SPARSE_TENSOR, schema::SparseTensorProto, "SparseTensorProto", [
    1 "values" Once(&TENSOR),
    2 "indices" Once(&TENSOR),
    3 "dims" Integers,
]);

message!(VALUE_INFO, schema::ValueInfoProto, "ValueInfoProto", [
    1 "name" Text,
    2 "type" one(&TYPE),
    3 "doc_string" Dropped,
    4 "metadata_props" Dropped,
]);

message!(TYPE, schema::TypeProto, "TypeProto", [
    1 "tensor_type" one(&TENSOR_TYPE),
    4 "sequence_type" one(&SEQUENCE_TYPE),
    5 "map_type" one(&MAP_TYPE),
    6 "denotation" Text,
    7 "opaque_type" one(&OPAQUE_TYPE),
    8 "sparse_tensor_type" one(&SPARSE_TENSOR_TYPE),
    9 "optional_type" one(&OPTIONAL_TYPE),
]);

message!(TENSOR_TYPE, schema::type_proto::Tensor, "Tensor", [
    1 "elem_type" Integer,
    2 "shape" one(&SHAPE),
]);

message!(SPARSE_TENSOR_TYPE, schema::type_proto::SparseTensor, "SparseTensor", [
    1 "elem_type" Integer,
    2 "shape" one(&SHAPE),
]);

message!(SEQUENCE_TYPE, schema::type_proto::Sequence, "Sequence", [
    1 "elem_type" one(&TYPE),
]);

message!(OPTIONAL_TYPE, schema::type_proto::Optional, "Optional", [
    1 "elem_type" one(&TYPE),
]);

message!(MAP_TYPE, schema::type_proto::Map, "Map", [
    1 "key_type" Integer,
    2 "value_type" one(&TYPE),
]);

message!(OPAQUE_TYPE, schema::type_proto::Opaque, "Opaque", [
    1 "domain" Text,
    2 "name" Text,
    // Reserved: the parameters are part of the type, so a type that has them is refused.
]);

message!(SHAPE, schema::TensorShapeProto, "TensorShapeProto", [
    1 "dim" many(&DIMENSION),
]);

message!(DIMENSION, schema::tensor_shape_proto::Dimension, "Dimension", [
    1 "dim_value" Integer,
    2 "dim_param" Text,
    3 "denotation" Text,
]);

message!(FUNCTION, schema::FunctionProto, "FunctionProto", [
    1 "name" Text,
    // Reserved: of IR versions before 8, without effect.
    2 "since_version" Dropped,
    3 "status" Dropped,
    4 "input" Text,
    5 "output" Text,
    6 "attribute" Text,
    11 "attribute_proto" many(&ATTRIBUTE),
    7 "node" many(&NODE),
    8 "doc_string" Dropped,
    9 "opset_import" many(&OPERATOR_SET),
    10 "domain" Text,
    13 "overload" Text,
    12 "value_info" many(&VALUE_INFO),
    14 "metadata_props" Dropped,
]);

message!(TRAINING, schema::TrainingInfoProto, "TrainingInfoProto", [
    1 "initialization" one(&GRAPH),
    2 "algorithm" one(&GRAPH),
    3 "initialization_binding" many(&ENTRY),
    4 "update_binding" many(&ENTRY),
]);

message!(OPERATOR_SET, schema::OperatorSetIdProto, "OperatorSetIdProto", [
    1 "domain" Text,
    2 "version" Integer,
]);

message!(ENTRY, schema::StringStringEntryProto, "StringStringEntryProto", [
    1 "key" Text,
    2 "value" Text,
]);

message!(ANNOTATION, schema::TensorAnnotation, "TensorAnnotation", [
    1 "tensor_name" Text,
    2 "quant_parameter_tensor_names" many(&ENTRY),
]);

message!(DEVICE_CONFIGURATION, schema::DeviceConfigurationProto, "DeviceConfigurationProto", [
    1 "name" Text,
    2 "num_devices" Integer,
    3 "device" Text,
]);

message!(NODE_DEVICE_CONFIGURATION, schema::NodeDeviceConfigurationProto, "NodeDeviceConfigurationProto", [
    1 "configuration_id" Text,
    2 "sharding_spec" many(&SHARDING),
    3 "pipeline_stage" Integer,
]);

message!(SHARDING, schema::ShardingSpecProto, "ShardingSpecProto", [
    1 "tensor_name" Text,
    2 "device" Integers,
    3 "index_to_device_group_map" many(&INTEGER_ENTRY),
    4 "sharded_dim" many(&SHARDED_DIMENSION),
]);

message!(INTEGER_ENTRY, schema::IntIntListEntryProto, "IntIntListEntryProto", [
    1 "key" Integer,
    2 "value" Integers,
]);

message!(SHARDED_DIMENSION, schema::ShardedDimProto, "ShardedDimProto", [
    1 "axis" Integer,
    2 "simple_sharding" many(&SIMPLE_SHARDED_DIMENSION),
]);

message!(SIMPLE_SHARDED_DIMENSION, schema::SimpleShardedDimProto, "SimpleShardedDimProto", [
    1 "dim_value" Integer,
    2 "dim_param" Text,
    3 "num_shards" Integer,
]);

message!(SEQUENCE, schema::SequenceProto, "SequenceProto", [
    1 "name" Text,
    2 "elem_type" Integer,
    3 "tensor_values" many(&TENSOR),
    4 "sparse_tensor_values" many(&SPARSE_TENSOR),
    5 "sequence_values" many(&SEQUENCE),
    6 "map_values" many(&MAP),
    7 "optional_values" many(&OPTIONAL),
]);

message!(MAP, schema::MapProto, "MapProto", [
    1 "name" Text,
    2 "key_type" Integer,
    3 "keys" Integers,
    4 "string_keys" Bytes,
    5 "values" one(&SEQUENCE),
]);

message!(OPTIONAL, schema::OptionalProto, "OptionalProto", [
    1 "name" Text,
    2 "elem_type" Integer,
    3 "tensor_value" Once(&TENSOR),
    4 "sparse_tensor_value" Once(&SPARSE_TENSOR),
    5 "sequence_value" one(&SEQUENCE),
    6 "map_value" one(&MAP),
    7 "optional_value" one(&OPTIONAL),
]);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{DescriptorProto, FieldDescriptorProto};

    use super::*;
    use crate::onnx::walker::STORED_SEGMENTS_FIELD;

    /// Every table that can be reached from the roots, by name.
    fn tables() -> BTreeMap<&'static str, &'static Message> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![&MODEL, &SEQUENCE, &OPTIONAL];
        while let Some(message) = waiting.pop() {
            if found.insert(message.name, message).is_some() {
                continue;
            }
            for field in message.fields {
                match field.kind {
                    Kind::Many(inner) | Kind::One(inner) | Kind::Once(inner) => waiting.push(inner),
                    Integer | Integers | Float | Floats | Text | Bytes | Data(_) | Dropped => {}
                }
            }
        }
        found
    }

    fn collect(messages: &[DescriptorProto], into: &mut BTreeMap<String, DescriptorProto>) {
        for message in messages {
            into.insert(message.name().to_owned(), message.clone());
            collect(&message.nested_type, into);
        }
    }

    /// Messages of the schema file, by name.
    fn declared() -> BTreeMap<String, DescriptorProto> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let set = protox::compile(["onnx-ml.proto"], [folder]).unwrap();
        let mut messages = BTreeMap::new();
        for file in &set.file {
            collect(&file.message_type, &mut messages);
        }
        messages.remove("StoredSegment");
        messages
    }

    fn matches(declared: &FieldDescriptorProto, kind: Kind) -> bool {
        let repeated = declared.label() == Label::Repeated;
        let last = declared.type_name().rsplit('.').next().unwrap_or_default().to_owned();
        match kind {
            Integer | Integers => {
                matches!(declared.r#type(), Type::Int32 | Type::Int64) && repeated == matches!(kind, Integers)
            }
            Float | Floats => declared.r#type() == Type::Float && repeated == matches!(kind, Floats),
            Text => declared.r#type() == Type::String,
            Bytes => declared.r#type() == Type::Bytes,
            Kind::Many(inner) | Kind::One(inner) | Once(inner) => {
                declared.r#type() == Type::Message && last == inner.name && repeated == matches!(kind, Kind::Many(_))
            }
            Data(elements) => {
                let expected = match declared.r#type() {
                    Type::Bytes => Some(Elements::Raw),
                    Type::Float => Some(Elements::Fixed32),
                    Type::Double => Some(Elements::Fixed64),
                    Type::Int32 | Type::Int64 | Type::Uint64 => Some(Elements::Varint),
                    _ => None,
                };
                expected == Some(elements) && repeated == (elements != Elements::Raw)
            }
            Dropped => matches!(declared.name(), "doc_string" | "metadata_props"),
        }
    }

    #[test]
    fn tables_are_the_schema() {
        let tables = tables();
        let declared = declared();
        assert_eq!(
            tables.keys().map(|name| (*name).to_owned()).collect::<Vec<_>>(),
            declared.keys().cloned().collect::<Vec<_>>()
        );
        for (name, message) in &declared {
            let table = tables[name.as_str()];
            for field in &message.field {
                if field.number().unsigned_abs() == STORED_SEGMENTS_FIELD {
                    continue;
                }
                let row = table.fields.iter().find(|row| row.name == field.name());
                let row = row.unwrap_or_else(|| panic!("{name}.{} is in no table", field.name()));
                assert_eq!(row.number, field.number().unsigned_abs(), "{name}.{}", row.name);
                assert!(matches(field, row.kind), "{name}.{} has another kind", row.name);
            }
            // What the schema does not declare is reserved there, and dropped here.
            for row in table.fields {
                let known = message.field.iter().any(|field| field.name() == row.name);
                assert!(known || matches!(row.kind, Dropped), "{name}.{} is not declared", row.name);
                let number = i32::try_from(row.number).unwrap();
                let reserved =
                    message.reserved_range.iter().any(|range| (range.start()..range.end()).contains(&number));
                assert!(known || reserved, "{name}.{} is neither declared nor reserved", row.name);
            }
        }
    }

    #[test]
    fn stored_segments_can_not_come_from_a_file() {
        assert!(TENSOR.fields.iter().all(|field| field.number != STORED_SEGMENTS_FIELD));
    }

    #[test]
    fn tables_fit_the_bit_set_of_the_walker() {
        for (name, table) in tables() {
            assert!(table.fields.len() <= 32, "{name}");
        }
    }
}
