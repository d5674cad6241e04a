//! Compiled files of which a bit has changed or an end is missing: each is refused, wherever the damage is.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::support::*;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::model::{SUPERBLOCK_BYTES, read_manifest};
use ipuc_runtime::Model;
use std::path::Path;
use std::process::Command;

fn compiled(folder: &Path) -> Vec<u8> {
    write(folder, "linear.onnx", &linear(linear_weight()));
    let output = folder.join("linear.ipu");
    let source = Source { entry: "main".to_string(), path: folder.join("linear.onnx") };
    compile(&[source], &output, &CompileOptions::default()).unwrap();
    std::fs::read(output).unwrap()
}

/// Bytes of superblock and manifest.
fn head_bytes(bytes: &[u8]) -> usize {
    SUPERBLOCK_BYTES + read_manifest(&bytes).unwrap().0.manifest_length as usize
}

#[test]
fn every_bit_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = compiled(folder.path());
    assert!(Model::open(&bytes).is_ok());
    for bit in 0..head_bytes(&bytes) * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let opened = Model::open(&bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(opened.is_err(), "bit {bit} may be anything");
    }
}

/// Padding is zero and weights have checksums.
#[test]
fn every_byte_behind_the_manifest_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = compiled(folder.path());
    let manifest = read_manifest(&bytes).unwrap().1;
    let covered = |at: usize| {
        let covers = |extent: &ipuc_formats::model::ExtentRecord| {
            (extent.offset..extent.offset + extent.length).contains(&(at as u64))
        };
        manifest.extents.iter().any(covers)
    };
    for at in head_bytes(&bytes)..bytes.len() {
        bytes[at] ^= 0x10;
        let refused = Model::open(&bytes).is_err();
        let in_chunks = manifest.chunks.first().is_some_and(|chunk| at as u64 >= chunk.offset);
        // Zeros between extents are looked at by `inspect --check` only.
        assert!(refused || (in_chunks && !covered(at)), "byte {at} may be anything");
        bytes[at] ^= 0x10;
    }
}

#[test]
fn every_byte_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = compiled(folder.path());
    for length in 0..bytes.len() {
        assert!(Model::open(&bytes[..length].to_vec()).is_err(), "{length} bytes are enough");
    }
}

/// The program says so in one sentence, with the exit code of a bad file.
#[test]
fn the_program_refuses_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = compiled(folder.path());
    let head = head_bytes(&bytes);
    let damaged = folder.path().join("damaged.ipu");
    let refused = |content: &[u8], what: &str| {
        std::fs::write(&damaged, content).unwrap();
        for arguments in [["run", "--random", "1"].as_slice(), &["inspect"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
            let output = command.args(arguments).arg("damaged.ipu").current_dir(folder.path()).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(3), "{what}: {error}");
            assert!(error.starts_with("error: cannot open `damaged.ipu`: "), "{what}: {error}");
            let sentences = error.lines().filter(|line| !line.starts_with("hint: ")).count();
            assert_eq!((sentences, output.stdout.len()), (1, 0), "{what}: {error}");
        }
    };
    for sample in 0..24 {
        let bit = sample * (head * 8 - 1) / 23;
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&changed, &format!("bit {bit}"));
    }
    for sample in 0..12 {
        let length = sample * (bytes.len() - 1) / 11;
        refused(&bytes[..length], &format!("{length} bytes"));
    }
}

/// Cut models: the reader of ONNX has tests of its own, this is the way through the program.
#[test]
fn cut_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = linear(linear_weight());
    for length in (0..model.len()).step_by(7) {
        write(folder.path(), "cut.onnx", &model[..length]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
        let output = command.args(["compile", "cut.onnx"]).current_dir(folder.path()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{length} bytes: {error}");
        assert!(error.starts_with("error: cannot compile `cut.onnx`: "), "{length} bytes: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{length} bytes leave something");
    }
}
