//! `ipuc inspect`: what is in an `.ipu` file, and why it is where it is.
//!
//! `layout` is the table of weights, `records` the places in one of them, `program` the steps, `work` what they take,
//! `sparsity` the zeros of weights, `stream` the chunks, `placements` how steps are spread over tiles, `check` the integrity; without any of them there is a
//! summary.

mod check;
pub(super) mod layout;
mod placements;
pub(super) mod program;
mod records;
mod residency;
mod sparsity;
mod stream;
pub(super) mod work;

use super::Outcome;
use super::arguments::{Dimension, Size};
use super::failure::{Code, Failure};
use super::output::{Output, bytes, count};
use crate::files::SourceFile;
use anyhow::Context;
use clap::Args;
use ipuc_formats::model::{FormatError, Manifest, Superblock, read_manifest};
use ipuc_formats::read_at::ReadAt;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show what is in an .ipu file
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The file
    #[arg(value_name = "MODEL.ipu")]
    model: PathBuf,
    #[command(flatten)]
    view: View,
    /// With --stream: what stays and what streams within this budget, as 512MiB, 2GB or bytes
    #[arg(long, value_name = "SIZE", requires = "stream")]
    memory: Option<Size>,
    /// With --stream: one line a chunk
    #[arg(long, requires = "stream", conflicts_with = "memory")]
    chunks: bool,
    /// With --work: the size of an open dimension
    #[arg(long, value_name = "NAME=N", requires = "work")]
    dim: Vec<Dimension>,
    /// With --placements: check them against a target of so many tiles
    #[arg(long, value_name = "N", requires = "placements", requires = "sram")]
    tiles: Option<u32>,
    /// With --placements: the memory of each tile, as 512KiB, 1MB or bytes
    #[arg(long, value_name = "SIZE", requires = "placements", requires = "tiles")]
    sram: Option<Size>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct View {
    /// Show every weight: where it came from, where it is, which steps read it and how
    #[arg(long)]
    layout: bool,
    /// Show where the records of a weight lie in the file, and the parameters and elements in them
    #[arg(long, value_name = "WEIGHT")]
    records: Option<String>,
    /// Show the steps in order of execution
    #[arg(long)]
    program: bool,
    /// Show what each step takes: multiply-accumulates, operations on elements, bytes; and each entry with its bodies
    #[arg(long)]
    work: bool,
    /// Show the zeros of each weight, the bytes and multiply-accumulates that they are, and what was made of them and why
    #[arg(long)]
    sparsity: bool,
    /// Show the weights in the order in which they are read, and the chunks that hold them
    #[arg(long)]
    stream: bool,
    /// Show how steps are spread over the tiles of targets
    #[arg(long)]
    placements: bool,
    /// Verify every checksum and hash; the exit code is 1 where something is damaged
    #[arg(long)]
    check: bool,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let file = SourceFile::open(&arguments.model)?;
    if arguments.view.check {
        return check::run(&file, output);
    }
    let (superblock, manifest) = read_manifest(&file)
        .map_err(|error| explained(&file, error))
        .with_context(|| format!("cannot open `{}`", arguments.model.display()))?;
    let view = &arguments.view;
    if view.layout {
        layout::show(&manifest, output)?;
    } else if let Some(weight) = &view.records {
        records::show(&manifest, weight, output)?;
    } else if view.program {
        program::show(&manifest, output)?;
    } else if view.work {
        work::show(&manifest, &arguments.dim, output)?;
    } else if view.sparsity {
        sparsity::show(&manifest, output)?;
    } else if view.placements {
        placements::show(&manifest, arguments.tiles.zip(arguments.sram), output)?;
    } else if view.stream {
        match arguments.memory {
            Some(budget) => residency::show(&arguments.model, &manifest, budget, output)?,
            None if arguments.chunks => stream::show_chunks(&manifest, output)?,
            None => stream::show(&manifest, output)?,
        }
    } else {
        summarize(&superblock, &manifest, &file, output)?;
    }
    Ok(Code::Success)
}

/// Someone who inspects a model that is not compiled yet wants to be told so.
fn explained(file: &SourceFile, error: FormatError) -> anyhow::Error {
    match error {
        FormatError::Signature if file.path().extension().is_some_and(|extension| extension == "onnx") => {
            Failure::file(error.to_string()).with_hint("compile it first: ipuc compile MODEL.onnx").into()
        }
        error => error.into(),
    }
}

fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn summarize(
    superblock: &Superblock,
    manifest: &Manifest,
    file: &SourceFile,
    output: &mut Output,
) -> anyhow::Result<()> {
    let weights_bytes: u64 = manifest.extents.iter().map(|extent| extent.length).sum();
    let steps: usize = manifest.blocks.iter().map(|block| block.steps.len()).sum();
    let provenance = &manifest.provenance;
    let models = provenance.models.join(", ");
    output.line(format_args!("{}: {}", file.path().display(), bytes(file.length())))?;
    output.line(format_args!("root hash {}", hex(&superblock.root_hash)))?;
    output.line(format_args!("made from {models} by {}", manifest.producer))?;
    for (name, value) in &provenance.options {
        output.line(format_args!("with {name} {value}"))?;
    }
    for port in ports(manifest) {
        output.line(format_args!("{port}"))?;
    }
    for symbol in manifest.symbols.iter().filter(|symbol| is_public(manifest, &symbol.name)) {
        let maximum = if symbol.maximum == i64::MAX { String::new() } else { symbol.maximum.to_string() };
        output.line(format_args!("dimension {}: {}..{maximum}", symbol.name, symbol.minimum))?;
    }
    for obligation in &manifest.obligations {
        let relation: &'static str = obligation.relation.into();
        let (left, right, subject) = (&obligation.left, &obligation.right, &obligation.subject);
        output.line(format_args!("checked at each run: {left} {relation} {right} ({subject})"))?;
    }
    let (blocks, chunks) = (manifest.blocks.len(), manifest.chunks.len());
    output.line(format_args!("{} in {}", count(steps, "step"), count(blocks, "block")))?;
    let weights = count(manifest.weights.len(), "weight");
    output.line(format_args!("{weights}, {}, in {}", bytes(weights_bytes), count(chunks, "chunk")))?;
    for attachment in &manifest.attachments {
        output.line(format_args!("attachment {}: {}", attachment.name, bytes(attachment.data.len() as u64)))?;
    }
    let operators = operators(manifest);
    output.table(operators.iter().map(|(name, number)| [format!("  {number}"), (*name).to_string()]).collect())?;
    output.json(&json!({
        "file": file.path(),
        "file_bytes": file.length(),
        "root_hash": hex(&superblock.root_hash),
        "producer": manifest.producer,
        "models": provenance.models,
        "weights_hash": hex(&provenance.weights_hash),
        "options": provenance.options.iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Json>(),
        "entries": entries(manifest),
        "dimensions": manifest.symbols.iter().map(|symbol| {
            let maximum = (symbol.maximum != i64::MAX).then_some(symbol.maximum);
            json!({"name": symbol.name, "minimum": symbol.minimum, "maximum": maximum})
        }).collect::<Json>(),
        "obligations": manifest.obligations.iter().map(|obligation| json!({
            "relation": <&'static str>::from(obligation.relation),
            "left": obligation.left.to_string(),
            "right": obligation.right.to_string(),
            "subject": obligation.subject,
        })).collect::<Json>(),
        "blocks": blocks,
        "steps": steps,
        "operators": operators,
        "weights": manifest.weights.len(),
        "weights_bytes": weights_bytes,
        "chunks": chunks,
        "attachments": manifest.attachments.iter().map(|attachment| {
            json!({"name": attachment.name, "bytes": attachment.data.len()})
        }).collect::<Json>(),
    }))
}

/// An input of an entry has this dimension, so that a caller decides it.
fn is_public(manifest: &Manifest, symbol: &str) -> bool {
    manifest.entries.iter().any(|entry| {
        let block = &manifest.blocks[entry.block as usize];
        let parameters = block.values.iter().take(block.parameters as usize);
        let mut dims = parameters.filter_map(|value| value.kind.as_tensor()?.1.dims()).flatten();
        dims.any(|dim| dim.symbols().contains(symbol))
    })
}

/// The ONNX name of a weight, or its number.
fn weight_name(manifest: &Manifest, index: usize) -> String {
    manifest.weights[index].label()
}

/// How often each operator occurs.
fn operators(manifest: &Manifest) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for step in manifest.blocks.iter().flat_map(|block| &block.steps) {
        *counts.entry(step.op.name()).or_default() += 1;
    }
    counts
}

/// One line for each entry and for each of its inputs and outputs.
fn ports(manifest: &Manifest) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in &manifest.entries {
        lines.push(format!("entry {}", entry.name));
        let block = &manifest.blocks[entry.block as usize];
        for (index, name) in entry.inputs.iter().enumerate() {
            let state =
                entry.state_of_input(index).map_or_else(String::new, |state| state_text(manifest, entry, state));
            lines.push(format!("  input  {name}: {}{state}", block.values[index].kind));
        }
        for (index, (name, operand)) in entry.outputs.iter().zip(&block.results).enumerate() {
            let state = entry.state_of_output(index).map(|state| &manifest.states[state as usize].name);
            let state = state.map_or_else(String::new, |name| format!(" (next contents of state {name})"));
            lines.push(format!("  output {name}: {}{state}", program::operand_type(manifest, block, operand)));
        }
    }
    lines
}

/// What is said behind an input that is state.
fn state_text(manifest: &Manifest, entry: &ipuc_formats::model::EntryRecord, state: u32) -> String {
    let record = &manifest.states[state as usize];
    let growth = record.growth.map_or_else(String::new, |growth| {
        let rows = growth.rows.map_or_else(String::new, |rows| format!(", rows as {}", <&str>::from(rows)));
        let verb = if growth.overwritten { "is overwritten" } else { "grows" };
        format!(", {verb} along axis {} in pages of {}{rows}", growth.axis, growth.page)
    });
    let used = entry.states.iter().find(|used| used.state == state);
    let next = used.and_then(|used| used.output).map(|output| &entry.outputs[output as usize]);
    let next = next.map_or_else(|| ", only read".to_string(), |next| format!(", next {next}"));
    format!(" (state{next}{growth})")
}

fn entries(manifest: &Manifest) -> Json {
    let entry = |entry: &ipuc_formats::model::EntryRecord| {
        let block = &manifest.blocks[entry.block as usize];
        let inputs = entry.inputs.iter().zip(&block.values);
        let inputs = inputs.map(|(name, value)| json!({"name": name, "type": value.kind.to_string()}));
        let outputs = entry
            .outputs
            .iter()
            .zip(&block.results)
            .map(|(name, operand)| json!({"name": name, "type": program::operand_type(manifest, block, operand)}));
        let states = entry.states.iter().map(|used| {
            let record = &manifest.states[used.state as usize];
            json!({
                "name": record.name,
                "input": used.input.map(|input| &entry.inputs[input as usize]),
                "output": used.output.map(|output| &entry.outputs[output as usize]),
                "append_axis": record.growth.filter(|growth| !growth.overwritten).map(|growth| growth.axis),
                "overwritten_axis": record.growth.filter(|growth| growth.overwritten).map(|growth| growth.axis),
                "page": record.growth.map(|growth| growth.page),
                "rows": record.growth.and_then(|growth| growth.rows).map(<&str>::from),
            })
        });
        json!({
            "name": entry.name,
            "block": entry.block,
            "inputs": inputs.collect::<Json>(),
            "outputs": outputs.collect::<Json>(),
            "states": states.collect::<Json>(),
        })
    };
    manifest.entries.iter().map(entry).collect()
}
