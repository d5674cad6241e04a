//! Programs over several machines, large programs, and machines that grow warm.

use super::{SMALL_DECODER, check_laws, close, described, run, with_options};
use crate::models::{Decoder, F16, Weights, decode, gemm};
use ipuc::simulate::{SimulateError, SimulateOptions, simulate};
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::units::Seconds;
use ipuc_formats::machine::{CostError, Target, built_in};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

#[test]
fn a_machine_that_is_too_small_says_how_many_are_needed() {
    let large = described(&gemm(F16, (16, 65536, 65536), Weights::Plain), false);
    let target = built_in("groq-tsp", &[]).unwrap().unwrap();
    let single = SimulateOptions { chips: Some(NonZeroU32::MIN), ..SimulateOptions::default() };
    let error = simulate(&large, &target, &single).unwrap_err();
    let SimulateError::Cost(CostError::Capacity { what: "weights", chips, .. }) = error else { panic!("{error}") };
    // 8 GiB on chips of 218 MiB less values.
    assert_eq!(chips, 39);
    let float = described(&gemm(F16, (16, 64, 64), Weights::Plain), false);
    let mut target = target;
    target.matrix.retain(|unit| !unit.types.contains(&DType::F16));
    let error = simulate(&float, &target, &SimulateOptions::default()).unwrap_err();
    let SimulateError::Cost(CostError::Type { dtype: DType::F16, known, .. }) = error else { panic!("{error}") };
    assert_eq!(known, ["i8", "u8"]);
}

#[test]
fn several_machines_share_the_layers_where_one_is_too_small() {
    let decoder = described(&decode(F16, 1, 100, &SMALL_DECODER, Weights::Plain), true);
    let small = [("tiles.sram".to_string(), "8MiB".to_string())];
    let target = built_in("groq-tsp", &small).unwrap().unwrap();
    let many = with_options(&decoder, &target, SimulateOptions::default());
    let chips = &many.report.chips;
    assert!(chips.len() >= 3, "{chips:?}");
    let held: f64 = many.program.weight_bytes + many.program.state_bytes;
    assert!(chips.len() as f64 >= held / target.sram().0, "{} for {held}", chips.len());
    // Each begins when what it needs has come: of the hidden state, 512 elements of two bytes, and little more.
    assert_eq!(chips[0].received.0, 0.0);
    for pair in chips.windows(2) {
        assert!((1024.0..8192.0).contains(&pair[1].received.0), "{:?}", pair[1]);
        assert!(close((pair[1].start - pair[0].end).0, 600e-9 + pair[1].received.0 / 12.5e9), "{pair:?}");
    }
    // One that is large enough computes the same steps without links.
    let large = built_in("groq-tsp", &[]).unwrap().unwrap();
    let one = with_options(&decoder, &large, SimulateOptions::default());
    assert_eq!((one.report.chips.len(), one.report.energy.links.0), (1, 0.0));
    let links: f64 = chips.iter().map(|chip| chip.link.0).sum();
    // A step that would follow another at once has a start of its own where they are on two chips.
    let added = many.report.makespan.0 - one.report.makespan.0 - links;
    assert!((-1e-12..chips.len() as f64 * 300e-9).contains(&added), "{added}");
    assert!(many.report.interval < one.report.interval && many.report.energy.links.0 > 0.0);
    // As many as are asked for, where that is enough; an error where it is not, or where nothing joins them.
    let ask = |target: &Target, chips: u32| {
        let options =
            SimulateOptions { numerics: Some(DType::F16), chips: NonZeroU32::new(chips), ..SimulateOptions::default() };
        simulate(&decoder, target, &options)
    };
    assert!((2..=4).contains(&ask(&large, 4).unwrap().report.chips.len()));
    assert!(matches!(ask(&target, 1).unwrap_err(), SimulateError::Cost(CostError::Capacity { .. })));
    let error = ask(&target, 2).unwrap_err();
    assert!(matches!(&error, SimulateError::Chips { chips: 2, .. }), "{error}");
    let edge = built_in("ipu-edge", &[]).unwrap().unwrap();
    let error = ask(&edge, 2).unwrap_err();
    assert_eq!(error.to_string(), "`ipu-edge` has no table `links`: several of them cannot share a program");
}

#[test]
fn a_machine_that_is_warm_slows_down() {
    let decoder = described(&decode(F16, 1, 100, &SMALL_DECODER, Weights::I4), true);
    let set = [("thermal.resistance", "18K/W"), ("policy.weights", "tier2"), ("energy.limit", "150W")];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let edge = built_in("ipu-edge", &set).unwrap().unwrap();
    let after = |warm: f64| {
        with_options(&decoder, &edge, SimulateOptions { warm: Seconds(warm), ..SimulateOptions::default() }).report
    };
    let cold = after(0.0);
    let heat = cold.heat.unwrap();
    let limit = heat.limit_after.unwrap();
    assert!(cold.throttled.0 == 0.0 && heat.start.0 == 25.0 && heat.end < heat.steady, "{heat:?}");
    assert_eq!(after(limit.0 * 0.5).makespan, cold.makespan);
    let hot = after(limit.0 + 1.0);
    assert!(close(hot.makespan.0, heat.sustained.0) && hot.makespan > cold.makespan, "{} {heat:?}", hot.makespan);
    // 60 degrees over 18 K/W.
    assert!(close((hot.energy.total() / hot.makespan).0, 60.0 / 18.0), "{}", hot.energy.total() / hot.makespan);
    assert!(close(hot.heat.unwrap().start.0, 85.0) && close(hot.slowdown(), hot.makespan.0 / cold.makespan.0));
}

/// The bound is for optimized builds on two processors; this one allows for a debug build on a busy machine.
#[test]
fn large_models_are_simulated_in_seconds() {
    const DENSE_102B: Decoder =
        Decoder { layers: 96, width: 9216, heads: 72, key_heads: 8, head: 128, inner: 32768, vocabulary: 128_256 };
    let start = Instant::now();
    let manifest = described(&decode(F16, 1, 1000, &DENSE_102B, Weights::I4), true);
    let target = built_in("ipu-edge", &[]).unwrap().unwrap();
    let simulated = run(&manifest, &target).unwrap();
    assert!((simulated.report.macs / 102e9 - 1.0).abs() < 0.1, "{}", simulated.report.macs);
    check_laws("102B on ipu-edge", &target, &simulated);
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
