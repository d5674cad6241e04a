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

/// Nodes of an ONNX model once its functions are put in place of their calls. Time and memory of a compilation grow with
/// them: 65,536 take 1 s and 95 MiB on one core of 2024, 344,000 take 4 s and 215 MiB.
pub const ONNX_EXPANDED_NODES: u64 = 1 << 19;

/// Tensor data of this many bytes or more stays in the ONNX file until it is asked for.
pub const ONNX_INLINE_BYTES: u64 = 1 << 10;

/// Bytes read at once from an ONNX file.
pub const ONNX_WINDOW_BYTES: usize = 64 << 10;

/// Bytes of a sparse constant of an ONNX model once it is spread out.
pub const ONNX_SPARSE_BYTES: u64 = 1 << 30;

/// Length of the manifest of an `.ipu` file.
pub const IPU_MANIFEST_BYTES: u64 = 256 << 20;

/// Memory that the manifest of an `.ipu` file may take once decoded. 60,000 steps take about 50 MiB.
pub const IPU_DECODED_BYTES: u64 = 1 << 30;

/// Messages inside messages in a manifest, below the recursion limit of the decoder.
pub const IPU_MESSAGE_NESTING: usize = 64;

/// Types inside types (sequences, optionals, maps) in a manifest.
pub const IPU_TYPE_NESTING: usize = 16;

/// Blocks inside blocks: as deep as graphs in an ONNX model.
pub const IPU_BLOCK_NESTING: usize = ONNX_GRAPH_NESTING;

/// Ways in which control flow reaches blocks of a file, all together: a block that several steps run counts
/// once for each, and so do the blocks inside it.
pub const IPU_BLOCK_PATHS: u64 = 1 << 20;

/// Axes of a tensor in an `.ipu` file.
pub const IPU_RANK: usize = 64;

/// Distinct dimension expressions in an `.ipu` file.
pub const IPU_DIMENSIONS: usize = 1 << 20;

/// Regions of all placements of an `.ipu` file, each once for every range of tiles that it is on.
pub const IPU_PLACED_REGIONS: u64 = 1 << 15;

/// Attachments of an `.ipu` file.
pub const IPU_ATTACHMENTS: u64 = 64;

/// Bytes of all attachments of an `.ipu` file. The largest tokenizers in use have about 35 MB.
pub const IPU_ATTACHMENT_BYTES: u64 = 128 << 20;

/// Begin and end of chunks, and of the manifest's padding.
pub const IPU_CHUNK_ALIGNMENT: u64 = 4096;

/// Begin of extents inside a chunk.
pub const IPU_EXTENT_ALIGNMENT: u64 = 64;

/// About the length of a chunk, and the budget for the parts of a weight.
pub const IPU_CHUNK_BYTES: u64 = 2 << 20;

/// Extents of weights below this size are pooled at the beginning of the stream.
pub const IPU_POOLED_BYTES: u64 = 64 << 10;

/// Bytes that one checksum covers, and the most that it may cover.
pub const IPU_CHECKSUM_BLOCK: u32 = 2 << 20;

/// Bytes that one checksum covers where rows are read alone, and the fewest that it may cover.
pub const IPU_ROW_CHECKSUM_BLOCK: u32 = 4096;

/// Weights that share extents decode to at most this many times the stored bytes, ..
pub const IPU_SHARED_FACTOR: u64 = 16;

/// .. and this many bytes more.
pub const IPU_SHARED_BYTES: u64 = 64 << 20;

/// Text of all dimension expressions of an `.ipu` file together; decoded they take up to 100 times as much.
pub const IPU_DIMENSION_TEXT_BYTES: usize = 16 << 20;
