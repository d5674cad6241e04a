//! Laws over random graphs on random machines, and what more bandwidth does to them.

use super::{check_laws, close, described, laws::Numbers};
use crate::models::{BF16, Builder, Weights};
use ipuc::simulate::{SimulateOptions, Simulated, simulate};
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::units::{Bytes, BytesPerCycle, BytesPerSecond};
use ipuc_formats::machine::{Layout, Source, StepCost, Target, built_in, counted_cost, layout_of};
use ipuc_formats::model::Manifest;
use ipuc_runtime::fabric;
use std::collections::{BTreeSet, HashMap};

/// Products, elementwise steps, normalizations, softmax and changes of order, each on values made before it.
fn graph(numbers: &mut Numbers) -> Manifest {
    let mut builder = Builder::new(BF16);
    let rows = numbers.pick(&[1, 7, 64, 300]);
    let width = numbers.pick(&[32, 96, 512]);
    let first = builder.input("x", &[rows, width]);
    // Names of values with their columns.
    let mut values = vec![(first, width)];
    for _ in 0..numbers.pick(&[3, 6, 10]) {
        let (x, columns) = values[numbers.pick(&(0..values.len()).collect::<Vec<_>>())].clone();
        let same: Vec<String> =
            values.iter().filter(|(_, own)| *own == columns).map(|(name, _)| name.clone()).collect();
        let made = match numbers.pick(&[0, 0, 1, 2, 3, 4, 5]) {
            0 => {
                let outputs = numbers.pick(&[32, 96, 512, 1000]);
                (builder.product(&x, columns, outputs, Weights::Plain), outputs)
            }
            1 => (
                builder.node("Add", &[&x, &same[numbers.pick(&(0..same.len()).collect::<Vec<_>>())]], Vec::new()),
                columns,
            ),
            2 => (builder.node("Relu", &[&x], Vec::new()), columns),
            3 => (builder.node("Softmax", &[&x], Vec::new()), columns),
            4 => {
                let turned = builder.node("Transpose", &[&x], Vec::new());
                let gram = builder.node("MatMul", &[&x, &turned], Vec::new());
                (gram, rows)
            }
            _ => (crate::models::normalized(&mut builder, &x, columns), columns),
        };
        values.push(made);
    }
    // Everything that is made is asked for.
    let outputs: Vec<(&str, Vec<i64>)> =
        values[1..].iter().map(|(name, columns)| (name.as_str(), vec![rows, *columns])).collect();
    described(&builder.finish(&outputs), false)
}

fn machine(numbers: &mut Numbers) -> Target {
    let names = [
        "ipu-server",
        "ipu-edge",
        "tenstorrent-n150",
        "northpole",
        "trainium2",
        "a100",
        "cerebras-wse3",
        "sambanova-sn40l",
    ];
    let set = [
        ("tiles.count", numbers.pick(&["1", "4", "100", "1472"])),
        ("tiles.sram", numbers.pick(&["512KiB", "2MiB", "64MiB"])),
        ("exchange.receive", numbers.pick(&["1 B/cycle", "8 B/cycle", "64 B/cycle"])),
        ("exchange.transfer", numbers.pick(&["0 cycles", "20 cycles"])),
        ("exchange.skew", numbers.pick(&["0 cycles", "500 cycles"])),
        ("tiles.run", numbers.pick(&["0 cycles", "5 cycles"])),
        ("overhead.step", numbers.pick(&["0ns", "2us"])),
        ("policy.prefetch", numbers.pick(&["true", "false"])),
        ("policy.activations", numbers.pick(&["auto", "auto", "tier2"])),
    ];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let name = numbers.pick(&names);
    // Not all of them have tiers.
    let with = if built_in(name, &[]).unwrap().unwrap().tiers.is_empty() { &set[..8] } else { &set[..] };
    built_in(name, with).unwrap().unwrap()
}

fn run(manifest: &Manifest, target: &Target) -> Option<Simulated> {
    let options = SimulateOptions { numerics: Some(DType::BF16), ..SimulateOptions::default() };
    simulate(manifest, target, &options).ok().filter(|simulated| simulated.report.chips.len() == 1)
}

/// The same steps spread in the same way on another machine.
fn again(simulated: &Simulated, target: &Target) -> f64 {
    let mut layouts: HashMap<Source, Layout> = HashMap::new();
    let mut costs: Vec<StepCost> = Vec::new();
    for (step, placed) in simulated.program.steps.iter().zip(&simulated.placed) {
        let of = |source: Source| layouts.get(&source).cloned().flatten();
        let own: Vec<Layout> =
            step.operands.iter().map(|operand| operand.as_ref().and_then(|tensor| of(tensor.source))).collect();
        costs.push(counted_cost(target, step, &placed.split, &own).unwrap());
        let last = step.spaces.len().checked_sub(1).filter(|_| !step.view);
        for (index, result) in step.results.iter().enumerate() {
            let tensor = step.operands.len() + index;
            let layout = last.map(|last| layout_of(step, last, &placed.split, tensor, result.extents.len()));
            layouts.insert(result.source, layout);
        }
    }
    let local: Vec<bool> = simulated.placed.iter().map(|placed| placed.local).collect();
    fabric::simulate(target, &simulated.program, &simulated.homes, &costs, &local).makespan.0
}

#[test]
fn laws_hold_for_random_graphs_and_more_bandwidth_is_never_slower() {
    let mut numbers = Numbers(11);
    let (mut ran, mut exchanging, mut reading) = (0, 0, 0);
    let mut styles = BTreeSet::new();
    for round in 0..120 {
        let manifest = graph(&mut numbers);
        let target = machine(&mut numbers);
        let Some(simulated) = run(&manifest, &target) else { continue };
        let what = format!("round {round} on {}", target.name);
        check_laws(&what, &target, &simulated);
        let before = again(&simulated, &target);
        // Without limits on power and heat, and with the results on the machine.
        let free = simulated.report.makespan.0 - simulated.report.throttled.0;
        assert!(close(before, free), "{what}: {before} is not {free}");
        let faster: [fn(&mut Target); 6] = [
            |target| target.exchange.receive = BytesPerCycle(target.exchange.receive.0 * 2.0),
            |target| target.exchange.bisection = target.exchange.bisection.map(|rate| BytesPerCycle(rate.0 * 2.0)),
            |target| target.exchange.link = target.exchange.link.map(|rate| BytesPerCycle(rate.0 * 2.0)),
            |target| target.tiles.bandwidth = BytesPerCycle(target.tiles.bandwidth.0 * 2.0),
            |target| target.tiers.iter_mut().for_each(|tier| tier.read = BytesPerSecond(tier.read.0 * 2.0)),
            |target| target.tiers.iter_mut().for_each(|tier| tier.write = BytesPerSecond(tier.write.0 * 2.0)),
        ];
        for (index, change) in faster.iter().enumerate() {
            let mut target = target.clone();
            change(&mut target);
            let after = again(&simulated, &target);
            assert!(after <= before * (1.0 + 1e-9), "{what}: with change {index} {after} s is slower than {before} s");
        }
        styles.insert(<&'static str>::from(target.style));
        exchanging += usize::from(simulated.placed.iter().any(|placed| placed.cost.received > Bytes(0.0)));
        reading += usize::from(simulated.report.tiers.iter().any(|tier| tier.read > Bytes(0.0)));
        ran += 1;
    }
    assert_eq!(styles, ["bsp", "packet", "queues", "roofline", "static"].into());
    assert!(ran >= 60 && exchanging >= 30 && reading >= 20, "{ran} ran, {exchanging} exchange, {reading} read");
}

#[test]
fn faster_links_are_never_slower() {
    let mut numbers = Numbers(5);
    let mut ran = 0;
    while ran < 5 {
        let manifest = graph(&mut numbers);
        let mut target = built_in("groq-tsp", &[("tiles.sram".to_string(), "4MiB".to_string())]).unwrap().unwrap();
        let options = SimulateOptions {
            numerics: Some(DType::F16),
            chips: std::num::NonZeroU32::new(2),
            ..SimulateOptions::default()
        };
        let Ok(before) = simulate(&manifest, &target, &options) else { continue };
        let links = target.links.as_mut().unwrap();
        links.bandwidth = BytesPerSecond(links.bandwidth.0 * 3.0);
        let after = simulate(&manifest, &target, &options).unwrap();
        let (chips, before) = (before.report.chips.len(), before.report.makespan.0);
        assert!(after.report.makespan.0 <= before, "{} of {before} on {chips}", after.report.makespan.0);
        ran += 1;
    }
}
