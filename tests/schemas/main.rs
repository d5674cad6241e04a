//! Every attribute, input, output and type that the schemas of ONNX and of `com.microsoft` name is honoured or refused by
//! name.
//!
//! `tests/schemas/schemas.py` writes the schemas and models that have the operators; without Python and the packages the
//! test says so and passes. Each model is changed in one place at a time: an attribute of a wrong type must be refused by
//! its name, one of another value must change the graph or be refused, an optional input must be read or refused, an
//! optional output must be there or refused, a type must be inferred or refused by its name; attributes that are texts are given
//! every text that they may be. Every version of an operator has a model, and every attribute of `com.microsoft` a case in
//! `tests/contrib`. What is passed over or missing is listed with its reason in `passed_over.txt`, `without_model.txt`,
//! `without_case.txt`: what is not listed fails, and what is listed must be so. Types that are honoured are stored for `ipuc ops`.
#![allow(clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod change;
mod walk;

use ipuc_passes::import::{NOT_IMPORTED, NOTES, Note};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas")
}

/// Have Python write schemas and models; `false` where that cannot be, with the reason printed.
fn write_schemas(target: &Path) -> bool {
    let python = std::env::var_os("IPUC_PYTHON").unwrap_or_else(|| "python3".into());
    let written = Command::new(&python).arg(folder().join("schemas.py")).arg(target).output();
    let reason = match written {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    let last = reason.lines().last().unwrap_or_default();
    let python = python.display();
    // Seen also where the output of passing tests is not.
    let line = format!("schemas: skipped, {python} cannot write them ({last}); see tests/schemas/schemas.py\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    false
}

/// What a list excuses, and why: `PART  reason`, a line each.
fn excused(list: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(folder().join(list)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once("  ").unwrap_or_else(|| panic!("{list}: {line} has no reason")));
    parts
        .map(|(part, why)| if why.trim().is_empty() { panic!("{list}: {part} has no reason") } else { part.into() })
        .collect()
}

/// What was found is what the list says: no more, and no less.
fn compare(list: &str, what: &str, found: &BTreeSet<String>, listed: &BTreeSet<String>) -> Vec<String> {
    let new = found.difference(listed).map(|part| format!("{part}: {what}, and {list} does not list it"));
    let gone = listed.difference(found).map(|part| format!("{part}: not so any more, and must leave {list}"));
    new.chain(gone).collect()
}

/// Types of operators, as `ipuc ops` and `OPERATORS.md` give them: `OPERATOR  variable: types; ..`, a line each.
fn types(report: &walk::Report) -> String {
    let mut text = String::from(
        "# Element types of operators that are imported, by the names of their type variables. The test `schemas` finds them\n\
         # by importing models, and writes this file with BLESS=1: operator, two spaces, variables.\n",
    );
    for (operator, variables) in &report.types {
        let named = variables.iter().filter(|(variable, _)| !variable.contains('('));
        let texts: Vec<String> = named
            .map(|(variable, types)| format!("{variable}: {}", types.iter().cloned().collect::<Vec<_>>().join(" ")))
            .collect();
        if !texts.is_empty() {
            writeln!(text, "{operator}  {}", texts.join("; ")).unwrap();
        }
    }
    text
}

#[test]
fn everything_in_the_schemas_is_honoured_or_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    if !write_schemas(scratch.path()) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let report = walk::walk(scratch.path(), &root.join("tests/contrib"));
    println!("{}", report.table);
    let not_imported =
        NOT_IMPORTED.iter().map(|note| [note.domain, note.name].join(if note.domain.is_empty() { "" } else { "." }));
    let mut wrong = compare("NOT_IMPORTED", "in no table", &report.not_imported, &not_imported.collect());
    for (list, what, found) in [
        ("passed_over.txt", "passed over", &report.passed_over),
        ("without_model.txt", "no model of this version is imported", &report.without_model),
        ("without_case.txt", "in no case of tests/contrib", &report.without_case),
    ] {
        wrong.extend(compare(list, what, found, &excused(list)));
    }
    for (operator, part) in &report.refused {
        let of_operator = |note: &&Note| format!("{}.{}", note.domain, note.name).trim_start_matches('.') == operator;
        let note = NOTES.iter().find(of_operator).map_or("", |note| note.text);
        if !note.contains(&format!("`{part}`")) {
            wrong.push(format!("{operator} `{part}`: it is refused, and the list of operators does not say so"));
        }
    }
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong.join("\n"));
    assert!(report.parts > 6000, "only {} parts are walked", report.parts);
    let stored = root.join("passes/src/import/element_types.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&stored, types(&report)).unwrap();
    }
    assert!(std::fs::read_to_string(&stored).unwrap() == types(&report), "the types differ: run with BLESS=1");
}
