//! Golden files of passes: `tests/ir/<pass>/<case>.ir` holds a graph, a line of `----`, and the graph afterwards.
//!
//! `BLESS=1 cargo test --test filetests` rewrites what is expected; without it the files are only compared.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_passes::ir::text::{parse, print};
use ipuc_passes::options::Options;
use ipuc_passes::pipeline;
use std::path::{Path, PathBuf};

const SEPARATOR: &str = "// ----\n";

#[test]
fn passes_give_what_their_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ir");
    let bless = std::env::var_os("BLESS").is_some();
    let mut checked = 0;
    let mut wrong = Vec::new();
    for path in cases(&folder) {
        let pass_name = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
        let found = after(&pass_name, input, &path);
        checked += 1;
        if found == expected {
            continue;
        }
        if bless {
            std::fs::write(&path, format!("{input}{SEPARATOR}{found}")).unwrap();
        } else {
            wrong.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(checked > 0, "there are no golden files");
    assert!(wrong.is_empty(), "run with BLESS=1 to accept:\n{}", wrong.join("\n"));
}

/// The printed graph after a pass, which must round-trip and be idle a second time where it changed to a fixed point.
fn after(pass_name: &str, input: &str, path: &Path) -> String {
    let pass = pipeline::find(pass_name).unwrap_or_else(|| panic!("there is no pass `{pass_name}`"));
    let mut graph = parse(input).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let options = Options::default();
    if pass_name != "infer" && pass_name != "mark_states" {
        let infer = pipeline::find("infer").unwrap();
        pipeline::run_one(infer, &mut graph, &options).unwrap();
    }
    pipeline::run_one(pass, &mut graph, &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = print(&graph);
    assert_eq!(print(&parse(&text).unwrap()), text, "{}: the text form does not round-trip", path.display());
    text
}

fn cases(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(cases(&path));
        } else if path.extension().is_some_and(|extension| extension == "ir") {
            found.push(path);
        }
    }
    found.sort();
    found
}
