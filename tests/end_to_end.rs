//! Real models from ONNX to outputs: every fixture, and every case of a folder of cases where there is one.
//!
//! A case is a folder with `model.onnx` and `test_data_set_K/{input,output}_I.pb`. Further cases are looked for in the
//! folder that `IPUC_CASES` names, or beside this checkout; without it they are skipped.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use crate::support;
use ipuc::compare::{Tolerance, compare};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::precision;
use ipuc_formats::onnx::{read_model, read_value};
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Session, SessionOptions};
use std::path::{Path, PathBuf};

/// Models of the case folder: all that there are.
const CASES: &[&str] = &[
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_openvino_16k",
    "ppocr_v2_cls",
    "ppocr_v4_det",
    "resnet50_half",
    "unet_diffusion",
    "whisper_encoder",
    "whisper_decoder_kv",
    "bert_mini",
    "llama_decode",
    "mixtral_decode",
    "lstm_gru_tagger",
    "ssm_scan",
    "llama_decode_int4_qdq",
    "phi3_decode_matmulnbits",
    "llama_genai_int4",
    "lfm2moe_genai_int4_qmoe",
    "resnet50_half_qdq_s8",
    "resnet50_half_qoperator_u8",
    "ort_logreg_iris",
];

fn root_mean_square(elements: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = elements.len() as f64;
    (elements.map(|element| element * element).sum::<f64>() / count).sqrt()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn compiled(case: &Path, folder: &Path, options: &CompileOptions) -> PathBuf {
    let output = folder.join("model.ipu");
    let source = Source { entry: "main".to_string(), path: case.join("model.onnx") };
    compile(&[source], &output, options).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
    output
}

fn data_sets(case: &Path) -> Vec<PathBuf> {
    (0..).map(|index| case.join(format!("test_data_set_{index}"))).take_while(|path| path.is_dir()).collect()
}

/// Named inputs and expected outputs of one data set.
fn load(model: &Model, set: &Path) -> (Vec<(String, Value)>, Vec<Value>) {
    let entry = model.entry(None).unwrap();
    let inputs = model.inputs(entry).into_iter().enumerate().map(|(index, port)| {
        let bytes = std::fs::read(set.join(format!("input_{index}.pb"))).unwrap();
        (port.name, read_value(&bytes, &port.kind).unwrap())
    });
    let block = &model.manifest().blocks[entry.block as usize];
    let outputs = block.results.iter().enumerate().map(|(index, result)| {
        let bytes = std::fs::read(set.join(format!("output_{index}.pb"))).unwrap();
        let ipuc_formats::model::OperandRecord::Value(slot) = result else { panic!("a constant output") };
        read_value(&bytes, &block.values[*slot as usize].kind).unwrap()
    });
    (inputs.collect(), outputs.collect())
}

/// Outputs of all data sets, each checked against what is expected.
fn run_case(model: &Model, case: &Path, threads: usize) -> Vec<Vec<(String, Value)>> {
    let sets = data_sets(case);
    assert!(!sets.is_empty(), "{} has no data", case.display());
    let precisions = precision::of_outputs(model, model.entry(None).unwrap());
    let run = |set: &PathBuf| {
        let mut session = Session::new(model, &SessionOptions { threads, seed: 0 }).unwrap();
        let (inputs, expected) = load(model, set);
        let outputs = session.run(None, inputs).unwrap_or_else(|error| panic!("{}: {error}", set.display()));
        assert_eq!(outputs.len(), expected.len());
        for (((name, found), wanted), &precision) in outputs.iter().zip(&expected).zip(&precisions) {
            let tolerance = Tolerance { precision, ..Tolerance::default() };
            compare(name, found, wanted, tolerance).unwrap_or_else(|mismatch| panic!("{}: {mismatch}", set.display()));
        }
        outputs
    };
    sets.iter().map(run).collect()
}

fn check_case(case: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let model = ipuc::open(compiled(case, folder.path(), &CompileOptions::default())).unwrap();
    let (one, two) = (run_case(&model, case, 1), run_case(&model, case, 2));
    assert!(one == two, "{}: one and two threads give different bits", case.display());
}

#[test]
fn fixtures_give_what_is_expected() {
    for name in ["loop", "functions", "external_data", "float16", "silero_vad_16k_op15", "ppocr_v2_cls"] {
        check_case(&fixtures().join(name));
    }
}

#[test]
fn cases_give_what_is_expected() {
    let folder = support::cases();
    if !folder.is_dir() {
        eprintln!("skipped: there is no folder of cases at {} (set IPUC_CASES)", folder.display());
        return;
    }
    for name in CASES {
        check_case(&folder.join(name));
    }
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let models = entries.filter(|entry| entry.path().join("model.onnx").is_file());
    let names = models.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left_out: Vec<String> = names.filter(|name| !CASES.contains(&name.as_str())).collect();
    assert!(left_out.is_empty(), "models that are not tried: {left_out:?}");
}

/// Sums of integers are no further from the model in floats than what ONNX Runtime computes of the same graph.
#[test]
fn integers_are_as_near_to_the_floats_as_the_quantized_graph() {
    let [quantized, floats] = ["resnet50_half_qdq_s8", "resnet50_half"].map(|name| support::cases().join(name));
    if !quantized.is_dir() {
        eprintln!("skipped: there is no {}", quantized.display());
        return;
    }
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let options = CompileOptions::default();
    let open = |case: &Path, folder: &Path| ipuc::open(compiled(case, folder, &options)).unwrap();
    let [quantized_model, float_model] = [open(&quantized, folders[0].path()), open(&floats, folders[1].path())];
    let run = |model: &Model, inputs: &[(String, Value)]| {
        let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
        let (_, logits) = session.run(None, inputs.to_vec()).unwrap().remove(0);
        logits.as_tensor().unwrap().elements::<f32>().unwrap().to_vec()
    };
    let distance = |found: &[f32], floats: &[f32]| {
        root_mean_square(found.iter().zip(floats).map(|(found, float)| f64::from(found - float)))
    };
    for set in data_sets(&quantized) {
        let (inputs, expected) = load(&quantized_model, &set);
        let floats = run(&float_model, &inputs);
        let own = distance(&run(&quantized_model, &inputs), &floats);
        let theirs = distance(expected[0].as_tensor().unwrap().elements::<f32>().unwrap(), &floats);
        assert!(own <= theirs, "{}: {own} from the floats, ONNX Runtime {theirs}", set.display());
    }
}

#[test]
fn several_models_are_entries_of_one_program() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.ipu");
    let source = |entry: &str| Source {
        entry: entry.to_string(),
        path: fixtures().join("entries").join(entry).join("model.onnx"),
    };
    let options = CompileOptions { states: vec!["total=total_out".to_string()], ..CompileOptions::default() };
    let report = compile(&[source("encoder"), source("decoder")], &output, &options).unwrap();
    let entries: Vec<&str> = report.emitted.manifest.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(entries, ["encoder", "decoder"]);
    let model = ipuc::open(&output).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let error = session.run(None, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "an entry must be named; there are `encoder`, `decoder`");
    let x = ipuc_formats::tensor::Tensor::from_elements(&[1, 16], &[0.5f32; 16]).unwrap();
    let run = |session: &mut Session| session.run(Some("decoder"), vec![("x".to_string(), x.clone().into())]).unwrap();
    let scores = run(&mut session);
    assert_eq!(scores.len(), 1, "state is no output");
    run(&mut session);
    let total = session.state("total").unwrap().unwrap();
    let totals = total.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
    let score = scores[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
    for (total, score) in totals.iter().zip(&score) {
        assert!((total - 2.0 * score).abs() <= 1e-5 * score.abs().max(1.0), "state adds up over runs");
    }
    let fork = session.fork();
    session.reset();
    assert_eq!((session.state("total").unwrap(), fork.state("total").unwrap()), (None, Some(total)));
}

#[test]
fn a_weight_is_stored_once_however_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.ipu");
    let source = Source { entry: "main".to_string(), path: fixtures().join("external_data/model.onnx") };
    let report = compile(&[source], &output, &CompileOptions::default()).unwrap();
    let stored: u64 = report.emitted.manifest.extents.iter().map(|extent| extent.length).sum();
    assert_eq!(stored, 48 * 32 * 4, "the weight is read as it is and transposed");
}

#[test]
fn compiling_is_reproducible_for_any_number_of_threads() {
    let case = fixtures().join("silero_vad_16k_op15");
    let bytes = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        pool.install(|| std::fs::read(compiled(&case, folder.path(), &CompileOptions::default())).unwrap())
    };
    assert!(bytes(1) == bytes(4));
}

#[test]
fn order_never_needs_more_memory_than_the_model_gave() {
    for name in ["silero_vad_16k_op15", "ppocr_v2_cls"] {
        let folder = tempfile::tempdir().unwrap();
        let source = Source { entry: "main".to_string(), path: fixtures().join(name).join("model.onnx") };
        let report = compile(&[source], &folder.path().join("model.ipu"), &CompileOptions::default()).unwrap();
        assert!(!report.peaks.is_empty());
        assert!(report.peaks.iter().all(|peak| peak.kept_bytes <= peak.given_bytes), "{name}: {:?}", report.peaks);
    }
}

#[test]
fn a_model_without_a_graph_is_refused() {
    let error = read_model(&b"\x08\x0a".to_vec()).unwrap_err();
    assert!(error.to_string().contains("graph"), "{error}");
}
