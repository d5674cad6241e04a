//! `docs/json.md` against the program: every key that a command prints is on the page, and every key of the page is
//! printed.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::support::*;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::model::{
    OperandRecord, PlacementRecord, Reduction, RegionRecord, SplitKind, SplitRecord, StepPlacementRecord,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// Keys of the page by command.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/json.md")).unwrap();
    let mut commands: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut command = String::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## `ipuc ") {
            command = heading.trim_end_matches('`').to_string();
            commands.insert(command.clone(), BTreeSet::new());
        } else if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) {
            assert!(commands.get_mut(&command).unwrap().insert(key.to_string()), "{command}: {key} is there twice");
        }
    }
    commands
}

/// Paths of everything that is no object and no list; of an empty one, its own.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let key = if path == "operators" { "*" } else { key };
                paths(member, &if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }, found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| paths(element, &format!("{path}[]"), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.insert(path.to_string());
        }
    }
}

/// Two inputs whose dimensions must fit, a weight that is computed while compiling, and state.
fn model_with_everything() -> Vec<u8> {
    let nodes = vec![
        node("Add", &["a", "b"], &["sum"]),
        node("MatMul", &["sum", "w"], &["product"]),
        node("Add", &["product", "past"], &["present"]),
        node("Neg", &["one"], &["minus"]),
        node("Mul", &["present", "minus"], &["y"]),
    ];
    let inputs = vec![port("a", &["n", "3"]), port("b", &["m", "3"]), port("past", &["1", "2"])];
    let outputs = vec![port("y", &["n", "2"]), port("present", &["n", "2"])];
    model(graph(inputs, vec![linear_weight(), tensor("one", &[], &[1.0])], nodes, outputs))
}

/// A product on two tiles, by columns.
fn write_placed(folder: &Path) {
    let region = RegionRecord { operand: OperandRecord::Weight(0), offset: 0, bytes: 12, from: 0, to: 0 };
    let step = StepPlacementRecord {
        step: 0,
        splits: vec![SplitRecord { space: 0, axis: 1, parts: 2, kind: SplitKind::Tiles }],
        stationary: Some(1),
        tiles: vec![Range { start: 0, end: 2 }],
        regions: vec![region],
        reduction: Reduction::None,
        reason: "the only way".to_string(),
    };
    let bindings = vec![("batch".to_string(), 1)];
    let (target, target_hash) = ("fabric".to_string(), [0; 32]);
    let placements = vec![PlacementRecord { target, target_hash, block: 0, steps: vec![step], bindings }];
    let source = Source { entry: "main".to_string(), path: folder.join("linear.onnx") };
    compile(&[source], &folder.join("placed.ipu"), &CompileOptions { placements, ..CompileOptions::default() })
        .unwrap();
}

/// What a server says as soon as it listens.
fn serving(folder: &Path) -> Value {
    use std::io::BufRead as _;
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.current_dir(folder).args(["serve", "language.ipu", "--listen", "127.0.0.1:0", "--json"]);
    let mut server = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    for line in std::io::BufReader::new(server.stdout.take().unwrap()).lines() {
        said.push_str(&line.unwrap());
        if said.ends_with('}') {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn the_page_has_every_key() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "linear.onnx", &linear(linear_weight()));
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    write(folder, "loop.onnx", &std::fs::read(fixtures.join("loop/model.onnx")).unwrap());
    write(folder, "all.onnx", &model_with_everything());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    std::fs::File::options().write(true).open(folder.join("linear.onnx")).unwrap().set_modified(old).unwrap();
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let (inputs, outputs) = (vec![port("x", &["1", "4096"])], vec![port("y", &["1", "2048"])]);
    write(folder, "large.onnx", &model(graph(inputs, vec![external("w", &[4096, 2048], "w.bin")], nodes, outputs)));
    std::fs::File::create(folder.join("w.bin")).unwrap().set_len(4096 * 2048 * 4).unwrap();
    write_placed(folder);
    language::write_folder(&folder.join("language"));
    write(folder, "words.txt", b"w3 w4 w5 w6 w7");
    for (name, expected) in [("data", 9.5), ("wrong", 9.0)] {
        write(folder, &format!("{name}/test_data_set_0/input_0.pb"), &tensor_file(&[1, 3], &[1.0; 3]));
        write(folder, &format!("{name}/test_data_set_0/output_0.pb"), &tensor_file(&[1, 2], &[expected, 11.5]));
    }
    let run = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.env("IPUC_CACHE", folder.join("cache"));
        command.stdin(std::fs::File::open(folder.join("words.txt")).unwrap());
        let output = command.current_dir(folder).args(arguments.split_whitespace()).arg("--json").output().unwrap();
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments}: {error}\n{stdout}\n{stderr}"))
    };
    let sessions = [
        ("compile", "compile all.onnx --state past=present --dim n=2 -o all.ipu"),
        ("compile", "compile linear.onnx --verify"),
        ("compile", "compile linear.onnx --max-error 0.01 --calibrate data -o within.ipu"),
        (
            "compile",
            "compile linear.onnx --sparse-threshold 0.01 --sparse-activations always --calibrate data -o small.ipu",
        ),
        ("simulate", "simulate loop.onnx --target ipu-server"),
        ("simulate", "simulate linear.onnx --target ipu-server --dim batch=4"),
        ("simulate", "simulate linear.onnx --target ipu-edge --random 1"),
        ("simulate --sweep", "simulate linear.onnx --target ipu-server --dim batch=4 --sweep target=ipu-edge,a100"),
        ("run", "run linear.onnx --random 1"),
        ("run", "run linear.onnx --random 1 --observe"),
        ("verify", "verify linear.onnx --data data"),
        ("verify", "verify linear.onnx --data wrong"),
        ("verify", "verify linear.onnx --data data --streamed"),
        ("compare", "compare linear.ipu linear.onnx --random 1"),
        ("bench", "bench linear.onnx --runs 1"),
        ("bench", "bench linear.onnx --runs 2 --per-step"),
        ("inspect", "inspect all.ipu"),
        ("inspect --layout", "inspect all.ipu --layout"),
        ("inspect --records", "inspect all.ipu --records w"),
        ("inspect --program", "inspect all.ipu --program"),
        ("inspect --work", "inspect all.ipu --work"),
        ("inspect --sparsity", "inspect all.ipu --sparsity"),
        ("compile", "compile loop.onnx"),
        ("inspect --work", "inspect loop.ipu --work"),
        ("inspect --stream", "inspect all.ipu --stream"),
        ("inspect --stream --chunks", "inspect all.ipu --stream --chunks"),
        ("compile", "compile large.onnx"),
        ("inspect --stream --memory", "inspect large.ipu --stream --memory 24MiB"),
        ("inspect --placements", "inspect placed.ipu --placements --tiles 2 --sram 64KiB"),
        ("inspect --check", "inspect all.ipu --check"),
        ("compile", "compile language -o language.ipu"),
        ("compare --text", "compare language.ipu language --text words.txt"),
        ("inspect", "inspect language.ipu"),
        ("generate", "generate language.ipu --prompt w3 --max-tokens 2 --logprobs 1"),
        ("chat", "chat language.ipu --max-tokens 2"),
        ("generate --batch", "generate language.ipu --batch words.txt --max-tokens 2"),
        ("cache", "cache list"),
        ("cache", "cache clear"),
        ("ops", "ops"),
        ("completions", "completions bash"),
        ("man", "man pages"),
    ];
    let mut printed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (command, session) in sessions {
        paths(&run(session), "", printed.entry(command.to_string()).or_default());
    }
    // A page has what is printed, and needs nothing else.
    for arguments in ["compare linear.ipu linear.onnx --random 1", "compare language.ipu language --text words.txt"] {
        let result = run(&format!("{arguments} --html page.html"));
        let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["result"], result, "{arguments}");
        let drawn = if result["windows"].is_u64() { &data["windows"] } else { &data["samples"] };
        assert_eq!(drawn.as_array().map(Vec::is_empty), Some(false), "{arguments}: {drawn}");
        let elsewhere = page.match_indices("://").filter(|(at, _)| !page[at + 3..].starts_with("www.w3.org/2000/svg"));
        assert_eq!(elsewhere.count(), 0, "{arguments}");
    }
    // [4, 3] by [3, 2].
    let bench = run("bench linear.onnx --runs 1 --per-step --dim batch=4");
    assert_eq!(bench["steps"][0]["macs"], 24, "{bench}");
    let mut bytes = std::fs::read(folder.join("linear.ipu")).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(folder.join("damaged.ipu"), bytes).unwrap();
    paths(&run("inspect damaged.ipu --check"), "", printed.entry("inspect --check".to_string()).or_default());
    let address = serving(folder);
    paths(&address, "", printed.entry("serve".to_string()).or_default());
    let documented = documented();
    assert_eq!(documented.keys().collect::<Vec<_>>(), printed.keys().collect::<Vec<_>>());
    for (command, keys) in &printed {
        let missing: Vec<&String> = keys.difference(&documented[command]).collect();
        let excess: Vec<&String> = documented[command].difference(keys).collect();
        assert!(missing.is_empty(), "{command} prints keys that docs/json.md lacks: {missing:?}");
        // What this version never has is documented all the same, and what it has with a feature only; with it, tract agrees.
        let of_feature =
            if cfg!(feature = "cross-check") { "cross_checks[].disagreements[]" } else { "cross_checks[]" };
        let elsewhere = |key: &str| key.starts_with("options[]") || key.starts_with(of_feature);
        let excess: Vec<&&String> = excess.iter().filter(|key| !elsewhere(key)).collect();
        assert!(excess.is_empty(), "{command} does not print {excess:?}");
    }
}
