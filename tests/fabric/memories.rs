//! What lives where: weights of which some stay in tiles, inputs and outputs, types in which values are held.

use super::{SMALL_DECODER, close, described, run_with, with_options};
use crate::models::{Decoder, F16, Weights, decode, gemm};
use ipuc::simulate::SimulateOptions;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{Place, Source, built_in};

/// Of weights that the tiles do not hold, as many stay as a run with that much memory keeps, evenly spread; the others come
/// from the tier once a run.
#[test]
fn some_weights_stay_where_not_all_fit() {
    let decoder = described(&decode(F16, 1, 100, &Decoder { layers: 4, ..SMALL_DECODER }, Weights::Plain), true);
    let machine = [("tiles.count", "16"), ("tiles.sram", "1536KiB"), ("tiles.reserved", "1KiB")];
    let partly = run_with(&decoder, "ipu-edge", &machine);
    let none = run_with(&decoder, "ipu-edge", &[machine.as_slice(), &[("policy.weights", "tier2")]].concat());
    assert_eq!((partly.homes.weights, none.homes.weights), (Place::Tier(0), Place::Tier(0)));
    let kept = partly.program.resident_bytes;
    assert!(kept > 0.1 * partly.program.weight_bytes && kept < partly.program.weight_bytes, "{kept}");
    assert_eq!(none.program.resident_bytes, 0.0);
    // Of the embedding only a row is read, which is not among what stays.
    let streamed: f64 = partly.program.steps.iter().map(|step| step.weight_bytes * (1.0 - step.resident)).sum();
    let all: f64 = none.program.steps.iter().map(|step| step.weight_bytes).sum();
    let weights_read = |simulated: &ipuc::simulate::Simulated| simulated.report.tiers[0].read.0;
    assert!(close(weights_read(&none) - weights_read(&partly), all - streamed), "{all} - {streamed}");
    // Chunks are counted as a share of all, in which small weights are rounded up.
    assert!(all - streamed <= kept * 1.01, "{} of {kept}", all - streamed);
    assert!(partly.report.makespan <= none.report.makespan);
    // The plan of a tile has room for them.
    let plan = partly.plan.as_ref().unwrap();
    assert!(plan.needed <= plan.available, "{} of {}", plan.needed, plan.available);
    // Each chunk stays or does not, so that a step has all of its weights, some, or none.
    let shares: Vec<f64> =
        partly.program.steps.iter().filter(|step| step.weight_bytes > 1e4).map(|step| step.resident).collect();
    assert!(shares.iter().any(|&share| share > 0.0) && shares.iter().any(|&share| share < 1.0), "{shares:?}");
}

#[test]
fn inputs_and_outputs_have_a_place_of_their_own() {
    let product = described(&gemm(F16, (64, 256, 128), Weights::Plain), false);
    let within = run_with(&product, "ipu-server", &[]);
    assert_eq!((within.report.tiers[0].read.0, within.report.tiers[0].written.0), (0.0, 0.0));
    for (place, tier) in [("tier2", 0), ("tier3", 1)] {
        let outside = run_with(&product, "ipu-server", &[("policy.io", place)]);
        let took = &outside.report.tiers[tier];
        assert_eq!((took.read.0, took.written.0), (64.0 * 256.0 * 2.0, 64.0 * 128.0 * 2.0), "{place}");
        assert_eq!(outside.homes.io, Place::Tier(tier));
        // Inputs are there before the run: they may come ahead of their step, as weights do.
        let reads: Vec<_> = outside.report.transfers.iter().filter(|transfer| !transfer.write).collect();
        assert!(reads.iter().all(|read| read.start.0 == 0.0), "{reads:?}");
    }
    let inputs = &within.program.inputs;
    assert_eq!(inputs.len(), 1, "{inputs:?}");
    assert!(within.program.steps[0].operands[0].as_ref().is_some_and(|x| x.source == inputs[0]));
    assert!(matches!(within.program.outputs[..], [Source::Value(_)]));
}

/// Products in a narrower type than values are held in: weights shrink, values do not, and tiles convert what they multiply.
#[test]
fn values_are_converted_for_products_that_take_a_narrower_type() {
    let product = described(&gemm(F16, (64, 256, 128), Weights::Plain), false);
    let target = built_in("graphcore-c600", &[("tiles.count".to_string(), "1".to_string())]).unwrap().unwrap();
    let with = |products: Option<DType>| {
        with_options(&product, &target, SimulateOptions { products, ..SimulateOptions::default() })
    };
    let (wide, narrow) = (with(None), with(Some(DType::F8E4M3FN)));
    assert!(close(narrow.program.weight_bytes, wide.program.weight_bytes / 2.0));
    let x = |simulated: &ipuc::simulate::Simulated| simulated.program.steps[0].operands[0].as_ref().unwrap().bytes;
    assert_eq!(x(&narrow), x(&wide));
    let (wide, narrow) = (&wide.placed[0].cost, &narrow.placed[0].cost);
    assert!(close(narrow.vector.0 - wide.vector.0, 64.0 * 256.0 / target.vector.convert));
    assert!(narrow.matrix < wide.matrix);
}
