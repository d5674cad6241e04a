//! The package in `tests/embed`: a build script that compiles models, and a program that uses the typed handles.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// cargo in the folder of the package, with what is built already, and without network.
fn cargo(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = root.join("tests/embed");
    // The same versions as in the workspace: these are on the machine.
    std::fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let target: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned();
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).arg("--offline").current_dir(package).env("CARGO_TARGET_DIR", target);
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "cargo {arguments:?}: {stderr}");
    stdout
}

#[test]
#[ignore = "builds compiler and runtime for a package of its own; `.ci/full` runs it"]
fn a_program_has_its_models_inside() {
    let printed = cargo(if cfg!(debug_assertions) { &["run", "--quiet"] } else { &["run", "--quiet", "--release"] });
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines, ["speech in 87 of 165 windows", "the product begins with 4.068"]);
}

/// Neither the program nor its build script builds what only the command line needs, and the program no compiler.
#[test]
fn a_program_builds_what_it_needs() {
    let packages = |edges: &str| {
        let tree = cargo(&["tree", "--edges", edges, "--prefix", "none", "--format", "{p}"]);
        let names = tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_string);
        names.collect::<std::collections::BTreeSet<String>>()
    };
    let (all, program) = (packages("normal,build"), packages("normal"));
    for name in ["clap", "indicatif", "signal-hook", "zip"] {
        assert!(!all.contains(name), "{name} is built");
    }
    assert!(!all.iter().any(|name| name.starts_with("tract")), "tract is built");
    assert!(all.contains("ipuc-passes") && !program.contains("ipuc-passes"));
    assert!(program.contains("ipuc-runtime"));
}
