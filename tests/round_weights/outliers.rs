//! Weights far larger than the others of their output.

use super::*;

/// Where one weight of each output is far larger than the others, 8 bits have scales of blocks, and errors become small.
#[test]
fn outliers_do_not_take_the_precision_of_their_output() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.ipu");
    let mut elements = elements(INPUTS * OUTPUTS);
    let encoding = |elements: &[f32]| {
        let sources = [source(write_model(folder.path(), elements))];
        let compiled = compile(&sources, &file, &weights("i8")).unwrap();
        record(&compiled.emitted.manifest, "e").encoding.to_string()
    };
    assert!(encoding(&elements).contains("scale f32 0"));
    (0..OUTPUTS).for_each(|output| elements[output * INPUTS + output] = 60.0);
    let blocks = encoding(&elements);
    assert!(blocks.contains("scale f16 32"), "{blocks}");
    let [_, _, e] = decoded(&open(&file).unwrap());
    let own = |(at, (found, given)): (usize, (&f32, &f32))| {
        let is_near = at % INPUTS / 32 == at / INPUTS / 32;
        (!is_near).then_some((found - given).abs())
    };
    let most = e.iter().zip(&elements).enumerate().filter_map(own).fold(0.0f32, f32::max);
    assert!(most < 0.01, "off by {most}");
}

const SIDE: usize = 16;

/// A convolution with 3 by 3 filters of 16 channels.
fn write_filters(folder: &Path, elements: &[f32]) -> PathBuf {
    let (channels, filters) = (SIDE as i64, elements.len() as i64 / (SIDE as i64 * 9));
    let initializers = vec![tensor("w", &[filters, channels, 3, 3], elements)];
    let nodes = vec![node("Conv", &["x", "w"], &["y"])];
    let inputs = vec![port("x", &["1", &SIDE.to_string(), "5", "5"])];
    let graph = graph(inputs, initializers, nodes, vec![port("y", &["1", &filters.to_string(), "3", "3"])]);
    let path = folder.join("filters.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    path
}

/// Filters have no blocks: those that 8 bits do not suit have floats of 16 bits, or stay where these end too early.
#[test]
fn filters_with_outliers_are_floats() {
    let folder = tempfile::tempdir().unwrap();
    let stored = |elements: &[f32], options: CompileOptions| {
        let sources = [source(write_filters(folder.path(), elements))];
        let compiled = compile(&sources, &folder.path().join("filters.ipu"), &options).unwrap();
        let weight = record(&compiled.emitted.manifest, "w");
        (weight.encoding.to_string(), weight.reason.clone())
    };
    let even = elements(32 * SIDE * 9);
    let (encoding, reason) = stored(&even, weights("i8"));
    assert!(encoding.contains("dtype=i8"), "{encoding}");
    assert_eq!(reason, "rounded: --weights i8:channel");
    // One weight takes the scale of its output.
    let mut single = even.clone();
    single[100] = 30.0;
    let (encoding, reason) = stored(&single, weights("i8"));
    assert!(encoding.contains("dtype=f16"), "{encoding}");
    let share = "codes of 8 bits would lose 5.9 % of small weights beside large ones";
    assert_eq!(reason, format!("rounded: --weights i8:channel, but {share}"));
    // A channel has small weights in all outputs.
    let mut small = even.clone();
    let of_channel = |at: usize| at / 9 % SIDE == 3;
    small.iter_mut().enumerate().filter(|(at, _)| of_channel(*at)).for_each(|(_, weight)| *weight *= 1e-3);
    let (encoding, reason) = stored(&small, weights("i8"));
    assert!(encoding.contains("dtype=f16") && reason.contains("would lose 25.0 % of"), "{encoding}: {reason}");
    // Of 4 bits, which convolutions do not get, the policy is the same.
    let (encoding, _) = stored(&small, weights("i4"));
    assert!(encoding.contains("dtype=f16"), "{encoding}");
    // f16 ends at 65504.
    let mut large = even.clone();
    large[100] = 1e6;
    let (encoding, reason) = stored(&large, weights("i8"));
    assert!(
        encoding.contains("dtype=f32") && reason.starts_with("kept: codes of 8 bits would lose"),
        "{encoding}: {reason}"
    );
    // Who names a weight gets what is asked for.
    let mut named = weights("i8");
    named.weights.each.push(("w".to_string(), "i8".parse().unwrap()));
    let (encoding, _) = stored(&single, named);
    assert!(encoding.contains("dtype=i8"), "{encoding}");
}
