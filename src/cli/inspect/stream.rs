//! `--stream`: the weights in the order in which they lie, with the chunks that hold them; `--chunks` shows those.

use super::{hex, weight_name};
use crate::cli::output::{Output, bytes, count};
use ipuc_formats::model::{Manifest, WeightRecord};
use serde::Serialize;
use std::collections::BTreeMap;

/// A weight: its bytes lie in chunks `first_chunk..=last_chunk`.
#[derive(Serialize)]
struct Weight {
    weight: String,
    first_chunk: u32,
    last_chunk: u32,
    offset: u64,
    bytes: u64,
    /// It lies among the small weights, which stay in memory.
    pooled: bool,
}

/// One line a weight, and a summary.
pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    let weights = weights(manifest);
    let mut table = vec![["weight", "chunks", "offset", "bytes", ""].map(str::to_string)];
    for weight in &weights {
        let chunks = if weight.first_chunk == weight.last_chunk {
            weight.first_chunk.to_string()
        } else {
            format!("{}-{}", weight.first_chunk, weight.last_chunk)
        };
        let stays = if weight.pooled { "stays in memory" } else { "" };
        let (offset, bytes) = (weight.offset.to_string(), weight.bytes.to_string());
        table.push([weight.weight.clone(), chunks, offset, bytes, stays.to_string()]);
    }
    output.table(table)?;
    let lengths = manifest.chunks.iter().map(|chunk| chunk.length);
    let longest = lengths.clone().max().unwrap_or(0);
    let stream_bytes = lengths.sum();
    output.line(format_args!(
        "{} in {} of at most {}: {}",
        count(weights.len(), "weight"),
        count(manifest.chunks.len(), "chunk"),
        bytes(longest),
        bytes(stream_bytes)
    ))?;
    output.json(&serde_json::json!({
        "weights": weights,
        "chunks": manifest.chunks.len(),
        "longest_chunk_bytes": longest,
        "stream_bytes": stream_bytes,
    }))
}

/// The weights that have bytes, by their offset.
fn weights(manifest: &Manifest) -> Vec<Weight> {
    let weight = |(index, record): (usize, &WeightRecord)| {
        let parts = record.parts.iter().map(|part| &manifest.extents[part.extent as usize]);
        let (first, last) = (parts.clone().next()?, parts.clone().next_back()?);
        Some(Weight {
            weight: weight_name(manifest, index),
            first_chunk: first.chunk,
            last_chunk: last.chunk,
            offset: first.offset,
            bytes: parts.clone().map(|extent| extent.length).sum(),
            pooled: parts.clone().all(|extent| extent.pooled),
        })
    };
    let mut weights: Vec<Weight> = manifest.weights.iter().enumerate().filter_map(weight).collect();
    weights.sort_by_key(|weight| weight.offset);
    weights
}

#[derive(Serialize)]
struct Chunk {
    chunk: usize,
    offset: u64,
    bytes: u64,
    hash: String,
    extents: Vec<Extent>,
}

#[derive(Serialize)]
struct Extent {
    extent: usize,
    offset: u64,
    bytes: u64,
    /// It lies among the small extents, which stay in memory.
    pooled: bool,
    checksum_block_bytes: u32,
    /// Weights that have these bytes.
    weights: Vec<String>,
}

/// One line a chunk.
pub(super) fn show_chunks(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    let chunks = chunks(manifest);
    let mut table = vec![["chunk", "offset", "bytes", "extents", "weights"].map(str::to_string)];
    for chunk in &chunks {
        let names: Vec<&str> = chunk.extents.iter().flat_map(|extent| &extent.weights).map(String::as_str).collect();
        table.push([
            chunk.chunk.to_string(),
            chunk.offset.to_string(),
            chunk.bytes.to_string(),
            chunk.extents.len().to_string(),
            first_to_last(&names),
        ]);
    }
    output.table(table)?;
    output.json(&serde_json::json!({ "chunks": chunks }))
}

fn chunks(manifest: &Manifest) -> Vec<Chunk> {
    let owners = owners(manifest);
    let extent = |index: usize| {
        let record = &manifest.extents[index];
        Extent {
            extent: index,
            offset: record.offset,
            bytes: record.length,
            pooled: record.pooled,
            checksum_block_bytes: record.checksum_block,
            weights: owners.get(&(index as u32)).cloned().unwrap_or_default(),
        }
    };
    let chunk = |(index, record): (usize, &ipuc_formats::model::ChunkRecord)| Chunk {
        chunk: index,
        offset: record.offset,
        bytes: record.length,
        hash: hex(&record.hash),
        extents: manifest.extents_of_chunk(index as u32).map(extent).collect(),
    };
    manifest.chunks.iter().enumerate().map(chunk).collect()
}

/// The weights that have the bytes of each extent.
pub(super) fn owners(manifest: &Manifest) -> BTreeMap<u32, Vec<String>> {
    let mut owners: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (index, weight) in manifest.weights.iter().enumerate() {
        let name = weight_name(manifest, index);
        for part in &weight.parts {
            owners.entry(part.extent).or_default().push(name.clone());
        }
    }
    owners
}

/// Names in short.
pub(super) fn first_to_last(names: &[&str]) -> String {
    match names {
        [] => "-".to_string(),
        [first, .., last] if first != last => format!("{first} to {last}"),
        [first, ..] => (*first).to_string(),
    }
}
