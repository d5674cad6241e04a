//! Products whose activations are zero leave inputs out: they are chosen by what makes the zeros or by what calibration has
//! counted, results keep their bits, and what is left out is counted.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{Random, graph, model, node, port, tensor};
use ipuc::calibrate::Calibrator;
use ipuc::compile::{ActivationSparsity, Activations, CompileOptions, Source, WeightOptions, compile};
use ipuc::{Model, OpenOptions, Session, SessionOptions, Tensor, Value, open, open_with};
use ipuc_formats::encodings::Coded;
use ipuc_formats::model::{Manifest, OperandRecord, StepRecord, WeightRecord};
use ipuc_formats::onnx::schema::TensorProto;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const INPUTS: usize = 96;
const HIDDEN: usize = 700;
const OUTPUTS: usize = 300;
/// f32 of a run of outputs that is read from the disk and checked at a time.
const LONG_RUN: usize = 1024;

/// Numbers from -1 to 1, none of which is zero.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| (random.below(20_000) as f32 - 9_999.5) / 10_000.0).collect()
}

/// `h = relu(x · v + b)`, `y = h · w`: the bias decides how many of h are zero. `h` is an output, too.
fn block(folder: &Path, bias: f32, change: impl Fn(&mut [f32])) -> PathBuf {
    sized_block(folder, bias, [HIDDEN, OUTPUTS], change)
}

fn sized_block(
    folder: &Path,
    bias: f32,
    [hidden_width, output_width]: [usize; 2],
    change: impl Fn(&mut [f32]),
) -> PathBuf {
    let v = numbers(1, INPUTS * hidden_width);
    let mut w = numbers(2, hidden_width * output_width);
    change(&mut w);
    let weights = vec![
        tensor("v", &[INPUTS as i64, hidden_width as i64], &v),
        tensor("b", &[hidden_width as i64], &vec![bias; hidden_width]),
        tensor("w", &[hidden_width as i64, output_width as i64], &w),
    ];
    let nodes = vec![
        node("MatMul", &["x", "v"], &["p"]),
        node("Add", &["p", "b"], &["q"]),
        node("Relu", &["q"], &["h"]),
        node("MatMul", &["h", "w"], &["y"]),
    ];
    let [inputs, hidden, outputs] = [INPUTS, hidden_width, output_width].map(|extent| extent.to_string());
    let results = vec![port("y", &["n", &outputs]), port("h", &["n", &hidden])];
    let path = folder.join("model.onnx");
    std::fs::write(&path, model(graph(vec![port("x", &["n", &inputs])], weights, nodes, results))).unwrap();
    path
}

fn source(path: &Path) -> Source {
    Source { entry: "main".to_string(), path: path.to_owned() }
}

fn compiled(path: &Path, name: &str, options: CompileOptions) -> (PathBuf, Manifest) {
    let file = path.with_file_name(name);
    let compiled = compile(&[source(path)], &file, &options).unwrap();
    (file, compiled.emitted.manifest)
}

fn record<'a>(manifest: &'a Manifest, name: &str) -> &'a WeightRecord {
    manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap()
}

fn rows(count: usize) -> Vec<(String, Value)> {
    let x = Tensor::from_elements(&[count, INPUTS], &numbers(7, count * INPUTS)).unwrap();
    vec![("x".to_string(), x.into())]
}

/// The outputs, and what was left out.
fn run(model: &Model, count: usize) -> (Vec<Tensor>, ipuc_runtime::Skipped) {
    let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
    // The second run of a streamed model reads again what has made room.
    session.run(None, rows(count)).unwrap();
    let outputs = session.run(None, rows(count)).unwrap();
    (outputs.into_iter().map(|(_, value)| value.as_tensor().unwrap().clone()).collect(), session.skipped())
}

/// The file in the least memory that is enough for it, and room for a run, which needs some beside what opening does.
fn streamed(file: &Path) -> Model {
    let within =
        |memory_bytes: u64| open_with(file, OpenOptions { memory_bytes: Some(memory_bytes), ..OpenOptions::default() });
    let least = (1..64).map(|step| step << 16).find(|&memory_bytes| within(memory_bytes).is_ok()).unwrap();
    within(least + (256 << 10)).unwrap()
}

#[test]
fn results_keep_their_bits_and_what_is_left_out_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = block(folder.path(), -2.0, |_| {});
    for (precision, activations) in [
        (None, Activations::Model),
        (Some("f16"), Activations::Model),
        (Some("bf16"), Activations::Model),
        (Some("i8"), Activations::Model),
        (Some("i8"), Activations::I8),
        (Some("i8:128"), Activations::I8),
        (Some("i4:128"), Activations::Model),
        (Some("i4:128"), Activations::I8),
    ] {
        let options = |activation_sparsity| CompileOptions {
            activation_sparsity,
            activations,
            weights: WeightOptions {
                precision: precision.map(|precision| precision.parse().unwrap()),
                each: precision.iter().map(|precision| ("w".to_string(), precision.parse().unwrap())).collect(),
                ..WeightOptions::default()
            },
            chunk_bytes: Some(64 << 10),
            ..CompileOptions::default()
        };
        let (dense_file, dense) = compiled(&path, "dense.ipu", options(ActivationSparsity::Never));
        let (file, manifest) = compiled(&path, "runs.ipu", options(ActivationSparsity::Always));
        assert!(record(&dense, "w").encoding.as_panels().is_some());
        // Nothing makes zeros of what the first product reads.
        assert!(record(&manifest, "v").encoding.as_panels().is_some());
        let weight = record(&manifest, "w");
        let Coded::InputMajor(runs) = &weight.encoding else { panic!("{} because {}", weight.encoding, weight.reason) };
        assert!(weight.reason.ends_with("input by input: relu makes activations zero"), "{}", weight.reason);
        let (dense, model) = (open(&dense_file).unwrap(), open(&file).unwrap());
        for count in [1, 3, 9] {
            let (expected, none) = run(&dense, count);
            let (found, skipped) = run(&model, count);
            let context = format!("{precision:?}, {activations:?}, {count} rows");
            assert_eq!(found, expected, "{context}");
            assert_eq!(run(&streamed(&file), count), (expected.clone(), skipped), "{context}, streamed");
            assert_eq!((none.multiplications, none.bytes), (0, 0), "{context}");
            // Activations in codes are zero where values are, and where they are close to it.
            let hidden = expected[1].elements::<f32>().unwrap();
            let zeros = (0..HIDDEN).filter(|input| (0..count).all(|row| hidden[row * HIDDEN + input] == 0.0)).count();
            let bytes = zeros as u64 * runs.row_bytes() * runs.units_per_group();
            match (count, activations) {
                (9, _) => assert_eq!(skipped.multiplications, 0, "{context}"),
                (_, Activations::I8) => assert!(skipped.bytes >= bytes, "{context}: {skipped:?}"),
                (_, _) => {
                    assert_eq!(skipped.multiplications, (zeros * count * OUTPUTS) as u64, "{context}");
                    assert_eq!(skipped.bytes, bytes, "{context}");
                }
            }
            assert!(count > 1 || zeros > HIDDEN / 2, "{zeros} zeros");
        }
    }
}

#[test]
fn weights_stay_in_panels_where_leaving_out_does_not_pay() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path, options: CompileOptions| {
        let (_, manifest) = compiled(path, "model.ipu", options);
        let weight = record(&manifest, "w");
        assert!(weight.encoding.as_panels().is_some(), "{}", weight.encoding);
        weight.zeros.clone().unwrap().reason
    };
    let asked = |activation_sparsity| CompileOptions { activation_sparsity, ..CompileOptions::default() };
    let path = block(folder.path(), 0.0, |_| {});
    let relu = "dense: it has no zeros; relu makes activations zero";
    let small = reason(&path, CompileOptions::default());
    assert_eq!(small, format!("{relu}, but a cache holds all weights of products"));
    let never = reason(&path, asked(ActivationSparsity::Never));
    assert_eq!(never, format!("{relu}, and zeros are multiplied as asked for"));
    let coded = CompileOptions {
        weights: WeightOptions { each: vec![("w".to_string(), "i4:32".parse().unwrap())], ..WeightOptions::default() },
        ..asked(ActivationSparsity::Always)
    };
    let fine = reason(&path, coded);
    assert!(fine.ends_with("but a plane `scale f16 32` input by input is not supported"), "{fine}");
    for unusual in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let path = block(folder.path(), 0.0, |w| w[5] = unusual);
        assert_eq!(
            reason(&path, asked(ActivationSparsity::Always)),
            "dense: it has no zeros; relu makes activations zero, but it has NaN or infinities, whose products with zero are NaN"
        );
    }
}

/// What is done to a weight.
type Change<'a> = &'a dyn Fn(&mut [f32]);

/// The NaN of a weight whose activation is zero is seen; denormals, zeros, constants and one huge outlier are numbers.
#[test]
fn weights_of_any_kind_keep_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    let changes: [(&str, Change<'_>); 6] = [
        ("NaN", &|w| w[OUTPUTS * 3 + 1] = f32::NAN),
        ("infinity", &|w| w[OUTPUTS * 9 + 1] = f32::INFINITY),
        ("denormals", &|w| w.iter_mut().for_each(|w| *w *= 1e-38)),
        ("all zero", &|w| w.fill(0.0)),
        ("constant", &|w| w.fill(-0.25)),
        ("one huge outlier", &|w| w[OUTPUTS * 4 + 7] = 3e38),
    ];
    for (name, change) in changes {
        let path = block(folder.path(), -1.0, change);
        for precision in [None, Some("i8:channel")] {
            let finite = !matches!(name, "NaN" | "infinity");
            if precision.is_some() && !finite {
                // Codes have no NaN: rounding refuses it, or leaves the weight as it is.
                continue;
            }
            let options = |activation_sparsity| CompileOptions {
                activation_sparsity,
                weights: WeightOptions {
                    each: precision.iter().map(|precision| ("w".to_string(), precision.parse().unwrap())).collect(),
                    ..WeightOptions::default()
                },
                ..CompileOptions::default()
            };
            let (dense, _) = compiled(&path, "dense.ipu", options(ActivationSparsity::Never));
            let (file, manifest) = compiled(&path, "runs.ipu", options(ActivationSparsity::Always));
            assert_eq!(record(&manifest, "w").encoding.as_input_major().is_some(), finite, "{name}");
            let bits = |file: &Path| -> Vec<Vec<u8>> {
                run(&open(file).unwrap(), 1).0.iter().map(|tensor| tensor.bytes().to_vec()).collect()
            };
            assert_eq!(bits(&file), bits(&dense), "{name} as {precision:?}");
        }
    }
}

#[test]
fn calibration_counts_zeros() {
    let folder = tempfile::tempdir().unwrap();
    for (bias, chosen) in [(-2.0, true), (20.0, false)] {
        let path = block(folder.path(), bias, |_| {});
        let options = CompileOptions { activation_sparsity: ActivationSparsity::Always, ..CompileOptions::default() };
        let mut calibrator = Calibrator::new(&[source(&path)], &options).unwrap();
        calibrator.run(None, rows(16)).unwrap();
        let options = CompileOptions { calibration: Arc::new(calibrator.finish().unwrap()), ..options };
        let (file, manifest) = compiled(&path, "measured.ipu", options);
        let weight = record(&manifest, "w");
        assert_eq!(weight.encoding.as_input_major().is_some(), chosen, "{}", weight.encoding);
        let hidden = run(&open(&file).unwrap(), 16).0.remove(1);
        let zeros = hidden.elements::<f32>().unwrap().iter().filter(|value| **value == 0.0).count();
        let share = 100.0 * zeros as f64 / (16 * HIDDEN) as f64;
        let reason = &weight.zeros.as_ref().unwrap().reason;
        let expected = if chosen {
            format!("input by input: {share:.1} % of its activations are zero")
        } else {
            "dense: it has no zeros; 0.0 % of its activations are zero, and leaving these out pays from 30 % on"
                .to_string()
        };
        assert!(reason.ends_with(&expected), "{reason}");
    }
}

/// Rows that are flattened before a product: `fuse` gives the product the value before that, of which nothing was counted, and an
/// entry for prompts has values of its own.
#[test]
fn zeros_that_were_counted_reach_products_that_fuse_changes() {
    let folder = tempfile::tempdir().unwrap();
    let v = numbers(1, INPUTS * HIDDEN);
    let shape = |name: &str, elements: [i64; 3]| {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        TensorProto { data_type: Some(7), raw_data: Some(bytes), ..tensor(name, &[3], &[]) }
    };
    let flat = TensorProto {
        data_type: Some(7),
        raw_data: Some([-1, HIDDEN as i64].iter().flat_map(|element| element.to_le_bytes()).collect()),
        ..tensor("flat", &[2], &[])
    };
    let weights = vec![
        tensor("v", &[INPUTS as i64, HIDDEN as i64], &v),
        tensor("b", &[HIDDEN as i64], &vec![-2.0; HIDDEN]),
        tensor("w", &[HIDDEN as i64, OUTPUTS as i64], &numbers(2, HIDDEN * OUTPUTS)),
        flat,
        shape("back", [-1, 2, OUTPUTS as i64]),
    ];
    let nodes = vec![
        node("MatMul", &["x", "v"], &["p"]),
        node("Add", &["p", "b"], &["q"]),
        node("Relu", &["q"], &["h"]),
        node("Reshape", &["h", "flat"], &["f"]),
        node("MatMul", &["f", "w"], &["r"]),
        node("Reshape", &["r", "back"], &["y"]),
    ];
    let [inputs, outputs] = [INPUTS, OUTPUTS].map(|extent| extent.to_string());
    let graph = graph(vec![port("x", &["n", "2", &inputs])], weights, nodes, vec![port("y", &["n", "2", &outputs])]);
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    let options = CompileOptions { activation_sparsity: ActivationSparsity::Always, ..CompileOptions::default() };
    let mut calibrator = Calibrator::new(&[source(&path)], &options).unwrap();
    let x = Tensor::from_elements(&[8, 2, INPUTS], &numbers(7, 16 * INPUTS)).unwrap();
    calibrator.run(None, vec![("x".to_string(), x.into())]).unwrap();
    let options = CompileOptions { calibration: Arc::new(calibrator.finish().unwrap()), ..options };
    let (_, manifest) = compiled(&path, "measured.ipu", options);
    let products: Vec<&StepRecord> =
        manifest.blocks[0].steps.iter().filter(|step| step.op.name() == "matmul").collect();
    let ranks: Vec<Option<usize>> = products
        .iter()
        .map(|step| match step.operands[0] {
            OperandRecord::Value(slot) => {
                manifest.blocks[0].values[slot as usize].kind.as_tensor().and_then(|(_, shape)| shape.rank())
            }
            OperandRecord::Weight(_) | OperandRecord::Absent => None,
        })
        .collect();
    assert_eq!(ranks, [Some(3), Some(3)], "the second product reads rows as they were before they were flattened");
    let reason = &record(&manifest, "w").zeros.as_ref().unwrap().reason;
    assert!(reason.contains(" % of its activations are zero"), "{reason}");
}

/// Small activations are zero where that is asked for: results are those of inputs without them, the error is measured, and NaN stays.
#[test]
fn small_activations_are_taken_as_zero_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let weights = vec![tensor("w", &[HIDDEN as i64, OUTPUTS as i64], &numbers(2, HIDDEN * OUTPUTS))];
    let [hidden, outputs] = [HIDDEN, OUTPUTS].map(|extent| extent.to_string());
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let graph = graph(vec![port("x", &["n", &hidden])], weights, nodes, vec![port("y", &["n", &outputs])]);
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    let mut x: Vec<f32> = numbers(7, 4 * HIDDEN).iter().map(|value| value.powi(5)).collect();
    let given = |x: &[f32]| vec![("x".to_string(), Tensor::from_elements(&[4, HIDDEN], x).unwrap().into())];
    let options = CompileOptions {
        activation_sparsity: ActivationSparsity::Always,
        sparse_threshold: Some(0.05),
        ..CompileOptions::default()
    };
    let refused = |options: CompileOptions| {
        compile(&[source(&path)], &folder.path().join("none.ipu"), &options).unwrap_err().to_string()
    };
    let error = refused(options.clone());
    assert!(error.contains("activations that are taken as zero take calibration"), "{error}");
    let error = refused(CompileOptions { sparse_threshold: Some(1.5), ..options.clone() });
    assert!(error.contains("between 0 and 1, and not below 1.5"), "{error}");
    let mut calibrator = Calibrator::new(&[source(&path)], &options).unwrap();
    calibrator.run(None, given(&x)).unwrap();
    let calibration = calibrator.finish().unwrap();
    let spread = calibration.spreads.values().next().unwrap();
    let threshold = spread.threshold(0.05);
    let [share, squares] = spread.below(threshold);
    let small = x.iter().filter(|value| value.abs() < threshold).count();
    assert_eq!(share, small as f64 / x.len() as f64);
    assert!((0.3..0.6).contains(&share) && squares < 1e-3, "{share} {squares}");
    let [with, without] = calibration.threshold_errors.unwrap();
    assert!(with > 0.0 && with < 0.03 && without == 0.0, "{with} {without}");
    let (file, manifest) = compiled(&path, "cut.ipu", CompileOptions { calibration: Arc::new(calibration), ..options });
    let names: Vec<&str> = manifest.blocks[0].steps.iter().map(|step| step.op.name()).collect();
    assert_eq!(names, ["map", "matmul"]);
    let reason = &record(&manifest, "w").zeros.as_ref().unwrap().reason;
    let expected = format!(" a product of one row reads {:.1} % of the weight", 100.0 * (1.0 - share));
    assert!(reason.contains("are zero or up to") && reason.ends_with(&expected), "{reason}");
    let (dense, _) = compiled(&path, "dense.ipu", CompileOptions::default());
    let run = |file: &Path, x: &[f32]| {
        let opened = open(file).unwrap();
        let mut session = Session::new(&opened, &SessionOptions { threads: 1, seed: 0 }).unwrap();
        session.run(None, given(x)).unwrap()[0].1.as_tensor().unwrap().elements::<f32>().unwrap().to_vec()
    };
    let cut: Vec<f32> = x.iter().map(|&value| if value.abs() <= threshold { 0.0 } else { value }).collect();
    assert_eq!(run(&file, &x), run(&dense, &cut));
    x[3] = f32::NAN;
    let found = run(&file, &x);
    assert!(
        found[..OUTPUTS].iter().all(|value| value.is_nan()) && found[OUTPUTS..].iter().all(|value| value.is_finite())
    );
}

#[test]
fn streaming_reads_only_inputs_that_are_not_zero() {
    let folder = tempfile::tempdir().unwrap();
    let path = sized_block(folder.path(), -6.0, [2000, LONG_RUN], |_| {});
    let options = CompileOptions { activation_sparsity: ActivationSparsity::Always, ..CompileOptions::default() };
    let mut calibrator = Calibrator::new(&[source(&path)], &options).unwrap();
    calibrator.run(None, rows(8)).unwrap();
    let calibration = Arc::new(calibrator.finish().unwrap());
    let (dense, _) = compiled(&path, "dense.ipu", CompileOptions::default());
    for chunk_bytes in [1 << 20, 8 << 20] {
        let options =
            CompileOptions { calibration: calibration.clone(), chunk_bytes: Some(chunk_bytes), ..options.clone() };
        let (file, manifest) = compiled(&path, "apart.ipu", options);
        let weight = record(&manifest, "w");
        let Coded::InputMajor(runs) = &weight.encoding else { panic!("{}", weight.encoding) };
        assert!(runs.is_read_apart(), "{}", weight.encoding);
        let bytes: u64 = weight.parts.iter().map(|part| manifest.extents[part.extent as usize].length).sum();
        let dense = open(&dense).unwrap();
        for count in [1, 2, 9] {
            let memory_bytes = Some(8 << 20);
            let model = open_with(&file, OpenOptions { memory_bytes, ..OpenOptions::default() }).unwrap();
            let mut session = Session::new(&model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
            let found = session.run(None, rows(count)).unwrap();
            let (expected, _) = run(&dense, count);
            for ((_, found), expected) in found.iter().zip(&expected) {
                assert_eq!(found.as_tensor().unwrap(), expected, "{count} rows");
            }
            let hidden = expected[1].elements::<f32>().unwrap();
            let active =
                (0..2000).filter(|input| (0..count).any(|row| hidden[row * 2000 + input] != 0.0)).count() as u64;
            let pass = session.last_pass().unwrap();
            let skipped = session.skipped();
            if count > 4 {
                assert_eq!((pass.chosen_bytes, skipped.bytes), (0, 0));
                assert!(pass.unplanned_bytes >= bytes, "{pass:?}");
                continue;
            }
            assert_eq!(skipped.bytes, (2000 - active) * 4096);
            assert!((active * 4096..bytes / 2).contains(&pass.chosen_bytes), "{active} inputs: {pass:?}");
            assert!(pass.row_bytes < bytes / 2 && pass.unplanned_bytes == 0, "{active} inputs: {pass:?}");
        }
    }
}
