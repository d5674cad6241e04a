//! ONNX bytes: a model or a tensor file in, typed messages out, with the weights left where they are.
//!
//! - [`schema`] is the current ONNX schema as generated code;
//! - the walker cuts large tensors out of a file and leaves a skeleton, which is decoded;
//! - [`ReadAt`] is how files are reached: this module opens none.
//!
//! Whatever the schema does not know is refused, so that a newer model is never half understood. What the
//! messages mean is the importer's business.

mod attribute;
mod data_field;
mod element_reader;
mod elements;
mod error;
mod external;
mod fields;
mod locations;
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated code; the documentation is in proto/onnx-ml.proto"
)]
#[rustfmt::skip]
pub mod schema;
mod sparse;
mod tensor;
mod tensor_fault;
mod values;
mod walker;
mod window;

use crate::read_at::ReadAt;
pub use attribute::{AttributeError, AttributeValue, attribute_value};
pub use data_field::{DataField, Segment, TensorData};
pub use element_reader::ElementReader;
pub use error::OnnxError;
pub use external::{ExternalData, ExternalDataError};
use fields::Message;
pub use locations::external_locations;
use schema::{ModelProto, TensorProto};
pub use sparse::{SparseError, dense_tensor};
pub use tensor::TensorSource;
pub use tensor_fault::{TensorDataError, TensorFault};
pub use values::{ValueError, read_value};

/// Newest version of the ONNX intermediate representation that is known.
pub const NEWEST_IR_VERSION: i64 = 14;

/// What errors call a model.
const MODEL: &str = "model";

/// Reads a model. Its large tensors stay in the file: [`ModelProto`] says where they lie.
///
/// # Errors
/// [`OnnxError`] when the bytes are not an ONNX model that is wholly understood.
pub fn read_model(source: &dyn ReadAt) -> Result<ModelProto, OnnxError> {
    let model: ModelProto = decode(source, &fields::MODEL, MODEL)?;
    let version = model.ir_version.ok_or(OnnxError::NoIrVersion)?;
    if !(1..=NEWEST_IR_VERSION).contains(&version) {
        return Err(OnnxError::IrVersion { found: version, newest: NEWEST_IR_VERSION });
    }
    if model.graph.is_none() {
        return Err(OnnxError::NoGraph);
    }
    Ok(model)
}

/// The bytes of a model without its large tensors, of which they say where in the file they lie.
///
/// # Errors
/// [`OnnxError`] when the bytes are no ONNX model.
pub fn read_skeleton(source: &dyn ReadAt) -> Result<Vec<u8>, OnnxError> {
    walker::skeleton(source, &fields::MODEL, MODEL).map_err(|error| with_format(source, MODEL, error))
}

/// Reads a file that holds one tensor.
///
/// # Errors
/// [`OnnxError`] when the bytes are not a tensor that is wholly understood.
pub fn read_tensor(source: &dyn ReadAt) -> Result<TensorProto, OnnxError> {
    decode(source, &fields::TENSOR, "tensor")
}

/// Walks and decodes one message.
fn decode<T: prost::Message + Default>(
    source: &dyn ReadAt,
    message: &'static Message,
    expected: &'static str,
) -> Result<T, OnnxError> {
    if source.length() == 0 {
        return Err(OnnxError::Empty);
    }
    let skeleton = walker::skeleton(source, message, expected).map_err(|error| with_format(source, expected, error))?;
    T::decode(skeleton.as_slice()).map_err(|error| OnnxError::Decode { expected, error })
}

/// Says what the file looks like, if it looks like something else than ONNX.
fn with_format(source: &dyn ReadAt, expected: &'static str, error: OnnxError) -> OnnxError {
    let mut head = [0; 512];
    let length = usize::try_from(source.length()).unwrap_or(usize::MAX).min(head.len());
    let head = &mut head[..length];
    if matches!(error, OnnxError::Io { .. }) || source.read_exact_at(0, head).is_err() {
        return error;
    }
    if head.starts_with(b"version https://git-lfs") {
        return OnnxError::GitLfsPointer { expected };
    }
    match other_format(head) {
        Some(found) => OnnxError::OtherFormat { expected, found, cause: Box::new(error) },
        // Every known writer puts the IR version first, as key 8.
        None if expected == MODEL && head[0] != 8 => {
            let found = "some other format";
            OnnxError::OtherFormat { expected, found, cause: Box::new(error) }
        }
        None => error,
    }
}

/// A well-known format other than ONNX by its first bytes.
fn other_format(head: &[u8]) -> Option<&'static str> {
    const SIGNATURES: [(usize, &[u8], &str); 9] = [
        (0, b"PK\x03\x04", "a ZIP archive or PyTorch checkpoint"),
        (0, b"\x1f\x8b", "gzip-compressed data"),
        (0, b"\x89HDF", "an HDF5 file"),
        (0, b"\x93NUMPY", "a NumPy array"),
        (0, b"GGUF", "a GGUF file"),
        (4, b"TFL3", "a TensorFlow Lite model"),
        (4, b"ORTM", "an ONNX Runtime model (.ort)"),
        (8, b"{\"", "a safetensors file"),
        (0, b"\x80\x02", "a Python pickle"),
    ];
    let signature =
        SIGNATURES.iter().find(|(offset, bytes, _)| head.get(*offset..).is_some_and(|rest| rest.starts_with(bytes)));
    if let Some((_, _, name)) = signature {
        return Some(name);
    }
    // The keys of an ONNX message are control characters.
    let text = |byte: &u8| *byte >= b' ' && *byte != 0x7f || matches!(byte, b'\t'..=b'\r');
    head.iter().all(text).then_some("text")
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::onnx::schema::GraphProto;

    fn model() -> ModelProto {
        let graph = Some(GraphProto::default());
        ModelProto { ir_version: Some(8), graph, ..ModelProto::default() }
    }

    fn message(bytes: &[u8]) -> String {
        read_model(&bytes.to_vec()).expect_err("refused").to_string()
    }

    #[test]
    fn models_are_read() {
        assert_eq!(read_model(&model().encode_to_vec()).unwrap(), model());
    }

    #[test]
    fn models_need_a_graph_and_a_known_version() {
        let found = |model: ModelProto| message(&model.encode_to_vec());
        assert_eq!(found(ModelProto { graph: None, ..model() }), "the file holds no graph");
        assert_eq!(
            found(ModelProto { ir_version: None, producer_name: Some("x".into()), ..model() }),
            "the model states no IR version"
        );
        for version in [0, -1, 15, i64::MAX] {
            let model = ModelProto { ir_version: Some(version), ..model() };
            let expected = format!("the model has IR version {version}, known are 1 to 14");
            assert_eq!(found(model), expected);
        }
    }

    #[test]
    fn other_files_are_named() {
        assert_eq!(message(b""), "the file is empty");
        assert_eq!(
            message(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
            "the file is a Git LFS pointer, not the model itself"
        );
        let cases: [(&[u8], &str); 7] = [
            (b"Dear reader,\n", "text"),
            ("<html>Für alle</html>".as_bytes(), "text"),
            (b"PK\x03\x04\x00\x00\x00\x00", "a ZIP archive or PyTorch checkpoint"),
            (b"GGUF\x03\0\0\0", "a GGUF file"),
            (b"\x1c\0\0\0TFL3\0\0", "a TensorFlow Lite model"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "a safetensors file"),
            (b"\xff\xfe\x01\x02", "some other format"),
        ];
        for (bytes, found) in cases {
            let message = message(bytes);
            let expected = format!("the file is not an ONNX model: it looks like {found} (");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn errors_of_a_file_that_begins_as_a_model_are_plain() {
        let mut bytes = model().encode_to_vec();
        bytes.push(0xff);
        assert!(matches!(read_model(&bytes), Err(OnnxError::Truncated { .. })));
    }
}
