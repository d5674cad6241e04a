//! What was chosen, as records of a file.

use super::Plan;
use super::regions::{Region, blocks};
use crate::tile::Placed;
use ipuc_formats::dim::Bindings;
use ipuc_formats::machine::{Program, Split, Target};
use ipuc_formats::model::{
    Manifest, OperandRecord, PlacementRecord, Reduction, RegionRecord, SplitKind, SplitRecord, StepPlacementRecord,
};
use ipuc_formats::ops::AxisKind;
use std::collections::BTreeMap;

/// Placements of the blocks of a program: one a block, with the steps that compute, and where everything lies if that is
/// planned.
pub fn records(
    manifest: &Manifest,
    program: &Program,
    target: &Target,
    target_hash: [u8; 32],
    dimensions: &Bindings,
    placed: &[Placed],
    plan: Option<&Plan>,
) -> Vec<PlacementRecord> {
    let mut regions = plan.map_or_else(Vec::new, |plan| region_records(manifest, program, plan));
    regions.resize_with(program.steps.len(), Vec::new);
    let bindings: Vec<(String, i64)> = dimensions.iter().map(|(name, value)| (name.to_string(), value)).collect();
    let mut blocks: BTreeMap<u32, BTreeMap<u32, StepPlacementRecord>> = BTreeMap::new();
    for ((step, placed), regions) in program.steps.iter().zip(placed).zip(regions) {
        if step.spaces.is_empty() || step.view {
            continue;
        }
        let splits = splits(&placed.split);
        let reduces = splits
            .iter()
            .any(|split| step.spaces[split.space as usize].axes[split.axis as usize].kind == AxisKind::Reduced);
        let record = StepPlacementRecord {
            step: step.step,
            stationary: placed.cost.stationary.map(|operand| operand as u32),
            tiles: std::iter::once(0..placed.split.tile_count()).collect(),
            regions,
            reduction: if reduces { Reduction::Tree } else { Reduction::None },
            splits,
            reason: placed.reason.clone(),
        };
        blocks.entry(step.block).or_default().insert(step.step, record);
    }
    let placement = |(block, steps): (u32, BTreeMap<u32, StepPlacementRecord>)| PlacementRecord {
        target: target.name.clone(),
        target_hash,
        block,
        steps: steps.into_values().collect(),
        bindings: bindings.clone(),
    };
    blocks.into_iter().map(placement).collect()
}

fn splits(split: &Split) -> Vec<SplitRecord> {
    let of = |parts: &[Vec<u32>], kind: SplitKind| {
        let mut records = Vec::new();
        for (space, axes) in parts.iter().enumerate() {
            for (axis, &parts) in axes.iter().enumerate().filter(|(_, parts)| **parts > 1) {
                records.push(SplitRecord { space: space as u32, axis: axis as u32, parts, kind });
            }
        }
        records
    };
    let mut records = of(&split.tiles, SplitKind::Tiles);
    records.extend(of(&split.time, SplitKind::Time));
    records
}

/// The regions of each step of the program, with the numbers of its block.
fn region_records(manifest: &Manifest, program: &Program, plan: &Plan) -> Vec<Vec<RegionRecord>> {
    let runs = blocks(program);
    let mut records = vec![Vec::new(); program.steps.len()];
    let record = |step: usize, tensor: usize, region: &Region| RegionRecord {
        operand: operand(manifest, program, step, tensor),
        offset: region.offset,
        bytes: region.bytes,
        from: number(program, &runs, region, region.from),
        to: number(program, &runs, region, region.to),
    };
    for region in &plan.regions {
        records[region.step].push(record(region.step, region.tensor, region));
    }
    for reading in &plan.readings {
        let region = &plan.regions[reading.region];
        // What a step of another block computed is no operand under the same number.
        if runs[region.step] == runs[reading.step] {
            records[reading.step].push(record(reading.step, reading.operand, region));
        }
    }
    records
}

/// The tensor as the records of the step call it.
fn operand(manifest: &Manifest, program: &Program, step: usize, tensor: usize) -> OperandRecord {
    let step = &program.steps[step];
    let record = &manifest.blocks[step.block as usize].steps[step.step as usize];
    match tensor.checked_sub(step.operands.len()) {
        Some(result) => OperandRecord::Value(record.results[result]),
        None => record.operands[tensor],
    }
}

/// The number in its block of the step at which a region begins or ends to live: the nearest step of the block, where that
/// is a step of another.
fn number(program: &Program, runs: &[(usize, usize)], region: &Region, at: usize) -> u32 {
    let (first, last) = runs[region.step];
    let own = |index: &usize| runs[*index] == (first, last);
    let at = at.clamp(first, last);
    let nearest = match at <= region.step {
        true => (at..=region.step).find(own),
        false => (region.step..=at).rev().find(own),
    };
    program.steps[nearest.unwrap_or(region.step)].step
}
