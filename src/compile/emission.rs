//! How weights become bytes, as the options say.

use super::options::CompileOptions;
use ipuc_formats::model::Manifest;
use ipuc_passes::emit::{EmitOptions, MEMORY_BYTES};
use ipuc_passes::moments::hash_of;
use ipuc_passes::options::{ActivationSparsity, Budget, Sparsity, WeightOptions};

/// What all weights take in the file.
pub(super) fn weights_bytes(manifest: &Manifest) -> u64 {
    manifest.extents.iter().map(|extent| extent.length).sum()
}

/// How weights become bytes; what changes them is recorded in the file.
pub(super) fn emit_options(options: &CompileOptions) -> EmitOptions {
    // A part of what the machine has is left to others. Where it is not known the system refuses what it does not have.
    let available_bytes = || crate::memory::available_bytes().map_or(u64::MAX, |available| available / 10 * 8);
    let piece_bytes = options.memory.unwrap_or_else(available_bytes);
    // What may be used need not be: more is no faster.
    let memory_bytes = options.memory.unwrap_or(MEMORY_BYTES.min(piece_bytes));
    let placements = options.placements.clone();
    let attachments = options.attachments.clone();
    let mut emit_options = EmitOptions { memory_bytes, piece_bytes, placements, attachments, ..EmitOptions::default() };
    if let Some(chunk_bytes) = options.chunk_bytes {
        emit_options.chunk_bytes = chunk_bytes;
        emit_options.recorded.push(("chunk_bytes".to_string(), chunk_bytes.to_string()));
    }
    let WeightOptions { precision, budget, keep, each } = &options.weights;
    let mut record = |name: &str, value: String| emit_options.recorded.push((name.to_string(), value));
    precision.iter().for_each(|precision| record("weights", precision.to_string()));
    match budget {
        None => {}
        Some(Budget::Size(bytes)) => record("size", bytes.to_string()),
        Some(Budget::Error(most)) => record("max_error", most.to_string()),
    }
    keep.iter().for_each(|pattern| record("keep", pattern.clone()));
    let measured = &options.calibration;
    if !measured.is_empty() {
        record("calibration", hash_of(measured).to_string());
        measured.output_error.iter().for_each(|error| record("output_error", error.to_string()));
    }
    if let Some(share) = options.sparse_threshold {
        record("sparse_threshold", share.to_string());
        if let Some([with, without]) = measured.threshold_errors {
            record("error_with_threshold", with.to_string());
            record("error_without_threshold", without.to_string());
        }
    }
    match options.sparsity {
        Sparsity::Measured => {}
        Sparsity::Always => record("sparse", "always".to_string()),
        Sparsity::Never => record("sparse", "never".to_string()),
    }
    match options.activation_sparsity {
        ActivationSparsity::Measured => {}
        ActivationSparsity::Always => record("sparse_activations", "always".to_string()),
        ActivationSparsity::Never => record("sparse_activations", "never".to_string()),
    }
    each.iter().for_each(|(pattern, precision)| record("weights_for", format!("{pattern}={precision}")));
    emit_options
}
