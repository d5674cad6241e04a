//! Laws of simulated runs, over models, built-in machines and machines made up around them.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "../benches/validate/models.rs"]
mod models;

use ipuc::compile::{CompileOptions, Source, describe};
use ipuc::simulate::{SimulateError, SimulateOptions, Simulated, simulate};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{BUILT_IN, CostError, Style, Target, built_in};
use ipuc_formats::model::{Manifest, check_placement};
use ipuc_passes::tile::records;
use models::{BF16, Decoder, Encoder, F16, Weights, decode, encoder, gemm, resnet50};
use std::time::{Duration, Instant};

/// The records of a model, whose weights are in a file that does not exist.
fn described(model: &[u8], states: bool) -> Manifest {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let states = if states { vec!["past.*=present.*".to_string()] } else { Vec::new() };
    let source = Source { entry: "main".to_string(), path };
    describe(&[source], &CompileOptions { states, ..CompileOptions::default() }).unwrap()
}

const SMALL_DECODER: Decoder =
    Decoder { layers: 2, width: 512, heads: 8, key_heads: 2, head: 64, inner: 1024, vocabulary: 4096 };
const SMALL_ENCODER: Encoder = Encoder { layers: 2, width: 256, heads: 4, inner: 512, tokens: 65 };

fn programs() -> Vec<(&'static str, Manifest)> {
    vec![
        ("gemm", described(&gemm(BF16, (100, 3000, 70), Weights::Plain), false)),
        ("resnet50", described(&resnet50(F16, 2), false)),
        ("encoder", described(&encoder(F16, 3, &SMALL_ENCODER), false)),
        ("decoder", described(&decode(F16, 2, 100, &SMALL_DECODER, Weights::I4), true)),
    ]
}

fn run(manifest: &Manifest, target: &Target) -> Option<Simulated> {
    // A type that every built-in machine takes.
    let numerics =
        if target.name.starts_with("graphcore") || target.name == "groq-tsp" { DType::F16 } else { DType::BF16 };
    let options = SimulateOptions { numerics: Some(numerics), ..SimulateOptions::default() };
    match simulate(manifest, target, &options) {
        Ok(simulated) => Some(simulated),
        Err(SimulateError::Cost(CostError::Capacity { .. } | CostError::Type { .. })) => None,
        Err(error) => panic!("{}: {error}", target.name),
    }
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

fn check_laws(what: &str, target: &Target, simulated: &Simulated) {
    let report = &simulated.report;
    // Each engine is at work or waits until its last step ends; steps follow one another.
    if target.style != Style::Queues {
        let mut end = 0.0;
        for step in &report.steps {
            let idle = step.busy.0 == 0.0 && step.stall.0 == 0.0;
            assert!(idle || close(step.start.0, end), "{what}: {step:?} begins at {}, not at {end}", step.start.0);
            assert!(idle || close(step.start.0 + step.busy.0 + step.stall.0, step.end.0), "{what}: {step:?}");
            end = if idle { end } else { step.end.0 };
        }
        assert!(close(report.busy.0 + report.stall.0, end), "{what}: {} + {} is not {end}", report.busy, report.stall);
    }
    // Bytes that came from a tier are those that steps needed; a tier is no faster than it is.
    for (index, (tier, took)) in target.tiers.iter().zip(&report.tiers).enumerate() {
        let needed: f64 = report.steps.iter().map(|step| step.read[index].0).sum();
        assert!(close(took.read.0, needed), "{what}: {} of {needed}", took.read);
        assert!(report.makespan.0 >= took.read.0 / tier.read.0 * (1.0 - 1e-9), "{what}: {} beats its rate", tier.name);
        let moving = took.read.0 / tier.read.0 + took.written.0 / tier.write.0;
        assert!(close(took.busy.0, moving), "{what}: {} is busy for {}, moves for {moving}", tier.name, took.busy);
    }
    // Parts of the energy.
    let steps: f64 = report.steps.iter().map(|step| step.energy.total().0).sum();
    assert!(close(report.energy.total().0, steps + report.energy.static_energy.0), "{what}: {:?}", report.energy);
    assert!(close(report.energy.static_energy.0, target.energy.static_power.0 * report.makespan.0), "{what}");
    // No schedule beats the peak.
    assert!(report.utilization.is_none_or(|share| share <= 1.0 + 1e-9), "{what}: {:?}", report.utilization);
}

#[test]
fn laws_hold_on_every_built_in_machine() {
    let mut ran = 0;
    for (model, manifest) in programs() {
        for (name, _) in BUILT_IN {
            let target = built_in(name, &[]).unwrap().unwrap();
            let Some(simulated) = run(&manifest, &target) else { continue };
            check_laws(&format!("{model} on {name}"), &target, &simulated);
            assert_eq!(run(&manifest, &target).unwrap().report, simulated.report, "{model} on {name}");
            ran += 1;
        }
    }
    assert!(ran >= 3 * BUILT_IN.len(), "only {ran} ran");
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        of[(self.0 >> 33) as usize % of.len()]
    }
}

#[test]
fn laws_hold_on_machines_made_up_and_more_bandwidth_is_never_slower() {
    let programs = programs();
    let mut numbers = Numbers(7);
    let mut ran = 0;
    for _ in 0..60 {
        let name = numbers.pick(&["ipu-server", "ipu-edge", "graphcore-mk2", "tenstorrent-n150", "a100", "trainium2"]);
        let (model, manifest) = &programs[numbers.pick(&[0_usize, 1, 2, 3])];
        let rate = numbers.pick(&[1.0, 20.0, 300.0]);
        let set = [
            ("tiles.count", numbers.pick(&["1", "3", "64", "1472"]).to_string()),
            ("tiles.sram", numbers.pick(&["256KiB", "1MiB", "64MiB"]).to_string()),
            ("exchange.receive", numbers.pick(&["1 B/cycle", "16 B/cycle"]).to_string()),
            ("matrix.0.load", numbers.pick(&["0 cycles", "300 cycles"]).to_string()),
            ("policy.prefetch", numbers.pick(&["true", "false"]).to_string()),
            ("policy.weights", numbers.pick(&["auto", "tier2"]).to_string()),
            ("overhead.step", numbers.pick(&["0ns", "5us"]).to_string()),
            ("tiers.0.read", format!("{rate} GB/s")),
        ];
        let mut set: Vec<(String, String)> = set.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
        let target = built_in(name, &set).unwrap().unwrap();
        let Some(simulated) = run(manifest, &target) else { continue };
        let what = format!("{model} on {name} with {set:?}");
        check_laws(&what, &target, &simulated);
        set.last_mut().unwrap().1 = format!("{} GB/s", rate * 2.0);
        let faster = run(manifest, &built_in(name, &set).unwrap().unwrap()).unwrap();
        let (before, after) = (simulated.report.makespan.0, faster.report.makespan.0);
        assert!(after <= before * (1.0 + 1e-9), "{what}: {after} s is slower than {before} s");
        ran += 1;
    }
    assert!(ran >= 30, "only {ran} ran");
}

#[test]
fn placements_are_valid_for_their_targets() {
    for (model, manifest) in programs() {
        for name in ["graphcore-c600", "tenstorrent-n150", "ipu-server", "cerebras-wse3"] {
            let target = built_in(name, &[]).unwrap().unwrap();
            let Some(simulated) = run(&manifest, &target) else { continue };
            let placements = records(&simulated.program, &target, [0; 32], &Bindings::new(), &simulated.placed);
            assert!(!placements.is_empty());
            for placement in &placements {
                let sram = target.tiles.sram.0 as u64;
                check_placement(&manifest, placement, target.tiles.count.get(), sram)
                    .unwrap_or_else(|error| panic!("{model} on {name}: {error}"));
            }
        }
    }
}

#[test]
fn work_of_the_program_is_that_of_the_models() {
    let resnet = described(&resnet50(F16, 1), false);
    let target = built_in("graphcore-c600", &[]).unwrap().unwrap();
    let simulated = run(&resnet, &target).unwrap();
    // 4.09 G for ResNet-50 v1.5, and 25.5 million weights.
    assert_eq!(simulated.report.macs, 4_089_184_256.0);
    assert!((simulated.program.weight_bytes / 2.0 - 25.5e6).abs() < 0.2e6, "{}", simulated.program.weight_bytes);
}

#[test]
fn a_machine_that_is_too_small_says_how_many_are_needed() {
    let large = described(&gemm(F16, (16, 65536, 65536), Weights::Plain), false);
    let target = built_in("groq-tsp", &[]).unwrap().unwrap();
    let error = simulate(&large, &target, &SimulateOptions::default()).unwrap_err();
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
