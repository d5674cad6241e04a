//! Who may use whom: every use between top-level modules and every path dependency between crates is in a table, and no
//! files use each other in a circle.
//!
//! A new edge is a decision; it is made here, where a reviewer sees it.
#![allow(clippy::unwrap_used, reason = "tests panic")]

mod face;
mod modules;

use modules::{Crate, Use};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Crates and the crates of this workspace that they depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("codes", &[]),
    ("formats", &["ipuc-codes"]),
    ("kernels", &["ipuc-codes"]),
    ("pages", &[]),
    ("passes", &["ipuc-formats", "ipuc-pages"]),
    ("runtime", &["ipuc-codes", "ipuc-formats", "ipuc-kernels", "ipuc-pages"]),
    (".", &["ipuc-formats", "ipuc-pages", "ipuc-passes", "ipuc-runtime"]),
];

/// Modules of `passes` and the modules that they use.
const PASSES: &[(&str, &[&str])] = &[
    ("ir", &["rounding"]),
    ("rounding", &[]),
    ("moments", &[]),
    ("options", &["moments"]),
    ("error", &["ir", "options"]),
    ("import", &["ir"]),
    ("annotate_sparsity", &["error", "ir", "moments", "options", "rounding"]),
    ("block_channels", &["error", "ir", "options"]),
    ("infer", &["error", "ir", "options"]),
    ("join", &["error", "infer", "ir", "options"]),
    ("fold_constants", &["error", "ir", "options"]),
    ("simplify", &["error", "ir", "options"]),
    ("dead_code", &["error", "ir", "options"]),
    ("order", &["error", "ir", "options"]),
    ("fuse", &["error", "ir", "options"]),
    ("integers", &["error", "ir", "moments", "options"]),
    ("prefill", &["error", "ir", "options"]),
    ("quantize", &["error", "ir", "options"]),
    ("round_weights", &["error", "ir", "moments", "options", "rounding"]),
    ("states", &["error", "ir", "options"]),
    ("tile", &[]),
    ("place", &["tile"]),
    ("verify", &["ir"]),
    ("emit", &["ir", "rounding"]),
    (
        "pipeline",
        &[
            "annotate_sparsity",
            "block_channels",
            "dead_code",
            "error",
            "fold_constants",
            "fuse",
            "infer",
            "integers",
            "ir",
            "join",
            "options",
            "order",
            "prefill",
            "quantize",
            "round_weights",
            "simplify",
            "states",
            "verify",
        ],
    ),
];

/// Modules of `runtime` and the modules that they use.
const RUNTIME: &[(&str, &[&str])] = &[
    ("versions", &[]),
    ("steps", &["versions"]),
    ("error", &["steps", "versions"]),
    ("fabric", &["stream"]),
    ("file", &[]),
    ("limits", &["threads"]),
    ("memory", &["steps", "versions"]),
    ("observe", &[]),
    ("bind", &["error"]),
    ("cancel", &[]),
    ("counter", &[]),
    ("check", &["error"]),
    ("state", &["error", "steps", "versions"]),
    ("saved", &["error", "program", "state", "steps", "versions"]),
    ("trace", &[]),
    ("stream", &["error", "file", "memory", "steps", "trace"]),
    ("resident", &["error", "memory", "steps"]),
    ("windows", &[]),
    ("program", &["check", "error", "file", "memory", "resident", "state", "steps", "stream", "versions", "windows"]),
    ("threads", &["error"]),
    ("execute", &["cancel", "counter", "error", "memory", "observe", "program", "steps", "trace", "versions"]),
    ("working", &["memory", "steps", "versions"]),
    ("model", &["check", "error", "file", "memory", "program", "resident", "stream", "versions", "working"]),
    (
        "session",
        &[
            "bind", "cancel", "counter", "error", "execute", "memory", "model", "observe", "program", "saved", "state",
            "steps", "stream", "threads", "trace", "versions", "working",
        ],
    ),
];

/// Modules of the program and the modules that they use.
const PROGRAM: &[(&str, &[&str])] = &[
    ("arrays", &["handle"]),
    ("build", &["cache", "compile"]),
    ("cache", &["compile", "files"]),
    (
        "cli",
        &[
            "accuracy",
            "cache",
            "calibrate",
            "compare",
            "compile",
            "files",
            "generate",
            "generation",
            "memory",
            "observe",
            "open",
            "precision",
            "serve",
            "simulate",
        ],
    ),
    ("calibrate", &["accuracy", "compare", "compile", "generation", "open"]),
    ("compile", &["files", "generation", "memory"]),
    ("generate", &["generation"]),
    ("generation", &[]),
    ("memory", &[]),
    ("observe", &[]),
    ("open", &["files", "memory"]),
    ("precision", &["compare"]),
    ("serve", &["generate"]),
    ("simulate", &[]),
];

/// The chain of modules of `formats`: each uses only those before it.
const FORMATS_CHAIN: &[&str] = &[
    "limits",
    "dtype",
    "element",
    "dim",
    "tensor",
    "read_at",
    "fact",
    "value",
    "attribute",
    "attribute_text",
    "narrow",
    "onnx",
    "ops",
    "encodings",
    "model",
    "machine",
];

/// Families of operators: what they mean, how they are imported, how they run.
const FAMILIES: &[&str] = &[
    "attention",
    "classical",
    "control",
    "elementwise",
    "images",
    "movement",
    "normalization",
    "products",
    "quantization",
    "recurrence",
    "signal",
    "text",
];

/// Folders with a module for each family, and what stands beside the families there.
const FAMILY_FOLDERS: &[(&str, &[&str])] = &[
    (
        "formats/src/ops",
        &[
            "arithmetic",
            "broadcast",
            "classes",
            "dispatch",
            "facets",
            "floats",
            "loops",
            "operator",
            "parts",
            "program",
            "reference",
            "scalar",
            "single",
            "space",
            "step_facts",
            "test_blocks",
            "testing",
            "windows",
            "work",
        ],
    ),
    (
        "passes/src/import",
        &[
            "attributes",
            "compose",
            "constant",
            "cross_check",
            "definition",
            "element_types.txt",
            "expansion",
            "functions",
            "importer",
            "lower_error",
            "lowering",
            "not_imported",
            "notes",
            "opsets",
            "order",
            "overridable",
            "registry",
            "tensors",
            "types",
            "walk",
        ],
    ),
    ("runtime/src/steps", &["context", "evaluate", "floats", "operand", "prepared", "program", "stacked", "testing"]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn crates_depend_as_the_table_says() {
    for (folder, allowed) in CRATES {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let section = manifest.split("\n[dependencies]").nth(1).unwrap_or("");
        let section = section.split("\n[").next().unwrap_or("");
        let found: BTreeSet<&str> = section
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| name.starts_with("ipuc-"))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(found.is_subset(&allowed), "{folder} depends on {found:?}, allowed {allowed:?}");
    }
}

#[test]
fn modules_of_passes_use_what_the_table_says() {
    check_table("passes/src", PASSES);
}

#[test]
fn modules_of_the_runtime_use_what_the_table_says() {
    check_table("runtime/src", RUNTIME);
}

#[test]
fn modules_of_the_program_use_what_the_table_says() {
    check_table("src", PROGRAM);
}

fn check_table(folder: &str, table: &[(&str, &[&str])]) {
    let row = |(module, used): &(&str, &[&str])| -> Vec<(String, String)> {
        used.iter().map(|used| (module.to_string(), used.to_string())).collect()
    };
    let allowed: BTreeSet<(String, String)> = table.iter().flat_map(row).collect();
    let found = edges(folder);
    let new: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(new.is_empty() && gone.is_empty(), "{folder}: not in the table: {new:?}; only in the table: {gone:?}");
}

#[test]
fn modules_of_formats_are_a_chain() {
    let place = |name: &str| FORMATS_CHAIN.iter().position(|module| *module == name);
    for (module, used) in edges("formats/src") {
        let (user, used_place) = (place(&module), place(&used));
        let (Some(user), Some(used_place)) = (user, used_place) else {
            panic!("formats: `{module}` or `{used}` is not in the chain");
        };
        assert!(used_place < user, "formats: `{module}` uses `{used}`, which comes after it");
    }
}

#[test]
fn families_of_operators_have_the_same_names_everywhere() {
    for (folder, beside) in FAMILY_FOLDERS {
        let expected: BTreeSet<String> = FAMILIES.iter().chain(*beside).map(|name| name.to_string()).collect();
        let modules = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.trim_end_matches(".rs").to_string()
        });
        let found: BTreeSet<String> = modules.filter(|name| name != "mod").collect();
        assert_eq!(found, expected, "{folder}");
    }
}

/// Folders of sources, one a crate.
const SOURCES: &[&str] = &["codes/src", "formats/src", "kernels/src", "pages/src", "passes/src", "runtime/src", "src"];

/// Pairs of a top-level module and another one that it names; the root of a crate names all.
fn edges(folder: &str) -> BTreeSet<(String, String)> {
    let uses = Crate::read(&root().join(folder), "lib.rs").uses().into_iter();
    let edge = |used: Use| {
        let module = used.file.split('/').next()?.trim_end_matches(".rs").to_string();
        Some((module, used.module?))
    };
    let mut edges: BTreeSet<(String, String)> = uses.filter_map(edge).collect();
    edges.retain(|(module, used)| module != used && module != "lib");
    edges
}

/// Whether one file is the `mod.rs` above the other: what the files of a folder share, and what they are handed on by.
fn is_above(one: &str, other: &str) -> bool {
    let folder = one.strip_suffix("mod.rs").or_else(|| one.strip_suffix("lib.rs"));
    folder.is_some_and(|folder| other.starts_with(folder))
}

/// Sets of files that use one another in a circle, each in order. A `mod.rs` and the files below it are not counted as
/// users of each other: it declares them, hands on what they define, and holds what they share.
fn circles(folder: &str) -> BTreeSet<Vec<String>> {
    let uses = Crate::read(&root().join(folder), "lib.rs").uses();
    let edges = uses.iter().map(|used| (used.file.as_str(), used.defined_in.as_str()));
    let edges = edges.filter(|(user, used)| !is_above(user, used) && !is_above(used, user));
    let graph: DiGraphMap<&str, ()> = DiGraphMap::from_edges(edges);
    let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
    let named = circles.map(|files| {
        let mut names: Vec<String> = files.into_iter().map(|file| format!("{folder}/{file}")).collect();
        names.sort_unstable();
        names
    });
    named.collect()
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let found: Vec<Vec<String>> = SOURCES.iter().flat_map(|folder| circles(folder)).collect();
    assert_eq!(found, Vec::<Vec<String>>::new());
}
