//! The tensors that weights come from, and their hash.
//!
//! The hash of a tensor is BLAKE3 of its canonical bytes: it does not depend on how the model stores the tensor, nor on
//! how the file does. A weight that is computed while the file is written counts by the tensors that it is computed from.

use crate::ir::{ConstantData, ConstantError, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::pack_strings;
use ipuc_formats::tensor::Tensor;
use std::collections::HashSet;

/// Canonical bytes that are read at a time.
const READ_BYTES: u64 = 256 << 10;

/// What a constant is read or computed from, in order.
pub(super) fn leaves(graph: &Graph, id: ConstantId) -> Vec<ConstantId> {
    match &graph.constant(id).data {
        ConstantData::Tensor(_) | ConstantData::Stored(_) | ConstantData::Hashed(_) => vec![id],
        ConstantData::Rounded(rounded) => leaves(graph, rounded.weight),
        ConstantData::Recipe { operands, .. } => {
            operands.iter().flatten().flat_map(|&operand| leaves(graph, operand)).collect()
        }
    }
}

/// The leaves of all these constants, each once.
pub(super) fn seen_once(graph: &Graph, constants: &[ConstantId]) -> Vec<ConstantId> {
    let mut seen = HashSet::new();
    constants.iter().flat_map(|&id| leaves(graph, id)).filter(|&id| seen.insert(id)).collect()
}

/// BLAKE3 of the canonical bytes of a tensor, while they are read for something else; of strings, of their stored bytes.
#[derive(Default)]
pub(super) struct SourceHash {
    /// Of all bytes up to its count.
    hasher: blake3::Hasher,
}

impl SourceHash {
    /// Canonical bytes have been read. Only those that follow what is hashed already help.
    pub(super) fn see(&mut self, offset: u64, bytes: &[u8]) {
        if offset == self.hasher.count() {
            self.hasher.update(bytes);
        }
    }

    /// The hash of a constant that is no recipe. What has not been seen is read.
    ///
    /// # Errors
    /// [`ConstantError`] where it cannot be read.
    pub(super) fn finish(mut self, graph: &Graph, id: ConstantId) -> Result<[u8; 32], ConstantError> {
        let stored = match &graph.constant(id).data {
            ConstantData::Stored(stored) if stored.tensor.dtype() != DType::String => stored,
            ConstantData::Tensor(tensor) => return Ok(hash_of(tensor)),
            ConstantData::Stored(_)
            | ConstantData::Recipe { .. }
            | ConstantData::Rounded(_)
            | ConstantData::Hashed(_) => {
                return graph.load_constant(id).map(|tensor| hash_of(&tensor));
            }
        };
        let source = &graph.sources[stored.source as usize];
        let failure = |error| ConstantError::Read { file: source.name.clone(), error };
        let mut reader = stored.tensor.reader(&*source.bytes).map_err(failure)?;
        reader.skip(self.hasher.count()).map_err(failure)?;
        let mut buffer = vec![0; reader.remaining_bytes().min(READ_BYTES) as usize];
        while reader.remaining_bytes() > 0 {
            let length = reader.remaining_bytes().min(READ_BYTES) as usize;
            let block = &mut buffer[..length];
            reader.read(block).map_err(failure)?;
            self.hasher.update(block);
        }
        Ok(*self.hasher.finalize().as_bytes())
    }
}

fn hash_of(tensor: &Tensor) -> [u8; 32] {
    match tensor.strings().ok().and_then(|strings| pack_strings(strings).ok()) {
        Some(packed) => *blake3::hash(&packed).as_bytes(),
        None => *blake3::hash(tensor.bytes()).as_bytes(),
    }
}
