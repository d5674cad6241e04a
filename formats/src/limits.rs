//! Limits on what untrusted bytes may ask for, in one place.
//!
//! Exceeding one is an error that names the limit, never a panic or an allocation.

/// Graphs inside graphs in an ONNX model, the main graph included. The reference implementation stops near
/// 32, where protobuf's own recursion limit of 100 messages is reached.
pub const ONNX_GRAPH_NESTING: usize = 30;

/// Messages inside messages in an ONNX file, of any type. Below the recursion limit of the decoder, so that
/// the message about it is this crate's.
pub const ONNX_MESSAGE_NESTING: usize = 96;

/// Memory that an ONNX model may take once decoded, without its large tensors: text, nodes, attributes,
/// small tensors. A graph of 60,000 nodes takes about 130 MiB.
pub const ONNX_DECODED_BYTES: u64 = 1 << 30;

/// Tensor data of this many bytes or more stays in the ONNX file until it is asked for.
pub const ONNX_INLINE_BYTES: u64 = 1 << 10;

/// Bytes read at once from an ONNX file.
pub const ONNX_WINDOW_BYTES: usize = 64 << 10;

/// Bytes of a sparse constant of an ONNX model once it is spread out.
pub const ONNX_SPARSE_BYTES: u64 = 1 << 30;
