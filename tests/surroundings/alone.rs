//! Files beside a result that go to stdout: they have it alone, and the result goes to stderr.

use super::*;

/// The commands, and what they write.
const COMMANDS: [(&str, &str); 5] = [
    ("run linear.onnx --random 1 --save-state", "the state"),
    ("generate language.ipu --prompt w3 --max-tokens 3 --save-context", "the context"),
    ("simulate linear.onnx --target a100 --numerics f16 --dim batch=2 --trace", "the trace"),
    ("simulate linear.onnx --target a100 --numerics f16 --dim batch=2 --html", "the page"),
    ("compare linear.onnx linear.onnx --random 1 --html", "the page"),
];

#[test]
fn a_file_that_goes_to_stdout_has_it_alone() {
    let folder = folder_with_model();
    let folder = folder.path();
    language::write_folder(&folder.join("language"));
    assert!(run(folder, "compile language -o language.ipu -q").status.success());
    for (command, _) in COMMANDS {
        let named = run(folder, &format!("{command} file -q"));
        assert_eq!((named.status.code(), errors(&named)), (Some(0), String::new()), "{command}");
        let (result, file) = (String::from_utf8(named.stdout).unwrap(), fs::read(folder.join("file")).unwrap());
        assert!(!result.is_empty() && !file.is_empty(), "{command}");
        for target in ["-", "/dev/stdout"] {
            let piped = run(folder, &format!("{command} {target} -q"));
            assert_eq!((piped.status.code(), errors(&piped)), (Some(0), result.clone()), "{command} {target}");
            assert!(piped.stdout.trim_ascii_end() == file.trim_ascii_end(), "{command} {target}");
        }
        fs::remove_file(folder.join("file")).unwrap();
    }
    assert_eq!(others(folder, &["linear.onnx", "language", "language.ipu"]), [""; 0]);
}

#[test]
fn nothing_else_goes_to_stdout_beside_a_file() {
    let folder = folder_with_model();
    let folder = folder.path();
    for (command, what) in COMMANDS.into_iter().chain([("targets calibrate -o", "the description")]) {
        let both = run(folder, &format!("{command} - --json"));
        let refused = format!("error: {what} and --json cannot both go to stdout\n");
        assert_eq!((both.status.code(), errors(&both)), (Some(2), refused), "{command}");
    }
    let (state, page) = (COMMANDS[0].0, COMMANDS[2].0);
    for (command, what) in [
        (format!("{state} - --profile /dev/stdout"), "the trace and the state"),
        (format!("{page} - --html -"), "the trace and the page"),
    ] {
        let both = run(folder, &command);
        let refused = format!("error: {what} cannot both go to stdout\n");
        assert_eq!((both.status.code(), errors(&both)), (Some(2), refused), "{command}");
    }
    assert_eq!(others(folder, &["linear.onnx"]), [""; 0]);
}
