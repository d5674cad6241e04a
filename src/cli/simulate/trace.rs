//! `--trace`: a simulated run as events for Perfetto or `chrome://tracing`.

use super::present::{limit, parts};
use crate::simulate::Simulated;
use ipuc_formats::machine::units::{Cycles, Seconds};
use ipuc_formats::machine::{Style, Target};
use ipuc_runtime::fabric::{EnergyParts, Report, StepReport};
use serde_json::{Value as Json, json};

/// Tracks of the machine: steps on the tiles, exchange between them, then one for each tier.
const TILES: usize = 0;
const EXCHANGE: usize = 1;
const FIRST_TIER: usize = 2;

/// The events, in the JSON format that both viewers read. Times are in microseconds.
pub(super) fn events(target: &Target, simulated: &Simulated) -> Json {
    let mut events = names(target);
    let report = slowed(&simulated.report);
    for ((step, placed), took) in simulated.program.steps.iter().zip(&simulated.placed).zip(&report.steps) {
        let time = took.end - took.start;
        if time.0 <= 0.0 {
            continue;
        }
        events.push(complete(
            &step.name,
            TILES,
            took.start,
            time,
            &json!({
                "operator": step.operator,
                "tiles": placed.cost.tiles,
                "busy_us": micros(took.busy),
                "stall_us": micros(took.stall),
                "limit": limit(target, took.limit),
                "chosen": placed.reason,
            }),
        ));
        let Cycles(exchange) = placed.cost.exchange + placed.cost.sync;
        let exchange = (Cycles(exchange) / target.tiles.clock) * (step.times * simulated.report.slowdown());
        if exchange.0 > 0.0 {
            let args = json!({"bytes": placed.cost.exchanged.0, "phases": placed.cost.phases});
            events.push(complete(&step.name, EXCHANGE, exchange_start(target, took, exchange), exchange, &args));
        }
        events.push(power(target, (took, report.chips.len()), time));
    }
    for transfer in &report.transfers {
        let name = simulated.program.steps.get(transfer.step).map_or("", |step| step.name.as_str());
        let args = json!({"bytes": transfer.bytes.0, "direction": if transfer.write { "write" } else { "read" }});
        events.push(complete(name, FIRST_TIER + transfer.tier, transfer.start, transfer.end - transfer.start, &args));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}

/// The run with the times that limits on power and temperature make of it.
fn slowed(report: &Report) -> Report {
    let slowdown = report.slowdown();
    let mut slowed = report.clone();
    for step in &mut slowed.steps {
        for time in [&mut step.start, &mut step.end, &mut step.busy, &mut step.stall] {
            *time = *time * slowdown;
        }
    }
    for transfer in &mut slowed.transfers {
        transfer.start = transfer.start * slowdown;
        transfer.end = transfer.end * slowdown;
    }
    slowed
}

fn names(target: &Target) -> Vec<Json> {
    let name = |what: &str, track: usize, name: &str| json!({"ph": "M", "pid": 1, "tid": track, "name": what, "args": {"name": name}});
    let mut events = vec![
        name("process_name", TILES, &target.name),
        name("thread_name", TILES, "tiles"),
        name("thread_name", EXCHANGE, "exchange"),
    ];
    let tiers = target.tiers.iter().enumerate();
    events.extend(tiers.map(|(index, tier)| name("thread_name", FIRST_TIER + index, &tier.name)));
    events
}

fn micros(time: Seconds) -> f64 {
    time.0 * 1e6
}

fn complete(name: &str, track: usize, start: Seconds, time: Seconds, args: &Json) -> Json {
    json!({"ph": "X", "pid": 1, "tid": track, "name": name, "ts": micros(start), "dur": micros(time), "args": args})
}

/// Where phases alternate, tiles exchange before they compute; elsewhere both begin together.
fn exchange_start(target: &Target, took: &StepReport, exchange: Seconds) -> Seconds {
    let start = took.end - took.busy;
    match target.style {
        Style::Bsp => start,
        Style::Static | Style::Packet | Style::Queues | Style::Roofline => start.min(took.end - exchange),
    }
}

/// Power by component while a step runs.
fn power(target: &Target, (took, chips): (&StepReport, usize), time: Seconds) -> Json {
    let static_energy = target.energy.static_power * time * chips as f64;
    let energy = EnergyParts { static_energy, ..took.energy.clone() };
    let parts = parts(target, &energy).into_iter();
    let watts: serde_json::Map<String, Json> = parts.map(|(name, energy)| (name, json!(energy.0 / time.0))).collect();
    json!({"ph": "C", "pid": 1, "tid": TILES, "name": "power (W)", "ts": micros(took.start), "args": watts})
}
