//! What `compile --emit-ir` writes: the program after each pass, what changed, and the weights as they are in the file.

use super::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files of this extension, in the order of their names.
fn written(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder.join("ir")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    paths.sort();
    paths
}

/// Number and first result of each step: `0:2` and `%y`.
fn numbered(text: &str) -> Vec<(String, String)> {
    let step = |line: &str| {
        let (number, step) = line.strip_prefix("  ")?.split_once(' ')?;
        let (block, index) = number.split_once(':')?;
        let is_number = block.parse::<u32>().is_ok() && index.parse::<u32>().is_ok();
        is_number.then(|| (number.to_string(), step.split(" : ").next().unwrap().to_string()))
    };
    text.lines().filter_map(step).collect()
}

/// Lines without the numbers of steps.
fn plain(text: &str) -> BTreeSet<String> {
    let number = regex::Regex::new("^  [0-9]+:[0-9]+ ").unwrap();
    text.lines().map(|line| number.replace(line, "  ").into_owned()).collect()
}

fn compiled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/silero_vad_16k_op15/model.onnx");
    fs::copy(model, folder.path().join("model.onnx")).unwrap();
    let output = run(folder.path(), "compile model.onnx --state state=stateN --emit-ir ir -q");
    assert!(output.status.success(), "{}", errors(&output));
    folder
}

#[test]
fn steps_have_the_numbers_of_the_file() {
    let folder = compiled();
    let programs = written(folder.path(), "ir");
    assert!(programs.len() > 3, "{programs:?}");
    let program = run(folder.path(), "inspect model.ipu --program");
    let program = String::from_utf8(program.stdout).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("ir/program.txt")).unwrap(), program);
    let last = fs::read_to_string(programs.last().unwrap()).unwrap();
    let steps = numbered(&program);
    assert!(steps.iter().any(|(number, _)| number.starts_with("3:")), "several blocks: {steps:?}");
    assert_eq!(numbered(&last), steps);
    // Every listing is a program that is read again; its values are counted anew.
    for path in &programs {
        let text = fs::read_to_string(path).unwrap();
        let graph = ipuc_passes::ir::text::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let printed = ipuc_passes::ir::text::print_numbered(&graph);
        let steps = |text: &str| numbered(text).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!(steps(&printed), steps(&text), "{}", path.display());
    }
}

#[test]
fn what_changed_stands_beside_the_program() {
    let folder = compiled();
    let programs = written(folder.path(), "ir");
    let differences = written(folder.path(), "diff");
    let with_diff: Vec<PathBuf> = programs[1..].iter().map(|path| path.with_extension("diff")).collect();
    assert_eq!(differences, with_diff);
    for pair in programs.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|path| plain(&fs::read_to_string(path).unwrap()));
        let difference = fs::read_to_string(pair[1].with_extension("diff")).unwrap();
        let lines = |sign: char| -> BTreeSet<String> {
            difference.lines().filter_map(|line| line.strip_prefix(sign)).map(str::to_string).collect()
        };
        let is_comment = |line: &&String| line.starts_with("// after ");
        let gone: BTreeSet<String> = before.difference(&after).filter(|line| !is_comment(line)).cloned().collect();
        let new: BTreeSet<String> = after.difference(&before).filter(|line| !is_comment(line)).cloned().collect();
        assert!(!gone.is_empty() || !new.is_empty(), "{}", pair[1].display());
        // What moves is in both programs, and in the difference all the same.
        assert!(gone.is_subset(&lines('-')), "{}: {difference}", pair[1].display());
        assert!(new.is_subset(&lines('+')), "{}: {difference}", pair[1].display());
        assert!(lines('-').is_subset(&before) && lines('+').is_subset(&after), "{}: {difference}", pair[1].display());
    }
}

/// What is large has its hash in place of elements.
#[test]
fn small_constants_are_decimal() {
    let folder = tempfile::tempdir().unwrap();
    let (half, low) = (ipuc_formats::element::f16::from_f32(0.5).to_le_bytes(), f32::NEG_INFINITY);
    let half = TensorProto { data_type: Some(10), raw_data: Some(half.to_vec()), ..tensor("half", &[], &[]) };
    let scale = tensor("scale", &[2], &[0.1, -2.5]);
    let nodes = vec![
        node("Mul", &["x", "scale"], &["scaled"]),
        node("Max", &["scaled", "low"], &["bounded"]),
        node("CastLike", &["bounded", "half"], &["narrow"]),
        node("Mul", &["narrow", "half"], &["halved"]),
        node("CastLike", &["halved", "scale"], &["y"]),
    ];
    let weights = vec![scale, tensor("low", &[], &[low]), half];
    write(folder.path(), "small.onnx", &model(graph(vec![port("x", &["2"])], weights, nodes, vec![port("y", &["2"])])));
    let output = run(folder.path(), "compile small.onnx --emit-ir ir -q");
    assert!(output.status.success(), "{}", errors(&output));
    let text = fs::read_to_string(&written(folder.path(), "ir")[0]).unwrap();
    for expected in
        ["@scale : f32[2] = f32[2]:[0.1, -2.5]", "@low : f32[] = f32[]:[-inf]", "@half : f16[] = f16[]:[0.5]"]
    {
        assert!(text.contains(&format!("constant {expected}")), "{expected}: {text}");
    }
}

#[test]
fn weights_have_their_encoding_chunk_and_reason() {
    let folder = compiled();
    let weights = fs::read_to_string(folder.path().join("ir/weights.txt")).unwrap();
    let layout = run(folder.path(), "inspect model.ipu --layout");
    assert_eq!(weights, String::from_utf8(layout.stdout).unwrap());
    let mut lines = weights.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["weight", "type", "source", "encoding", "chunk", "offset", "bytes", "step", "read", "why"]);
    let row =
        |name: &str| weights.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {weights}"));
    let kernel = row("model.encoder.0.reparam_conv.weight ");
    assert!(kernel.contains("f32[") && kernel.contains("model.onnx@") && kernel.contains("convolution"), "{kernel}");
    assert!(lines.all(|line| line.split("  ").filter(|cell| !cell.is_empty()).count() == head.len()), "{weights}");
}
