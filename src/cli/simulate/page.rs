//! `--html`: simulated runs as one page that needs nothing else.

use super::present::json_result;
use crate::simulate::Simulated;
use ipuc_formats::machine::{Place, Program, Source, Target};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// The page, with the data of the runs in place of [`MARK`].
const PAGE: &str = include_str!("page.html");
const MARK: &str = "@RUNS@";

/// A page about a run, or about two runs beside each other.
pub(super) fn page(runs: &[(&Target, &Simulated)]) -> String {
    let runs: Vec<Json> = runs.iter().map(|(target, simulated)| run(target, simulated)).collect();
    // The data ends where the element ends: nothing in it may look like that.
    PAGE.replace(MARK, &json!(runs).to_string().replace('<', "\\u003c"))
}

fn run(target: &Target, simulated: &Simulated) -> Json {
    let Simulated { program, placed: _, homes, plan, report, stored_for: _ } = simulated;
    let slowdown = report.slowdown();
    let types = program.steps.iter().flat_map(|step| &step.products).map(|product| product.precision.activation);
    let peak = types.filter_map(|dtype| target.peak_macs_per_second(dtype)).fold(0.0, f64::max);
    let tiles = f64::from(target.tiles.count.get());
    let mut memories = vec![
        json!({"name": "tiles", "rate": target.tiles.bandwidth.0 * tiles * target.tiles.clock.0, "capacity": target.sram().0}),
    ];
    memories.extend(
        target.tiers.iter().map(|tier| json!({"name": tier.name, "rate": tier.read.0, "capacity": tier.capacity.0})),
    );
    let transfers = report.transfers.iter().map(|transfer| {
        json!([
            transfer.tier,
            transfer.step,
            transfer.start.0 * slowdown,
            transfer.end.0 * slowdown,
            transfer.bytes.0,
            transfer.write
        ])
    });
    let regions = plan.iter().flat_map(|plan| &plan.regions).map(|region| {
        let holds: &'static str = region.holds.into();
        json!([region.offset, region.bytes, region.from, region.to, holds, region.step])
    });
    json!({
        "result": json_result(target, simulated),
        "description": target.description,
        "tiles": tiles,
        "memory_bytes": target.tiles.sram.0,
        "reserved_bytes": target.tiles.reserved.0,
        "peak_macs_per_second": peak,
        "memories": memories,
        "power_limit": target.energy.limit.map(|limit| limit.0),
        "static_power": target.energy.static_power.0,
        "thermal": target.thermal.as_ref().map(|thermal| json!({
            "ambient": thermal.ambient.0,
            "limit": thermal.limit.0,
            "resistance": thermal.resistance.0,
            "capacity": thermal.capacity.0,
        })),
        "transfers": transfers.collect::<Json>(),
        "regions": regions.collect::<Json>(),
        "values": match homes.activations {
            Place::Tiles => Vec::new(),
            Place::Tier(_) => values(program),
        },
    })
}

/// Bytes of each result of a step, the step that makes it and the last one that reads it.
fn values(program: &Program) -> Vec<Json> {
    let mut lives: BTreeMap<u32, (f64, usize, usize)> = BTreeMap::new();
    for (index, step) in program.steps.iter().enumerate() {
        for tensor in step.operands.iter().flatten() {
            if let Source::Value(value) = tensor.source
                && let Some((_, _, last)) = lives.get_mut(&value)
            {
                *last = index;
            }
        }
        for tensor in step.results.iter().filter(|_| !step.view) {
            if let Source::Value(value) = tensor.source {
                lives.insert(value, (tensor.bytes, index, index));
            }
        }
    }
    lives.into_values().map(|(bytes, from, to)| json!([bytes, from, to])).collect()
}
