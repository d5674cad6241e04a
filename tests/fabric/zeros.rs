//! Zeros of activations that are left out.

use super::{SMALL_DECODER, close, described, with_options};
use crate::models::{F16, Weights, decode, gemm};
use ipuc::simulate::{SimulateOptions, Simulated, Zeros};
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{Target, ZeroMap, built_in};
use ipuc_formats::model::OperandRecord;
use std::sync::Arc;

#[test]
fn zeros_of_activations_are_left_out_and_the_tile_with_fewest_counts() {
    let decoder = described(&decode(F16, 1, 100, &SMALL_DECODER, Weights::I4), true);
    let weights = [("policy.weights".to_string(), "tier2".to_string())];
    let edge = built_in("ipu-edge", &weights).unwrap().unwrap();
    let with = |target: &Target, assumed: Vec<(String, f64)>| {
        let zeros = Zeros { assumed, ..Zeros::default() };
        with_options(&decoder, target, SimulateOptions { zeros, ..SimulateOptions::default() })
    };
    let dense = with(&edge, Vec::new());
    assert_eq!(with(&edge, vec![("*".to_string(), 0.0)]).report, dense.report);
    let sparse = with(&edge, vec![("*".to_string(), 0.6)]);
    let weighted = |simulated: &Simulated| -> Vec<(f64, f64, f64)> {
        let steps = simulated.program.steps.iter().zip(&simulated.placed).zip(&simulated.report.steps);
        let steps = steps.filter(|((step, _), _)| step.operator == "matmul" && step.weight_bytes > 0.0);
        steps.map(|((step, placed), took)| (placed.cost.macs, took.read[0].0, step.element_bytes)).collect()
    };
    let pairs: Vec<_> = weighted(&dense).into_iter().zip(weighted(&sparse)).collect();
    assert!(pairs.len() >= 2 * 7, "{}", pairs.len());
    for ((macs, read, elements), (kept, less, _)) in pairs {
        assert!(close(kept, macs * 0.4), "{kept} of {macs}");
        // Scales of blocks of 32 inputs are read in any case.
        assert!(close(read - less, elements * 0.6) && elements < read, "{read} less {less}, {elements}");
    }
    assert!(sparse.report.energy.matrix.0 < dense.report.energy.matrix.0);
    assert!(close(sparse.report.macs + sparse.report.left_out_macs, dense.report.macs));
    // Weights of an input that are fewer bytes than a burst are read.
    let mut burst = edge.clone();
    burst.zeros.as_mut().unwrap().burst = Bytes(1e6);
    assert_eq!(with(&burst, vec![("*".to_string(), 0.6)]).report.tiers[0].read, dense.report.tiers[0].read);
    // Groups of four inputs are seldom zero together.
    let mut groups = edge.clone();
    groups.zeros.as_mut().unwrap().inputs = 4.try_into().unwrap();
    let grouped = with(&groups, vec![("*".to_string(), 0.6)]).report.left_out_macs / sparse.report.left_out_macs;
    assert!(close(grouped, 0.6f64.powi(4) / 0.6), "{grouped}");
    // A machine that leaves none out.
    let server = built_in("graphcore-mk2", &[]).unwrap().unwrap();
    assert_eq!(with(&server, vec![("*".to_string(), 0.6)]).report, with(&server, Vec::new()).report);
    // One node alone.
    let name = &dense.program.steps.iter().find(|step| step.operator == "matmul").unwrap().name;
    let one = with(&edge, vec![("*".to_string(), 0.6), ("*".to_string(), 0.0), (name.clone(), 0.5)]);
    let left_out = one.placed.iter().zip(&dense.placed).filter(|(one, dense)| one.cost.macs < dense.cost.macs);
    assert_eq!(left_out.count(), 1);
}

#[test]
fn zeros_that_lie_in_the_inputs_of_one_tile_leave_the_others_at_work() {
    let product = described(&gemm(F16, (1, 4096, 16), Weights::Plain), false);
    let set = [("tiles.count".to_string(), "4".to_string())];
    let edge = built_in("ipu-edge", &set).unwrap().unwrap();
    let plain = with_options(&product, &edge, SimulateOptions::default());
    let step = &plain.program.steps[0];
    let Some(OperandRecord::Value(slot)) = product.blocks[0].steps[step.step as usize].operands.first() else {
        panic!("{step:?}")
    };
    let number = product.blocks[0].values[*slot as usize].id;
    let with = |zero: fn(usize) -> bool| {
        let map = Arc::new(ZeroMap::new(&[1, 4096], (0..4096).map(zero)).unwrap());
        let zeros = Zeros { counted: [(number, map)].into(), ..Zeros::default() };
        with_options(&product, &edge, SimulateOptions { zeros, ..SimulateOptions::default() })
    };
    let tiles = plain.placed[0].split.tiles[0].clone();
    assert_eq!(tiles.iter().product::<u32>(), 4, "{tiles:?}");
    // Every second input is zero, or the first half of them all.
    let (even, first) = (with(|input| input % 2 == 0), with(|input| input < 2048));
    assert!(close(even.report.macs, plain.report.macs / 2.0) && close(first.report.macs, plain.report.macs / 2.0));
    let cycles = |simulated: &Simulated| simulated.placed[0].cost.matrix.0;
    assert_eq!(first.placed[0].split.tiles[0], tiles);
    // Tiles share the inputs: those of the second half have all of them.
    assert_eq!(cycles(&first), cycles(&plain));
    assert!(cycles(&even) < 0.6 * cycles(&plain), "{} of {}", cycles(&even), cycles(&plain));
}
