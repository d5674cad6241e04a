//! The result of a simulation: a table by step and in total, or JSON.

use crate::cli::output::Output;
use crate::cli::present as values;
use crate::simulate::Simulated;
use ipuc_formats::machine::units::{Bytes, Cycles, Joules, Seconds};
use ipuc_formats::machine::{BoundStep, Place, Program, Target};
use ipuc_formats::value::Value;
use ipuc_passes::tile::Placed;
use ipuc_runtime::fabric::{EnergyParts, Heat, Limit, Report, StepReport};
use serde_json::{Value as Json, json};

pub(super) fn show(
    target: &Target,
    simulated: &Simulated,
    outputs: Option<&[(String, Value)]>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let mut rows = vec![
        [
            "step",
            "operator",
            "runs",
            "tiles",
            "cycles",
            "time",
            "of the peak",
            "stall",
            "waits for",
            "exchanged",
            "relayout",
            "from tiers",
            "beyond",
            "energy",
            "limit",
            "name",
        ]
        .map(str::to_string),
    ];
    let Simulated { program, placed, report, .. } = simulated;
    for ((step, placed), took) in program.steps.iter().zip(placed).zip(&report.steps) {
        let time = took.busy + took.stall;
        rows.push([
            format!("{}:{}", step.block, step.step),
            step.operator.to_string(),
            step.times.to_string(),
            placed.cost.tiles.to_string(),
            format!("{:.0}", (time * target.tiles.clock).0),
            time.to_string(),
            utilization(target, step, placed.cost.macs, took)
                .map_or_else(|| "-".to_string(), |share| format!("{:.1} %", share * 100.0)),
            took.stall.to_string(),
            waits_for(target, took),
            (placed.cost.exchanged * step.times).to_string(),
            (placed.cost.relayout_bytes * step.times).to_string(),
            took.read.iter().copied().sum::<Bytes>().to_string(),
            (placed.cost.beyond * step.times).to_string(),
            took.energy.total().to_string(),
            limit(target, took.limit),
            step.name.clone(),
        ]);
    }
    output.table(rows)?;
    totals(target, simulated, output)?;
    let mut result = json_result(target, simulated);
    if let Some(outputs) = outputs {
        for (name, value) in outputs {
            output.line(format_args!("{name}: {}", values::text(value)))?;
        }
        let outputs = outputs.iter().map(|(name, value)| {
            let mut object = values::json(value);
            object["name"] = json!(name);
            object
        });
        result["outputs"] = outputs.collect();
    }
    output.json(&result)
}

fn totals(target: &Target, simulated: &Simulated, output: &mut Output) -> anyhow::Result<()> {
    let Simulated { program, placed, homes, plan, report, stored_for } = simulated;
    let utilization =
        report.utilization.map_or_else(String::new, |share| format!(", {:.1} % of the peak", share * 100.0));
    output.line(format_args!(
        "{} on {}: {} ({:.0} cycles at {})",
        counted(report.macs),
        target.name,
        report.makespan,
        report.cycles.0,
        target.tiles.clock
    ))?;
    output.line(format_args!("  {:.1} runs a second{utilization}", 1.0 / report.makespan.0))?;
    output.line(format_args!("  at work {}, stalled {}", report.busy, report.stall))?;
    if report.throttled.0 > 0.0 {
        output.line(format_args!(
            "  slowed down by {} to stay within the limits on power and temperature",
            report.throttled
        ))?;
    }
    if let Some(heat) = &report.heat {
        output.line(warmth(heat))?;
    }
    if report.chips.len() > 1 {
        let links = report.chips.iter().map(|chip| chip.link).sum::<Seconds>();
        let count = report.chips.len();
        output.line(format_args!("  on {count} of them one after another, {links} between them"))?;
        let many = 1.0 / report.interval.0;
        output.line(format_args!("  {many:.1} runs a second where {count} are under way at once"))?;
    }
    if report.left_out_macs > 0.0 {
        let share = report.left_out_macs / (report.left_out_macs + report.macs) * 100.0;
        output.line(format_args!("  {share:.1} % of the multiply-accumulates left out, since activations are zero"))?;
    }
    output.line(format_args!(
        "  weights {} in {}, state {} in {}, values in {}",
        Bytes(program.weight_bytes),
        weights_place(target, program, homes.weights),
        Bytes(program.state_bytes),
        place(target, homes.state),
        place(target, homes.activations)
    ))?;
    for (tier, took) in target.tiers.iter().zip(&report.tiers) {
        output.line(format_args!(
            "  {}: {} read, {} written, busy {}, waited for {}",
            tier.name, took.read, took.written, took.busy, took.stall
        ))?;
    }
    if let Some(machine) = stored_for {
        let (beyond, read) = (beyond(simulated), report.tiers.iter().map(|took| took.read).sum::<Bytes>());
        output.line(format_args!(
            "  {beyond} of the {read} beyond what is needed, since weights are stored in the order for {machine}"
        ))?;
    }
    let parts = parts(target, &report.energy).into_iter().filter(|(_, energy)| energy.0 > 0.0);
    let parts: Vec<String> = parts.map(|(name, energy)| format!("{name} {energy}")).collect();
    let power = report.energy.total() / report.makespan;
    output.line(format_args!("  energy {} ({power}): {}", report.energy.total(), parts.join(", ")))?;
    if let Some(plan) = plan {
        let fullest = program.steps.get(plan.fullest).map_or("", |step| step.name.as_str());
        output.line(format_args!("  a tile holds {} of {}, most at `{fullest}`", plan.needed, plan.available))?;
        if let Err(error) = plan.check(program, target) {
            output.line(format_args!("  it does not fit: {error}"))?;
        }
    }
    let exceeding = placed.iter().filter(|placed| placed.exceeds_memory).count();
    if exceeding > 0 {
        output.line(format_args!("  {exceeding} steps need more memory than a tile has, however they are cut"))?;
    }
    if !program.assumed.is_empty() {
        output.line(format_args!("  counted once, since data decides: {}", program.assumed.join(", ")))?;
    }
    Ok(())
}

/// Bytes of weights that a run reads beyond those that it needs.
fn beyond(simulated: &Simulated) -> Bytes {
    let steps = simulated.program.steps.iter().zip(&simulated.placed);
    steps.map(|(step, placed)| placed.cost.beyond * step.times).sum()
}

fn warmth(heat: &Heat) -> String {
    let Heat { start, end, steady, limit_after, sustained } = heat;
    match limit_after {
        None => format!("  from {start:.1} to {end:.1}, and {steady:.1} where it goes on"),
        Some(after) => format!(
            "  from {start:.1} to {end:.1}; where it goes on it reaches its limit after {after}, and a run then takes {sustained}"
        ),
    }
}

fn counted(macs: f64) -> String {
    match macs {
        macs if macs >= 1e12 => format!("{:.2} T multiply-accumulates", macs / 1e12),
        macs if macs >= 1e9 => format!("{:.2} G multiply-accumulates", macs / 1e9),
        macs => format!("{:.2} M multiply-accumulates", macs / 1e6),
    }
}

/// Where weights live, and how many of them stay in the tiles though they live elsewhere.
fn weights_place(target: &Target, program: &Program, home: Place) -> String {
    let place = place(target, home);
    match program.resident_bytes > 0.0 {
        true => format!("{place} ({} of them stay in the tiles)", Bytes(program.resident_bytes)),
        false => place,
    }
}

fn place(target: &Target, place: Place) -> String {
    match place {
        Place::Tiles => "tiles".to_string(),
        Place::Tier(tier) => target.tiers[tier].name.clone(),
    }
}

/// Share of the multiply-accumulates that the matrix units could have done in the time of a step.
fn utilization(target: &Target, step: &BoundStep, macs: f64, took: &StepReport) -> Option<f64> {
    let peaks = step.products.iter().filter_map(|product| target.peak_macs_per_second(product.precision.activation));
    let peak = peaks.reduce(f64::max)?;
    let Seconds(time) = took.busy + took.stall;
    (time > 0.0).then(|| macs * step.times / (peak * time))
}

/// What a step waited for longest: a tier, or results of other steps.
fn waits_for(target: &Target, took: &StepReport) -> String {
    if took.stall.0 <= 0.0 {
        return "-".to_string();
    }
    let tiers = took.tier_stalls.iter().zip(&target.tiers);
    let longest = tiers.max_by(|(left, _), (right, _)| left.0.total_cmp(&right.0));
    let of_tiers: Seconds = took.tier_stalls.iter().copied().sum();
    match longest {
        Some((stall, tier)) if stall.0 > 0.0 && of_tiers.0 * 2.0 >= took.stall.0 => tier.name.clone(),
        Some(_) | None => "results".to_string(),
    }
}

pub(super) fn limit(target: &Target, limit: Limit) -> String {
    match limit {
        Limit::Matrix => "matrix".to_string(),
        Limit::Vector => "vector".to_string(),
        Limit::Exchange => "exchange".to_string(),
        Limit::Overhead => "overhead".to_string(),
        Limit::Tier(tier) => target.tiers[tier].name.clone(),
        Limit::Nothing => "-".to_string(),
    }
}

pub(super) fn parts(target: &Target, energy: &EnergyParts) -> Vec<(String, Joules)> {
    let mut parts = vec![
        ("matrix".to_string(), energy.matrix),
        ("vector".to_string(), energy.vector),
        ("sram".to_string(), energy.sram),
        ("exchange".to_string(), energy.exchange),
    ];
    parts.extend(target.tiers.iter().map(|tier| tier.name.clone()).zip(energy.tiers.iter().copied()));
    parts.push(("links".to_string(), energy.links));
    parts.push(("static".to_string(), energy.static_energy));
    parts
}

fn json_energy(energy: &EnergyParts) -> Json {
    json!({
        "matrix": energy.matrix.0,
        "vector": energy.vector.0,
        "sram": energy.sram.0,
        "exchange": energy.exchange.0,
        "tiers": energy.tiers.iter().map(|energy| energy.0).collect::<Vec<_>>(),
        "links": energy.links.0,
        "static": energy.static_energy.0,
        "total": energy.total().0,
    })
}

fn json_step(target: &Target, step: &BoundStep, placed: &Placed, (took, slowdown): (&StepReport, f64)) -> Json {
    let cost = &placed.cost;
    let Cycles(exchange) = cost.exchange;
    json!({
        "block": step.block,
        "step": step.step,
        "name": step.name,
        "operator": step.operator,
        "runs": step.times,
        "macs": step.times * cost.macs,
        "zero_share": step.zeros.as_ref().map(|zeros| 1.0 - zeros.kept),
        "tiles": cost.tiles,
        "start_seconds": took.start.0 * slowdown,
        "end_seconds": took.end.0 * slowdown,
        "busy_seconds": took.busy.0 * slowdown,
        "stall_seconds": took.stall.0 * slowdown,
        "tier_stall_seconds": took.tier_stalls.iter().map(|stall| stall.0 * slowdown).collect::<Vec<_>>(),
        "matrix_cycles": cost.matrix.0,
        "vector_cycles": cost.vector.0,
        "copy_cycles": cost.copies.0,
        "exchange_cycles": exchange,
        "sync_cycles": cost.sync.0,
        "exchange_bytes": cost.exchanged.0,
        "exchange_transfers": cost.transfers,
        "relayout_cycles": cost.relayout.0,
        "relayout_bytes": cost.relayout_bytes.0,
        "relayout_transfers": cost.relayout_transfers,
        "exchange_phases": cost.phases,
        "tile_memory_bytes": cost.sram.0,
        "sram_bytes": cost.sram_traffic.0 * step.times,
        "tier_read_bytes": took.read.iter().map(|bytes| bytes.0).collect::<Vec<_>>(),
        "beyond_bytes": cost.beyond.0 * step.times,
        "tier_written_bytes": took.written.iter().map(|bytes| bytes.0).collect::<Vec<_>>(),
        "energy_joules": json_energy(&took.energy),
        "limit": limit(target, took.limit),
        "utilization": utilization(target, step, cost.macs, took).map(|share| share / slowdown),
        "waits_for": waits_for(target, took),
        "chosen": placed.reason,
    })
}

pub(super) fn json_result(target: &Target, simulated: &Simulated) -> Json {
    let Simulated { program, placed, homes, plan, report, stored_for } = simulated;
    let slowdown = report.slowdown();
    let steps = program.steps.iter().zip(placed).zip(&report.steps);
    let steps = steps.map(|((step, placed), took)| json_step(target, step, placed, (took, slowdown)));
    let Report { makespan: Seconds(makespan), energy, .. } = report;
    let tiers = target.tiers.iter().zip(&report.tiers).map(|(tier, took)| {
        json!({
            "name": tier.name,
            "read_bytes": took.read.0,
            "written_bytes": took.written.0,
            "busy_seconds": took.busy.0,
            "stall_seconds": took.stall.0,
        })
    });
    json!({
        "target": target.name,
        "seconds": makespan,
        "cycles": report.cycles.0,
        "engines": report.engines.iter().map(|engine| json!({
            "name": engine.name,
            "busy_seconds": engine.busy.0,
            "stall_seconds": engine.stall.0,
            "idle_seconds": engine.idle.0,
        })).collect::<Json>(),
        "busy_seconds": report.busy.0,
        "stall_seconds": report.stall.0,
        "throttled_seconds": report.throttled.0,
        "macs": report.macs,
        "left_out_macs": report.left_out_macs,
        "interval_seconds": report.interval.0,
        "chips": report.chips.iter().map(|chip| json!({
            "first_step": chip.first,
            "start_seconds": chip.start.0 * slowdown,
            "end_seconds": chip.end.0 * slowdown,
            "received_bytes": chip.received.0,
            "link_seconds": chip.link.0 * slowdown,
        })).collect::<Json>(),
        "heat": report.heat.as_ref().map(|heat| json!({
            "start_celsius": heat.start.0,
            "end_celsius": heat.end.0,
            "steady_celsius": heat.steady.0,
            "limit_after_seconds": heat.limit_after.map(|after| after.0),
            "sustained_seconds": heat.sustained.0,
        })),
        "utilization": report.utilization,
        "energy_joules": json_energy(energy),
        "weights": {
            "bytes": program.weight_bytes,
            "home": place(target, homes.weights),
            "resident_bytes": program.resident_bytes,
            "stored_for": stored_for,
            "beyond_bytes": beyond(simulated).0,
        },
        "state": {"bytes": program.state_bytes, "home": place(target, homes.state)},
        "values": {"home": place(target, homes.activations)},
        "tile_memory": plan.as_ref().map(|plan| json!({
            "needed_bytes": plan.needed.0,
            "available_bytes": plan.available.0,
            "fullest_step": plan.fullest,
        })),
        "tiers": tiers.collect::<Json>(),
        "assumed": program.assumed,
        "steps": steps.collect::<Json>(),
    })
}
