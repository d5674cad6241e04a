//! Laws of simulated runs, over models, built-in machines and machines made up around them.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod chips;
mod command_line;
mod costs;
mod laws;
mod memories;
mod page;
mod placing;
mod random;
mod stream_order;
mod zeros;

use crate::models::{BF16, Decoder, Encoder, F16, Weights, decode, encoder, gemm, resnet50};
use ipuc::compile::{CompileOptions, Source as Model, describe};
use ipuc::simulate::{SimulateError, SimulateOptions, Simulated, simulate};
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{CostError, Place, Source, Style, Target, built_in};
use ipuc_formats::model::Manifest;

/// The records of a model, whose weights are in a file that does not exist.
fn described(model: &[u8], states: bool) -> Manifest {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let states = if states { vec!["past.*=present.*".to_string()] } else { Vec::new() };
    let source = Model { entry: "main".to_string(), path };
    describe(&[source], &CompileOptions { states, ..CompileOptions::default() }).unwrap()
}

const SMALL_DECODER: Decoder =
    Decoder { layers: 2, width: 512, heads: 8, key_heads: 2, head: 64, inner: 1024, vocabulary: 4096 };
const SMALL_ENCODER: Encoder = Encoder { layers: 2, width: 256, heads: 4, inner: 512, tokens: 65, biases: false };

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
        Err(SimulateError::Cost(CostError::Capacity { .. } | CostError::Type { .. }) | SimulateError::Chips { .. }) => {
            None
        }
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
    // Each engine is at work, waits for a step, or has no steps left.
    let free = report.makespan.0 - report.throttled.0;
    for engine in &report.engines {
        let all = engine.busy.0 + engine.stall.0 + engine.idle.0;
        assert!(close(all, free) && engine.idle.0 >= 0.0, "{what}: {engine:?} is not {free}");
    }
    let on_engines: f64 = report.engines.iter().map(|engine| engine.busy.0).sum();
    assert!(report.chips.len() > 1 || close(on_engines, report.busy.0), "{what}: {:?}", report.engines);
    // Transfers of a tier follow one another, and are all that it does.
    for (index, tier) in report.tiers.iter().enumerate() {
        let own: Vec<_> = report.transfers.iter().filter(|transfer| transfer.tier == index).collect();
        let sum = |write: bool| own.iter().filter(|own| own.write == write).map(|own| own.bytes.0).sum::<f64>();
        assert!(close(sum(false), tier.read.0) && close(sum(true), tier.written.0), "{what}: {tier:?}");
        assert!(close(own.iter().map(|own| (own.end - own.start).0).sum(), tier.busy.0), "{what}: {tier:?}");
        let apart = |pair: &[&ipuc_runtime::fabric::TransferReport]| {
            pair[1].start.0 >= pair[0].end.0 - 1e-9 * report.makespan.0 && pair[1].end <= report.makespan
        };
        assert!(own.windows(2).all(apart), "{what}: transfers of tier {index} overlap");
    }
    // Bytes that came from a tier are those that steps needed; a tier is no faster than it is.
    for (index, (tier, took)) in target.tiers.iter().zip(&report.tiers).enumerate() {
        let needed: f64 = report.steps.iter().map(|step| step.read[index].0).sum();
        assert!(close(took.read.0, needed), "{what}: {} of {needed}", took.read);
        assert!(report.makespan.0 >= took.read.0 / tier.read.0 * (1.0 - 1e-9), "{what}: {} beats its rate", tier.name);
        let moving = took.read.0 / tier.read.0 + took.written.0 / tier.write.0;
        assert!(close(took.busy.0, moving), "{what}: {} is busy for {}, moves for {moving}", tier.name, took.busy);
    }
    if report.chips.len() == 1 {
        check_bytes(what, target, simulated);
    }
    // Parts of the energy.
    let steps: f64 = report.steps.iter().map(|step| step.energy.total().0).sum();
    let rest = report.energy.static_energy.0 + report.energy.links.0;
    assert!(close(report.energy.total().0, steps + rest), "{what}: {:?}", report.energy);
    let standing = target.energy.static_power.0 * report.makespan.0 * report.chips.len() as f64;
    assert!(close(report.energy.static_energy.0, standing), "{what}");
    // No schedule beats the peak.
    assert!(report.utilization.is_none_or(|share| share <= 1.0 + 1e-9), "{what}: {:?}", report.utilization);
}

/// Bytes that came from each tier are those that the program asks of what lives there.
fn check_bytes(what: &str, target: &Target, simulated: &Simulated) {
    let Simulated { program, placed, homes, report, .. } = simulated;
    for (index, took) in report.tiers.iter().enumerate() {
        let here = |place: Place| place == Place::Tier(index);
        let (mut read, mut written) = (0.0, 0.0);
        for (step, placed) in program.steps.iter().zip(placed).filter(|(step, _)| !step.view) {
            let mut own = 0.0;
            if here(homes.weights) {
                let left_out = step.zeros.as_ref().map_or(0.0, |zeros| 1.0 - zeros.read);
                own += (step.weight_bytes - step.element_bytes * left_out) * (1.0 - step.resident);
                own += placed.cost.beyond.0;
            }
            for (operand, tensor) in step.operands.iter().enumerate() {
                let Some(tensor) = tensor else { continue };
                let times = if operand == 0 { f64::from(1 + placed.cost.read_again) } else { 1.0 };
                own += match tensor.source {
                    Source::Value(_) if here(homes.activations) => tensor.bytes * times,
                    Source::State(_) if here(homes.state) && !step.appends => tensor.bytes,
                    Source::Value(_) | Source::State(_) | Source::Weight(_) => 0.0,
                };
            }
            read += own * step.times;
            let given = step.results.iter().filter(|result| match result.source {
                Source::State(_) => here(homes.state),
                Source::Value(_) | Source::Weight(_) => here(homes.activations),
            });
            let appended: f64 = step
                .operands
                .iter()
                .flatten()
                .filter(|operand| matches!(operand.source, Source::Value(_)))
                .map(|operand| operand.bytes)
                .sum();
            let bytes = given.map(|result| if step.appends { appended.min(result.bytes) } else { result.bytes });
            written += bytes.sum::<f64>() * step.times;
        }
        assert!(close(took.read.0, read), "{what}: {} read from tier {index}, {read} needed", took.read.0);
        assert!(close(took.written.0, written), "{what}: {} written to tier {index} of {written}", took.written.0);
        let least = read / target.tiers[index].read.0 + written / target.tiers[index].write.0;
        assert!(report.makespan.0 >= least * (1.0 - 1e-9), "{what}: faster than tier {index} moves its bytes");
    }
}

/// A model with floats as they are on a built-in machine with some of its values replaced.
fn run_with(manifest: &Manifest, name: &str, set: &[(&str, &str)]) -> Simulated {
    let set: Vec<(String, String)> = set.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    run(manifest, &built_in(name, &set).unwrap().unwrap()).unwrap()
}

fn with_options(manifest: &Manifest, target: &Target, options: SimulateOptions) -> Simulated {
    let options = SimulateOptions { numerics: Some(DType::F16), ..options };
    let simulated = simulate(manifest, target, &options).unwrap_or_else(|error| panic!("{}: {error}", target.name));
    check_laws(&target.name, target, &simulated);
    simulated
}
