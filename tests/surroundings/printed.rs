//! What `run` prints of results that are large.

use super::*;

/// Elements of the result: 16 million, 64 MiB.
const ELEMENTS: usize = 1 << 24;

/// With 8 bytes for each element more it would not fit into the addresses that the system has here.
#[cfg(target_os = "linux")]
#[test]
fn of_a_large_result_the_first_elements_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (inputs, weights) = (vec![port("x", &["n"])], vec![tensor("half", &[], &[0.5])]);
    let graph = graph(inputs, weights, vec![node("Max", &["x", "half"], &["y"])], vec![port("y", &["n"])]);
    write(folder.path(), "large.onnx", &model(graph));
    assert!(run(folder.path(), "compile large.onnx -q").status.success());
    for (option, most) in [("", 200), ("--json", 400)] {
        let limited = format!(
            r#"ulimit -v 290000; exec "$0" run large.ipu --random 1 --dim n={ELEMENTS} --threads 1 -q {option}"#
        );
        let mut command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_ipuc")]).current_dir(folder.path()).stdin(Stdio::null());
        let begun = Instant::now();
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        assert!(text.len() < most, "{} bytes are printed", text.len());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
