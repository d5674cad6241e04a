//! Laws of simulated runs, over models, built-in machines and machines made up around them.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "../benches/validate/models.rs"]
mod models;

use ipuc::compile::{CompileOptions, Source, describe};
use ipuc::simulate::{SimulateError, SimulateOptions, Simulated, Zeros, simulate};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::units::{Bytes, Seconds};
use ipuc_formats::machine::{BUILT_IN, CostError, Style, Target, ZeroMap, built_in};
use ipuc_formats::model::{Manifest, OperandRecord, check_placement};
use ipuc_passes::place::{PlaceError, records};
use models::{BF16, Decoder, Encoder, F16, Weights, decode, encoder, gemm, resnet50};
use std::num::NonZeroU32;
use std::sync::Arc;
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
    // Parts of the energy.
    let steps: f64 = report.steps.iter().map(|step| step.energy.total().0).sum();
    let rest = report.energy.static_energy.0 + report.energy.links.0;
    assert!(close(report.energy.total().0, steps + rest), "{what}: {:?}", report.energy);
    let standing = target.energy.static_power.0 * report.makespan.0 * report.chips.len() as f64;
    assert!(close(report.energy.static_energy.0, standing), "{what}");
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
            ("overhead.gap", numbers.pick(&["0ns", "7us"]).to_string()),
            ("tiers.0.chunk", numbers.pick(&["1KiB", "2MiB"]).to_string()),
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
    let mut fitting = 0;
    for (model, manifest) in programs() {
        for name in ["graphcore-c600", "tenstorrent-n150", "ipu-server", "ipu-edge", "groq-tsp", "cerebras-wse3"] {
            let target = built_in(name, &[]).unwrap().unwrap();
            let Some(Simulated { program, placed, plan, .. }) = run(&manifest, &target) else { continue };
            let plan = plan.unwrap();
            let placements = records(&manifest, &program, &target, [0; 32], &Bindings::new(), &placed, Some(&plan));
            let regions = placements.iter().flat_map(|placement| &placement.steps).map(|step| step.regions.len());
            assert_eq!(regions.sum::<usize>(), plan.regions.len() + plan.readings.len(), "{model} on {name}");
            let fits = plan.check(&program, &target).is_ok();
            let sram = if fits { target.tiles.sram.0 as u64 } else { u64::MAX };
            fitting += usize::from(fits);
            for placement in &placements {
                check_placement(&manifest, placement, target.tiles.count.get(), sram)
                    .unwrap_or_else(|error| panic!("{model} on {name}: {error}"));
            }
        }
    }
    assert!(fitting >= 15, "only {fitting} fit");
}

/// What is planned for a small encoder, region by region.
#[test]
fn plans_are_what_their_files_say() {
    let manifest = described(&encoder(F16, 1, &Encoder { layers: 1, ..SMALL_ENCODER }), false);
    for name in ["graphcore-mk2", "ipu-edge"] {
        let target = built_in(name, &[("tiles.count".to_string(), "64".to_string())]).unwrap().unwrap();
        let Simulated { program, plan, .. } = run(&manifest, &target).unwrap();
        let plan = plan.unwrap();
        assert_eq!(plan.check(&program, &target), Ok(()));
        let path = format!("{}/tests/place/encoder_{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let found = plan.text(&program);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), found, "{path}");
    }
}

#[test]
fn what_does_not_fit_is_said_with_bytes_and_tiles() {
    let manifest = described(&encoder(F16, 1, &SMALL_ENCODER), false);
    let small = [("tiles.count", "4"), ("tiles.sram", "95KiB"), ("policy.weights", "tier2")];
    let small = small.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in("graphcore-mk2", &small).unwrap().unwrap();
    let options = |chips: u32| SimulateOptions {
        numerics: Some(DType::F16),
        chips: NonZeroU32::new(chips),
        ..SimulateOptions::default()
    };
    let Simulated { program, plan, .. } = simulate(&manifest, &target, &options(1)).unwrap();
    let PlaceError::Memory { step, needed, available, tiles, chips, .. } =
        plan.unwrap().check(&program, &target).unwrap_err();
    assert_eq!((step.as_str(), needed.as_str(), available.as_str()), ("Attention_v4", "65.62 KiB", "35 KiB"));
    assert_eq!((tiles, chips), (4, 2));
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

/// A model with floats as they are on a built-in machine with some of its values replaced.
fn run_with(manifest: &Manifest, name: &str, set: &[(&str, &str)]) -> Simulated {
    let set: Vec<(String, String)> = set.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    run(manifest, &built_in(name, &set).unwrap().unwrap()).unwrap()
}

#[test]
fn windows_are_copied_out_where_the_machine_does_so_and_only_those_that_overlap() {
    let resnet = described(&resnet50(F16, 2), false);
    let gathered = run_with(&resnet, "tenstorrent-n150", &[]);
    let mut windows = 0;
    for (step, placed) in gathered.program.steps.iter().zip(&gathered.placed) {
        let overlap = step.operator == "convolution" && step.extents[0][5] > 1;
        windows += usize::from(overlap);
        assert_eq!(placed.cost.copies.0 > 0.0, overlap, "{} {:?}: {}", step.name, step.extents, placed.cost.copies.0);
    }
    // One in each of 16 blocks, and the first convolution.
    assert_eq!(windows, 17);
    let read = run_with(&resnet, "tenstorrent-n150", &[("tiles.gathers_windows", "false")]);
    assert!(read.placed.iter().all(|placed| placed.cost.copies.0 == 0.0));
    assert!(read.report.makespan < gathered.report.makespan);
}

#[test]
fn keys_of_attention_and_rows_of_normalization_are_shared_by_tiles_and_combined() {
    let decoder = described(&decode(F16, 1, 1000, &SMALL_DECODER, Weights::Plain), true);
    let wafer = run_with(&decoder, "cerebras-wse3", &[]);
    let steps = || wafer.program.steps.iter().zip(&wafer.placed);
    for (step, placed) in steps().filter(|(step, _)| step.operator == "attention") {
        // Scores, the softmax over them, and values: batch, key heads, queries of each, queries, keys.
        let keys: Vec<u32> = placed.split.tiles.iter().map(|parts| parts[4]).collect();
        assert!(keys[0] > 1 && keys.iter().all(|&parts| parts == keys[0]), "{keys:?}");
        assert!(placed.cost.tiles > 8, "{} tiles for 8 heads", placed.cost.tiles);
        // Maxima of one query of each head go to the tiles that share its keys and back, then sums of 64 values.
        let queries =
            step.extents[0][..4].iter().zip(&placed.split.tiles[0]).map(|(all, parts)| all / i64::from(*parts));
        let values = queries.product::<i64>() as f64 * 64.0 * 4.0;
        let combined = values * f64::from(keys[0] - 1) / f64::from(keys[0]);
        assert!(placed.cost.received.0 > combined, "{} of {combined}", placed.cost.received);
    }
    // Caches that have grown lie in parts too.
    let plan = wafer.plan.as_ref().unwrap();
    assert!(plan.needed.0 < 0.2 * wafer.program.state_bytes, "{} of {}", plan.needed, wafer.program.state_bytes);
    let shared = steps().filter(|(step, placed)| step.operator == "layer_normalization" && placed.cost.tiles > 1);
    assert!(shared.count() > 0);
    // Where there is one query and one head, tiles have nothing but keys to share.
    let single = Decoder { layers: 1, width: 64, heads: 1, key_heads: 1, head: 64, inner: 128, vocabulary: 256 };
    let long = described(&decode(F16, 1, 100_000, &single, Weights::Plain), true);
    let [one, many] = ["1", "1472"].map(|count| {
        let simulated = run_with(&long, "graphcore-c600", &[("tiles.count", count), ("tiles.sram", "64MiB")]);
        let mut steps = simulated.program.steps.iter().zip(&simulated.placed);
        let (_, placed) = steps.find(|(step, _)| step.operator == "attention").unwrap();
        placed.cost.clone()
    });
    assert!(many.matrix.0 < one.matrix.0 / 100.0, "{} cycles on one tile, {} on many", one.matrix.0, many.matrix.0);
    assert!(one.phases == 0 && many.phases >= 3, "{} phases, {}", one.phases, many.phases);
}

#[test]
fn neighbours_that_need_the_same_rows_receive_them_at_the_rate_of_their_bus() {
    let scores = described(&models::products(F16, 16, (729, 72, 729)), false);
    let shared = run_with(&scores, "graphcore-c600", &[]);
    let cost = &shared.placed[0].cost;
    // Two halves of the rows of a head, each needed by 46 tiles; rows and columns of 72 elements of two bytes.
    assert_eq!(shared.placed[0].split.tiles, [[16, 2, 46, 1]]);
    assert_eq!((cost.shared.0, cost.received.0), (365.0 * 144.0, (365.0 + 16.0) * 144.0));
    assert_eq!(cost.exchange.0, 365.0 * 144.0 / 8.0 + 16.0 * 144.0 / 4.0 + 237.0);
    let alone = run_with(&scores, "graphcore-c600", &[("exchange.shared", "4 B/cycle")]);
    assert!(alone.report.makespan > shared.report.makespan);
}

#[test]
fn gaps_and_results_that_go_to_the_host_take_the_time_that_they_take() {
    let decoder = described(&decode(F16, 2, 100, &SMALL_DECODER, Weights::I4), true);
    let without = run_with(&decoder, "tenstorrent-n150", &[("overhead.gap", "0ns")]);
    // Scores of two users; caches stay on the machine.
    assert_eq!(without.program.result_bytes, 2.0 * 4096.0 * 2.0);
    let set = [("overhead.gap", "0ns"), ("overhead.results", "1MB/s"), ("overhead.waits_for_results", "true")];
    let read = run_with(&decoder, "tenstorrent-n150", &set);
    assert!(close(read.report.makespan.0 - without.report.makespan.0, 16_384.0 / 1e6));
    let apart = run_with(&decoder, "tenstorrent-n150", &[("overhead.gap", "5us")]);
    let steps = apart.report.steps.iter().filter(|step| step.busy.0 > 0.0).count() as f64;
    assert!(steps > 20.0, "{steps}");
    // What a step waited for on a tier may arrive within a gap.
    let added = (apart.report.makespan.0 - without.report.makespan.0) / (steps * 5e-6);
    assert!((0.9..1.0 + 1e-9).contains(&added), "{added}");
}

#[test]
fn results_that_are_made_in_one_part_are_written_after_the_step() {
    let product = described(&gemm(BF16, (512, 512, 512), Weights::Plain), false);
    let slow = [("policy.activations", "tier2"), ("tiers.0.write", "1GB/s")];
    let simulated = run_with(&product, "tenstorrent-n150", &slow);
    let [step] = simulated.placed.as_slice() else { panic!("{} steps", simulated.placed.len()) };
    assert_eq!(step.cost.stages, 1);
    let write = simulated.report.transfers.iter().find(|transfer| transfer.write).unwrap();
    // 512 x 512 elements of two bytes, after everything that the step computes.
    assert!(close((write.end - write.start).0, 524_288.0 / 1e9));
    assert!(write.start.0 >= simulated.report.steps[0].busy.0, "{write:?}");
}

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

fn with_options(manifest: &Manifest, target: &Target, options: SimulateOptions) -> Simulated {
    let options = SimulateOptions { numerics: Some(DType::F16), ..options };
    let simulated = simulate(manifest, target, &options).unwrap_or_else(|error| panic!("{}: {error}", target.name));
    check_laws(&target.name, target, &simulated);
    simulated
}

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

/// Run `ipuc simulate` on the encoder in this folder, with JSON.
fn simulated_at_the_command_line(folder: &std::path::Path, arguments: &[&str]) -> serde_json::Value {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.current_dir(folder).args(["simulate", "model.onnx", "--numerics", "f16", "--json"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn outputs_are_those_of_a_run_whatever_the_machine_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ppocr_v2_cls/model.onnx");
    let call = |arguments: &[&str]| -> serde_json::Value {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.current_dir(folder).env("IPUC_CACHE", folder.join("cache")).arg(arguments[0]).arg(&model);
        let output = command.args(&arguments[1..]).args(["--json", "--quiet"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let input = format!("x={}", model.with_file_name("test_data_set_0/input_0.pb").display());
    let run = call(&["run", "--input", &input]);
    for target in ["ipu-edge", "a100", "tenstorrent-n150"] {
        let simulated = call(&["simulate", "--target", target, "--numerics", "bf16", "--input", &input]);
        assert_eq!(simulated["outputs"], run["outputs"], "{target}");
        let steps = simulated["steps"].as_array().unwrap();
        let shares: Vec<f64> = steps.iter().filter_map(|step| step["zero_share"].as_f64()).collect();
        if target != "ipu-edge" {
            assert!(shares.is_empty() && simulated["left_out_macs"] == 0.0, "{target}: {shares:?}");
            continue;
        }
        // Products behind rectifiers.
        assert!(shares.len() > 10 && shares.iter().any(|&share| share > 0.1), "{shares:?}");
        let plain = ["simulate", "--target", target, "--numerics", "bf16", "--input", &input, "--zeros", "0"];
        let plain = call(&plain);
        assert_eq!(plain["left_out_macs"], 0.0);
        assert!(simulated["macs"].as_f64() < plain["macs"].as_f64());
        let matrix = |result: &serde_json::Value| result["energy_joules"]["matrix"].as_f64().unwrap();
        assert!(matrix(&simulated) < matrix(&plain), "{} {}", matrix(&simulated), matrix(&plain));
    }
}

#[test]
fn traces_and_pages_show_the_run_and_need_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let files = ["--trace", "trace.json", "--html", "page.html", "--beside", "ipu-server"];
    let result = simulated_at_the_command_line(
        folder,
        &[&["--target", "graphcore-mk2", "--set", "policy.weights=tier2"], files.as_slice()].concat(),
    );
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |track: u64| events.iter().filter(move |event| event["ph"] == "X" && event["tid"] == track);
    let micros = |track: u64| of(track).map(|event| event["dur"].as_f64().unwrap()).sum::<f64>();
    // Steps follow one another, and the bytes of the tier are those of the weights.
    assert!(close(micros(0), result["seconds"].as_f64().unwrap() * 1e6), "{}", micros(0));
    assert!(close(micros(2), result["tiers"][0]["busy_seconds"].as_f64().unwrap() * 1e6), "{}", micros(2));
    let read: f64 = of(2).map(|event| event["args"]["bytes"].as_f64().unwrap()).sum();
    assert!(close(read, result["weights"]["bytes"].as_f64().unwrap()), "{read}");
    assert!(of(1).count() > 10 && events.iter().any(|event| event["ph"] == "C"), "exchange and power");

    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    let addresses: Vec<&str> =
        page.match_indices("://").map(|(at, _)| &page[at + 3..(at + 25).min(page.len())]).collect();
    // The namespace of SVG is a name.
    assert!(addresses.iter().all(|address| address.starts_with("www.w3.org/2000/svg")), "{addresses:?}");
    let data = page.split_once("id=\"runs\">").unwrap().1.split_once("</script>").unwrap().0;
    let runs: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(runs[0]["result"], result);
    assert_eq!(runs[1]["result"]["target"], "ipu-server");
}

#[test]
fn this_machine_is_measured_and_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let calibrate = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.current_dir(folder).args(["targets", "calibrate", "--threads", "1", "--json"]).args(arguments);
        command.output().unwrap()
    };
    let output = calibrate(&["-o", "host.toml"]);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("does not tell the sizes of its caches") {
        eprintln!("left out: {error}");
        return;
    }
    assert!(output.status.success(), "{error}");
    let text = std::fs::read_to_string(folder.join("host.toml")).unwrap();
    let host = ipuc_formats::machine::read_target("host.toml", &text).unwrap();
    assert_eq!((host.tiles.count.get(), host.tiers.len(), host.style), (1, 3, Style::Roofline));
    // Each type with many rows, and with one.
    for pair in host.matrix.chunks(2) {
        assert_eq!((pair[0].types.clone(), pair[0].rows.get(), pair[1].rows.get()), (pair[1].types.clone(), 8, 1));
    }
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let simulated = simulated_at_the_command_line(folder, &["--target", "host.toml"]);
    let seconds = simulated["seconds"].as_f64().unwrap();
    assert!((1e-5..100.0).contains(&seconds), "{seconds}");
    let refused = calibrate(&["host"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_sweep_is_its_simulations_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let sweep = ["--target", "ipu-edge", "--sweep", "target=ipu-edge,tpu-v5e", "--sweep", "tiles.clock=500MHz,1GHz"];
    let swept = simulated_at_the_command_line(folder, &sweep);
    let rows = swept["sweep"].as_array().unwrap();
    let machines = [("ipu-edge", "500MHz"), ("ipu-edge", "1GHz"), ("tpu-v5e", "500MHz"), ("tpu-v5e", "1GHz")];
    assert_eq!(rows.len(), machines.len());
    for (row, (name, clock)) in rows.iter().zip(machines) {
        assert_eq!((&row["set"][0]["value"], &row["set"][1]["value"]), (&name.into(), &clock.into()));
        let alone = ["--target", name, "--set", &format!("tiles.clock={clock}")];
        let alone = simulated_at_the_command_line(folder, &alone);
        assert_eq!(row["seconds"], alone["seconds"], "{name} at {clock}");
        assert_eq!(row["energy_joules"], alone["energy_joules"]["total"], "{name} at {clock}");
    }
}
