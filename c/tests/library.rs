//! The header is that of the functions, and a C program that is compiled with it runs.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_that_of_the_functions() {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_src(root().join("src/lib.rs")).with_config(config).generate().unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    let path = root().join("include/ipuc.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, String::from_utf8(header).unwrap(), "BLESS=1 accepts this");
}

#[test]
fn a_program_in_c_runs_a_model() {
    // cargo leaves the library beside the test itself.
    let library: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("run");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let built = Command::new(&compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(root().join("examples/run.c"))
        .arg("-I")
        .arg(root().join("include"))
        .arg("-L")
        .arg(&library)
        .arg("-lipuc_c")
        .output();
    let built = built.unwrap_or_else(|error| panic!("a C compiler is needed, `{compiler}` is none: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut command = Command::new(&program);
    command.arg(root().join("tests/linear.onnx")).arg(folder.path().join("linear.ipu"));
    let ran = command.env("LD_LIBRARY_PATH", &library).env("DYLD_LIBRARY_PATH", &library).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let expected =
        "y: type 1, shape 1 2: 4 6\ny: type 1, shape 1 2: 9 12\nrefused: input `x` axis 1 must be 3, found 4\n";
    assert_eq!((&*stdout, &*stderr), (expected, ""));
    assert_eq!(ran.status.code(), Some(0));
}
