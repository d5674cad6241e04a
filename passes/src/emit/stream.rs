//! Reads, packs, checks and writes the bytes of the stream.
//!
//! Every offset is known before the first byte is read. Chunks are made in parallel, a window of them at a time, and
//! written where they belong; the window bounds memory. A weight that products read across its rows is read whole
//! where it is not too large, since reading it part by part would read a little of every row each time.

use crate::emit::blocks::Numbering;
use crate::emit::weights::stored_constant;
use crate::emit::{EmitError, EmitOptions, Emitted, Output, Progress};
use crate::ir::{Constant, ConstantData, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{EncodingError, Layout, PartRange, pack, pack_strings};
use ipuc_formats::model::{ChunkDigest, Manifest, Plan, Superblock, finish, plan};
use ipuc_formats::tensor::Tensor;
use rayon::prelude::*;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, Mutex};

/// Weights up to this size are read whole where their rows lie across the parts.
const READ_WHOLE_BYTES: u64 = 256 << 20;

/// Where the bytes of one extent come from.
#[derive(Clone)]
struct Filling {
    constant: ConstantId,
    weight: usize,
    range: PartRange,
    /// Number of parts that share what is loaded of the constant.
    parts: usize,
}

/// Write the stream, then the manifest with its checksums.
pub(super) fn write(
    graph: &Graph,
    manifest: Manifest,
    numbering: &Numbering,
    options: &EmitOptions,
    output: &dyn Output,
    progress: &dyn Progress,
) -> Result<Emitted, EmitError> {
    let fillings = fillings(graph, &manifest, numbering);
    let mut plan = plan(manifest, options.chunk_bytes)?;
    let loaded = Loaded { graph, tensors: Mutex::new(HashMap::new()) };
    let total_bytes = plan.total_length() - plan.stream_offset();
    let mut written = 0;
    let numbers: Vec<usize> = (0..plan.manifest().chunks.len()).collect();
    let mut digests = Vec::with_capacity(numbers.len());
    let mut source_hash = blake3::Hasher::new();
    for window in numbers.chunks(options.window_chunks.max(1)) {
        let filled: Vec<Result<(Vec<u8>, ChunkDigest), EmitError>> =
            window.par_iter().map(|&number| loaded.fill(&plan, number, &fillings)).collect();
        for (&number, chunk) in window.iter().zip(filled) {
            let (bytes, digest) = chunk?;
            let offset = plan.manifest().chunks[number].offset;
            output.write_at(offset, &bytes).map_err(|error| EmitError::Write { offset, error })?;
            written += bytes.len() as u64;
            progress.written(written, total_bytes);
            source_hash.update(&digest.hash);
            digests.push(digest);
        }
    }
    plan.set_weights_hash(*source_hash.finalize().as_bytes());
    let file_bytes = plan.total_length();
    let (head, manifest) = finish(plan, &digests)?;
    output.write_at(0, &head).map_err(|error| EmitError::Write { offset: 0, error })?;
    let root_hash = Superblock::from_bytes(&head, None)?.root_hash;
    Ok(Emitted { manifest, root_hash, file_bytes })
}

/// What fills each extent.
fn fillings(graph: &Graph, manifest: &Manifest, numbering: &Numbering) -> Vec<Option<Filling>> {
    let mut fillings: Vec<Option<Filling>> = vec![None; manifest.extents.len()];
    for (weight, record) in manifest.weights.iter().enumerate() {
        let constant = stored_constant(graph, numbering.constants[weight]);
        let parts = record.parts.len();
        for part in &record.parts {
            // Weights with the same bytes share extents; the first of them fills.
            fillings[part.extent as usize].get_or_insert(Filling { constant, weight, range: part.range(), parts });
        }
    }
    fillings
}

/// A tensor, and how many parts are still to be packed from it.
struct Shared {
    tensor: Arc<Tensor>,
    parts_left: usize,
}

/// Tensors that are in memory while their parts are packed.
struct Loaded<'a> {
    graph: &'a Graph,
    tensors: Mutex<HashMap<ConstantId, Shared>>,
}

impl Loaded<'_> {
    fn fill(
        &self,
        plan: &Plan,
        number: usize,
        fillings: &[Option<Filling>],
    ) -> Result<(Vec<u8>, ChunkDigest), EmitError> {
        let manifest = plan.manifest();
        let chunk = &manifest.chunks[number];
        let mut bytes = vec![0u8; chunk.length as usize];
        for index in manifest.extents_of_chunk(number as u32) {
            let extent = &manifest.extents[index];
            let start = (extent.offset - chunk.offset) as usize;
            let target = &mut bytes[start..start + extent.length as usize];
            if let Some(filling) = &fillings[index] {
                self.pack(manifest, filling, target)?;
            }
        }
        let digest = plan.digest(number as u32, &bytes)?;
        Ok((bytes, digest))
    }

    fn pack(&self, manifest: &Manifest, filling: &Filling, target: &mut [u8]) -> Result<(), EmitError> {
        let record = &manifest.weights[filling.weight];
        let constant = self.graph.constant(filling.constant);
        let failure = |error| EmitError::Encoding { weight: constant.label().to_string(), error };
        if record.layout == Layout::Strings {
            let strings = self.graph.load_constant(filling.constant)?;
            let packed = strings.strings().map_err(EncodingError::from).and_then(pack_strings).map_err(failure)?;
            target.copy_from_slice(&packed);
            return Ok(());
        }
        let whole = self.whole(constant, filling, &record.layout)?;
        let mut unreadable = None;
        let mut read = |offset: u64, buffer: &mut [u8]| -> io::Result<()> {
            match (&whole, &constant.data) {
                (Some(tensor), _) => {
                    let start = usize::try_from(offset).map_err(io::Error::other)?;
                    let range = start..start + buffer.len();
                    buffer.copy_from_slice(tensor.bytes().get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
                    Ok(())
                }
                (None, ConstantData::Stored(stored)) => {
                    self.graph.read_stored(stored, offset, buffer).map_err(|error| {
                        unreadable = Some(error);
                        io::ErrorKind::Other.into()
                    })
                }
                (None, ConstantData::Tensor(_) | ConstantData::Recipe { .. }) => Err(io::ErrorKind::NotFound.into()),
            }
        };
        let packed = pack(&record.layout, constant.dtype, &record.shape, filling.range, &mut read, target);
        match (packed, unreadable) {
            (_, Some(error)) => Err(error.into()),
            (packed, None) => packed.map_err(failure),
        }
    }

    /// The tensor of a constant that is not read in place.
    fn whole(&self, constant: &Constant, filling: &Filling, layout: &Layout) -> Result<Option<Arc<Tensor>>, EmitError> {
        let across = matches!(layout, Layout::Panels(panels) if panels.output_axis == 1);
        let direct = match &constant.data {
            ConstantData::Tensor(tensor) => return Ok(Some(Arc::new(tensor.clone()))),
            ConstantData::Recipe { .. } => false,
            // Sub-byte elements and varints have no places of their own.
            ConstantData::Stored(stored) => stored.tensor.is_direct() && constant.dtype != DType::String,
        };
        if direct && (!across || filling.parts == 1 || constant.byte_count() > READ_WHOLE_BYTES) {
            return Ok(None);
        }
        // Held while loading, so that threads which want the same weight load it once.
        let mut tensors = self.tensors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shared = match tensors.entry(filling.constant) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let tensor = Arc::new(self.graph.load_constant(filling.constant)?);
                entry.insert(Shared { tensor, parts_left: filling.parts })
            }
        };
        let tensor = shared.tensor.clone();
        shared.parts_left -= 1;
        if shared.parts_left == 0 {
            tensors.remove(&filling.constant);
        }
        Ok(Some(tensor))
    }
}
