//! The only builder of file records: a graph in order becomes a manifest and a stream of weights.
//!
//! `blocks.rs` numbers blocks, values and steps; `weights.rs` decides how each constant is encoded and in which order
//! (that of first use); `work.rs` knows what fills the stream, `division.rs` divides that into pieces of work, `stream.rs`
//! does them within a bound on memory, and `sources.rs` hashes what weights come from. The bytes depend neither on the
//! number of threads nor on the bound.
//!
//! Leaves alone: what steps compute. Knows no files: bytes go to an [`Output`].

mod blocks;
mod buffer;
mod division;
mod reader;
mod sources;
mod stream;
mod weights;
mod work;

use crate::ir::{ConstantError, Graph};
use ipuc_formats::encodings::EncodingError;
use ipuc_formats::model::{AttachmentRecord, FormatError, Manifest, PlacementRecord, Provenance, SymbolRecord};
use ipuc_formats::size::{NeededSize, Size};
use std::io;
use thiserror::Error;

/// Where the file is written: at any position, each byte once.
pub trait Output: Sync {
    /// The file will have so many bytes; called once, before any is written.
    ///
    /// # Errors
    /// What the medium reports, where there is no room for them.
    fn reserve(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// Write all bytes at this offset. Chunks begin and end, in the file and in memory, at multiples of
    /// [`IPU_CHUNK_ALIGNMENT`](ipuc_formats::limits::IPU_CHUNK_ALIGNMENT).
    ///
    /// # Errors
    /// What the medium reports.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// What a user may be shown while weights are written.
pub trait Progress: Sync {
    /// So many bytes of the stream are written, of so many.
    fn written(&self, bytes: u64, total_bytes: u64);
}

/// For callers that show nothing.
pub struct NoProgress;

impl Progress for NoProgress {
    fn written(&self, _bytes: u64, _total_bytes: u64) {}
}

/// Why a file cannot be emitted.
#[derive(Debug, Error)]
pub enum EmitError {
    /// A weight cannot be read or computed.
    #[error(transparent)]
    Constant(#[from] ConstantError),
    /// A weight cannot be encoded.
    #[error("weight `{weight}`: {error}")]
    Encoding {
        /// Name of the weight.
        weight: String,
        /// Why.
        error: EncodingError,
    },
    /// A state without a type, as no entry uses it.
    #[error("state `{state}` is used by no entry")]
    UnusedState {
        /// Name of the state.
        state: String,
    },
    /// The records do not make a file.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The output cannot be written.
    #[error("cannot write the output at offset {offset}: {error}")]
    Write {
        /// Where.
        offset: u64,
        /// What the medium reports.
        error: io::Error,
    },
    /// The system gives no memory for a piece of work.
    #[error("there is no memory for a buffer of {}: {error}", Size(*bytes))]
    Buffer {
        /// Length of the buffer.
        bytes: u64,
        /// What the system reports.
        error: io::Error,
    },
    /// The bound on memory is too low for the largest piece of work.
    #[error(
        "compiling this model needs {} for weights in memory, {} are allowed",
        NeededSize(*needed_bytes),
        Size(*memory_bytes)
    )]
    Memory {
        /// Bytes that are allowed.
        memory_bytes: u64,
        /// The least that is enough.
        needed_bytes: u64,
    },
}

/// What weights take in memory at most, where more is to be had and nothing needs it: on two processors, room for four matrices of 4096 × 4096 f32
/// that are packed as a whole.
pub const MEMORY_BYTES: u64 = 272 << 20;

/// How weights become bytes.
#[derive(Debug, Clone)]
pub struct EmitOptions {
    /// Length of a chunk, about.
    pub chunk_bytes: u64,
    /// Most bytes of weights in memory at a time; what is written does not depend on it.
    pub memory_bytes: u64,
    /// Most bytes that one piece of work may take where that is more, as a large constant that is computed.
    pub piece_bytes: u64,
    /// Options that change bytes, for the provenance.
    pub recorded: Vec<(String, String)>,
    /// How steps are spread over the tiles of targets, with the numbers that blocks and steps have in the file.
    pub placements: Vec<PlacementRecord>,
    /// Data that belongs to the model and that no step reads.
    pub attachments: Vec<AttachmentRecord>,
}

impl Default for EmitOptions {
    fn default() -> Self {
        EmitOptions {
            chunk_bytes: 2 << 20,
            memory_bytes: MEMORY_BYTES,
            piece_bytes: MEMORY_BYTES,
            recorded: Vec::new(),
            placements: Vec::new(),
            attachments: Vec::new(),
        }
    }
}

/// What was written.
#[derive(Debug, Clone)]
pub struct Emitted {
    /// The manifest as it stands in the file.
    pub manifest: Manifest,
    /// Name of the file: the hash over everything.
    pub root_hash: [u8; 32],
    /// Length of the file.
    pub file_bytes: u64,
    /// Weights for which a budget decided how they are stored, by their numbers in the manifest.
    pub budgeted: Vec<usize>,
}

/// Write a graph in order as a file.
///
/// # Errors
/// [`EmitError`] where a weight cannot be read or the output cannot be written.
pub fn emit(
    graph: &Graph,
    options: &EmitOptions,
    output: &dyn Output,
    progress: &dyn Progress,
) -> Result<Emitted, EmitError> {
    let numbering = blocks::number(graph);
    let manifest = records(graph, &numbering, options)?;
    stream::write(graph, manifest, &numbering, options, output, progress)
}

/// The records of the file that [`emit`] would write: sizes of weights, but neither their bytes nor their hashes nor where
/// they are. No weight is read.
///
/// # Errors
/// [`EmitError::Encoding`] where a weight cannot be encoded.
pub fn describe(graph: &Graph, options: &EmitOptions) -> Result<Manifest, EmitError> {
    records(graph, &blocks::number(graph), options)
}

fn records(graph: &Graph, numbering: &blocks::Numbering, options: &EmitOptions) -> Result<Manifest, EmitError> {
    let (weights, extents) = weights::plan(graph, numbering, options)?;
    Ok(Manifest {
        producer: format!("ipuc {}", env!("CARGO_PKG_VERSION")),
        provenance: Provenance {
            models: models(graph),
            weights_hash: [0; 32],
            options: options.recorded.clone(),
            compiler_version: env!("CARGO_PKG_VERSION").to_string(),
        },
        symbols: symbols(graph),
        obligations: graph.obligations.clone(),
        entries: blocks::entries(graph, numbering),
        blocks: blocks::records(graph, numbering),
        weights,
        extents,
        chunks: Vec::new(),
        files: Vec::new(),
        placements: options.placements.clone(),
        states: blocks::states(graph)?,
        attachments: options.attachments.clone(),
    })
}

/// Names of the files that the graph was imported from, without the folders of this machine.
fn models(graph: &Graph) -> Vec<String> {
    let mut names: Vec<String> = graph.sources.iter().map(|source| source.name.clone()).collect();
    names.dedup();
    names
}

/// Every symbol that a stored dimension names, with its range.
fn symbols(graph: &Graph) -> Vec<SymbolRecord> {
    let mut names = std::collections::BTreeSet::new();
    for index in graph.reachable_blocks() {
        let block = graph.block(index);
        let results = block.steps.iter().flat_map(|step| &step.results);
        for &value in block.parameters.iter().chain(results) {
            blocks::collect_symbols(&graph.value(value).fact, &mut names);
        }
    }
    for obligation in &graph.obligations {
        names.extend(obligation.left.symbols());
        names.extend(obligation.right.symbols());
    }
    let record = |name: std::sync::Arc<str>| {
        let (minimum, maximum) = graph.ranges.get(&name);
        SymbolRecord { name: name.to_string(), minimum, maximum }
    };
    names.into_iter().map(record).collect()
}
