//! Which weights stay in the tiles where not all of them fit.

use crate::stream::kept_shares;
use ipuc_formats::machine::Program;
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::model::Manifest;

/// Keep weights in the tiles as the executor keeps them in a memory of this size: chunks that are read most often first, then
/// such that what streams is spread evenly over a run. Notes with each step what share of its weights stays.
pub fn keep(program: &mut Program, manifest: &Manifest, room: Bytes) {
    program.resident_bytes = 0.0;
    program.steps.iter_mut().for_each(|step| step.resident = 0.0);
    let stored: f64 = manifest.chunks.iter().map(|chunk| chunk.length as f64).sum();
    if stored <= 0.0 || program.weight_bytes <= 0.0 || room.0 <= 0.0 {
        return;
    }
    // The machine may hold them in a narrower type than the file does.
    let scale = program.weight_bytes / stored;
    let Some((kept, shares)) = kept_shares(manifest, (room.0 / scale) as u64) else { return };
    program.resident_bytes = kept as f64 * scale;
    for step in &mut program.steps {
        step.resident = shares.get(&(step.block, step.step)).copied().unwrap_or(0.0);
    }
}
