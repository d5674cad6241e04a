//! What a command meets around it: devices and pipes, full disks, signals, little memory, models made to take much; terminals
//! (`shown`), folders of compiled files (`cached`) and of listings (`written`), traces (`traced`),
//! files that go to stdout (`alone`), and large results (`printed`).
#![cfg(all(unix, feature = "cli"))]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod alone;
mod cached;
mod printed;
mod shown;
mod traced;
mod written;

use crate::support::*;
use ipuc_formats::onnx::schema::{
    AttributeProto, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, attribute_proto,
};
use prost::Message as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn ipuc(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.current_dir(folder).env("TMPDIR", folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    ipuc(folder).args(arguments.split_whitespace()).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a small model.
fn folder_with_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "linear.onnx", &linear(linear_weight()));
    folder
}

/// Names in a folder that are not in `known`.
fn others(folder: &Path, known: &[&str]) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !known.contains(&name.as_str())).collect()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// A program that reads a model from a pipe which does not end; it has a temporary folder by then.
fn reading_a_pipe(folder: &Path) -> (Child, std::process::ChildStdin) {
    let before = others(folder, &[]);
    let mut command = ipuc(folder);
    let command = command.args(["run", "-", "--random", "1"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&linear(linear_weight())).unwrap();
    let started = Instant::now();
    while others(folder, &[]).iter().all(|name| before.contains(name)) {
        assert!(started.elapsed().as_secs() < 60, "no temporary file");
        std::thread::sleep(Duration::from_millis(5));
    }
    (child, pipe)
}

#[test]
fn a_signal_ends_with_its_number_and_leaves_nothing() {
    let folder = folder_with_model();
    for (name, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let (mut child, _pipe) = reading_a_pipe(folder.path());
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        assert_eq!(others(folder.path(), &["linear.onnx"]), [""; 0], "{name}");
    }
}

#[test]
fn what_a_killed_program_left_is_removed_by_a_later_one() {
    let folder = folder_with_model();
    let (mut child, _pipe) = reading_a_pipe(folder.path());
    signal(&child, "-KILL");
    child.wait().unwrap();
    assert_eq!(others(folder.path(), &["linear.onnx"]).len(), 1);
    fs::write(folder.path().join(".ipuc-killed.partial"), "half a file").unwrap();
    let (mut running, _other_pipe) = reading_a_pipe(folder.path());
    let compiled = run(folder.path(), "compile linear.onnx");
    assert!(compiled.status.success(), "{}", errors(&compiled));
    // What the other program still needs stays.
    let left = others(folder.path(), &["linear.onnx", "linear.ipu"]);
    assert_eq!(left.len(), 1, "{left:?}");
    signal(&running, "-TERM");
    running.wait().unwrap();
    assert_eq!(others(folder.path(), &["linear.onnx", "linear.ipu"]), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_with_4_whatever_is_printed() {
    let folder = folder_with_model();
    for arguments in ["ops", "ops --json", "--help", "--version", "compile --help", "completions bash", "targets"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = ipuc(folder.path()).args(arguments.split(' ')).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{arguments}: {}", errors(&output));
    }
}

/// A limit on the length of files stands for the end of the disk.
#[test]
fn a_full_temporary_folder_is_named_and_ends_with_4() {
    let folder = folder_with_model();
    let folder = folder.path();
    write(folder, "weights.bin", &vec![0; 8 << 20]);
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let inputs = vec![port("x", &["1", "1024"])];
    let weight = TensorProto { raw_data: Some(vec![0; 8 << 20]), ..tensor("w", &[1024, 2048], &[]) };
    write(folder, "large.onnx", &model(graph(inputs, vec![weight], nodes, vec![port("y", &["1", "2048"])])));
    assert!(run(folder, "compile large.onnx -q").status.success());
    // Twice the weights would be room for all of them without a file.
    for (model, memory) in [("large.onnx", ""), ("large.ipu", "--memory 12MiB")] {
        let limited = format!(r#"trap "" XFSZ; ulimit -f 1024; exec "$0" run - --random 1 {memory}"#);
        let stdin = fs::File::open(folder.join(model)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_ipuc")]).env("TMPDIR", folder).stdin(stdin);
        let output = command.output().unwrap();
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(4), "{model}: {text}");
        assert!(text.contains(&format!("`{}`", folder.display())), "{model}: {text}");
        assert_eq!(others(folder, &["linear.onnx", "large.onnx", "large.ipu", "weights.bin"]), [""; 0]);
    }
}

/// Without a budget, and with one that has room for the weights twice.
#[test]
fn a_pipe_that_fits_needs_no_file() {
    let folder = folder_with_model();
    assert!(run(folder.path(), "compile linear.onnx -q").status.success());
    let expected = run(folder.path(), "run linear.ipu --random 1").stdout;
    for memory in ["", "--memory 64KiB"] {
        let mut command = ipuc(folder.path());
        command.env("TMPDIR", folder.path().join("nowhere")).args(["run", "-", "--random", "1"]);
        command.args(memory.split_whitespace()).stdin(fs::File::open(folder.path().join("linear.ipu")).unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stdout == expected, "{memory}: {}", errors(&output));
    }
}

#[test]
fn standard_input_is_judged_by_its_first_bytes() {
    let folder = folder_with_model();
    let mut command = ipuc(folder.path());
    let command = command.args(["run", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // The pipe stays open: nobody waits for its end.
    pipe.write_all(b"Dear reader,\nthis is no model.\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(errors(&output), "error: cannot open `stdin`: it brings neither an .ipu file nor an ONNX model\n");
    assert_eq!(others(folder.path(), &["linear.onnx"]), [""; 0]);
}

#[test]
fn a_compilation_goes_through_devices_pipes_and_links() {
    use std::os::unix::fs::FileTypeExt as _;
    let folder = folder_with_model();
    let folder = folder.path();
    assert!(run(folder, "compile linear.onnx -q").status.success());
    let expected = fs::read(folder.join("linear.ipu")).unwrap();
    for target in ["-", "/dev/stdout"] {
        let piped = run(folder, &format!("compile linear.onnx -o {target}"));
        assert!(piped.status.success() && piped.stdout == expected, "{target}: {}", errors(&piped));
        assert!(errors(&piped).starts_with("stdout: 12.00 KiB, "), "{target}: {}", errors(&piped));
        let mut stored = ipuc(folder);
        stored.args(["compile", "linear.onnx", "-o", target]).stdout(fs::File::create(folder.join("stored")).unwrap());
        assert!(stored.output().unwrap().status.success(), "{target}");
        assert!(fs::read(folder.join("stored")).unwrap() == expected, "{target}");
        let both = run(folder, &format!("compile linear.onnx -o {target} --json"));
        let refused = "error: the file and --json cannot both go to stdout\n".to_string();
        assert_eq!((both.status.code(), errors(&both)), (Some(2), refused), "{target}");
    }
    assert!(run(folder, "compile linear.onnx -o /dev/null").status.success());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    std::os::unix::fs::symlink("elsewhere.ipu", folder.join("link.ipu")).unwrap();
    assert!(run(folder, "compile linear.onnx -o link.ipu").status.success());
    assert!(fs::symlink_metadata(folder.join("link.ipu")).unwrap().is_symlink());
    assert!(fs::read(folder.join("elsewhere.ipu")).unwrap() == expected);
    std::os::unix::fs::symlink("trace.json", folder.join("trace")).unwrap();
    assert!(run(folder, "run linear.ipu --random 1 --profile trace").status.success());
    assert!(fs::symlink_metadata(folder.join("trace")).unwrap().is_symlink());
    assert!(fs::read_to_string(folder.join("trace.json")).unwrap().starts_with('{'));
}

#[test]
fn a_run_follows_a_file_that_is_not_there_yet() {
    let folder = folder_with_model();
    let follow = ipuc(folder.path())
        .args(["run", "linear.ipu", "--follow", "--random", "1", "-q"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(run(folder.path(), "compile linear.onnx").status.success());
    let output = follow.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("y: f32[1, 2]"));
}

/// 8 functions of 10 calls each are 10^8 nodes in 1.6 kB.
#[test]
fn functions_that_expand_without_measure_are_refused_at_once() {
    let call = |function: usize, at: usize| NodeProto {
        domain: Some(if function < 8 { "local" } else { "" }.to_string()),
        ..node(
            &if function < 8 { format!("F{function}") } else { "Neg".to_string() },
            &[&if at == 0 { "x".to_string() } else { format!("t{}", at - 1) }],
            &[&format!("t{at}")],
        )
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_string()), version: Some(version) };
    let function = |index: usize| FunctionProto {
        name: Some(format!("F{index}")),
        domain: Some("local".to_string()),
        input: vec!["x".to_string()],
        output: vec!["t9".to_string()],
        node: (0..10).map(|at| call(index + 1, at)).collect(),
        opset_import: vec![opset("", 18), opset("local", 1)],
        ..FunctionProto::default()
    };
    let nodes = vec![NodeProto { domain: Some("local".to_string()), ..node("F0", &["x"], &["y"]) }];
    let proto = ModelProto {
        ir_version: Some(9),
        graph: Some(graph(vec![port("x", &["1"])], Vec::new(), nodes, vec![port("y", &["1"])])),
        functions: (0..8).map(function).collect(),
        opset_import: vec![opset("", 18), opset("local", 1)],
        ..ModelProto::default()
    };
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "functions.onnx", &proto.encode_to_vec());
    let begun = Instant::now();
    let output = run(folder.path(), "compile functions.onnx");
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("its functions expand to more than 524288 nodes"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// Inputs of i64: names and elements.
type Given = Vec<(&'static str, Vec<i64>)>;

/// Models whose results are as large as their inputs say, by name, with those inputs.
fn large_results() -> Vec<(&'static str, Vec<u8>, Given)> {
    let single = |operator: &str, inputs: &[&str], given: Vec<_>, output| {
        model(graph(given, Vec::new(), vec![node(operator, inputs, &["y"])], vec![output]))
    };
    let (x, sizes, y) = (port("x", &["a", "b"]), integers("s", &["2"]), port("y", &["c", "d"]));
    let given = vec![x, sizes.clone()];
    let body = AttributeProto {
        name: Some("body".to_string()),
        r#type: Some(attribute_proto::AttributeType::Graph as i32),
        g: Some(Box::new(graph(
            vec![integers("i", &[]), truth("before")],
            Vec::new(),
            vec![node("Identity", &["before"], &["after"]), node("Expand", &["one", "s"], &["element"])],
            vec![truth("after"), port("element", &["c", "d"])],
        ))),
        ..AttributeProto::default()
    };
    let collecting = NodeProto { attribute: vec![body], ..node("Loop", &["n", ""], &["y"]) };
    let weights = vec![tensor("one", &[1, 1], &[1.0])];
    let collected = port("y", &["n", "c", "d"]);
    let collecting = model(graph(vec![integers("n", &[]), sizes.clone()], weights, vec![collecting], vec![collected]));
    let bounds = vec![integers("from", &[]), integers("to", &[]), integers("by", &[])];
    vec![
        ("ConstantOfShape", single("ConstantOfShape", &["s"], vec![sizes], y.clone()), vec![("s", vec![60000, 60000])]),
        ("Expand", single("Expand", &["x", "s"], given.clone(), y.clone()), vec![("s", vec![60000, 60000])]),
        ("Tile", single("Tile", &["x", "s"], given.clone(), y.clone()), vec![("s", vec![60000, 60000])]),
        ("Resize", single("Resize", &["x", "", "", "s"], given, y), vec![("s", vec![60000, 60000])]),
        (
            "Range",
            single("Range", &["from", "to", "by"], bounds, integers("y", &["c"])),
            vec![("from", vec![0]), ("to", vec![1 << 28]), ("by", vec![1])],
        ),
        ("Loop", collecting, vec![("n", vec![1 << 20]), ("s", vec![100, 100])]),
    ]
}

/// Run a model with inputs on files; gives what it said.
fn run_large(
    folder: &Path,
    name: &str,
    given: &[(&str, Vec<i64>)],
    prefix: &str,
    options: &str,
) -> (Option<i32>, String) {
    let mut arguments = format!("run {name}.onnx --random 1 -q {options}");
    for (input, elements) in given {
        let shape = if elements.len() == 1 { "()".to_string() } else { format!("({},)", elements.len()) };
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        write(folder, &format!("{name}.{input}.npy"), &npy("<i8", &shape, &bytes));
        arguments.push_str(&format!(" --input {input}={name}.{input}.npy"));
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!(r#"{prefix} exec "$0" {arguments}"#), env!("CARGO_BIN_EXE_ipuc")]);
    let output = command.current_dir(folder).env("TMPDIR", folder).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), errors(&output))
}

/// Allocations whose size an input says are asked for, not taken for granted: the system has 2 GB of addresses here.
#[cfg(target_os = "linux")]
#[test]
fn what_inputs_ask_for_is_refused_where_memory_is_short() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model, given) in large_results() {
        write(folder.path(), &format!("{name}.onnx"), &model);
        let (code, text) = run_large(folder.path(), name, &given, "ulimit -v 2000000;", "--threads 1");
        assert_eq!(code, Some(4), "{name}: {text}");
        assert!(text.starts_with("error: "), "{name}: {text}");
    }
}

/// Working bytes count against the budget, in models without weights too.
#[test]
fn a_budget_holds_without_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model, mut given) in large_results() {
        // What the reference of an operator makes is counted once it is there.
        let small = |elements: &Vec<i64>| elements.iter().map(|&element| element.min(1000)).collect();
        given = given.into_iter().map(|(input, elements)| (input, small(&elements))).collect();
        match name {
            "Range" => given[1].1 = vec![1 << 20],
            "Loop" => given = vec![("n", vec![1]), ("s", vec![1000, 1000])],
            _ => {}
        }
        write(folder.path(), &format!("{name}.onnx"), &model);
        // What is sized while running is asked for piece by piece.
        let (mut memory, mut refusals) = ("64KiB".to_string(), 0);
        loop {
            let (code, text) = run_large(folder.path(), name, &given, "", &format!("--memory {memory}"));
            if code == Some(0) {
                break;
            }
            assert_eq!(code, Some(4), "{name} within {memory}: {text}");
            let (_, enough) = text.split_once("give at least --memory ").unwrap_or_else(|| panic!("{name}: {text}"));
            memory = enough.trim().to_string();
            refusals += 1;
            assert!(refusals < 10, "{name}: {text}");
        }
        assert!(refusals > 0, "{name} runs within 64 KiB");
    }
}

/// An extent of 2^50 beside one of 0 is no work.
#[test]
fn an_empty_result_of_large_extents_is_made() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model, given) in large_results() {
        if name != "Resize" {
            continue;
        }
        write(folder.path(), "Resize.onnx", &model);
        let given: Vec<_> = given.into_iter().map(|(input, _)| (input, vec![0, 1 << 50])).collect();
        let (code, text) = run_large(folder.path(), name, &given, "", "--threads 1");
        assert_eq!(code, Some(0), "{text}");
    }
}
