//! The package in `tests/embed`: a build script that compiles models, and a program that uses the typed handles.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// cargo in the folder of the package, with what is built already, and without network.
fn cargo(arguments: &[&str]) -> String {
    cargo_in(&root().join("tests/embed"), arguments)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The same in the folder of another package.
fn cargo_in(package: &Path, arguments: &[&str]) -> String {
    // The same versions as in the workspace: these are on the machine.
    let lock = package.join("Cargo.lock");
    if package != root() {
        std::fs::copy(root().join("Cargo.lock"), lock).unwrap();
    }
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

fn tour() -> String {
    std::fs::read_to_string(root().join("docs/tour.md")).unwrap()
}

/// The line by which the tour installs, into a folder of its own and as it is built for tests; then what the tour does with it.
#[test]
#[ignore = "installs the program; `.ci/full` runs it"]
fn the_program_installs_as_the_tour_says() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let page = tour();
    let line = page.lines().find_map(|line| line.strip_prefix("    cargo install ")).unwrap();
    let line = line.split('#').next().unwrap();
    let mut arguments: Vec<&str> = ["install"].into_iter().chain(line.split_whitespace()).collect();
    arguments.extend(["--quiet", "--debug", "--locked", "--root", &place]);
    cargo_in(root(), &arguments);
    let program = folder.path().join("bin").join(format!("ipuc{}", std::env::consts::EXE_SUFFIX));
    let run = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&["--version"]), format!("ipuc {}\n", env!("CARGO_PKG_VERSION")));
    for line in page.lines().filter_map(|line| line.strip_prefix("    ipuc ")) {
        // Into this folder, not into that of the user.
        let words: Vec<String> = line.replace("~/.local", &place).split_whitespace().map(str::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).take_while(|word| *word != ">").collect();
        let printed = run(&words);
        match words[0] {
            "completions" => assert!(printed.contains("complete -F _ipuc"), "{printed}"),
            "man" => assert!(folder.path().join("share/man/man1/ipuc-run.1").is_file()),
            other => panic!("{other}"),
        }
    }
}

/// The program of the tour, as it stands there.
#[test]
#[ignore = "builds compiler and runtime for a package of its own; `.ci/full` runs it"]
fn the_program_of_the_tour_runs() {
    let page = tour();
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [build, main] = blocks.as_slice() else { panic!("{} blocks of Rust", blocks.len()) };
    let dependencies = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let here = root().display().to_string().replace('\\', "/");
    let dependencies = dependencies.replace("version = \"0.1\"", &format!("path = \"{here}\""));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    // The profile of `tests/embed`, so that what is built for that can be used.
    let embed = std::fs::read_to_string(root().join("tests/embed/Cargo.toml")).unwrap();
    let profile = &embed[embed.find("[profile.dev]").unwrap()..];
    let package = "[workspace]\n[package]\nname = \"tour\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";
    write("Cargo.toml", &format!("{package}{dependencies}{profile}"));
    write("build.rs", build);
    write("src/main.rs", main);
    std::fs::create_dir(folder.path().join("models")).unwrap();
    let model = root().join("fixtures/silero_vad_16k_op15/model.onnx");
    std::fs::copy(model, folder.path().join("models/speech.onnx")).unwrap();
    let printed = cargo_in(folder.path(), &["run", "--quiet"]);
    let likely = printed.trim_end().strip_prefix("[1, 1] ").unwrap_or_else(|| panic!("{printed}"));
    assert!(likely.parse::<f32>().unwrap() < 0.1, "{printed}");
}
