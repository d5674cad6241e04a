// Generated from formats/proto/ipu.proto; do not edit.
// `BLESS=1 cargo test -p ipuc-formats --test all ipu_schema_generated` rewrites it.
use super::schema;
use super::walk::{Field, Kind, Message};

pub(super) static MANIFEST: Message = Message {
    name: "Manifest",
    memory_bytes: size_of::<schema::Manifest>(),
    fields: &[
        Field { number: 1, name: "producer", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "provenance", repeated: false, union: false, kind: Kind::Message(&PROVENANCE) },
        Field { number: 3, name: "dimensions", repeated: true, union: false, kind: Kind::Bytes },
        Field { number: 4, name: "symbols", repeated: true, union: false, kind: Kind::Message(&SYMBOL) },
        Field { number: 5, name: "obligations", repeated: true, union: false, kind: Kind::Message(&OBLIGATION) },
        Field { number: 6, name: "entries", repeated: true, union: false, kind: Kind::Message(&ENTRY) },
        Field { number: 7, name: "blocks", repeated: true, union: false, kind: Kind::Message(&BLOCK) },
        Field { number: 8, name: "weights", repeated: true, union: false, kind: Kind::Message(&WEIGHT) },
        Field { number: 9, name: "extents", repeated: true, union: false, kind: Kind::Message(&EXTENT) },
        Field { number: 10, name: "chunks", repeated: true, union: false, kind: Kind::Message(&CHUNK) },
        Field { number: 11, name: "files", repeated: true, union: false, kind: Kind::Message(&FILE) },
        Field { number: 12, name: "placements", repeated: true, union: false, kind: Kind::Message(&PLACEMENT) },
        Field { number: 13, name: "states", repeated: true, union: false, kind: Kind::Message(&STATE) },
        Field { number: 14, name: "attachments", repeated: true, union: false, kind: Kind::Message(&ATTACHMENT) },
    ],
};

pub(super) static ATTACHMENT: Message = Message {
    name: "Attachment",
    memory_bytes: size_of::<schema::Attachment>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "data", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static PROVENANCE: Message = Message {
    name: "Provenance",
    memory_bytes: size_of::<schema::Provenance>(),
    fields: &[
        Field { number: 1, name: "models", repeated: true, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "weights_hash", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 3, name: "options", repeated: true, union: false, kind: Kind::Message(&SETTING) },
        Field { number: 4, name: "compiler_version", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static SETTING: Message = Message {
    name: "Setting",
    memory_bytes: size_of::<schema::Setting>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "value", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static SYMBOL: Message = Message {
    name: "Symbol",
    memory_bytes: size_of::<schema::Symbol>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "minimum", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "maximum", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
    ],
};

pub(super) static OBLIGATION: Message = Message {
    name: "Obligation",
    memory_bytes: size_of::<schema::Obligation>(),
    fields: &[
        Field { number: 1, name: "relation", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
        Field { number: 2, name: "left", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "right", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 4, name: "subject", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static ENTRY: Message = Message {
    name: "Entry",
    memory_bytes: size_of::<schema::Entry>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "block", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "inputs", repeated: true, union: false, kind: Kind::Bytes },
        Field { number: 4, name: "outputs", repeated: true, union: false, kind: Kind::Bytes },
        Field { number: 5, name: "states", repeated: true, union: false, kind: Kind::Message(&STATE_USE) },
    ],
};

pub(super) static STATE: Message = Message {
    name: "State",
    memory_bytes: size_of::<schema::State>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "type", repeated: false, union: false, kind: Kind::Message(&TYPE) },
        Field { number: 3, name: "growth", repeated: false, union: false, kind: Kind::Message(&GROWTH) },
    ],
};

pub(super) static GROWTH: Message = Message {
    name: "Growth",
    memory_bytes: size_of::<schema::Growth>(),
    fields: &[
        Field { number: 1, name: "axis", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "page", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "rows", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
        Field { number: 4, name: "overwritten", repeated: false, union: false, kind: Kind::Varint { maximum: 1 } },
    ],
};

pub(super) static STATE_USE: Message = Message {
    name: "StateUse",
    memory_bytes: size_of::<schema::StateUse>(),
    fields: &[
        Field { number: 1, name: "state", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "input", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "output", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static BLOCK: Message = Message {
    name: "Block",
    memory_bytes: size_of::<schema::Block>(),
    fields: &[
        Field { number: 1, name: "values", repeated: true, union: false, kind: Kind::Message(&VALUE) },
        Field { number: 2, name: "parameters", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "steps", repeated: true, union: false, kind: Kind::Message(&STEP) },
        Field { number: 4, name: "results", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
    ],
};

pub(super) static VALUE: Message = Message {
    name: "Value",
    memory_bytes: size_of::<schema::Value>(),
    fields: &[
        Field { number: 1, name: "type", repeated: false, union: false, kind: Kind::Message(&TYPE) },
        Field { number: 2, name: "contents", repeated: false, union: false, kind: Kind::Message(&CONTENTS) },
        Field { number: 3, name: "role", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
        Field { number: 4, name: "id", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 5, name: "name", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static CONTENTS: Message = Message {
    name: "Contents",
    memory_bytes: size_of::<schema::Contents>(),
    fields: &[
        Field { number: 1, name: "elements", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static TYPE: Message = Message {
    name: "Type",
    memory_bytes: size_of::<schema::Type>(),
    fields: &[
        Field { number: 1, name: "tensor", repeated: false, union: true, kind: Kind::Message(&TENSOR_TYPE) },
        Field { number: 2, name: "sequence", repeated: false, union: true, kind: Kind::Message(&TYPE) },
        Field { number: 3, name: "optional", repeated: false, union: true, kind: Kind::Message(&TYPE) },
        Field { number: 4, name: "map", repeated: false, union: true, kind: Kind::Message(&MAP_TYPE) },
    ],
};

pub(super) static TENSOR_TYPE: Message = Message {
    name: "TensorType",
    memory_bytes: size_of::<schema::TensorType>(),
    fields: &[
        Field { number: 1, name: "dtype", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "shape", repeated: false, union: false, kind: Kind::Message(&SHAPE) },
    ],
};

pub(super) static SHAPE: Message = Message {
    name: "Shape",
    memory_bytes: size_of::<schema::Shape>(),
    fields: &[
        Field { number: 1, name: "extents", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static MAP_TYPE: Message = Message {
    name: "MapType",
    memory_bytes: size_of::<schema::MapType>(),
    fields: &[
        Field { number: 1, name: "key", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "element", repeated: false, union: false, kind: Kind::Message(&TYPE) },
    ],
};

pub(super) static STEP: Message = Message {
    name: "Step",
    memory_bytes: size_of::<schema::Step>(),
    fields: &[
        Field { number: 1, name: "operator", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "revision", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "operands", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
        Field { number: 4, name: "results", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u32::MAX as u64 } },
        Field { number: 5, name: "reads", repeated: true, union: false, kind: Kind::Message(&READ) },
        Field { number: 6, name: "attributes", repeated: true, union: false, kind: Kind::Message(&ATTRIBUTE) },
        Field { number: 7, name: "name", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static READ: Message = Message {
    name: "Read",
    memory_bytes: size_of::<schema::Read>(),
    fields: &[
        Field { number: 1, name: "operand", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "kind", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
    ],
};

pub(super) static ATTRIBUTE: Message = Message {
    name: "Attribute",
    memory_bytes: size_of::<schema::Attribute>(),
    fields: &[
        Field { number: 1, name: "number", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "integer", repeated: false, union: true, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "float", repeated: false, union: true, kind: Kind::Fixed32 },
        Field { number: 4, name: "text", repeated: false, union: true, kind: Kind::Bytes },
        Field { number: 5, name: "integers", repeated: false, union: true, kind: Kind::Message(&INTEGERS) },
        Field { number: 6, name: "floats", repeated: false, union: true, kind: Kind::Message(&FLOATS) },
        Field { number: 7, name: "texts", repeated: false, union: true, kind: Kind::Message(&TEXTS) },
        Field { number: 8, name: "tensor", repeated: false, union: true, kind: Kind::Message(&TENSOR) },
    ],
};

pub(super) static INTEGERS: Message = Message {
    name: "Integers",
    memory_bytes: size_of::<schema::Integers>(),
    fields: &[
        Field { number: 1, name: "elements", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
    ],
};

pub(super) static FLOATS: Message = Message {
    name: "Floats",
    memory_bytes: size_of::<schema::Floats>(),
    fields: &[
        Field { number: 1, name: "elements", repeated: true, union: false, kind: Kind::PackedFixed32 },
    ],
};

pub(super) static TEXTS: Message = Message {
    name: "Texts",
    memory_bytes: size_of::<schema::Texts>(),
    fields: &[
        Field { number: 1, name: "elements", repeated: true, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static TENSOR: Message = Message {
    name: "Tensor",
    memory_bytes: size_of::<schema::Tensor>(),
    fields: &[
        Field { number: 1, name: "dtype", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "shape", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
        Field { number: 3, name: "data", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 4, name: "strings", repeated: true, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static WEIGHT: Message = Message {
    name: "Weight",
    memory_bytes: size_of::<schema::Weight>(),
    fields: &[
        Field { number: 1, name: "name", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "dtype", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "shape", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
        Field { number: 4, name: "encoding", repeated: false, union: false, kind: Kind::Message(&ENCODING) },
        Field { number: 5, name: "parts", repeated: true, union: false, kind: Kind::Message(&PART) },
        Field { number: 6, name: "sources", repeated: true, union: false, kind: Kind::Message(&SOURCE) },
        Field { number: 7, name: "reason", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 8, name: "zeros", repeated: false, union: false, kind: Kind::Message(&ZEROS) },
        Field { number: 9, name: "id", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static ENCODING: Message = Message {
    name: "Encoding",
    memory_bytes: size_of::<schema::Encoding>(),
    fields: &[
        Field { number: 1, name: "encoding", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "revision", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "attributes", repeated: true, union: false, kind: Kind::Message(&ATTRIBUTE) },
    ],
};

pub(super) static PART: Message = Message {
    name: "Part",
    memory_bytes: size_of::<schema::Part>(),
    fields: &[
        Field { number: 1, name: "extent", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "start", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "end", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 4, name: "inputs_start", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 5, name: "inputs_end", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
    ],
};

pub(super) static SOURCE: Message = Message {
    name: "Source",
    memory_bytes: size_of::<schema::Source>(),
    fields: &[
        Field { number: 1, name: "file", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "offset", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "length", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 4, name: "plane", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static ZEROS: Message = Message {
    name: "Zeros",
    memory_bytes: size_of::<schema::Zeros>(),
    fields: &[
        Field { number: 1, name: "elements", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 2, name: "zeros", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "not_finite", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 4, name: "groups", repeated: true, union: false, kind: Kind::PackedVarints { maximum: u64::MAX } },
        Field { number: 5, name: "blocks", repeated: true, union: false, kind: Kind::Message(&ZERO_BLOCKS) },
        Field { number: 6, name: "record_elements", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 7, name: "reason", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static ZERO_BLOCKS: Message = Message {
    name: "ZeroBlocks",
    memory_bytes: size_of::<schema::ZeroBlocks>(),
    fields: &[
        Field { number: 1, name: "inputs", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 2, name: "count", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "zeros", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
    ],
};

pub(super) static EXTENT: Message = Message {
    name: "Extent",
    memory_bytes: size_of::<schema::Extent>(),
    fields: &[
        Field { number: 1, name: "file", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "offset", repeated: false, union: false, kind: Kind::Fixed64 },
        Field { number: 3, name: "length", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 4, name: "checksum_block", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 5, name: "checksums", repeated: true, union: false, kind: Kind::PackedFixed32 },
        Field { number: 6, name: "pooled", repeated: false, union: false, kind: Kind::Varint { maximum: 1 } },
        Field { number: 7, name: "chunk", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static CHUNK: Message = Message {
    name: "Chunk",
    memory_bytes: size_of::<schema::Chunk>(),
    fields: &[
        Field { number: 1, name: "offset", repeated: false, union: false, kind: Kind::Fixed64 },
        Field { number: 2, name: "length", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "hash", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static FILE: Message = Message {
    name: "File",
    memory_bytes: size_of::<schema::File>(),
    fields: &[
        Field { number: 1, name: "root_hash", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static PLACEMENT: Message = Message {
    name: "Placement",
    memory_bytes: size_of::<schema::Placement>(),
    fields: &[
        Field { number: 1, name: "target", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "target_hash", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 3, name: "block", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 4, name: "steps", repeated: true, union: false, kind: Kind::Message(&STEP_PLACEMENT) },
        Field { number: 5, name: "bindings", repeated: true, union: false, kind: Kind::Message(&DIMENSION_BINDING) },
    ],
};

pub(super) static DIMENSION_BINDING: Message = Message {
    name: "DimensionBinding",
    memory_bytes: size_of::<schema::DimensionBinding>(),
    fields: &[
        Field { number: 1, name: "symbol", repeated: false, union: false, kind: Kind::Bytes },
        Field { number: 2, name: "value", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
    ],
};

pub(super) static STEP_PLACEMENT: Message = Message {
    name: "StepPlacement",
    memory_bytes: size_of::<schema::StepPlacement>(),
    fields: &[
        Field { number: 1, name: "step", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "splits", repeated: true, union: false, kind: Kind::Message(&SPLIT) },
        Field { number: 3, name: "stationary", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 4, name: "tiles", repeated: true, union: false, kind: Kind::Message(&TILE_RANGE) },
        Field { number: 5, name: "regions", repeated: true, union: false, kind: Kind::Message(&REGION) },
        Field { number: 6, name: "reduction", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
        Field { number: 7, name: "reason", repeated: false, union: false, kind: Kind::Bytes },
    ],
};

pub(super) static SPLIT: Message = Message {
    name: "Split",
    memory_bytes: size_of::<schema::Split>(),
    fields: &[
        Field { number: 1, name: "space", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "axis", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 3, name: "parts", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 4, name: "kind", repeated: false, union: false, kind: Kind::Varint { maximum: i32::MAX as u64 } },
    ],
};

pub(super) static TILE_RANGE: Message = Message {
    name: "TileRange",
    memory_bytes: size_of::<schema::TileRange>(),
    fields: &[
        Field { number: 1, name: "start", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 2, name: "end", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};

pub(super) static REGION: Message = Message {
    name: "Region",
    memory_bytes: size_of::<schema::Region>(),
    fields: &[
        Field { number: 1, name: "operand", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 2, name: "offset", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 3, name: "bytes", repeated: false, union: false, kind: Kind::Varint { maximum: u64::MAX } },
        Field { number: 4, name: "from", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
        Field { number: 5, name: "to", repeated: false, union: false, kind: Kind::Varint { maximum: u32::MAX as u64 } },
    ],
};
