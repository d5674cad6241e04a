//! `ipuc ops`: which ONNX operators are imported, and the operators of `.ipu` files with their numbers.

use super::Outcome;
use super::failure::Code;
use super::output::Output;
use clap::Args;
use ipuc_formats::ops::TABLE;
use ipuc_passes::import::{NEWEST_OPSET, NOT_IMPORTED, NOTES, element_types, rows};
use serde::Serialize;

/// List the ONNX operators that are imported and the operators of .ipu files
#[derive(Debug, Args)]
pub(super) struct Arguments {}

/// What `--json` prints: the dictionary of `.ipu` files.
#[derive(Serialize)]
struct Summary {
    /// Newest operator set of ONNX's default domain that is known.
    newest_opset: i64,
    onnx: Vec<OnnxOperator>,
    /// Operators that others define and that are not imported.
    not_imported: Vec<Absent>,
    operators: Vec<Operator>,
}

#[derive(Serialize)]
struct OnnxOperator {
    domain: &'static str,
    name: &'static str,
    /// Versions from which on it is imported in some way of its own.
    since: Vec<i64>,
    /// Element types, by the names of the specification's type variables.
    types: Option<&'static str>,
    /// What is refused or differs.
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct Absent {
    domain: &'static str,
    name: &'static str,
    reason: &'static str,
}

#[derive(Serialize)]
struct Operator {
    code: u32,
    name: &'static str,
    revision: u32,
    attributes: Vec<Attribute>,
}

#[derive(Serialize)]
struct Attribute {
    number: u32,
    name: &'static str,
    since_revision: u32,
}

pub(super) fn run(_arguments: &Arguments, output: &mut Output) -> Outcome {
    let summary = Summary {
        newest_opset: NEWEST_OPSET,
        onnx: onnx_operators(),
        not_imported: not_imported(),
        operators: operators(),
    };
    output.line(format_args!("ONNX operators, with the versions that differ (opset {NEWEST_OPSET} is the newest):"))?;
    let onnx = summary.onnx.iter().map(|operator| {
        let versions = operator.since.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let [types, note] = [operator.types, operator.note].map(|text| text.unwrap_or_default().to_string());
        [format!("{}.{}", operator.domain, operator.name), versions, types, note]
    });
    output.table(onnx.collect())?;
    output.line("\nOperators that are not imported:")?;
    let absent = summary.not_imported.iter();
    output.table(absent.map(|one| [format!("{}.{}", one.domain, one.name), one.reason.to_string()]).collect())?;
    output.line("\nOperators of .ipu files:")?;
    let operators = summary.operators.iter().map(|operator| {
        let attributes = operator.attributes.iter().map(|one| format!("{}={}", one.number, one.name));
        let attributes = attributes.collect::<Vec<_>>().join(" ");
        [
            format!("{:#04x}", operator.code),
            operator.name.to_string(),
            format!("revision {}", operator.revision),
            attributes,
        ]
    });
    output.table(operators.collect())?;
    output.json(&summary)?;
    Ok(Code::Success)
}

fn onnx_operators() -> Vec<OnnxOperator> {
    let mut operators: Vec<OnnxOperator> = Vec::new();
    for row in rows() {
        // The default domain is written out, as ONNX documents do.
        let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
        match operators.last_mut() {
            Some(last) if (last.domain, last.name) == (domain, row.name) => last.since.push(row.since),
            _ => {
                let note = NOTES.iter().find(|note| (note.domain, note.name) == (row.domain, row.name));
                let (note, types) = (note.map(|note| note.text), element_types(row.domain, row.name));
                operators.push(OnnxOperator { domain, name: row.name, since: vec![row.since], types, note });
            }
        }
    }
    operators
}

fn not_imported() -> Vec<Absent> {
    let absent = |note: &ipuc_passes::import::Note| Absent {
        domain: if note.domain.is_empty() { "ai.onnx" } else { note.domain },
        name: note.name,
        reason: note.text,
    };
    NOT_IMPORTED.iter().map(absent).collect()
}

fn operators() -> Vec<Operator> {
    let attributes = |fields: &[ipuc_formats::ops::Field]| {
        let attribute = |field: &ipuc_formats::ops::Field| Attribute {
            number: field.number,
            name: field.name,
            since_revision: field.since,
        };
        fields.iter().map(attribute).collect()
    };
    let operator = |row: &ipuc_formats::ops::Row| Operator {
        code: row.code,
        name: row.name,
        revision: row.revision,
        attributes: attributes(row.fields),
    };
    TABLE.iter().map(operator).collect()
}
