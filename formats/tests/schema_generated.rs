//! The checked-in code of the ONNX schema is what the schema generates. `BLESS=1 cargo test -p ipuc-formats
//! --test all schema_generated` rewrites it.

use std::path::{Path, PathBuf};

/// First lines of the generated file.
const HEADER: &str = "\
// Generated from formats/proto/onnx-ml.proto by prost-build; do not edit.
// `BLESS=1 cargo test -p ipuc-formats --test all schema_generated` rewrites it.
";

/// Path of a file of this crate.
fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The Rust code for the schema.
fn generate() -> String {
    let descriptors = protox::compile(["onnx-ml.proto"], [in_crate("proto")]).expect("the schema compiles");
    let mut config = prost_build::Config::new();
    // The comments stay in the schema: some would be taken for doc tests.
    config.disable_comments(["."]);
    // An attribute has at most one of these; inline they would take most of the memory of a large graph.
    for field in ["t", "g", "sparse_tensor", "tp"] {
        config.boxed(format!(".onnx.AttributeProto.{field}"));
    }
    let requests = descriptors
        .file
        .into_iter()
        .map(|file| (prost_build::Module::from_protobuf_package_name(file.package()), file))
        .collect();
    let modules = config.generate(requests).expect("the schema generates code");
    let code: Vec<String> = modules.into_values().collect();
    assert_eq!(code.len(), 1, "the schema has one package");
    format!("{HEADER}{}", code[0])
}

#[test]
fn schema_is_what_the_proto_file_generates() {
    let path = in_crate("src/onnx/schema.rs");
    let expected = generate();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &expected).expect("the schema can be written");
    }
    let found = std::fs::read_to_string(&path).expect("the schema is checked in");
    assert!(found == expected, "{} is stale: run this test with BLESS=1", path.display());
}
