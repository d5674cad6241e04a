//! `--placements`: how steps are spread over the tiles of targets.

use super::hex;
use super::program::Names;
use crate::cli::arguments::Size;
use crate::cli::output::{Output, bytes};
use ipuc_formats::model::{
    BlockRecord, KnownStep, Manifest, PlacementRecord, RegionRecord, SplitRecord, StepPlacementRecord, check_placement,
};
use ipuc_formats::ops::Space;
use serde_json::{Value as Json, json};
use std::ops::Range;

/// Show all placements; with a target's number of tiles and their memory, check them against it first.
pub(super) fn show(manifest: &Manifest, target: Option<(u32, Size)>, output: &mut Output) -> anyhow::Result<()> {
    let names = Names::new(manifest);
    for placement in &manifest.placements {
        if let Some((tiles, sram)) = target {
            check_placement(manifest, placement, tiles, sram.bytes)?;
        }
        let bindings = placement.bindings.iter().map(|(symbol, value)| format!(" {symbol}={value}"));
        let (block, name, hash) = (placement.block, &placement.target, hex(&placement.target_hash));
        output.line(format_args!("block {block} on {name}{}, target {hash}", bindings.collect::<String>()))?;
        let mut table = vec![
            ["step", "operator", "splits", "tiles", "stationary", "reduction", "regions", "reason"].map(str::to_string),
        ];
        let record = &manifest.blocks[block as usize];
        for step in &placement.steps {
            let reduction: &'static str = step.reduction.into();
            let cells = |cells: Vec<String>| if cells.is_empty() { "-".to_string() } else { cells.join(", ") };
            table.push([
                format!("{block}:{}", step.step),
                record.steps[step.step as usize].op.name().to_string(),
                cells(step.splits.iter().map(|split| split_text(&spaces(manifest, placement, step), split)).collect()),
                cells(step.tiles.iter().map(tiles_text).collect()),
                step.stationary.map_or_else(|| "-".to_string(), |operand| format!("operand {operand}")),
                reduction.to_string(),
                cells(step.regions.iter().map(|region| region_text(&names, record, region)).collect()),
                if step.reason.is_empty() { "-".to_string() } else { step.reason.clone() },
            ]);
        }
        output.table(table)?;
    }
    if manifest.placements.is_empty() {
        output.line("no placements")?;
    }
    let placements = manifest.placements.iter().map(|placement| json_placement(manifest, &names, placement));
    output.json(&json!({ "placements": placements.collect::<Json>() }))
}

fn spaces(manifest: &Manifest, placement: &PlacementRecord, step: &StepPlacementRecord) -> Vec<Space> {
    let known = KnownStep::new(manifest, placement.block as usize, step.step as usize);
    known.map(|known| known.op().spaces(&known.facts())).unwrap_or_default()
}

fn axis_kind(spaces: &[Space], split: &SplitRecord) -> Option<&'static str> {
    let axis = spaces.get(split.space as usize)?.axes.get(split.axis as usize)?;
    Some(axis.kind.into())
}

/// `parallel axis 1 of space 0 in 4 over tiles`.
fn split_text(spaces: &[Space], split: &SplitRecord) -> String {
    let kind: &'static str = split.kind.into();
    let axis = axis_kind(spaces, split).unwrap_or("unknown");
    format!("{axis} axis {} of space {} in {} over {kind}", split.axis, split.space, split.parts)
}

fn tiles_text(tiles: &Range<u32>) -> String {
    if tiles.end - tiles.start == 1 { tiles.start.to_string() } else { format!("{}..{}", tiles.start, tiles.end) }
}

/// `%x at 64 (128 B) in steps 0 to 2`.
fn region_text(names: &Names, block: &BlockRecord, region: &RegionRecord) -> String {
    let RegionRecord { operand, offset, bytes: length, from, to } = region;
    format!("{} at {offset} ({}) in steps {from} to {to}", names.operand(block, operand), bytes(*length))
}

fn json_placement(manifest: &Manifest, names: &Names, placement: &PlacementRecord) -> Json {
    let block = &manifest.blocks[placement.block as usize];
    let bindings = placement.bindings.iter().map(|(symbol, value)| json!({"symbol": symbol, "value": value}));
    let steps = placement.steps.iter().map(|step| {
        let spaces = spaces(manifest, placement, step);
        let split = |split: &SplitRecord| {
            let kind: &'static str = split.kind.into();
            json!({
                "space": split.space,
                "axis": split.axis,
                "axis_kind": axis_kind(&spaces, split),
                "parts": split.parts,
                "kind": kind,
            })
        };
        let region = |region: &RegionRecord| {
            json!({
                "operand": names.operand(block, &region.operand),
                "offset": region.offset,
                "bytes": region.bytes,
                "from": region.from,
                "to": region.to,
            })
        };
        let reduction: &'static str = step.reduction.into();
        json!({
            "step": step.step,
            "operator": block.steps[step.step as usize].op.name(),
            "splits": step.splits.iter().map(split).collect::<Json>(),
            "stationary": step.stationary,
            "tiles": step.tiles.iter().map(|tiles| json!({"start": tiles.start, "end": tiles.end})).collect::<Json>(),
            "regions": step.regions.iter().map(region).collect::<Json>(),
            "reduction": reduction,
            "reason": step.reason,
        })
    });
    json!({
        "target": placement.target,
        "target_hash": hex(&placement.target_hash),
        "block": placement.block,
        "bindings": bindings.collect::<Json>(),
        "steps": steps.collect::<Json>(),
    })
}
