//! The command line as a user sees it: every `tests/cli/*.txt` is a session with expected output.
//!
//! ```text
//! $ ipuc compile empty.onnx       a command, run in a folder of small models
//! ? 3                             its exit code, left out where 0
//! ! error: the file is empty      a line of stderr
//! a line of stdout
//! # a remark
//! ```
//!
//! `+ NAME` at the end lists files that the session has left behind. Times, hashes and the folder are replaced, since
//! they differ from run to run. `BLESS=1` rewrites; a plain run compares.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::support::*;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder that commands run in.
fn write_models(folder: &Path) {
    let weight = linear_weight();
    let good = linear(weight.clone());
    write(folder, "linear.onnx", &good);
    write(folder, "relu.onnx", &{
        let nodes = vec![node("Relu", &["x"], &["y"])];
        model(graph(vec![port("x", &["2", "n"])], Vec::new(), nodes, vec![port("y", &["2", "n"])]))
    });
    write(folder, "counter.onnx", &{
        let nodes = vec![node("Add", &["x", "past"], &["present"]), node("Neg", &["present"], &["y"])];
        let (inputs, outputs) =
            (vec![port("x", &["2"]), port("past", &["2"])], vec![port("y", &["2"]), port("present", &["2"])]);
        model(graph(inputs, Vec::new(), nodes, outputs))
    });
    // A cache that grows, and an input as long as it is afterwards.
    write(folder, "cache.onnx", &{
        let nodes = vec![joined(&["past", "x"], "present", 1), joined(&["present", "mask"], "y", 2)];
        let inputs =
            [("x", "seq"), ("past", "past"), ("mask", "all")].map(|(name, size)| port(name, &["1", size, "2"]));
        let outputs = vec![port("y", &["1", "n", "4"]), port("present", &["1", "m", "2"])];
        model(graph(inputs.to_vec(), Vec::new(), nodes, outputs))
    });
    language::write_folder(&folder.join("language"));
    for name in ["t5_tiny", "whisper_tiny"] {
        for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap() {
            let path = file.unwrap().path();
            let copy = format!("{name}/{}", path.file_name().unwrap().display());
            write(folder, &copy, &std::fs::read(&path).unwrap());
        }
    }
    write(folder, "words.txt", (2..62).map(|word| format!("w{} ", word * 7 % 60 + 2)).collect::<String>().as_bytes());
    write(folder, "mute/model.onnx", &good);
    write(folder, "empty.onnx", b"");
    write(folder, "text.onnx", b"Dear reader,\nthis is no model.\n");
    write(folder, "truncated.onnx", &good[..good.len() / 2]);
    write(folder, "cyclic.onnx", &{
        let nodes = vec![node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"])];
        model(graph(vec![port("x", &["2"])], Vec::new(), nodes, vec![port("b", &["2"])]))
    });
    write(folder, "nested.onnx", &nested(40));
    write(folder, "missing.onnx", &linear(external("w", &[3, 2], "missing.bin")));
    write(folder, "escape.onnx", &linear(external("w", &[3, 2], "../weights.bin")));
    write(folder, "absolute.onnx", &linear(external("w", &[3, 2], "/etc/passwd")));
    write(folder, "shape.onnx", &{
        let nodes = vec![node("Add", &["x", "z"], &["y"])];
        model(graph(vec![port("x", &["2"]), port("z", &["3"])], Vec::new(), nodes, vec![port("y", &["3"])]))
    });
    write(folder, "unknown.onnx", &{
        let nodes = vec![node("Frobnicate", &["x"], &["a"]), node("Twist", &["a"], &["y"])];
        model(graph(vec![port("x", &["2"])], Vec::new(), nodes, vec![port("y", &["2"])]))
    });
    let floats = |elements: &[f32]| elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>();
    write(folder, "x.npy", &npy("<f4", "(1, 3)", &floats(&[1.0, 1.0, 1.0])));
    write(folder, "wide.npy", &npy("<f4", "(1, 4)", &floats(&[1.0; 4])));
    write(folder, "flat.npy", &npy("<f4", "(3,)", &floats(&[1.0; 3])));
    write(folder, "double.npy", &npy("<f8", "(1, 3)", &[0; 24]));
    write(folder, "x.pb", &tensor_file(&[1, 3], &[1.0, 0.0, 0.0]));
    for (name, expected) in [("data", [9.5, 11.5]), ("wrong", [9.5, 12.0])] {
        write(folder, &format!("{name}/test_data_set_0/input_0.pb"), &tensor_file(&[1, 3], &[1.0; 3]));
        write(folder, &format!("{name}/test_data_set_0/output_0.pb"), &tensor_file(&[1, 2], &expected));
    }
    for (number, expected) in [9.5f32, 9.0].into_iter().enumerate() {
        write(folder, &format!("mixed/test_data_set_{number}/input_0.pb"), &tensor_file(&[1, 3], &[1.0; 3]));
        write(folder, &format!("mixed/test_data_set_{number}/output_0.pb"), &tensor_file(&[1, 2], &[expected, 11.5]));
    }
    write(folder, "shaped/test_data_set_0/input_0.pb", &tensor_file(&[1, 3], &[1.0; 3]));
    write(folder, "shaped/test_data_set_0/output_0.pb", &tensor_file(&[2], &[9.5, 11.5]));
    write(folder, "weights.bin", &floats(&[1.0; 6]));
    write(folder, "stored.onnx", &linear(external("w", &[3, 2], "weights.bin")));
    write(folder, "unstated/test_data_set_0/input_0.pb", &tensor_file(&[1, 3], &[1.0; 3]));
    write(folder, "excess/test_data_set_0/input_0.pb", &tensor_file(&[1, 3], &[1.0; 3]));
    write(folder, "excess/test_data_set_0/input_1.pb", &tensor_file(&[1, 3], &[1.0; 3]));
    let damaged = folder.join("damaged.ipu");
    let status = ipuc(folder).args(["compile", "-q", "linear.onnx", "-o", "damaged.ipu"]).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let mut bytes = std::fs::read(&damaged).unwrap();
    write(folder, "short.ipu", &bytes[..bytes.len() - 1]);
    write(folder, "head.ipu", &bytes[..100]);
    write(folder, "newer.ipu", &{
        let mut newer = bytes.clone();
        newer[8] = 9;
        newer
    });
    let mut manifest = bytes.clone();
    manifest[4096 + 10] ^= 1;
    write(folder, "manifest.ipu", &manifest);
    let last = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    bytes[last] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
}

/// Two values one after the other along an axis.
fn joined(parts: &[&str], whole: &str, axis: i64) -> ipuc_formats::onnx::schema::NodeProto {
    use ipuc_formats::onnx::schema::{AttributeProto, NodeProto, attribute_proto::AttributeType};
    let axis = AttributeProto {
        name: Some("axis".to_string()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(axis),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![axis], ..node("Concat", parts, &[whole]) }
}

fn ipuc(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.current_dir(folder).env("TMPDIR", folder).env("NO_COLOR", "1").env_remove("RAYON_NUM_THREADS");
    command
}

fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found
}

/// What the commands of a session give, in the form of its file.
fn play(session: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    write_models(folder.path());
    let before = files(folder.path());
    let mut played = String::new();
    for line in session.lines() {
        if let Some(command) = line.strip_prefix("$ ipuc") {
            played.push_str(&format!("{line}\n"));
            let (command, stdin) = command.split_once('<').unwrap_or((command, "/dev/null"));
            let stdin = std::fs::File::open(folder.path().join(stdin.trim())).unwrap();
            let output = ipuc(folder.path()).args(command.split_whitespace()).stdin(stdin).output().unwrap();
            let code = output.status.code().unwrap();
            if code != 0 {
                played.push_str(&format!("? {code}\n"));
            }
            for line in String::from_utf8(output.stderr).unwrap().lines() {
                played.push_str(format!("! {line}").trim_end());
                played.push('\n');
            }
            played.push_str(&String::from_utf8(output.stdout).unwrap());
        } else if line.starts_with('#') {
            played.push_str(&format!("{line}\n"));
        }
    }
    for left in files(folder.path()).difference(&before) {
        played.push_str(&format!("+ {left}\n"));
    }
    without_what_differs(&played, folder.path())
}

fn without_what_differs(text: &str, folder: &Path) -> String {
    let text = text.replace(&folder.canonicalize().unwrap().display().to_string(), "FOLDER");
    let text = text.replace(&folder.display().to_string(), "FOLDER");
    let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let replace =
        |text: &str, pattern: &str, by: &str| regex::Regex::new(pattern).unwrap().replace_all(text, by).into_owned();
    let text = replace(&text, r"\b[0-9]+(\.[0-9]+)? (us|ms|s)\b", "TIME");
    let text = replace(&text, r#"("[a-z0-9_]*seconds": )[0-9.e-]+"#, "${1}TIME");
    let text = replace(&text, r"\b[0-9.]+ tokens/s", "RATE tokens/s");
    let text = replace(&text, r#"("tokens_per_second": )[0-9.e-]+"#, "${1}RATE");
    let text = replace(&text, r#"("peak_rss_bytes": )[0-9]+"#, "${1}BYTES");
    let text = replace(&text, r"[0-9]+ % of the machine's limits: .*", "RATES of the machine");
    let text = replace(&text, r#"("(limit_share|[a-z0-9]+_operations|memory_bytes)": )[0-9.e-]+"#, "${1}RATE");
    let text = replace(&text, r", [0-9.]+ [KMG]iB of memory at most", ", BYTES of memory at most");
    replace(&text, r"\b[0-9a-f]{64}\b", "HASH")
}

#[test]
fn sessions_are_as_recorded() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut wrong = Vec::new();
    let mut played = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let session = std::fs::read_to_string(&path).unwrap();
        let found = play(&session);
        played += 1;
        if found == session {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, found).unwrap();
        } else {
            wrong.push(format!("{}: found\n{found}", path.display()));
        }
    }
    assert!(played > 5, "the sessions are not where they should be");
    assert!(wrong.is_empty(), "{}\nBLESS=1 accepts this", wrong.join("\n"));
}

/// `docs/tour.md`: commands in its blocks of `console`, each followed by what it prints.
#[test]
fn the_tour_is_as_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = root.join("docs/tour.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("fixtures"), folder.path().join("fixtures")).unwrap();
    let mut played = String::new();
    let mut commands = 0;
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("$ ipuc ").filter(|_| inside) {
            Some(command) => {
                let output = ipuc(folder.path()).args(command.split(' ')).stdin(Stdio::null()).output().unwrap();
                assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
                let printed = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
                played.push_str(&format!("{line}\n{printed}"));
                commands += 1;
            }
            None if inside && line != "```" => {}
            None => played.push_str(&format!("{line}\n")),
        }
        inside = if inside { line != "```" } else { line == "```console" };
    }
    assert!(commands > 5, "the tour has no commands");
    // Words count, not numbers and the width of columns.
    let numbers = regex::Regex::new(r"\b[0-9a-f]*[0-9][0-9a-f.]*( ?[KMG]iB| B| [mnu]?s)?\b|-| +").unwrap();
    let words = |text: &str| numbers.replace_all(text, " ").split_whitespace().collect::<Vec<_>>().join(" ");
    if words(&played) != words(&text) {
        assert!(std::env::var_os("BLESS").is_some(), "{}: found\n{played}\nBLESS=1 accepts this", page.display());
        std::fs::write(&page, played).unwrap();
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let mut child =
        ipuc(folder.path()).args(["ops", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    assert_eq!(line, "{\n");
}

fn interrupt(child: &std::process::Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A program that is interrupted while it reads a model from a pipe has a temporary file by then.
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = ipuc(folder.path())
        .args(["run", "-", "--random", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // What arrives is a model that has not ended yet; as an `.ipu` file it would be run from the pipe.
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&linear(linear_weight())).unwrap();
    let started = std::time::Instant::now();
    while files(folder.path()).is_empty() {
        assert!(started.elapsed().as_secs() < 60, "no temporary file");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(folder.path()), BTreeSet::new());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a folder is left");
}

/// A weight of zeros that takes longer to write than a signal to arrive.
#[test]
fn an_interrupted_compilation_leaves_nothing_behind() {
    const ROWS: i64 = 1 << 17;
    let folder = tempfile::tempdir().unwrap();
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let inputs = vec![port("x", &["1", &ROWS.to_string()])];
    let weight = external("w", &[ROWS, 1024], "weights.bin");
    write(folder.path(), "large.onnx", &model(graph(inputs, vec![weight], nodes, vec![port("y", &["1", "1024"])])));
    std::fs::File::create(folder.path().join("weights.bin")).unwrap().set_len(ROWS as u64 * 4096).unwrap();
    let before = files(folder.path());
    let mut child =
        ipuc(folder.path()).args(["compile", "large.onnx", "-j", "1"]).stderr(Stdio::null()).spawn().unwrap();
    let started = std::time::Instant::now();
    while files(folder.path()) == before {
        assert!(started.elapsed().as_secs() < 60, "no temporary file");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(folder.path()), before);
}
