//! `--check`: every checksum and hash of a file, and the zeros between what they cover.
//!
//! A damaged file is what was asked about, and gives exit code 1; a file of another format or version is an error.

use super::hex;
use crate::cli::Outcome;
use crate::cli::failure::Code;
use crate::cli::output::{Output, bytes, count};
use crate::cli::progress::{Bar, Unit};
use crate::files::SourceFile;
use anyhow::Context;
use ipuc_formats::model::{FormatError, Manifest, Superblock, read_manifest};
use ipuc_formats::read_at::ReadAt;
use serde_json::json;

pub(super) fn run(file: &SourceFile, output: &mut Output) -> Outcome {
    let path = file.path().display();
    let read = match read_manifest(file) {
        Err(error) if !is_damage(&error) => {
            return Err(error).with_context(|| format!("cannot open `{path}`"));
        }
        read => read,
    };
    let (root_hash, chunks, damage) = match &read {
        Ok((superblock, manifest)) => {
            let Superblock { root_hash, .. } = superblock;
            (Some(hex(root_hash)), manifest.chunks.len(), damaged_chunks(file, manifest, output))
        }
        Err(error) => (None, 0, vec![error.to_string()]),
    };
    for line in &damage {
        output.line(format_args!("{path}: {line}"))?;
    }
    let sound = damage.is_empty();
    if sound {
        output.line(format_args!("{path}: sound, {} in {}", bytes(file.length()), count(chunks, "chunk")))?;
    }
    output.json(&json!({
        "file": file.path(),
        "sound": sound,
        "root_hash": root_hash,
        "chunks": chunks,
        "damage": damage,
    }))?;
    Ok(if sound { Code::Success } else { Code::Negative })
}

/// What is wrong with each damaged chunk.
fn damaged_chunks(file: &SourceFile, manifest: &Manifest, output: &Output) -> Vec<String> {
    let total: u64 = manifest.chunks.iter().map(|chunk| chunk.length).sum();
    let bar = Bar::new(output, "checking", Unit::Bytes);
    let mut damage = Vec::new();
    let mut done = 0;
    // Chunks have a limited length, so that one buffer serves all.
    let mut buffer = Vec::new();
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        bar.set(done, total);
        buffer.resize(chunk.length as usize, 0);
        let read = file.read_exact_at(chunk.offset, &mut buffer);
        let read = read.map_err(|source| FormatError::Read { offset: chunk.offset, source });
        if let Err(error) = read.and_then(|()| manifest.check_chunk(index as u32, &buffer)) {
            damage.push(error.to_string());
        }
        done += chunk.length;
    }
    damage
}

/// The file is of this format, but its bytes are not what was written.
fn is_damage(error: &FormatError) -> bool {
    match error {
        FormatError::TextTransfer
        | FormatError::SuperblockChecksum { .. }
        | FormatError::Padding { .. }
        | FormatError::Truncated { .. }
        | FormatError::Excess { .. }
        | FormatError::ManifestHash
        | FormatError::Checksum { .. }
        | FormatError::ChunkHash { .. } => true,
        FormatError::TooShort { .. }
        | FormatError::Signature
        | FormatError::Version { .. }
        | FormatError::Algorithm { .. }
        | FormatError::Feature(_)
        | FormatError::Region { .. }
        | FormatError::Limit { .. }
        | FormatError::Wire { .. }
        | FormatError::Decode(_)
        | FormatError::Record { .. }
        | FormatError::Length { .. }
        | FormatError::Read { .. } => false,
        // Later kinds are errors until they are looked at here.
        _ => false,
    }
}
