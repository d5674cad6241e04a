//! Every attribute, input, output and type that the schemas of ONNX and of `com.microsoft` name is honoured or refused by
//! name.
//!
//! `tests/schemas/schemas.py` writes the schemas and models that have the operators; without Python and the packages the
//! test says so and passes. Each model is changed in one place at a time: an attribute of a wrong type must be refused by
//! its name, one of another value must change the graph or be refused, an optional input must be read or refused, an
//! optional output must be there or refused, a type must be inferred or refused by its name. What is passed over is listed
//! with its reason in `passed_over.txt`: what is not listed fails, and what is listed must be passed over.
#![allow(clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod change;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
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
    println!("skipped: {} cannot write the schemas ({last}); see tests/schemas/schemas.py", python.display());
    false
}

/// Parts of operators that are passed over, and why: `DOMAIN.NAME PART  reason`, a line each.
fn passed_over() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder().join("passed_over.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once("  ").unwrap()).map(|(part, why)| (part.into(), why.trim().into())).collect()
}

#[test]
fn everything_in_the_schemas_is_honoured_or_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    if !write_schemas(scratch.path()) {
        return;
    }
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib");
    let report = walk::walk(scratch.path(), &contrib);
    println!("{}", report.table);
    let expected = passed_over();
    let listed: BTreeSet<&String> = expected.keys().collect();
    let found: BTreeSet<&String> = report.passed_over.iter().collect();
    let new: Vec<&&String> = found.difference(&listed).collect();
    assert!(new.is_empty(), "{} parts are passed over that are not listed: {new:#?}", new.len());
    let gone: Vec<&&String> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "these are honoured or refused and must leave the list: {gone:#?}");
    assert!(report.parts > 6000, "only {} parts are walked", report.parts);
}
