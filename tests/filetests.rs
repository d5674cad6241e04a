//! Golden files and examples of passes.
//!
//! `tests/ir/<pass>/<case>.ir` holds a graph, a line of `// ----`, and the graph afterwards. `BLESS=1 cargo test --test
//! all filetests` rewrites what is expected; without it the files are only compared. The comment of each pass holds such a
//! pair too. A line `// state IN=OUT`, `// cache i8`, `// dimension NAME=SIZE`, `// weights TYPE`, `// keep PATTERN` or
//! `// weights-for PATTERN=TYPE` before a graph is an option; so are `// prefill OUTPUT`, `// join ENTRY=PART,PART`, `// size BYTES`, `// max-error SHARE` and
//! `// sparse always` and `// sparse-activations always`.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_passes::fuse::PATTERNS;
use ipuc_passes::ir::text::{parse, print};
use ipuc_passes::ir::{Changes, Graph};
use ipuc_passes::options::{ActivationSparsity, Budget, Joined, Options, Part, Sparsity};
use ipuc_passes::pipeline::{self, PIPELINE, Pass, Phase};
use ipuc_passes::verify::Stage;
use std::path::{Path, PathBuf};

const SEPARATOR: &str = "// ----\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden(pass: &Pass) -> Vec<PathBuf> {
    let folder = root().join("tests/ir").join(pass.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn passes_give_what_their_files_say() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut wrong = Vec::new();
    for pass in pipeline::passes() {
        let files = golden(pass);
        assert!(!files.is_empty(), "`{}` has no golden file", pass.name);
        for path in files {
            let text = std::fs::read_to_string(&path).unwrap();
            let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
            let found = print(&after(pass, input, &path.display().to_string()));
            if found == expected {
                continue;
            }
            if bless {
                std::fs::write(&path, format!("{input}{SEPARATOR}{found}")).unwrap();
            } else {
                wrong.push(format!("{}:\n{found}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "run with BLESS=1 to accept:\n{}", wrong.join("\n"));
}

#[test]
fn golden_files_are_of_passes() {
    for entry in std::fs::read_dir(root().join("tests/ir")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(pipeline::find(&name).is_some(), "there is no pass `{name}`");
    }
}

#[test]
fn examples_in_comments_of_passes_are_true() {
    let sources: Vec<String> = sources("passes/src").into_iter().chain(sources("passes/src/fuse")).collect();
    for pass in pipeline::passes() {
        let function = format!("pub fn {}(graph: &mut Graph", pass.name);
        let source = sources.iter().find(|source| source.contains(&function));
        check_example(pass, pass.name, source.unwrap_or_else(|| panic!("`{}` has no file", pass.name)));
    }
}

#[test]
fn examples_in_comments_of_patterns_are_true() {
    let pass = pipeline::find("fuse").unwrap();
    for pattern in PATTERNS {
        let path = root().join(format!("passes/src/fuse/{}.rs", pattern.name));
        check_example(pass, pattern.name, &std::fs::read_to_string(path).unwrap());
    }
}

/// The files of a folder.
fn sources(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// A pass makes of the first example in a file's comment the second.
fn check_example(pass: &Pass, name: &str, source: &str) {
    let examples = examples(source);
    let [before, expected] = examples.as_slice() else {
        panic!("the comment of `{name}` has {} examples, not one before and one after", examples.len());
    };
    let found = after(pass, before, name);
    let difference = found.difference(&parse(expected).unwrap_or_else(|error| panic!("{name}: {error}")));
    assert_eq!(difference, None, "the example of `{name}` gives\n{}", print(&found));
}

/// The blocks of text in a file's first comment.
fn examples(source: &str) -> Vec<String> {
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut examples: Vec<String> = Vec::new();
    let mut inside = false;
    for line in comment.map(|line| line.strip_prefix(' ').unwrap_or(line)) {
        match line {
            "```text" => {
                inside = true;
                examples.push(String::new());
            }
            "```" => inside = false,
            line if inside => {
                let example = examples.last_mut().unwrap();
                example.push_str(line);
                example.push('\n');
            }
            _ => {}
        }
    }
    examples
}

fn options(input: &str) -> Options {
    let mut options = Options::default();
    for line in input.lines() {
        if let Some(state) = line.strip_prefix("// state ") {
            options.states.push(state.to_string());
        }
        if let Some(cache) = line.strip_prefix("// cache ") {
            options.cache = Some(cache.parse().unwrap());
        }
        if let Some(joined) = line.strip_prefix("// join ") {
            let (entry, parts) = joined.split_once('=').unwrap();
            let part = |entry: &str| Part { entry: entry.to_string(), renamed: Vec::new() };
            options.joined.push(Joined { entry: entry.to_string(), parts: parts.split(',').map(part).collect() });
        }
        if let Some(output) = line.strip_prefix("// prefill ") {
            options.prefill = Some(output.to_string());
        }
        if let Some(dimension) = line.strip_prefix("// dimension ") {
            let (name, size) = dimension.split_once('=').unwrap();
            options.dimensions.insert(name, size.parse().unwrap());
        }
        if let Some(precision) = line.strip_prefix("// weights ") {
            options.weights.precision = Some(precision.parse().unwrap());
        }
        if let Some(bytes) = line.strip_prefix("// size ") {
            options.weights.budget = Some(Budget::Size(bytes.parse().unwrap()));
        }
        if let Some(most) = line.strip_prefix("// max-error ") {
            options.weights.budget = Some(Budget::Error(most.parse().unwrap()));
        }
        if let Some(when) = line.strip_prefix("// sparse ") {
            assert_eq!(when, "always");
            options.sparsity = Sparsity::Always;
        }
        if let Some(when) = line.strip_prefix("// sparse-activations ") {
            assert_eq!(when, "always");
            options.activation_sparsity = ActivationSparsity::Always;
        }
        if let Some(pattern) = line.strip_prefix("// keep ") {
            options.weights.keep.push(pattern.to_string());
        }
        if let Some(each) = line.strip_prefix("// weights-for ") {
            let (pattern, precision) = each.split_once('=').unwrap();
            options.weights.each.push((pattern.to_string(), precision.parse().unwrap()));
        }
    }
    options
}

/// The graph after a pass. Its text gives it back, and passes that settle have nothing more to do.
fn after(pass: &Pass, input: &str, place: &str) -> Graph {
    let mut graph = parse(input).unwrap_or_else(|error| panic!("{place}: {error}"));
    let options = options(input);
    let mut run = |pass: &Pass| {
        pipeline::run_one(pass, &mut graph, &options).unwrap_or_else(|error| panic!("{place}: {error}")).changes
    };
    // Passes on typed graphs find the types up to date.
    if pass.stage > Stage::Imported && pass.name != "infer" {
        run(pipeline::find("infer").unwrap());
    }
    run(pass);
    if settles(pass) {
        assert_eq!(run(pass), Changes::default(), "{place}: the pass is not idle a second time");
    }
    assert_eq!(graph.difference(&parse(&print(&graph)).unwrap()), None, "{place}: the text does not give the graph");
    graph
}

fn settles(pass: &Pass) -> bool {
    PIPELINE.iter().any(|phase| match phase {
        Phase::Once(_) => false,
        Phase::Settle(passes) => passes.iter().any(|one| one.name == pass.name),
    })
}
