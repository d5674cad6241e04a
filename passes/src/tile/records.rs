//! What was chosen, as records of a file.

use super::Placed;
use ipuc_formats::dim::Bindings;
use ipuc_formats::machine::{Program, Split, Target};
use ipuc_formats::model::{PlacementRecord, Reduction, SplitKind, SplitRecord, StepPlacementRecord};
use ipuc_formats::ops::AxisKind;
use std::collections::BTreeMap;

/// Placements of the blocks of a program: one a block, with the steps that compute.
pub fn records(
    program: &Program,
    target: &Target,
    target_hash: [u8; 32],
    dimensions: &Bindings,
    placed: &[Placed],
) -> Vec<PlacementRecord> {
    let bindings: Vec<(String, i64)> = dimensions.iter().map(|(name, value)| (name.to_string(), value)).collect();
    let mut blocks: BTreeMap<u32, BTreeMap<u32, StepPlacementRecord>> = BTreeMap::new();
    for (step, placed) in program.steps.iter().zip(placed) {
        if step.spaces.is_empty() || step.view {
            continue;
        }
        let splits = splits(&placed.split);
        let reduces = splits
            .iter()
            .any(|split| step.spaces[split.space as usize].axes[split.axis as usize].kind == AxisKind::Reduced);
        let record = StepPlacementRecord {
            step: step.step,
            stationary: step.products.first().map(|product| product.stationary as u32),
            tiles: std::iter::once(0..placed.split.tile_count()).collect(),
            regions: Vec::new(),
            reduction: if reduces { Reduction::Tree } else { Reduction::None },
            splits,
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
