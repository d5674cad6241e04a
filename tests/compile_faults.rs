//! What goes wrong while compiling leaves nothing under the name of the output, and says what it was.
#![cfg(all(unix, feature = "cli"))]
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc::compile::{CompileOptions, Source, compile_observed};
use ipuc_formats::onnx::schema::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use ipuc_passes::emit::Progress;
use prost::Message;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FLOAT: i32 = 1;
const WIDTH: u64 = 512;
const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;

/// A chain of matrix products with its weights beside it; gives the model and the weights.
fn chain(folder: &Path, layers: u64) -> (PathBuf, PathBuf) {
    let (model, weights) = (folder.join("chain.onnx"), folder.join("chain.weights"));
    let bytes: Vec<u8> = (0..layers * LAYER_BYTES / 4).flat_map(|index| (index as f32).to_le_bytes()).collect();
    fs::write(&weights, bytes).unwrap();
    let mut graph = GraphProto { name: Some("chain".to_string()), ..GraphProto::default() };
    for layer in 0..layers {
        let entry =
            |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
        graph.initializer.push(TensorProto {
            name: Some(format!("w{layer}")),
            data_type: Some(FLOAT),
            dims: vec![WIDTH as i64; 2],
            data_location: Some(1),
            external_data: vec![
                entry("location", "chain.weights".to_string()),
                entry("offset", (layer * LAYER_BYTES).to_string()),
                entry("length", LAYER_BYTES.to_string()),
            ],
            ..TensorProto::default()
        });
        graph.node.push(NodeProto {
            op_type: Some("MatMul".to_string()),
            input: vec![format!("v{layer}"), format!("w{layer}")],
            output: vec![format!("v{}", layer + 1)],
            ..NodeProto::default()
        });
    }
    graph.input = vec![value("v0", Some(&[1, WIDTH as i64]))];
    graph.output = vec![value(&format!("v{layers}"), None)];
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    let proto = ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() };
    fs::write(&model, proto.encode_to_vec()).unwrap();
    (model, weights)
}

fn value(name: &str, dims: Option<&[i64]>) -> ValueInfoProto {
    use tensor_shape_proto::dimension::Value::DimValue;
    let dimension = |&value: &i64| tensor_shape_proto::Dimension { value: Some(DimValue(value)), denotation: None };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.iter().map(dimension).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(FLOAT), shape };
    let r#type = Some(TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) });
    ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
}

fn ipuc() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ipuc"))
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Does something to a file when the first bytes have been written.
struct Meanwhile<F: Fn()> {
    done: AtomicBool,
    action: F,
}

impl<F: Fn() + Sync> Progress for Meanwhile<F> {
    fn written(&self, _bytes: u64, _total_bytes: u64) {
        if !self.done.swap(true, Ordering::SeqCst) {
            (self.action)();
        }
    }
}

/// Workers fill a chunk each, of two layers, before the first is written: by far not all layers are read then.
const MEANWHILE_LAYERS: u64 = 24;

/// Compile on one thread while something happens to the weights; gives the error and the files that are there after it.
fn compile_meanwhile(action: impl Fn(&Path) + Sync) -> (Option<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let (model, weights) = chain(folder.path(), MEANWHILE_LAYERS);
    let output = folder.path().join("chain.ipu");
    let progress = Meanwhile { done: AtomicBool::new(false), action: || action(&weights) };
    let source = Source { entry: "main".to_string(), path: model };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let compiled =
        pool.install(|| compile_observed(&[source], &output, &CompileOptions::default(), &progress, &mut |_, _| {}));
    assert!(progress.done.into_inner());
    (compiled.err().map(|error| error.to_string()), files(folder.path()))
}

#[test]
fn a_source_that_is_cut_off_meanwhile_is_an_error() {
    let cut = |weights: &Path| {
        fs::OpenOptions::new().write(true).open(weights).unwrap().set_len(3 * LAYER_BYTES).unwrap();
    };
    let (error, files) = compile_meanwhile(cut);
    let error = error.unwrap();
    assert!(error.contains("`chain.weights`") && error.contains("at offset"), "{error}");
    assert_eq!(files, ["chain.onnx", "chain.weights"]);
}

#[test]
fn a_source_that_is_written_to_meanwhile_is_an_error() {
    let overwrite = |weights: &Path| {
        // Times of files are kept to some milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        // In place: workers that read meanwhile must not meet a shorter file.
        let mut file = fs::OpenOptions::new().write(true).open(weights).unwrap();
        file.write_all(&vec![1; (MEANWHILE_LAYERS * LAYER_BYTES) as usize]).unwrap();
    };
    let (error, files) = compile_meanwhile(overwrite);
    let error = error.unwrap();
    assert!(error.contains("chain.weights` was changed while it was read"), "{error}");
    assert_eq!(files, ["chain.onnx", "chain.weights"]);
}

#[test]
fn a_source_whose_name_another_file_takes_is_read_to_its_end() {
    let replace = |weights: &Path| {
        let other = weights.with_extension("new");
        fs::write(&other, vec![1; (MEANWHILE_LAYERS * LAYER_BYTES) as usize]).unwrap();
        fs::rename(other, weights).unwrap();
    };
    let (error, files) = compile_meanwhile(replace);
    assert_eq!(error, None);
    assert_eq!(files, ["chain.ipu", "chain.onnx", "chain.weights"]);
}

#[test]
fn a_full_disk_leaves_nothing_and_ends_with_4() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = chain(folder.path(), 4);
    // A limit on the length of files stands for the end of the disk: 1024 blocks are half a mebibyte.
    let output = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 1024; exec "$0" "$@""#, env!("CARGO_BIN_EXE_ipuc"), "compile"])
        .arg(&model)
        .output()
        .unwrap();
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("cannot write the output at offset"), "{text}");
    assert_eq!(files(folder.path()), ["chain.onnx", "chain.weights"]);
}

#[test]
fn too_little_memory_ends_with_4_and_says_what_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = chain(folder.path(), 1);
    let compile = |memory: &str| ipuc().arg("compile").arg(&model).args(["--memory", memory]).output().unwrap();
    let refused = compile("1kB");
    let text = errors(&refused);
    assert_eq!(refused.status.code(), Some(4), "{text}");
    let (_, enough) = text.split_once("give it at least --memory ").unwrap();
    assert_eq!(compile(enough.trim()).status.code(), Some(0));
}

#[test]
fn killed_at_any_moment_there_is_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = chain(folder.path(), 24);
    let output = folder.path().join("out.ipu");
    let start = std::time::Instant::now();
    let whole = ipuc().arg("compile").arg(&model).arg("-o").arg(&output).output().unwrap();
    let took = start.elapsed();
    assert!(whole.status.success(), "{}", errors(&whole));
    let expected = fs::read(&output).unwrap();
    fs::remove_file(&output).unwrap();
    let (mut without, moments) = (0, 20);
    for moment in 0..moments {
        let mut child = ipuc().arg("compile").arg(&model).arg("-o").arg(&output).arg("--quiet").spawn().unwrap();
        std::thread::sleep(took * moment / moments);
        child.kill().unwrap();
        child.wait().unwrap();
        match fs::read(&output) {
            Ok(found) => {
                assert!(found == expected, "killed at moment {moment}: a file of {} bytes", found.len());
                fs::remove_file(&output).unwrap();
            }
            Err(_) => without += 1,
        }
    }
    assert!(without > moments / 4, "{without} of {moments} were killed before the end");
    // A file that was there before stays whole too.
    fs::write(&output, b"before").unwrap();
    let mut child = ipuc().arg("compile").arg(&model).arg("-o").arg(&output).arg("--quiet").spawn().unwrap();
    std::thread::sleep(took / 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let found = fs::read(&output).unwrap();
    assert!(found == b"before" || found == expected);
}
