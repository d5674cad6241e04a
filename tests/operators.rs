//! `OPERATORS.md` is true: it lists what the import tables and the operator table hold.
//!
//! `BLESS=1 cargo test --test all operators` rewrites it.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

fn page() -> String {
    let mut text = String::from(
        "# Operators\n\nWritten from the tables by `BLESS=1 cargo test --test all operators`.\n\n## ONNX operators that are imported\n\n\
         Versions are those in which an operator changed; each holds until the next. Types are those that are taken, by the names that the \
         specification gives its type variables; a type that is not named is refused by its name.\n\n\
         | operator | versions | types | what is refused or differs |\n| --- | --- | --- | --- |\n",
    );
    let mut versions: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
    for row in ipuc_passes::import::rows() {
        versions.entry((row.domain, row.name)).or_default().push(row.since);
    }
    for ((domain, name), since) in versions {
        let dot = if domain.is_empty() { "" } else { "." };
        let since: Vec<String> = since.iter().map(i64::to_string).collect();
        let note = ipuc_passes::import::NOTES.iter().find(|note| (note.domain, note.name) == (domain, name));
        let note = note.map_or("", |note| note.text);
        let types = ipuc_passes::import::element_types(domain, name).unwrap_or_default();
        writeln!(text, "| {domain}{dot}{name} | {} | {types} | {note} |", since.join(", ")).unwrap();
    }
    text.push_str("\n## Operators that are not imported\n\n| operator | why |\n| --- | --- |\n");
    for note in ipuc_passes::import::NOT_IMPORTED {
        let dot = if note.domain.is_empty() { "" } else { "." };
        writeln!(text, "| {}{dot}{} | {} |", note.domain, note.name, note.text).unwrap();
    }
    text.push_str("\n## Operators of `.ipu` files\n\n| code | operator | revision | attributes (number name) |\n| --- | --- | --- | --- |\n");
    for row in ipuc_formats::ops::TABLE {
        let fields: Vec<String> = row.fields.iter().map(|field| format!("{} {}", field.number, field.name)).collect();
        writeln!(text, "| {:#04x} | {} | {} | {} |", row.code, row.name, row.revision, fields.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_page_lists_what_the_tables_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("OPERATORS.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == page(), "OPERATORS.md is not what the tables hold: run with BLESS=1");
}
