//! `--layout`: for each weight where it came from, where it is now, which steps read it how, and why it is stored so.
//!
//! Weights come in the order of the stream, which is that of their first use.

use super::weight_name;
use crate::cli::output::{Output, aligned};
use ipuc_formats::encodings::Coded;
use ipuc_formats::model::{Manifest, OperandRecord, WeightRecord};
use serde::Serialize;

/// One weight.
#[derive(Serialize)]
struct Row {
    /// Index of the weight in the manifest.
    weight: usize,
    /// ONNX name; null for constants that the compiler made.
    name: Option<String>,
    dtype: String,
    shape: Vec<u64>,
    sources: Vec<Source>,
    encoding: String,
    /// Why it is stored so.
    reason: String,
    /// Stored bytes of all parts.
    bytes: u64,
    parts: Vec<Part>,
    reads: Vec<Reader>,
}

/// Where the bytes were in the model.
#[derive(Serialize)]
struct Source {
    /// The plane that they became; null for elements.
    plane: Option<u32>,
    /// Name of the file: that of the model, or of external data.
    file: String,
    offset: u64,
    bytes: u64,
}

/// Where the bytes are in the `.ipu` file.
#[derive(Serialize)]
struct Part {
    extent: u32,
    chunk: u32,
    offset: u64,
    bytes: u64,
}

/// A step that reads it.
#[derive(Serialize)]
struct Reader {
    block: usize,
    step: usize,
    operator: &'static str,
    node: String,
    read: &'static str,
}

pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    let rows = rows(manifest);
    output.table(table(&rows, manifest))?;
    output.json(&serde_json::json!({ "weights": rows }))
}

/// The table as text.
pub(in crate::cli) fn lines(manifest: &Manifest) -> Vec<String> {
    aligned(table(&rows(manifest), manifest))
}

/// All weights in the order of the stream.
fn rows(manifest: &Manifest) -> Vec<Row> {
    let mut rows: Vec<Row> = manifest.weights.iter().enumerate().map(|at| row(manifest, at)).collect();
    for (block, record) in manifest.blocks.iter().enumerate() {
        for (step, record) in record.steps.iter().enumerate() {
            for read in &record.reads {
                let operand = record.operands.get(read.operand as usize);
                let Some(OperandRecord::Weight(weight)) = operand else { continue };
                let node = record.name.clone();
                let reader = Reader { block, step, operator: record.op.name(), node, read: read.read.into() };
                rows[*weight as usize].reads.push(reader);
            }
        }
    }
    rows.sort_by_key(|row| row.parts.first().map(|part| (part.offset, row.weight)));
    rows
}

fn table(rows: &[Row], manifest: &Manifest) -> Vec<[String; 10]> {
    let heads = ["weight", "type", "source", "encoding", "chunk", "offset", "bytes", "step", "read", "why"];
    let mut table = vec![heads.map(str::to_string)];
    table.extend(rows.iter().map(|row| text(row, manifest)));
    table
}

fn row(manifest: &Manifest, (index, weight): (usize, &WeightRecord)) -> Row {
    let sources = weight.sources.iter().map(|source| Source {
        plane: source.plane,
        file: source.file.clone(),
        offset: source.offset,
        bytes: source.length,
    });
    let part = |part: &ipuc_formats::model::PartRecord| {
        let extent = &manifest.extents[part.extent as usize];
        Part { extent: part.extent, chunk: extent.chunk, offset: extent.offset, bytes: extent.length }
    };
    let parts: Vec<Part> = weight.parts.iter().map(part).collect();
    Row {
        weight: index,
        name: weight.name.clone(),
        dtype: weight.dtype.to_string(),
        shape: weight.shape.clone(),
        sources: sources.collect(),
        encoding: encoding(&weight.encoding),
        reason: weight.reason.clone(),
        bytes: parts.iter().map(|part| part.bytes).sum(),
        parts,
        reads: Vec::new(),
    }
}

/// `plain f32`, `panels f32`, `panels i4 + scale f16 32`.
pub(super) fn encoding(encoding: &Coded) -> String {
    let stored = encoding.encoding();
    let planes = stored.planes().iter().map(|plane| format!(" + {plane}"));
    format!("{} {}{}", encoding.name(), stored.dtype(), planes.collect::<String>())
}

fn text(row: &Row, manifest: &Manifest) -> [String; 10] {
    let shape = row.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let model = manifest.provenance.models.first().map_or("model", String::as_str);
    let elements = row.sources.iter().find(|source| source.plane.is_none());
    let source = elements.map_or_else(
        || "-".to_string(),
        |source| {
            let file = if source.file.is_empty() { model } else { &source.file };
            format!("{file}@{}+{}", source.offset, source.bytes)
        },
    );
    let chunks = match (row.parts.first(), row.parts.last()) {
        (Some(first), Some(last)) if first.chunk != last.chunk => format!("{}-{}", first.chunk, last.chunk),
        (Some(first), _) => first.chunk.to_string(),
        (None, _) => "-".to_string(),
    };
    let steps = match row.reads.as_slice() {
        [] => "-".to_string(),
        [only] => step(only),
        [first, rest @ ..] => format!("{} and {} more", step(first), rest.len()),
    };
    let mut reads: Vec<&str> = row.reads.iter().map(|reader| reader.read).collect();
    reads.dedup();
    [
        weight_name(manifest, row.weight),
        format!("{}[{shape}]", row.dtype),
        source,
        row.encoding.clone(),
        chunks,
        row.parts.first().map_or_else(|| "-".to_string(), |part| part.offset.to_string()),
        row.bytes.to_string(),
        steps,
        if reads.is_empty() { "-".to_string() } else { reads.join(", ") },
        row.reason.clone(),
    ]
}

/// `0:12 matmul`: block, step, operator.
fn step(reader: &Reader) -> String {
    format!("{}:{} {}", reader.block, reader.step, reader.operator)
}
