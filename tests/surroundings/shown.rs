//! What a user sees while something takes long: on a terminal, which a pair of pseudo-terminals stands for.

use super::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

/// Both ends of a terminal: that of who looks at it, and that of who writes to it.
fn terminal() -> (fs::File, fs::File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other = fs::File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
    tcsetwinsize(&other, Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (fs::File::from(terminal), other)
}

/// What a command writes to the terminal that its stderr is.
fn on_a_terminal(mut command: Command, feed: impl FnOnce(&mut Child)) -> (Child, String) {
    let (mut file, other) = terminal();
    let mut child = command.stdout(Stdio::null()).stderr(other).spawn().unwrap();
    // The last open end but that of the child, so that reading ends with it.
    drop(command);
    let read = std::thread::spawn(move || {
        let (mut shown, mut block) = (Vec::new(), [0; 4096]);
        // Linux says so by an error, others by the end of the file.
        while let Ok(count @ 1..) = file.read(&mut block) {
            shown.extend_from_slice(&block[..count]);
        }
        String::from_utf8_lossy(&shown).into_owned()
    });
    feed(&mut child);
    let shown = read.join().unwrap();
    (child, shown)
}

/// Commands with more and more work, until each of these is shown.
fn shown_at_last(folder: &Path, sizes: &[usize], command: impl Fn(usize) -> String, expected: &[&str]) {
    let mut missing: Vec<&str> = expected.to_vec();
    let mut last = String::new();
    for &rows in sizes {
        let mut ipuc = ipuc(folder);
        ipuc.args(command(rows).split_whitespace());
        let (mut child, shown) = on_a_terminal(ipuc, |_| ());
        assert!(child.wait().unwrap().success(), "{shown}");
        missing.retain(|pattern| !regex::Regex::new(pattern).unwrap().is_match(&shown));
        if missing.is_empty() {
            return;
        }
        last = shown;
    }
    panic!("{missing:?} is not shown: {last}");
}

/// Products one after another, of as many rows as a run says.
fn chain() -> Vec<u8> {
    const PRODUCTS: usize = 12;
    let name = |at: usize| if at == 0 { "x".to_string() } else { format!("t{at}") };
    let products = (0..PRODUCTS).map(|at| node("MatMul", &[&name(at), "w"], &[&name(at + 1)]));
    let elements: Vec<f32> = (0..512 * 512).map(|at| ((at * 7 % 31) as f32 - 15.0) / 256.0).collect();
    let outputs = vec![port(&name(PRODUCTS), &["n", "512"])];
    let graph =
        graph(vec![port("x", &["n", "512"])], vec![tensor("w", &[512, 512], &elements)], products.collect(), outputs);
    model(graph)
}

#[test]
fn runs_are_shown_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "chain.onnx", &chain());
    assert!(run(folder, "compile chain.onnx -q").status.success());
    let command = |rows: usize| format!("run chain.ipu --random 1 --threads 1 --dim n={rows}");
    shown_at_last(folder, &[500, 2000, 8000, 32000], command, &[r"running: [0-9]+ of 12 steps \("]);
    let command = |rows: usize| format!("bench chain.ipu --runs 1 --threads 1 --dim n={rows}");
    let expected = [
        "first run, which is not counted: [0-9]+ of 12 steps",
        "run 1 of 1: [0-9]+ of 12 steps",
        "run 1 of 1 in which each step is noted: [0-9]+ of 12 steps",
    ];
    shown_at_last(folder, &[500, 2000, 8000, 32000], command, &expected);
    // Elsewhere than on a terminal nothing is shown, nor where the user wants quiet.
    let piped = run(folder, "run chain.ipu --random 1 --threads 1 --dim n=500");
    assert!(piped.status.success() && !errors(&piped).contains("running"), "{}", errors(&piped));
    let mut quiet = ipuc(folder);
    quiet.args(["run", "chain.ipu", "--random", "1", "--dim", "n=1000", "--quiet"]);
    let (mut child, shown) = on_a_terminal(quiet, |_| ());
    assert!(child.wait().unwrap().success() && shown.is_empty(), "{shown}");
}

#[test]
fn runs_within_budgets_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "chain.onnx", &chain());
    assert!(run(folder, "compile chain.onnx -q").status.success());
    let command = |rows: usize| {
        // Zeros, as is what products make of them.
        let zeros = tensor_file(&[rows as i64, 512], &vec![0.0; rows * 512]);
        write(folder, "data/test_data_set_0/input_0.pb", &zeros);
        write(folder, "data/test_data_set_0/output_0.pb", &zeros);
        "verify chain.ipu --data data --streamed".to_string()
    };
    shown_at_last(folder, &[30, 150, 750, 3750], command, &["verifying within [0-9]+ % of the weights, [12] thread"]);
}

#[test]
fn loading_is_shown() {
    let folder = folder_with_model();
    assert!(run(folder.path(), "compile linear.onnx -q").status.success());
    let bytes = fs::read(folder.path().join("linear.ipu")).unwrap();
    let mut command = ipuc(folder.path());
    command.args(["run", "-", "--random", "1"]).stdin(Stdio::piped());
    let (mut child, shown) = on_a_terminal(command, |child| {
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&bytes[..100]).unwrap();
        std::thread::sleep(Duration::from_millis(1800));
        pipe.write_all(&bytes[100..]).unwrap();
    });
    assert!(child.wait().unwrap().success(), "{shown}");
    assert!(shown.contains("loading"), "{shown}");
}

/// Constants that take long to compute are computed before anything is written.
#[test]
fn passes_of_a_compilation_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let command = |products: usize| {
        const EXTENT: usize = 1024;
        // Each product of these is as they are.
        let elements = vec![1.0 / EXTENT as f32; EXTENT * EXTENT];
        let shape = [EXTENT as i64; 2];
        let name = |at: usize| if at == 0 { "a".to_string() } else { format!("c{at}") };
        let mut nodes: Vec<_> = (0..products).map(|at| node("MatMul", &[&name(at), "b"], &[&name(at + 1)])).collect();
        nodes.push(node("ReduceSum", &[&name(products)], &["s"]));
        nodes.push(node("Mul", &["x", "s"], &["y"]));
        let weights = vec![tensor("a", &shape, &elements), tensor("b", &shape, &elements)];
        let (inputs, outputs) = (vec![port("x", &["1", "1"])], vec![port("y", &["1", "1"])]);
        write(folder, "folded.onnx", &model(graph(inputs, weights, nodes, outputs)));
        "compile folded.onnx".to_string()
    };
    shown_at_last(folder, &[16, 128, 1024], command, &["compiling: [0-9]+ passes done, the last is [a-z_]+"]);
}

#[test]
fn a_compiled_file_is_not_written_to_a_terminal() {
    let folder = folder_with_model();
    for target in ["-", "/dev/stdout"] {
        let (_terminal, other) = terminal();
        let mut command = ipuc(folder.path());
        let output = command.args(["compile", "linear.onnx", "-o", target]).stdout(other).output().unwrap();
        let expected = format!(
            "error: the file cannot go to `{target}`, which is a terminal\nhint: name a file, or redirect stdout\n"
        );
        assert_eq!((output.status.code(), errors(&output)), (Some(2), expected));
        assert_eq!(others(folder.path(), &["linear.onnx"]), [""; 0]);
    }
}

/// A system that is short of memory ends a process without a word.
#[cfg(target_os = "linux")]
#[test]
fn more_memory_than_there_is_is_warned_about() {
    let folder = folder_with_model();
    let folder = folder.path();
    language::write_folder(&folder.join("language"));
    assert!(run(folder, "compile language -o language.ipu -q").status.success());
    let commands = [
        ("run linear.onnx --random 1", 0),
        ("bench linear.onnx --runs 1", 0),
        ("generate language.ipu --prompt w3 --max-tokens 1", 0),
        ("chat language.ipu", 0),
        // Nobody can listen there: the warning comes before.
        ("serve language.ipu --listen nowhere:0", 2),
    ];
    for (command, code) in commands {
        let output = run(folder, &format!("{command} --memory 4000000GB"));
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{command}: {text}");
        assert!(text.contains("warning: --memory 3637.98 TiB is more than the "), "{command}: {text}");
        assert!(text.contains("iB that this process can have; it may be killed\n"), "{command}: {text}");
        let enough = errors(&run(folder, &format!("{command} --memory 64MiB")));
        assert!(!enough.contains("warning"), "{command}: {enough}");
    }
}

/// Sizes in hints are those that flags take.
#[test]
fn sizes_in_hints_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let elements: Vec<f32> = (0..64 * 64).map(|at| ((at * 7 % 31) as f32 - 15.0) / 16.0).collect();
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let (inputs, outputs) = (vec![port("x", &["1", "64"])], vec![port("y", &["1", "64"])]);
    write(folder.path(), "wide.onnx", &model(graph(inputs, vec![tensor("w", &[64, 64], &elements)], nodes, outputs)));
    let text = errors(&run(folder.path(), "compile wide.onnx --size 1"));
    let (_, enough) = text.split_once("hint: give it at least --size ").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(enough, "2KiB\n");
    assert!(run(folder.path(), &format!("compile wide.onnx --size {}", enough.trim())).status.success());
}
