//! `--records WEIGHT`: where each record of a weight lies in the file, and the parameters and elements in it.
//!
//! A record is what a kernel takes at a time: some inputs of a panel of 16 outputs, or a row. A weight without parameters has
//! one record a part.

use super::weight_name;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use ipuc_formats::encodings::{Plane, StoredRecord};
use ipuc_formats::model::{Manifest, WeightRecord};
use serde::Serialize;

#[derive(Serialize)]
struct Record {
    /// Panels, rows or strings, by their numbers in the weight: the first, and the one after the last.
    units: [u64; 2],
    /// The inputs of these units: the first, and the one after the last; both 0 where units have none.
    inputs: [u64; 2],
    pieces: Vec<Piece>,
}

#[derive(Serialize)]
struct Piece {
    /// Index of the plane; null for elements.
    plane: Option<u32>,
    /// From the begin of the file.
    offset: u64,
    bytes: u64,
}

pub(super) fn show(manifest: &Manifest, name: &str, output: &mut Output) -> anyhow::Result<()> {
    let found = (0..manifest.weights.len()).find(|&index| weight_name(manifest, index) == name);
    let index = found.ok_or_else(|| {
        Failure::usage(format!("there is no weight `{name}`")).with_hint("names are listed by --layout")
    })?;
    let weight = &manifest.weights[index];
    let planes = weight.encoding.encoding().planes();
    let records = records(manifest, weight)?;
    let mut table = vec![["units", "inputs", "piece", "offset", "bytes"].map(str::to_string)];
    for record in &records {
        for (index, piece) in record.pieces.iter().enumerate() {
            let of_first = |text: String| if index == 0 { text } else { String::new() };
            table.push([
                of_first(range(record.units)),
                of_first(range(record.inputs)),
                piece_name(planes, piece.plane),
                piece.offset.to_string(),
                piece.bytes.to_string(),
            ]);
        }
    }
    output.table(table)?;
    output.json(&serde_json::json!({ "weight": index, "records": records }))
}

/// All records of a weight, in the order of the file.
fn records(manifest: &Manifest, weight: &WeightRecord) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for part in &weight.parts {
        let extent = &manifest.extents[part.extent as usize];
        let placed = |record: StoredRecord| Record {
            units: [record.units.start, record.units.end],
            inputs: [record.inputs.start, record.inputs.end],
            pieces: (record.pieces.iter())
                .map(|piece| Piece { plane: piece.plane, offset: extent.offset + piece.offset, bytes: piece.bytes })
                .collect(),
        };
        let encoding = weight.encoding.encoding();
        encoding.records(weight.logical(), part.range(), extent.length, &mut |record| records.push(placed(record)))?;
    }
    Ok(records)
}

/// `3`, or `0..6`.
fn range([first, end]: [u64; 2]) -> String {
    match end - first {
        0 => "-".to_string(),
        1 => first.to_string(),
        _ => format!("{first}..{end}"),
    }
}

/// `scale f32 32`, or `elements`.
fn piece_name(planes: &[Plane], plane: Option<u32>) -> String {
    match plane.and_then(|plane| planes.get(plane as usize)) {
        Some(plane) => plane.to_string(),
        None => "elements".to_string(),
    }
}
