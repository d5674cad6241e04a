//! `--stream --memory SIZE`: what stays, what streams, and what a pass costs at the rate of the disk.

use super::stream::{first_to_last, owners};
use crate::cli::arguments::Size;
use crate::cli::output::{Output, bytes, seconds};
use crate::files::DirectFile;
use crate::open::{OpenOptions, open_with};
use ipuc_formats::model::{Manifest, OperandRecord, StepRecord};
use ipuc_formats::read_at::ReadAt;
use ipuc_pages::Pages;
use ipuc_runtime::Residency;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are read to measure the disk, at most, and at a time.
const MEASURED_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: u64 = 2 << 20;
const READS_IN_FLIGHT: u64 = 4;
/// Steps that are listed: those that stream most.
const LISTED_STEPS: usize = 10;

#[derive(Serialize)]
struct Plan {
    weights_bytes: u64,
    budget_bytes: u64,
    working_bytes: u64,
    pinned_bytes: u64,
    ring_bytes: u64,
    kept_rows_bytes: u64,
    disk_bytes_per_second: f64,
    entries: Vec<Entry>,
    /// Indices of the chunks that stay.
    pinned_chunks: Vec<usize>,
    /// Where a pass waits first if steps take less time than reading: those that stream most.
    steps: Vec<Step>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    bytes_per_pass: u64,
    /// Reading alone, at the measured rate.
    seconds_per_pass: f64,
}

#[derive(Serialize)]
struct Step {
    block: usize,
    step: usize,
    name: String,
    streamed_bytes: u64,
    seconds: f64,
}

pub(super) fn show(path: &Path, manifest: &Manifest, budget: Size, output: &mut Output) -> anyhow::Result<()> {
    let model = open_with(path, OpenOptions { memory_bytes: Some(budget.bytes), ..OpenOptions::default() })?;
    let Some(residency) = model.residency() else { return Ok(()) };
    let rate = disk_rate(path, manifest)?;
    let plan = plan(manifest, &residency, rate);
    let passing = residency.weights_bytes - residency.pinned_bytes;
    output.line(format_args!(
        "{} of weights: {} stay, {} pass through {}; {} are for other things",
        bytes(plan.weights_bytes),
        bytes(plan.pinned_bytes),
        bytes(passing),
        bytes(plan.ring_bytes),
        bytes(plan.working_bytes)
    ))?;
    if plan.kept_rows_bytes > 0 {
        output
            .line(format_args!("rows chosen by index: those used last are kept in {}", bytes(plan.kept_rows_bytes)))?;
    }
    for entry in &plan.entries {
        output.line(format_args!(
            "entry `{}`: a pass reads {} in {} at {}/s",
            entry.name,
            bytes(entry.bytes_per_pass),
            seconds(Duration::from_secs_f64(entry.seconds_per_pass)),
            bytes(rate as u64)
        ))?;
    }
    let mut table = vec![["block", "step", "streams", "takes", "name"].map(str::to_string)];
    for step in &plan.steps {
        table.push([
            step.block.to_string(),
            step.step.to_string(),
            bytes(step.streamed_bytes),
            seconds(Duration::from_secs_f64(step.seconds)),
            step.name.clone(),
        ]);
    }
    if !plan.steps.is_empty() {
        output.line("a step that computes faster than its weights arrive waits for them; most arrives for")?;
        output.table(table)?;
    }
    let mut chunks = vec![["chunk", "bytes", "where", "weights"].map(str::to_string)];
    let owners = owners(manifest);
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        let extents = manifest.extents_of_chunk(index as u32);
        let names = extents.filter_map(|extent| owners.get(&(extent as u32))).flatten().map(String::as_str);
        let names = first_to_last(&names.collect::<Vec<_>>());
        let place = if residency.pinned[index] { "stays" } else { "streams" };
        chunks.push([index.to_string(), chunk.length.to_string(), place.to_string(), names]);
    }
    output.table(chunks)?;
    output.json(&plan)
}

fn plan(manifest: &Manifest, residency: &Residency, rate: f64) -> Plan {
    let entry = |(entry, &bytes_per_pass): (&ipuc_formats::model::EntryRecord, &u64)| Entry {
        name: entry.name.clone(),
        bytes_per_pass,
        seconds_per_pass: bytes_per_pass as f64 / rate,
    };
    let mut steps: Vec<Step> = Vec::new();
    for (block, record) in manifest.blocks.iter().enumerate() {
        for (step, record) in record.steps.iter().enumerate() {
            let streamed_bytes = (0..record.operands.len()).map(|at| streamed(manifest, residency, record, at)).sum();
            let (name, seconds) = (record.name.clone(), streamed_bytes as f64 / rate);
            steps.push(Step { block, step, name, streamed_bytes, seconds });
        }
    }
    steps.retain(|step| step.streamed_bytes > 0);
    steps.sort_by_key(|step| std::cmp::Reverse(step.streamed_bytes));
    steps.truncate(LISTED_STEPS);
    let pinned = residency.pinned.iter().enumerate().filter(|(_, pinned)| **pinned);
    Plan {
        weights_bytes: residency.weights_bytes,
        budget_bytes: residency.budget_bytes,
        working_bytes: residency.working_bytes,
        pinned_bytes: residency.pinned_bytes,
        ring_bytes: residency.ring_bytes,
        kept_rows_bytes: residency.kept_rows_bytes,
        disk_bytes_per_second: rate,
        entries: manifest.entries.iter().zip(&residency.bytes_per_pass).map(entry).collect(),
        pinned_chunks: pinned.map(|(index, _)| index).collect(),
        steps,
    }
}

/// Bytes of the operand at this position that lie in chunks that stream, and that the step waits for.
fn streamed(manifest: &Manifest, residency: &Residency, step: &StepRecord, position: usize) -> u64 {
    let OperandRecord::Weight(weight) = step.operands[position] else { return 0 };
    let weight = &manifest.weights[weight as usize];
    if step.picks(position, weight) {
        return 0;
    }
    let extents = weight.parts.iter().map(|part| &manifest.extents[part.extent as usize]);
    extents.filter(|extent| !residency.pinned[extent.chunk as usize]).map(|extent| extent.length).sum()
}

/// Bytes a second that direct reads of the stream deliver.
fn disk_rate(path: &Path, manifest: &Manifest) -> anyhow::Result<f64> {
    let file = DirectFile::open(path)?;
    let start = manifest.chunks.first().map_or(0, |chunk| chunk.offset);
    let length = (file.length().saturating_sub(start)).min(MEASURED_BYTES);
    if length == 0 {
        return Ok(f64::INFINITY);
    }
    // As streaming does: on huge pages that were touched before.
    let mut buffers = Pages::zeroed((READS_IN_FLIGHT * BLOCK_BYTES) as usize)?;
    buffers.fill(1);
    let begun = Instant::now();
    let read = |(lane, buffer): (u64, &mut [u8])| -> std::io::Result<()> {
        for offset in (lane * BLOCK_BYTES..length).step_by((READS_IN_FLIGHT * BLOCK_BYTES) as usize) {
            let bytes = BLOCK_BYTES.min(length - offset) as usize;
            file.read_exact_at(start + offset, &mut buffer[..bytes])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lanes = (0..READS_IN_FLIGHT).zip(buffers.chunks_exact_mut(BLOCK_BYTES as usize));
        let lanes: Vec<_> = lanes.map(|lane| scope.spawn(move || read(lane))).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
    })?;
    Ok(length as f64 / begun.elapsed().as_secs_f64())
}
