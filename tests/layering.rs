//! Who may use whom: every `use crate::…` between modules and every path dependency between crates is in a table.
//!
//! A new edge is a decision; it is made here, where a reviewer sees it.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crates and the crates of this workspace that they depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("formats", &[]),
    ("passes", &["ipuc-formats"]),
    ("runtime", &["ipuc-formats"]),
    (".", &["ipuc-formats", "ipuc-passes", "ipuc-runtime"]),
];

/// Modules of `passes` and the modules that they use.
const PASSES: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("options", &[]),
    ("error", &["ir"]),
    ("import", &["ir"]),
    ("infer", &["error", "ir", "options"]),
    ("fold_constants", &["error", "ir", "options"]),
    ("simplify", &["error", "ir", "options"]),
    ("dead_code", &["error", "ir", "options"]),
    ("order", &["error", "ir", "options"]),
    ("state", &["error", "ir", "options"]),
    ("verify", &["ir"]),
    ("emit", &["ir"]),
    (
        "pipeline",
        &["dead_code", "error", "fold_constants", "infer", "ir", "options", "order", "simplify", "state", "verify"],
    ),
];

/// Modules of `runtime` and the modules that they use.
const RUNTIME: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("steps", &["kernels"]),
    ("error", &["steps"]),
    ("memory", &["steps"]),
    ("bind", &["error"]),
    ("check", &["error"]),
    ("state", &["error"]),
    ("trace", &["kernels"]),
    ("stream", &["error", "memory", "steps", "trace"]),
    ("resident", &["error", "memory", "steps"]),
    ("program", &["error", "resident", "steps", "stream"]),
    ("execute", &["error", "memory", "program", "steps", "trace"]),
    ("working", &["memory"]),
    (
        "session",
        &[
            "bind", "check", "error", "execute", "memory", "program", "resident", "state", "steps", "stream", "trace",
            "working",
        ],
    ),
];

/// The chain of modules of `formats`: each uses only those before it.
const FORMATS_CHAIN: &[&str] = &[
    "limits",
    "dtype",
    "element",
    "dim",
    "tensor",
    "pages",
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
            "epilogue",
            "floats",
            "operator",
            "parts",
            "reference",
            "scalar",
            "single",
            "test_blocks",
            "testing",
            "windows",
        ],
    ),
    (
        "passes/src/import",
        &[
            "attributes",
            "constant",
            "cross_check",
            "functions",
            "importer",
            "lowering",
            "order",
            "registry",
            "tensors",
            "types",
        ],
    ),
    ("runtime/src/steps", &["context", "floats", "operand", "testing"]),
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

fn check_table(folder: &str, table: &[(&str, &[&str])]) {
    for (module, used) in edges(&root().join(folder)) {
        let row = table.iter().find(|(name, _)| *name == module);
        let (_, allowed) = row.unwrap_or_else(|| panic!("{folder}: module `{module}` is not in the table"));
        assert!(allowed.contains(&used.as_str()), "{folder}: `{module}` uses `{used}`, allowed {allowed:?}");
    }
}

#[test]
fn modules_of_formats_are_a_chain() {
    let place = |name: &str| FORMATS_CHAIN.iter().position(|module| *module == name);
    for (module, used) in edges(&root().join("formats/src")) {
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

/// Pairs of a top-level module and one that it uses by `crate::`, tests excepted.
fn edges(source: &Path) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for file in rust_files(source) {
        let relative = file.strip_prefix(source).unwrap();
        let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs").to_string();
        let is_test = relative.components().any(|part| part.as_os_str().to_string_lossy().starts_with("test"));
        if module == "lib" || is_test {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + 7..];
                let end =
                    rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
                let used = &rest[..end];
                let is_module = source.join(used).is_dir() || source.join(format!("{used}.rs")).is_file();
                if is_module && used != module {
                    found.insert((module.clone(), used.to_string()));
                }
            }
        }
    }
    found
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
