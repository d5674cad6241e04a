//! Which weights stay in the tiles where not all of them fit.

use crate::stream::kept_shares;
use ipuc_formats::limits::IPU_CHUNK_BYTES;
use ipuc_formats::machine::Program;
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::model::{ChunkRecord, Manifest};

/// Keep weights in the tiles as the executor keeps them in a memory of this size: chunks that are read most often first, then
/// such that what streams is spread evenly over a run. Notes with each step what share of its weights stays.
pub fn keep(program: &mut Program, manifest: &Manifest, room: Bytes) {
    program.resident_bytes = 0.0;
    program.steps.iter_mut().for_each(|step| step.resident = 0.0);
    if program.weight_bytes <= 0.0 || room.0 <= 0.0 {
        return;
    }
    let divided = manifest.chunks.is_empty().then(|| divided(manifest));
    let manifest = divided.as_ref().unwrap_or(manifest);
    let stored: f64 = manifest.chunks.iter().map(|chunk| chunk.length as f64).sum();
    if stored <= 0.0 {
        return;
    }
    // The machine may hold them in a narrower type than the file does.
    let scale = program.weight_bytes / stored;
    let Some(kept) = kept_shares(manifest, (room.0 / scale) as u64) else { return };
    program.resident_bytes = kept.bytes as f64 * scale;
    for step in &mut program.steps {
        step.resident = kept.shares.get(&(step.block, step.step)).copied().unwrap_or(0.0);
    }
}

/// The records of a file that is not written, with its weights in chunks: as many in a row as fill one.
fn divided(manifest: &Manifest) -> Manifest {
    let mut divided = manifest.clone();
    let mut offset = 0;
    for extent in &mut divided.extents {
        match divided.chunks.last_mut() {
            Some(last) if last.length + extent.length <= IPU_CHUNK_BYTES => last.length += extent.length,
            Some(_) | None => divided.chunks.push(ChunkRecord { offset, length: extent.length, hash: [0; 32] }),
        }
        offset += extent.length;
        extent.chunk = u32::try_from(divided.chunks.len() - 1).unwrap_or(u32::MAX);
    }
    divided
}
