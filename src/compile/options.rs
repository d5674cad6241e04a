//! What is compiled, and what a compilation may be told.

use ipuc_formats::dim::Bindings;
use ipuc_formats::model::{AttachmentRecord, PlacementRecord};
use ipuc_formats::ops::RowScheme;
use ipuc_passes::moments::Calibration;
use ipuc_passes::options::{ActivationSparsity, Activations, Joined, Sparsity, WeightOptions};
use std::path::PathBuf;
use std::sync::Arc;

/// A model to compile: an entry of the program.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the entry.
    pub entry: String,
    /// The `.onnx` file.
    pub path: PathBuf,
}

/// What an entry takes of a model that has more: a branch of a merged decoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Branch {
    /// The entry.
    pub entry: String,
    /// Inputs, scalars or of one element, that always have this value.
    pub constant_inputs: Vec<(String, bool)>,
    /// Extents of inputs: name, axis, and what it always is there.
    pub extents: Vec<(String, usize, u32)>,
    /// Inputs that nothing reads then, and outputs, which the entry does without.
    pub left_out: Vec<String>,
    /// Inputs of floats that have no rows: the first axis has the extent 0.
    pub without_rows: Vec<String>,
}

/// What a compilation may be told.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// Folders besides the model's own whose files it may use as external data.
    pub external_data_roots: Vec<PathBuf>,
    /// Sizes at which memory is weighed where dimensions are open.
    pub dimensions: Bindings,
    /// Ranges of dimensions: name, least and greatest value.
    pub ranges: Vec<(String, i64, i64)>,
    /// Inputs and outputs that are state, as `IN=OUT` patterns (`past.*=present.*`); `auto` for the names that
    /// exporters give to caches.
    pub states: Vec<String>,
    /// How rows of f32 of a growing cache are stored; `None` where they stay as they are.
    pub cache: Option<RowScheme>,
    /// What entries take of models that have more.
    pub branches: Vec<Branch>,
    /// Entries that are made of those of several models, which read what others give.
    pub joined: Vec<Joined>,
    /// Inputs with a default, an initializer, that callers may give: they are optional, and steps that read them are not
    /// computed while compiling. Any other input with a default has it always.
    pub overridable: Vec<String>,
    /// The output `[batch, positions, vocabulary]` of a language model for which an entry `prefill` is added, which computes
    /// it for the last position only.
    pub prefill: Option<String>,
    /// Data that belongs to the model and that no step reads, such as a tokenizer.
    pub attachments: Vec<AttachmentRecord>,
    /// How activations that meet quantized weights are computed.
    pub activations: Activations,
    /// How weights are rounded.
    pub weights: WeightOptions,
    /// Whether the zeros of weights are left out of the file.
    pub sparsity: Sparsity,
    /// Whether products leave out inputs whose activations are zero.
    pub activation_sparsity: ActivationSparsity,
    /// Activations of products that leave inputs out are zero where their magnitude lies below this share of the root mean
    /// square that calibration has seen of them; exact zeros alone where `None`.
    pub sparse_threshold: Option<f64>,
    /// What products read in runs of the models on examples (`ipuc::calibrate`), for weights that become codes.
    pub calibration: Arc<Calibration>,
    /// Length of a chunk, the unit of reading, about; 2 MiB where `None`.
    pub chunk_bytes: Option<u64>,
    /// Leave every step as it is, so that each value of the model is computed and can be observed; slower.
    pub unfused: bool,
    /// Verify after every pass in release builds too, and compare shapes with those that tract derives (feature `cross-check`).
    pub verify: bool,
    /// Most bytes of weights in memory at a time while they are written; the file does not depend on it. By default four
    /// fifths of what the machine or its control group has available, of which no more than
    /// [`ipuc_passes::emit::MEMORY_BYTES`] are used unless a constant that is computed as a whole needs them.
    pub memory: Option<u64>,
    /// How steps are spread over the tiles of targets, with the numbers that blocks and steps have in the file
    /// (`ipuc inspect --program` of the file without them shows these).
    pub placements: Vec<PlacementRecord>,
}
