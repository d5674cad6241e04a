//! Pruned models: zeros are left out of the file where that is asked for or pays, and results keep their bits.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use crate::support::{self, Random, graph, model, node, port, tensor};
use ipuc::compile::{Activations, CompileOptions, Source, Sparsity, WeightOptions, compile};
use ipuc::{Model, OpenOptions, Session, SessionOptions, Tensor, Value, open, open_with};
use ipuc_formats::encodings::{Coded, SparsePanels};
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::read_value;
use ipuc_formats::onnx::schema::{ModelProto, TensorProto};
use prost::Message as _;
use std::path::{Path, PathBuf};

/// Which elements of a `[inputs, outputs]` weight become zero.
#[derive(Debug, Clone, Copy)]
enum Pruned {
    /// Of each four inputs of an output the two of least magnitude.
    TwoOfFour,
    /// Of all elements the 70 % of least magnitude.
    SeventyPercent,
    /// Of blocks of 16 outputs by 4 inputs two of three.
    Blocks,
}

fn prune(elements: &mut [f32], outputs: usize, pruned: Pruned) {
    match pruned {
        Pruned::TwoOfFour => {
            for group in elements.chunks_mut(4 * outputs) {
                for output in 0..outputs {
                    let mut places: Vec<usize> = (output..group.len()).step_by(outputs).collect();
                    places.sort_by(|&one, &other| group[one].abs().total_cmp(&group[other].abs()));
                    places.iter().take(2).for_each(|&place| group[place] = 0.0);
                }
            }
        }
        Pruned::SeventyPercent => {
            let mut magnitudes: Vec<f32> = elements.iter().map(|element| element.abs()).collect();
            magnitudes.sort_by(f32::total_cmp);
            let least = magnitudes[magnitudes.len() * 7 / 10];
            // As `weight * mask` has it: zeros have signs.
            elements.iter_mut().filter(|element| element.abs() < least).for_each(|element| *element *= 0.0);
        }
        Pruned::Blocks => {
            for (place, element) in elements.iter_mut().enumerate() {
                let (input, output) = (place / outputs, place % outputs);
                if (input / 4 + output / 16) % 3 > 0 {
                    *element *= 0.0;
                }
            }
        }
    }
}

/// Numbers from -1 to 1, none of which is zero.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| (random.below(20_000) as f32 - 9_999.5) / 10_000.0).collect()
}

const WIDTHS: [usize; 3] = [512, 700, 64];

/// `y = relu(x · v) · w` with pruned weights.
fn two_layers(folder: &Path, pruned: Pruned, change: impl Fn(&mut [f32])) -> PathBuf {
    let [inputs, hidden, outputs] = WIDTHS;
    let weight = |name: &str, seed, rows: usize, columns: usize| {
        let mut elements = numbers(seed, rows * columns);
        prune(&mut elements, columns, pruned);
        change(&mut elements);
        tensor(name, &[rows as i64, columns as i64], &elements)
    };
    let weights = vec![weight("v", 1, inputs, hidden), weight("w", 2, hidden, outputs)];
    let nodes =
        vec![node("MatMul", &["x", "v"], &["h"]), node("Relu", &["h"], &["r"]), node("MatMul", &["r", "w"], &["y"])];
    let (inputs, outputs) = (inputs.to_string(), outputs.to_string());
    let ports = (vec![port("x", &["n", &inputs])], vec![port("y", &["n", &outputs])]);
    let path = folder.join("model.onnx");
    std::fs::write(&path, model(graph(ports.0, weights, nodes, ports.1))).unwrap();
    path
}

fn compiled(path: &Path, name: &str, options: CompileOptions) -> (PathBuf, Manifest) {
    let file = path.with_file_name(name);
    let compiled = compile(&[Source { entry: "main".to_string(), path: path.to_owned() }], &file, &options).unwrap();
    (file, compiled.emitted.manifest)
}

fn record<'a>(manifest: &'a Manifest, name: &str) -> &'a WeightRecord {
    manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap()
}

fn stored_bytes(manifest: &Manifest, weight: &WeightRecord) -> u64 {
    weight.parts.iter().map(|part| manifest.extents[part.extent as usize].length).sum()
}

fn all_bytes(manifest: &Manifest) -> u64 {
    manifest.extents.iter().map(|extent| extent.length).sum()
}

/// The bits of all outputs.
fn bits(model: &Model, inputs: Vec<(String, Value)>) -> Vec<Vec<u8>> {
    let mut session = Session::new(model, &SessionOptions { threads: 2, seed: 0 }).unwrap();
    // The second run of a streamed model reads again what has made room.
    session.run(None, inputs.clone()).unwrap();
    let outputs = session.run(None, inputs).unwrap();
    outputs.iter().map(|(_, value)| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

/// The file in the least memory of several that is enough for it.
fn streamed(file: &Path) -> Model {
    let length = std::fs::metadata(file).unwrap().len();
    let within = |share: u64| {
        open_with(
            file,
            OpenOptions { memory_bytes: Some((length * share / 8).max(320 << 10)), ..OpenOptions::default() },
        )
        .ok()
    };
    (5..16).find_map(within).unwrap()
}

fn rows(count: usize) -> Vec<(String, Value)> {
    let x = Tensor::from_elements(&[count, WIDTHS[0]], &numbers(7, count * WIDTHS[0])).unwrap();
    vec![("x".to_string(), x.into())]
}

#[test]
fn results_keep_their_bits_without_zeros() {
    for pruned in [Pruned::TwoOfFour, Pruned::SeventyPercent, Pruned::Blocks] {
        let folder = tempfile::tempdir().unwrap();
        let path = two_layers(folder.path(), pruned, |_| {});
        for (precision, activations) in [
            (None, Activations::Model),
            (Some("bf16"), Activations::Model),
            (Some("i8"), Activations::Model),
            (Some("i8:32"), Activations::I8),
            (Some("i8"), Activations::I8),
        ] {
            let options = |sparsity| CompileOptions {
                sparsity,
                activations,
                weights: WeightOptions {
                    precision: precision.map(|precision| precision.parse().unwrap()),
                    ..WeightOptions::default()
                },
                chunk_bytes: Some(64 << 10),
                ..CompileOptions::default()
            };
            let (dense_file, dense) = compiled(&path, "dense.ipu", options(Sparsity::Never));
            let (file, sparse) = compiled(&path, "sparse.ipu", options(Sparsity::Always));
            for name in ["v", "w"] {
                let weight = record(&sparse, name);
                let Coded::SparsePanels(SparsePanels { capacity, in_lines, .. }) = weight.encoding else {
                    panic!("{name}: {} because {}", weight.encoding, weight.reason)
                };
                if let Pruned::TwoOfFour = pruned {
                    assert_eq!(capacity, 2048);
                    assert_eq!(weight.zeros.as_ref().unwrap().two_of_four_share(), 1.0);
                }
                assert!(record(&dense, name).encoding.as_panels().is_some());
                let share = stored_bytes(&sparse, weight) as f64 / stored_bytes(&dense, record(&dense, name)) as f64;
                // 700 inputs are two whole records and one of 188, which has as much room.
                let width = weight.encoding.encoding().dtype().bits() as f64;
                assert_eq!(in_lines, matches!(pruned, Pruned::Blocks), "{name}: {}", weight.encoding);
                let values = if let Pruned::TwoOfFour = pruned { 0.5 } else { 0.36 };
                assert!(share < values + 1.0 / width + 0.09, "{name} of {width} bits: {share}");
            }
            let (dense, sparse) = (open(&dense_file).unwrap(), open(&file).unwrap());
            for count in [1, 3, 9] {
                let expected = bits(&dense, rows(count));
                assert_eq!(bits(&sparse, rows(count)), expected, "{pruned:?}, {precision:?}, {count} rows");
                assert_eq!(bits(&streamed(&file), rows(count)), expected, "{pruned:?}, {precision:?}, streamed");
            }
        }
    }
}

#[test]
fn zeros_stay_where_leaving_them_out_does_not_pay() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path, sparsity| {
        let (_, manifest) = compiled(path, "model.ipu", CompileOptions { sparsity, ..CompileOptions::default() });
        let weight = record(&manifest, "v");
        assert!(weight.encoding.as_panels().is_some(), "{}", weight.encoding);
        weight.zeros.clone().unwrap().reason
    };
    let path = two_layers(folder.path(), Pruned::SeventyPercent, |_| {});
    assert_eq!(
        reason(&path, Sparsity::Measured),
        "dense: all weights of products take 1620992 bytes, which a cache holds"
    );
    assert_eq!(reason(&path, Sparsity::Never), "dense: zeros are kept as asked for");
    let path = two_layers(folder.path(), Pruned::SeventyPercent, |elements| elements[5] = f32::NAN);
    assert_eq!(reason(&path, Sparsity::Always), "dense: 1 of its elements are NaN or infinite");
    let fill = |elements: &mut [f32]| {
        elements.iter_mut().filter(|element| **element == 0.0).for_each(|element| *element = 1.0)
    };
    let path = two_layers(folder.path(), Pruned::SeventyPercent, fill);
    assert_eq!(reason(&path, Sparsity::Always), "dense: it has no zeros");
    let path = two_layers(folder.path(), Pruned::SeventyPercent, |elements| {
        fill(elements);
        elements[..100].fill(0.0);
    });
    assert_eq!(reason(&path, Sparsity::Always), "dense: a mask of its 0.0 % zeros would take more bytes than they do");
}

/// The weight as elements of f32, where it is a pruned product's.
fn pruned_weight(weight: &TensorProto) -> Option<(Vec<f32>, usize)> {
    let is_product = weight.name().starts_with("val_") && weight.dims.len() == 2 && weight.data_type == Some(1);
    let bytes = weight.raw_data.as_ref().filter(|_| is_product)?;
    let elements = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Some((elements, weight.dims[1] as usize))
}

#[test]
fn a_pruned_real_model_keeps_its_bits() {
    let case = support::cases().join("bert_mini");
    if !case.is_dir() {
        eprintln!("no case `bert_mini`: skipped");
        return;
    }
    for (pruned, least, most) in [(Pruned::TwoOfFour, 0.5, 0.7), (Pruned::SeventyPercent, 0.3, 0.6)] {
        let folder = tempfile::tempdir().unwrap();
        let mut proto = ModelProto::decode(std::fs::read(case.join("model.onnx")).unwrap().as_slice()).unwrap();
        let mut count = 0;
        for weight in &mut proto.graph.as_mut().unwrap().initializer {
            let Some((mut elements, outputs)) = pruned_weight(weight) else { continue };
            prune(&mut elements, outputs, pruned);
            weight.raw_data = Some(elements.iter().flat_map(|element| element.to_le_bytes()).collect());
            count += 1;
        }
        assert_eq!(count, 24);
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, proto.encode_to_vec()).unwrap();
        for precision in [None, Some("i8")] {
            let options = |sparsity| CompileOptions {
                sparsity,
                weights: WeightOptions {
                    precision: precision.map(|precision: &str| precision.parse().unwrap()),
                    keep: precision.iter().map(|_| "m.embeddings*".to_string()).collect(),
                    ..WeightOptions::default()
                },
                chunk_bytes: Some(256 << 10),
                ..CompileOptions::default()
            };
            let (dense_file, dense) = compiled(&path, "dense.ipu", options(Sparsity::Never));
            let (file, sparse) = compiled(&path, "sparse.ipu", options(Sparsity::Always));
            let weights = |manifest: &Manifest| -> u64 {
                let products = manifest.weights.iter().filter(|weight| weight.encoding.dense_panels().is_some());
                products.map(|weight| stored_bytes(manifest, weight)).sum()
            };
            let share = weights(&sparse) as f64 / weights(&dense) as f64;
            eprintln!(
                "{pruned:?}, {precision:?}: {share:.3} of the bytes, {} of {}",
                all_bytes(&sparse),
                all_bytes(&dense)
            );
            assert!((least..most).contains(&share), "{pruned:?}, {precision:?}: {share}");
            let (dense, sparse) = (open(&dense_file).unwrap(), open(&file).unwrap());
            let set = case.join("test_data_set_0");
            let ports = dense.inputs(dense.entry(None).unwrap()).into_iter().enumerate();
            let inputs: Vec<(String, Value)> = ports
                .map(|(index, port)| {
                    let bytes = std::fs::read(set.join(format!("input_{index}.pb"))).unwrap();
                    (port.name, read_value(&bytes, &port.kind).unwrap())
                })
                .collect();
            let expected = bits(&dense, inputs.clone());
            assert!(bits(&sparse, inputs.clone()) == expected, "{pruned:?}, {precision:?}");
            assert!(bits(&streamed(&file), inputs) == expected, "{pruned:?}, {precision:?}, streamed");
        }
    }
}
