//! Models whose weights are rounded while they are compiled: how far their results lie from the model's, how many bytes
//! they take, and that neither threads nor memory change a byte.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use crate::support::{self, Random, graph, model, node, port, tensor};
use ipuc::accuracy::Deviation;
use ipuc::calibrate::Calibrator;
use ipuc::compile::{Budget, CompileError, CompileOptions, Precision, Source, WeightOptions, compile, describe};
use ipuc::{DType, Model, Session, SessionOptions, Tensor, Value, open};
use ipuc_formats::encodings::PlaneRole;
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::narrow;
use ipuc_formats::onnx::read_value;
use ipuc_formats::onnx::schema::TensorProto;
use ipuc_formats::ops::WeightMatrix;
use ipuc_passes::error::PassError;
use ipuc_passes::pipeline::PipelineError;
use ipuc_passes::rounding::{Part, Region, Scheme};
use prost::Message as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

mod outliers;

fn weights(precision: &str) -> CompileOptions {
    let precision: Precision = precision.parse().unwrap();
    CompileOptions {
        weights: WeightOptions { precision: Some(precision), ..WeightOptions::default() },
        ..CompileOptions::default()
    }
}

fn source(path: PathBuf) -> Source {
    Source { entry: "main".to_string(), path }
}

fn stored_bytes(model: &Model) -> u64 {
    model.manifest().extents.iter().map(|extent| extent.length).sum()
}

/// The inputs of a data set, by name.
fn inputs(model: &Model, set: &Path) -> Vec<(String, Value)> {
    let ports = model.inputs(model.entry(None).unwrap()).into_iter().enumerate();
    let input = |(index, port): (usize, ipuc_runtime::Port)| {
        let bytes = std::fs::read(set.join(format!("input_{index}.pb"))).unwrap();
        (port.name, read_value(&bytes, &port.kind).unwrap())
    };
    ports.map(input).collect()
}

/// The elements of a tensor of f32.
fn floats(value: &Value) -> Option<Vec<f64>> {
    let tensor = value.as_tensor()?;
    Some(tensor.elements::<f32>().ok()?.iter().map(|&element| f64::from(element)).collect())
}

/// Cosines of the outputs of all data sets beside those that the case expects, the least of them.
fn least_cosine(model: &Model, case: &Path) -> f64 {
    let sets = (0..).map(|index| case.join(format!("test_data_set_{index}"))).take_while(|path| path.is_dir());
    let mut least = 1.0f64;
    for set in sets {
        let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
        let outputs = session.run(None, inputs(model, &set)).unwrap();
        for (index, (name, found)) in outputs.iter().enumerate() {
            let bytes = std::fs::read(set.join(format!("output_{index}.pb"))).unwrap();
            let expected = read_value(&bytes, &found.kind()).unwrap();
            let (Some(found), Some(expected)) = (floats(found), floats(&expected)) else { continue };
            let mut deviation = Deviation::default();
            deviation.add(&found, &expected);
            assert_eq!(deviation.not_finite, 0, "{name}");
            least = least.min(deviation.cosine().unwrap());
        }
    }
    least
}

/// Case, precision, the least cosine of an output (the weights of most are random: trained ones bear more), and the bytes
/// of all weights.
const CASES: &[(&str, &str, f64, u64)] = &[
    ("bert_mini", "f16", 0.9999, 8_711_305),
    ("bert_mini", "i8", 0.9997, 4_441_225),
    ("bert_mini", "i4", 0.9829, 3_028_105),
    ("bert_mini", "fp8", 0.9978, 4_441_225),
    ("bert_mini", "fp8_e5m2", 0.9925, 4_441_225),
    ("bert_mini", "mxfp4", 0.9658, 2_929_801),
    ("bert_mini", "nvfp4", 0.9850, 3_064_969),
    ("bert_mini", "i4_e4m3", 0.9812, 3_064_969),
    ("llama_decode", "i4_e4m3", 0.9621, 3_734_297),
    ("llama_decode", "mxfp4", 0.8499, 3_612_953),
    ("llama_decode", "nvfp4", 0.9680, 3_734_297),
    ("resnet50_half", "fp8", 0.9975, 7_028_736),
    ("llama_decode", "i8", 0.9992, 4_944_665),
    ("llama_decode", "i8:32", 0.9997, 5_180_697),
    ("llama_decode", "i4", 0.9592, 3_697_945),
    ("llama_decode", "i2:16", 0.5921, 3_179_801),
    ("resnet50_half", "i8", 0.9997, 7_028_736),
    ("silero_vad", "i8", 0.9999, 1_560_864),
    ("ppocr_v4_det", "i8", 0.9998, 2_393_136),
    ("whisper_encoder", "i4", 0.9863, 1_154_360),
];

#[test]
fn real_models_stay_near_and_become_small() {
    let mut report = String::new();
    let mut failed = false;
    for &(name, precision, cosine, bytes) in CASES {
        let case = support::cases().join(name);
        if !case.is_dir() {
            eprintln!("no case `{name}`: skipped");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.ipu");
        compile(&[source(case.join("model.onnx"))], &file, &weights(precision)).unwrap();
        let model = open(&file).unwrap();
        let (found, stored) = (least_cosine(&model, &case), stored_bytes(&model));
        report += &format!("(\"{name}\", \"{precision}\", {found:.5}, {stored}),\n");
        failed |= found < cosine || stored != bytes;
    }
    assert!(!failed, "found\n{report}");
}

/// Case, precision, and the shares of the squared errors of outputs that calibrating with the first data set leaves on the
/// others.
const CALIBRATED: &[(&str, &str, f64)] =
    &[("whisper_encoder", "i4", 0.9), ("whisper_encoder", "i2", 0.9), ("ppocr_v4_det", "i8", 0.5)];

/// The sum of squared errors of all outputs beside those that data sets expect, from the second set on.
fn squared_error(model: &Model, case: &Path) -> f64 {
    let sets = (1..).map(|index| case.join(format!("test_data_set_{index}"))).take_while(|path| path.is_dir());
    let mut sum = 0.0;
    for set in sets {
        let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
        let outputs = session.run(None, inputs(model, &set)).unwrap();
        for (index, (_, found)) in outputs.iter().enumerate() {
            let bytes = std::fs::read(set.join(format!("output_{index}.pb"))).unwrap();
            let expected = read_value(&bytes, &found.kind()).unwrap();
            let (Some(found), Some(expected)) = (floats(found), floats(&expected)) else { continue };
            sum += found.iter().zip(&expected).map(|(found, expected)| (found - expected).powi(2)).sum::<f64>();
        }
    }
    sum
}

#[test]
fn calibrating_lowers_errors_on_other_inputs() {
    let mut report = String::new();
    let mut failed = false;
    for &(name, precision, share) in CALIBRATED {
        let case = support::cases().join(name);
        if !case.is_dir() {
            eprintln!("no case `{name}`: skipped");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.ipu");
        let sources = [source(case.join("model.onnx"))];
        let mut options = weights(precision);
        compile(&sources, &file, &options).unwrap();
        let plain = squared_error(&open(&file).unwrap(), &case);
        let mut calibrator = Calibrator::new(&sources, &options).unwrap();
        let example = inputs(calibrator.model(), &case.join("test_data_set_0"));
        calibrator.run(None, example).unwrap();
        options.calibration = Arc::new(calibrator.finish().unwrap());
        compile(&sources, &file, &options).unwrap();
        let calibrated = squared_error(&open(&file).unwrap(), &case);
        report += &format!("(\"{name}\", \"{precision}\", {:.3}),\n", calibrated / plain);
        failed |= calibrated >= share * plain;
    }
    assert!(!failed, "found\n{report}");
}

/// A size between that of 4 and that of 8 bits is kept, and its results lie between theirs.
#[test]
fn a_size_is_kept_and_spent() {
    let case = support::cases().join("bert_mini");
    if !case.is_dir() {
        eprintln!("no case `bert_mini`: skipped");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sources = [source(case.join("model.onnx"))];
    let with = |name: &str, options: &CompileOptions| {
        let file = folder.path().join(name);
        let compiled = compile(&sources, &file, options).unwrap();
        (open(&file).unwrap(), std::fs::read(file).unwrap(), compiled.emitted.manifest)
    };
    let budget = |budget| CompileOptions {
        weights: WeightOptions { budget: Some(budget), ..WeightOptions::default() },
        ..CompileOptions::default()
    };
    let (four, ..) = with("four.ipu", &weights("i4"));
    let (eight, ..) = with("eight.ipu", &weights("i8"));
    let size = (stored_bytes(&four) + stored_bytes(&eight)) / 2;
    let (sized, bytes, manifest) = with("sized.ipu", &budget(Budget::Size(size)));
    let taken = stored_bytes(&sized);
    assert!(taken <= size && taken > size / 100 * 97, "{taken} of {size} bytes");
    let [least, found, most] = [&four, &sized, &eight].map(|model| least_cosine(model, &case));
    assert!(least < found && found < most, "{least} {found} {most}");
    // The choice is in the file, with what decided it, and a second time the same.
    let reasons: Vec<&str> = manifest.weights.iter().map(|weight| weight.reason.as_str()).collect();
    let own = format!("--size {size}, ");
    assert!(reasons.iter().filter(|reason| reason.contains(&own)).count() > 20, "{reasons:?}");
    assert!(manifest.provenance.options.iter().any(|(name, value)| name == "size" && *value == size.to_string()));
    assert!(bytes == with("again.ipu", &budget(Budget::Size(size))).1);
    // Less than two bits cannot be had.
    let file = folder.path().join("none.ipu");
    let error = compile(&sources, &file, &budget(Budget::Size(100_000))).unwrap_err();
    let CompileError::Pipeline(PipelineError::Pass(PassError::Size { least_bytes, .. })) = &error else {
        panic!("{error}")
    };
    let (small, ..) = with("small.ipu", &budget(Budget::Size(*least_bytes)));
    assert!(stored_bytes(&small) <= *least_bytes);
    // Errors: the smaller one takes more bytes.
    let (coarse, ..) = with("coarse.ipu", &budget(Budget::Error(0.1)));
    let (fine, ..) = with("fine.ipu", &budget(Budget::Error(0.005)));
    assert!(stored_bytes(&coarse) < stored_bytes(&fine));
    let [coarse, fine] = [&coarse, &fine].map(|model| least_cosine(model, &case));
    assert!(coarse < fine && fine > 0.9998, "{coarse} {fine}");
    let both = CompileOptions {
        weights: WeightOptions { budget: Some(Budget::Size(size)), ..weights("i4").weights },
        ..CompileOptions::default()
    };
    let error = compile(&sources, &file, &both).unwrap_err().to_string();
    assert!(error.contains("cannot choose precisions: one precision is asked for already"), "{error}");
    let error = describe(&sources, &budget(Budget::Size(size))).unwrap_err().to_string();
    assert!(error.contains("weights have to be looked at, and only sizes are known"), "{error}");
}

/// An embedding that is the last product, too, is stored in whole panels of 16 rows: a size counts them.
#[test]
fn a_size_counts_panels_of_an_embedding_that_is_the_last_product_too() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, width) = (5, 4096);
    let mut gemm = node("Gemm", &["x", "e"], &["b"]);
    gemm.attribute.push(ipuc_formats::onnx::schema::AttributeProto {
        name: Some("transB".to_string()),
        i: Some(1),
        r#type: Some(ipuc_formats::onnx::schema::attribute_proto::AttributeType::Int as i32),
        ..Default::default()
    });
    let nodes = vec![node("Gather", &["e", "i"], &["c"]), gemm];
    let table = tensor("e", &[rows, width], &elements((rows * width) as usize));
    let results = vec![port("c", &["n", "4096"]), port("b", &["m", "5"])];
    let inputs = vec![port("x", &["m", "4096"]), support::integers("i", &["n"])];
    let onnx = folder.path().join("model.onnx");
    std::fs::write(&onnx, model(graph(inputs, vec![table], nodes, results))).unwrap();
    let (sources, file) = ([source(onnx)], folder.path().join("model.ipu"));
    let floats = (16 * width * 2) as u64;
    let mut stored = Vec::new();
    for size in [floats / 3, floats / 2 + 100_000, floats - 64, floats, floats * 2 - 64, floats * 2] {
        let weights = WeightOptions { budget: Some(Budget::Size(size)), ..WeightOptions::default() };
        match compile(&sources, &file, &CompileOptions { weights, ..CompileOptions::default() }) {
            Ok(compiled) => {
                assert!(record(&compiled.emitted.manifest, "e").encoding.as_panels().is_some());
                stored.push(stored_bytes(&open(&file).unwrap()));
                assert!(stored.last() <= Some(&size), "{stored:?} of {size}");
            }
            Err(CompileError::Pipeline(PipelineError::Pass(PassError::Size { least_bytes, .. }))) => {
                assert!(least_bytes > size, "{least_bytes} and {size}");
            }
            Err(error) => panic!("{size}: {error}"),
        }
    }
    // In f16, and as it is.
    assert!(stored.contains(&floats) && stored.contains(&(2 * floats)), "{stored:?}");
}

/// Calibrated, a weight whose inputs are nearly one direction gets fewer bits than its squares alone would give it.
#[test]
fn budgets_know_what_examples_show() {
    let folder = tempfile::tempdir().unwrap();
    let elements = elements(INPUTS * OUTPUTS);
    let sources = [source(write_model(folder.path(), &elements))];
    let mut options = CompileOptions {
        weights: WeightOptions { budget: Some(Budget::Error(0.02)), ..WeightOptions::default() },
        ..CompileOptions::default()
    };
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    // All products read multiples of one row: errors can be made up for almost wholly.
    let mut random = Random::new(3);
    let row: Vec<f32> = (0..INPUTS).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect();
    let x: Vec<f32> = (1..9).flat_map(|factor| row.iter().map(move |value| value * factor as f32)).collect();
    let x = Tensor::from_elements(&[8, INPUTS], &x).unwrap();
    let inputs = vec![("x".to_string(), x.into()), ("i".to_string(), Tensor::vector_i64(&[0]).into())];
    calibrator.run(None, inputs).unwrap();
    let file = folder.path().join("model.ipu");
    let weight = |compiled: ipuc::compile::Compiled| record(&compiled.emitted.manifest, "w").clone();
    let plain = weight(compile(&sources, &file, &options).unwrap());
    options.calibration = Arc::new(calibrator.finish().unwrap());
    let calibrated = weight(compile(&sources, &file, &options).unwrap());
    assert_eq!(plain.encoding.dtype(), DType::I8, "{}", plain.reason);
    assert!(calibrated.encoding.dtype().bits() < 8, "{}", calibrated.reason);
    assert!(calibrated.reason.contains("--max-error 0.02, i") && calibrated.reason.ends_with(", calibrated"));
}

/// With examples an error is one of the model's outputs: it is kept to, and not by much.
#[test]
fn an_error_of_outputs_is_measured_and_kept_to() {
    let case = support::cases().join("mixtral_decode");
    if !case.is_dir() {
        eprintln!("no case `mixtral_decode`: skipped");
        return;
    }
    let (coarse, _, error, manifest) = within(&case.join("model.onnx"), &case.join("test_data_set_0"), 0.1);
    assert!(error <= 0.1 && error > 0.05, "{error}");
    assert!(manifest.provenance.options.contains(&("output_error".to_string(), error.to_string())));
    let reasons: Vec<&str> = manifest.weights.iter().map(|weight| weight.reason.as_str()).collect();
    let told =
        reasons.iter().filter(|reason| reason.contains("--max-error 0.1, ") && reason.contains("changes outputs by"));
    assert_eq!(told.count(), 10, "{reasons:?}");
    let found = largest_error(&coarse, &case.join("test_data_set_0"));
    // The reference of these is ONNX Runtime.
    assert!((found / error - 1.0).abs() < 1e-3, "{found} and {error}");
}

/// The command line measures the error of outputs as the library does: what it gives has the same bytes.
#[test]
fn an_error_of_outputs_is_measured_at_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = write_model(folder.path(), &elements(INPUTS * OUTPUTS));
    let set = folder.path().join("test_data_set_0");
    let mut random = Random::new(5);
    let x: Vec<f32> = (0..8 * INPUTS).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect();
    let rows = TensorProto { data_type: Some(7), raw_data: Some(vec![0; 8]), ..tensor("", &[1], &[]) };
    support::write(&set, "input_0.pb", &support::tensor_file(&[8, INPUTS as i64], &x));
    support::write(&set, "input_1.pb", &rows.encode_to_vec());
    let by_command = folder.path().join("command.ipu");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.arg("compile").arg(&onnx).arg("-o").arg(&by_command).args(["--max-error", "0.1", "--calibrate"]).arg(&set);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (_, bytes, error, _) = within(&onnx, &set, 0.1);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("  outputs are off by {:.3} % on the examples", 100.0 * error)), "{text}");
    assert!(std::fs::read(by_command).unwrap() == bytes);
}

/// A model whose outputs are off by no more than this on an example, its bytes, and by how much they are off.
fn within(onnx: &Path, set: &Path, most: f64) -> (Model, Vec<u8>, f64, Manifest) {
    let folder = tempfile::tempdir().unwrap();
    let sources = [source(onnx.to_owned())];
    let weights = WeightOptions { budget: Some(Budget::Error(most)), ..WeightOptions::default() };
    let mut options = CompileOptions { weights, ..CompileOptions::default() };
    let mut calibrator = Calibrator::new(&sources, &options).unwrap();
    let example = inputs(calibrator.model(), set);
    calibrator.run(None, example).unwrap();
    options.calibration = Arc::new(calibrator.finish().unwrap());
    let file = folder.path().join("model.ipu");
    let manifest = compile(&sources, &file, &options).unwrap().emitted.manifest;
    (open(&file).unwrap(), std::fs::read(file).unwrap(), options.calibration.output_error.unwrap(), manifest)
}

/// The root mean square of the differences of an output from what is expected over that of the output; the largest.
fn largest_error(model: &Model, set: &Path) -> f64 {
    let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
    let outputs = session.run(None, inputs(model, set)).unwrap();
    let error = |(index, (_, found)): (usize, &(String, Value))| {
        let bytes = std::fs::read(set.join(format!("output_{index}.pb"))).unwrap();
        let expected = read_value(&bytes, &found.kind()).unwrap();
        let (Some(found), Some(expected)) = (floats(found), floats(&expected)) else { return 0.0 };
        let wrong: f64 = found.iter().zip(&expected).map(|(found, expected)| (found - expected).powi(2)).sum();
        (wrong / expected.iter().map(|expected| expected.powi(2)).sum::<f64>()).sqrt()
    };
    outputs.iter().enumerate().map(error).fold(0.0, f64::max)
}

#[test]
fn examples_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = write_model(folder.path(), &elements(INPUTS * OUTPUTS));
    let sources = [source(onnx)];
    let mut calibrator = Calibrator::new(&sources, &weights("i4")).unwrap();
    let x = |rows: usize, columns: usize, value: f32| -> (String, Value) {
        ("x".to_string(), Tensor::from_elements(&[rows, columns], &vec![value; rows * columns]).unwrap().into())
    };
    let rows = || ("i".to_string(), Value::from(Tensor::vector_i64(&[0])));
    let refused = |calibrator: &mut Calibrator, inputs| calibrator.run(None, inputs).unwrap_err().to_string();
    assert!(refused(&mut calibrator, vec![rows()]).contains("`x`"));
    assert!(refused(&mut calibrator, vec![x(2, 7, 1.0), rows()]).contains("`x`"));
    let gap = refused(&mut calibrator, vec![x(2, INPUTS, f32::NAN), rows()]);
    assert_eq!(gap, "example 0 gives `x` a NaN or an infinity, which says nothing about its weights");
    assert!(refused(&mut calibrator, vec![("q".to_string(), x(2, INPUTS, 1.0).1), rows()]).contains("`q`"));
    let nothing = Calibrator::new(&sources, &weights("i4")).unwrap().finish().err().unwrap();
    assert_eq!(nothing.to_string(), "no example was run");
    calibrator.run(None, vec![x(2, INPUTS, 1.0), rows()]).unwrap();
    let measured = calibrator.finish().unwrap();
    let [moments] = measured.moments.values().collect::<Vec<_>>()[..] else { panic!("{measured:?}") };
    assert_eq!((moments.channels(), moments.rows()), (INPUTS, 2));
}

const INPUTS: usize = 300;
const OUTPUTS: usize = 200;

fn elements(count: usize) -> Vec<f32> {
    let mut random = Random::new(17);
    (0..count).map(|_| (random.below(2001) as f32 - 1000.0) / 3000.0).collect()
}

/// `x · w` and `x · tᵀ` and rows of `e`; with the identity as `x` the outputs are the weights.
fn write_model(folder: &Path, elements: &[f32]) -> PathBuf {
    let (inputs, outputs) = (INPUTS as i64, OUTPUTS as i64);
    let transposed = ipuc_formats::onnx::schema::AttributeProto {
        name: Some("transB".to_string()),
        i: Some(1),
        r#type: Some(ipuc_formats::onnx::schema::attribute_proto::AttributeType::Int as i32),
        ..Default::default()
    };
    let mut gemm = node("Gemm", &["x", "t"], &["b"]);
    gemm.attribute.push(transposed);
    let initializers = vec![
        tensor("w", &[inputs, outputs], elements),
        tensor("t", &[outputs, inputs], elements),
        tensor("e", &[outputs, inputs], elements),
    ];
    let mut rows = port("i", &["n"]);
    let kind = rows.r#type.as_mut().and_then(|kind| kind.value.as_mut()).unwrap();
    let ipuc_formats::onnx::schema::type_proto::Value::TensorType(kind) = kind else { panic!() };
    kind.elem_type = Some(7);
    let nodes = vec![node("MatMul", &["x", "w"], &["a"]), gemm, node("Gather", &["e", "i"], &["c"])];
    let (wide, narrow) = (INPUTS.to_string(), OUTPUTS.to_string());
    let results = vec![port("a", &["m", &narrow]), port("b", &["m", &narrow]), port("c", &["n", &wide])];
    let graph = graph(vec![port("x", &["m", &wide]), rows], initializers, nodes, results);
    let path = folder.join("model.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    path
}

/// The weights as the compiled model has them: `w`, `t` transposed, `e`.
fn decoded(model: &Model) -> [Vec<f32>; 3] {
    let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
    let identity: Vec<f32> = (0..INPUTS * INPUTS).map(|at| f32::from(u8::from(at / INPUTS == at % INPUTS))).collect();
    let x = Tensor::from_elements(&[INPUTS, INPUTS], &identity).unwrap();
    let rows: Vec<i64> = (0..OUTPUTS as i64).collect();
    let inputs = vec![("x".to_string(), x.into()), ("i".to_string(), Tensor::vector_i64(&rows).into())];
    let outputs = session.run(None, inputs).unwrap();
    [0, 1, 2].map(|at| outputs[at].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec())
}

fn record<'a>(manifest: &'a Manifest, name: &str) -> &'a WeightRecord {
    manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap()
}

/// What rounding gives by itself, in the shape of the weight.
fn rounded(elements: &[f32], scheme: Scheme) -> Vec<f32> {
    let all = 0..scheme.matrix.outputs;
    let read = |first: u64, to: &mut [f32]| -> Result<(), ()> {
        to.copy_from_slice(&elements[first as usize..][..to.len()]);
        Ok(())
    };
    let values = scheme.values(&all, read).unwrap();
    let region = Region::of(scheme, 0, &values).unwrap();
    let mut codes = vec![0; (elements.len() * scheme.code.bits()).div_ceil(8)];
    region.read(Part::Codes, 0, &mut codes);
    let codes = ipuc_formats::tensor::unpack_codes(&codes, scheme.code.bits(), elements.len());
    let blocks = scheme.blocks() as usize;
    let (outputs, inputs) = (scheme.matrix.outputs as usize, scheme.matrix.inputs as usize);
    let block = if scheme.block == 0 { inputs } else { scheme.block as usize };
    let mut zeros = vec![0; (outputs * blocks * scheme.code.bits()).div_ceil(8)];
    region.read(Part::ZeroPoints, 0, &mut zeros);
    let zeros = ipuc_formats::tensor::unpack_codes(&zeros, scheme.code.bits(), outputs * blocks);
    let mut factors = vec![0; outputs * 4];
    region.read(Part::OutputScales, 0, &mut factors);
    let factors: Vec<f32> = factors.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let value = |(at, code): (usize, &u8)| {
        let (output, input, plane) = match scheme.matrix.output_axis {
            0 => (at / inputs, at % inputs, at / inputs * blocks + at % inputs / block),
            _ => (at % outputs, at / outputs, at / outputs / block * outputs + at % outputs),
        };
        let scale = factors[output] * region.scales()[output * blocks + input / block];
        if scheme.code.is_float() {
            return narrow::decode(scheme.code, *code) * scale;
        }
        let half = 1i32 << (scheme.code.bits() - 1);
        let code = i32::from(*code);
        let code = if !scheme.has_zero_points() && code >= half { code - 2 * half } else { code };
        let zero = i32::from(zeros[plane]);
        (code - zero) as f32 * scale
    };
    codes.iter().enumerate().map(value).collect()
}

#[test]
fn files_hold_what_rounding_gives_whatever_the_threads_and_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let elements = elements(INPUTS * OUTPUTS);
    let onnx = write_model(folder.path(), &elements);
    let integers = ["i8", "i8:32", "i4:32", "i4:channel", "i2:64"];
    for precision in
        integers.into_iter().chain(["fp8", "fp8:32", "fp8_e5m2", "fp8_e5m2:64", "mxfp4", "nvfp4", "i4_e4m3"])
    {
        let each = ["w", "t", "e"].map(|name| (name.to_string(), precision.parse().unwrap())).to_vec();
        let weights = WeightOptions { each, ..WeightOptions::default() };
        let options = CompileOptions { weights, chunk_bytes: Some(64 << 10), ..CompileOptions::default() };
        let file = |name: &str, options: &CompileOptions, threads: usize| {
            let path = folder.path().join(name);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let compiled = pool.install(|| compile(&[source(onnx.clone())], &path, options)).unwrap();
            (path, compiled.emitted.manifest)
        };
        let (one, manifest) = file("one.ipu", &options, 1);
        let (other, _) = file("other.ipu", &CompileOptions { memory: Some(3 << 20), ..options.clone() }, 3);
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap(), "{precision}");
        let model = open(&one).unwrap();
        let [w, t, e] = decoded(&model);
        let (inputs, outputs) = (INPUTS as u64, OUTPUTS as u64);
        let expected = |name: &str, output_axis| {
            let encoding = record(&manifest, name).encoding.clone();
            let planes = encoding.encoding().planes();
            let scale = planes.iter().rfind(|plane| plane.role == PlaneRole::Scale).unwrap();
            let matrix = WeightMatrix { groups: 1, inputs, outputs, output_axis };
            let scheme = Scheme { code: encoding.dtype(), scale: scale.dtype, block: scale.block, matrix };
            rounded(&elements, scheme)
        };
        assert!(w == expected("w", 1), "{precision}");
        let transposed: Vec<f32> = (0..t.len()).map(|at| t[at % INPUTS * OUTPUTS + at / INPUTS]).collect();
        assert!(transposed == expected("t", 0), "{precision}");
        assert!(e == expected("e", 0), "{precision}");
    }
}

#[test]
fn the_command_line_gives_the_bytes_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = write_model(folder.path(), &elements(INPUTS * OUTPUTS));
    let (by_command, by_library) = (folder.path().join("command.ipu"), folder.path().join("library.ipu"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.arg("compile").arg(&onnx).arg("-o").arg(&by_command).args(arguments).output().unwrap()
    };
    let output = run(&["--weights", "i4:64", "--keep", "t", "--weights-for", "Gather_?=i8:16"]);
    assert!(output.status.success(), "{output:?}");
    let weights = WeightOptions {
        precision: Some(Precision::Codes { bits: 4, block: 64 }),
        budget: None,
        keep: vec!["t".to_string()],
        each: vec![("Gather_?".to_string(), Precision::Codes { bits: 8, block: 16 })],
    };
    let options = CompileOptions { weights, ..CompileOptions::default() };
    let compiled = compile(&[source(onnx.clone())], &by_library, &options).unwrap();
    assert!(std::fs::read(&by_command).unwrap() == std::fs::read(&by_library).unwrap());
    let shown = |name| {
        let WeightRecord { encoding, reason, .. } = record(&compiled.emitted.manifest, name);
        format!("{encoding} because {reason}")
    };
    assert!(shown("w").contains("dtype=i8") && shown("w").contains("the last product before an output with 8 bits"));
    assert!(shown("t").contains("dtype=f32") && shown("t").ends_with("because kept: --keep 't'"), "{}", shown("t"));
    assert!(shown("e").ends_with("because rounded: --weights-for 'Gather_?=i8:16'"), "{}", shown("e"));
    // A budget, too.
    let output = run(&["--size", "200kB"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  w  rounded: --size 200000, i"), "{text}");
    let weights = WeightOptions { budget: Some(Budget::Size(200_000)), ..WeightOptions::default() };
    let options = CompileOptions { weights, ..CompileOptions::default() };
    compile(&[source(onnx.clone())], &by_library, &options).unwrap();
    assert!(std::fs::read(&by_command).unwrap() == std::fs::read(&by_library).unwrap());
    // Inputs that are made up, which is said.
    let output = run(&["--weights", "i4", "--weights-for", "w=i4", "--calibrate-random", "5"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.starts_with("note: made-up inputs say little of what products"), "{said}");
    let own = std::fs::read(&by_command).unwrap();
    assert!(run(&["--weights", "i4", "--weights-for", "w=i4", "--calibrate-random", "5"]).status.success());
    assert!(own == std::fs::read(&by_command).unwrap());
    assert!(run(&["--weights", "i4", "--weights-for", "w=i4", "--calibrate-random", "6"]).status.success());
    assert!(own != std::fs::read(&by_command).unwrap());
    for (code, arguments, message) in [
        (2, &["--weights", "i4", "--keep", "q*"][..], "`q*` names no weight that products or gathers read"),
        (2, &["--weights", "mxfp4:16"], "the blocks of mxfp4 have one size, which is not named"),
        (2, &["--keep", "w"], "--keep names exceptions, and no weight is rounded without --weights"),
        (2, &["--calibrate", "x.npz", "--sparse-activations", "never"], "--calibrate is for weights that are rounded"),
        (
            2,
            &["--calibrate-random", "1", "--sparse-activations", "never"],
            "--calibrate-random is for weights that are rounded (--weights) and for zeros of activations",
        ),
        (2, &["--weights", "i4", "--calibrate", "x.npz", "--calibrate-random", "1"], "cannot be used with"),
        (2, &["--weights", "i4", "--calibrate-tokens", "1"], "required arguments were not provided"),
        (5, &["--weights", "i4", "--calibrate", "missing"], "cannot read the data folder `missing`"),
        (2, &["--size", "1kB"], "weights take at least"),
        (2, &["--max-error", "1.5"], "the error lies between 0 and 1"),
        (2, &["--max-error", "0.1", "--weights", "i4"], "cannot be used with"),
        (2, &["--weights-for", "w"], "expected PATTERN=TYPE, as ffn.*=i4"),
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(message), "{arguments:?}: {text}");
    }
}

#[test]
fn weights_that_codes_cannot_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = |elements: &[f32], precision: &str| {
        let file = folder.path().join("model.ipu");
        let onnx = write_model(folder.path(), elements);
        compile(&[source(onnx)], &file, &weights(precision)).map(|_| open(&file).unwrap())
    };
    let count = INPUTS * OUTPUTS;
    for bad in [f32::NAN, f32::INFINITY] {
        let mut elements = elements(count);
        elements[777] = bad;
        for precision in ["i8", "i4", "i2", "fp8", "fp8_e5m2", "mxfp4", "nvfp4"] {
            let error = compiled(&elements, precision).err().unwrap();
            let CompileError::Emit(_) = &error else { panic!("{error}") };
            let expected = format!("cannot round weight `w`: element 777 is {bad}, which no code stands for");
            assert_eq!(error.to_string(), expected);
        }
        // Floats have them.
        let [w, _, e] = decoded(&compiled(&elements, "bf16").unwrap());
        assert!(e[777].is_nan() == bad.is_nan() && w.iter().any(|value| !value.is_finite()));
    }
    let mut large = elements(count);
    large[5] = 1e6;
    let error = compiled(&large, "f16").err().unwrap().to_string();
    assert_eq!(error, "cannot round weight `w`: element 5 is 1000000, and f16 ends at 65504");
    let coarse = ["i4", "i4:channel", "i4_e4m3", "i2", "nvfp4", "mxfp4"];
    for &precision in ["f16", "bf16", "i8", "i8:32", "fp8", "fp8_e5m2", "fp8:16"].iter().chain(&coarse) {
        let exact = |value: f32| decoded(&compiled(&vec![value; count], precision).unwrap()).concat();
        assert!(exact(0.0).iter().all(|&value| value == 0.0), "{precision}");
        // Powers of two are no nearer to it.
        let most = if precision == "mxfp4" { 0.02 } else { 1.0 / 250.0 };
        assert!(exact(0.37).iter().all(|value| (value - 0.37).abs() < 0.37 * most), "{precision}");
        assert!(exact(1e-42).iter().all(|value| value.abs() <= 2e-42), "{precision}");
    }
    // An outlier spoils its own block only.
    let mut outlier = elements(count);
    outlier[INPUTS * 7 + 40] = 500.0;
    let [_, _, e] = decoded(&compiled(&outlier, "i8:32").unwrap());
    for (at, (found, given)) in e.iter().zip(&outlier).enumerate() {
        let most = if at / INPUTS == 7 && (32..64).contains(&(at % INPUTS)) { 2.0 } else { 0.002 };
        assert!((found - given).abs() <= most, "element {at}: {found} for {given}");
    }
}
