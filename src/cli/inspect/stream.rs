//! `--stream`: the chunks in order, and what lies in each.

use super::{hex, weight_name};
use crate::cli::output::Output;
use ipuc_formats::model::Manifest;
use serde::Serialize;
use std::collections::BTreeMap;

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

pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
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
