//! The checked-in code of the manifest's schema is what `ipu.proto` generates: messages, and the tables by which
//! untrusted bytes are walked before they are decoded. `BLESS=1 cargo test -p ipuc-formats --test all ipu_schema_generated`
//! rewrites both.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// First lines of the generated files.
const HEADER: &str = "\
// Generated from formats/proto/ipu.proto; do not edit.
// `BLESS=1 cargo test -p ipuc-formats --test all ipu_schema_generated` rewrites it.
";

/// Path of a file of this crate.
fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn descriptors() -> FileDescriptorSet {
    protox::compile(["ipu.proto"], [in_crate("proto")]).expect("the schema compiles")
}

/// The messages.
fn messages() -> String {
    let mut config = prost_build::Config::new();
    config.disable_comments(["."]);
    let module = prost_build::Module::from_protobuf_package_name;
    let requests = descriptors().file.into_iter().map(|file| (module(file.package()), file)).collect();
    let modules = config.generate(requests).expect("the schema generates code");
    let code: Vec<String> = modules.into_values().collect();
    assert_eq!(code.len(), 1, "the schema has one package");
    format!("{HEADER}{}", code[0])
}

/// The tables of fields.
fn tables() -> String {
    let mut code = format!("{HEADER}use super::schema;\nuse super::walk::{{Field, Kind, Message}};\n");
    for message in descriptors().file.iter().flat_map(|file| &file.message_type) {
        assert!(message.nested_type.is_empty(), "{} holds no messages", message.name());
        let name = message.name();
        writeln!(code, "\npub(super) static {}: Message = Message {{", constant(name)).unwrap();
        writeln!(code, "    name: \"{name}\",\n    memory_bytes: size_of::<schema::{name}>(),\n    fields: &[")
            .unwrap();
        for field in &message.field {
            writeln!(code, "        {},", row(message, field)).unwrap();
        }
        writeln!(code, "    ],\n}};").unwrap();
    }
    code
}

/// `PanelLayout` as `PANEL_LAYOUT`.
fn constant(name: &str) -> String {
    let mut constant = String::new();
    for (index, letter) in name.char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            constant.push('_');
        }
        constant.push(letter.to_ascii_uppercase());
    }
    constant
}

fn row(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let repeated = field.label() == Label::Repeated;
    let kind = match (field.r#type(), repeated) {
        (Type::Message, _) => {
            format!("Kind::Message(&{})", constant(field.type_name().rsplit('.').next().unwrap_or_default()))
        }
        (Type::String | Type::Bytes, _) => "Kind::Bytes".to_string(),
        (Type::Fixed32, true) => "Kind::PackedFixed32".to_string(),
        (Type::Fixed32, false) => "Kind::Fixed32".to_string(),
        (Type::Fixed64, false) => "Kind::Fixed64".to_string(),
        (Type::Uint32, true) => "Kind::PackedVarints { maximum: u32::MAX as u64 }".to_string(),
        (Type::Uint64 | Type::Sint64, true) => "Kind::PackedVarints { maximum: u64::MAX }".to_string(),
        (Type::Bool, false) => "Kind::Varint { maximum: 1 }".to_string(),
        (Type::Enum, false) => "Kind::Varint { maximum: i32::MAX as u64 }".to_string(),
        (Type::Uint32, false) => "Kind::Varint { maximum: u32::MAX as u64 }".to_string(),
        (Type::Uint64 | Type::Sint64, false) => "Kind::Varint { maximum: u64::MAX }".to_string(),
        (other, _) => panic!("{}.{} has type {other:?}, which the walker does not know", message.name(), field.name()),
    };
    // A proto3 `optional` is a union of one for protobuf's compiler.
    let union = field.oneof_index.is_some() && !field.proto3_optional();
    let (number, name) = (field.number(), field.name());
    format!("Field {{ number: {number}, name: \"{name}\", repeated: {repeated}, union: {union}, kind: {kind} }}")
}

fn check(path: &str, expected: &str) {
    let path = in_crate(path);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, expected).expect("generated code can be written");
    }
    let found = std::fs::read_to_string(&path).expect("generated code is checked in");
    assert!(found == expected, "{} is stale: run this test with BLESS=1", path.display());
}

#[test]
fn schema_is_what_the_proto_file_generates() {
    check("src/model/schema.rs", &messages());
}

#[test]
fn tables_are_what_the_proto_file_generates() {
    check("src/model/fields.rs", &tables());
}
