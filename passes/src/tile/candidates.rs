//! Ways of spreading a step that are worth looking at.

use ipuc_formats::machine::{AxisRole, BoundProduct, BoundStep, Layout, Split, Target};
use ipuc_formats::ops::AxisKind;

/// Numbers of parts that are tried for a group of axes, at most.
const MOST_PARTS: usize = 20;

/// Splits of a step over at most the tiles of a machine.
pub(super) fn candidates(step: &BoundStep, target: &Target, layouts: &[Layout]) -> Vec<Split> {
    let tiles = target.tiles.count.get();
    if step.view || step.spaces.is_empty() {
        return vec![Split::whole(step)];
    }
    let last = step.spaces.len() - 1;
    let mut ways = vec![Split::whole(step)];
    if step.products.is_empty() {
        let inherited =
            (0..step.operands.len()).filter_map(|operand| inherited(step, operand, layouts.get(operand)?.as_ref()?));
        ways.extend(inherited);
    }
    match step.products.iter().find(|product| product.space == last) {
        Some(product) => ways.extend(products(step, product, target)),
        None => {
            for reduced in [false, true] {
                ways.extend([true, false].map(|inwards| spread(step, tiles, reduced, inwards)));
            }
        }
    }
    ways.iter_mut().for_each(|split| follow(step, split));
    ways
}

/// Split the axes of all spaces as those of the last one are that they are linked to.
fn follow(step: &BoundStep, split: &mut Split) {
    let last = step.spaces.len() - 1;
    for (index, space) in step.spaces[..last].iter().enumerate() {
        for axis in 0..space.axes.len() {
            let linked = space.linked(axis, &step.spaces[last]);
            split.tiles[index][axis] = linked.map_or(1, |linked| split.tiles[last][linked]);
        }
    }
}

/// All numbers of parts of batch, rows, inputs and outputs together.
fn products(step: &BoundStep, product: &BoundProduct, target: &Target) -> Vec<Split> {
    let tiles = target.tiles.count.get();
    let units = || target.matrix.iter().filter(|unit| unit.types.contains(&product.precision.activation));
    let granule = |size: fn(&ipuc_formats::machine::Matrix) -> u32| units().map(size).min().unwrap_or(1);
    let options = |role: AxisRole, granule: u32| {
        let axes = axes(step, product, role);
        let points: u64 = axes.iter().map(|&axis| step.extents[product.space][axis].max(1) as u64).product();
        parts(points.div_ceil(u64::from(granule)), tiles)
    };
    let batch = options(AxisRole::Batch, 1);
    let rows = options(AxisRole::Rows, granule(|unit| unit.rows.get()));
    let outputs = options(AxisRole::Outputs, granule(|unit| unit.outputs.get()));
    let inputs = options(AxisRole::Inputs, granule(|unit| unit.inputs.get()));
    let mut ways = Vec::new();
    for &batch in &batch {
        for &rows in rows.iter().filter(|&&rows| rows * batch <= u64::from(tiles)) {
            for &outputs in outputs.iter().filter(|&&outputs| outputs * rows * batch <= u64::from(tiles)) {
                for &inputs in inputs.iter().filter(|&&inputs| inputs * outputs * rows * batch <= u64::from(tiles)) {
                    let mut split = Split::whole(step);
                    let wanted = [
                        (AxisRole::Batch, batch),
                        (AxisRole::Rows, rows),
                        (AxisRole::Outputs, outputs),
                        (AxisRole::Inputs, inputs),
                    ];
                    for (role, parts) in wanted {
                        deal(step, product.space, &axes(step, product, role), parts, &mut split);
                    }
                    ways.push(split);
                }
            }
        }
    }
    ways
}

/// The axes of a product in a role that may be split.
fn axes(step: &BoundStep, product: &BoundProduct, role: AxisRole) -> Vec<usize> {
    let axes = step.spaces[product.space].axes.iter().zip(&product.roles).enumerate();
    axes.filter(|(_, (axis, own))| **own == role && axis.kind != AxisKind::Serial).map(|(index, _)| index).collect()
}

/// Deal parts to axes, outermost first.
fn deal(step: &BoundStep, space: usize, axes: &[usize], parts: u64, split: &mut Split) {
    let mut left = parts;
    for &axis in axes {
        let extent = step.extents[space][axis].max(1) as u64;
        let own = left.min(extent);
        split.tiles[space][axis] = u32::try_from(own).unwrap_or(u32::MAX);
        left /= own;
    }
}

/// Numbers of parts that give different lengths of `blocks` blocks, from 1 on; where there are many, some, at equal ratios.
fn parts(blocks: u64, tiles: u32) -> Vec<u64> {
    let mut all = Vec::new();
    let mut length = blocks.max(1);
    loop {
        let parts = blocks.max(1).div_ceil(length);
        if parts > u64::from(tiles) {
            break;
        }
        all.push(parts);
        if length == 1 {
            break;
        }
        // The next length that needs more parts.
        length = (blocks.max(1).div_ceil(parts + 1)).min(length - 1);
    }
    if all.len() <= MOST_PARTS {
        return all;
    }
    // One part more or less matters where there are few.
    let most = all[all.len() - 1] as f64;
    let wanted = (0..MOST_PARTS).map(|index| most.powf(index as f64 / (MOST_PARTS - 1) as f64));
    let mut chosen: Vec<u64> =
        wanted.map(|wanted| all[all.partition_point(|&parts| (parts as f64) < wanted - 0.5)]).collect();
    chosen.dedup();
    chosen
}

/// The layout that an operand has, where axes of the step are along its axes.
fn inherited(step: &BoundStep, operand: usize, layout: &[u32]) -> Option<Split> {
    let mut split = Split::whole(step);
    let last = step.spaces.len() - 1;
    for (place, &parts) in layout.iter().enumerate().filter(|(_, parts)| **parts > 1) {
        let axis = step.spaces[last].axes.iter().position(|axis| {
            axis.kind == AxisKind::Parallel
                && axis
                    .at
                    .get(operand)
                    .copied()
                    .flatten()
                    .is_some_and(|index| index.axis as usize == place && index.stride == 1)
        })?;
        split.tiles[last][axis] = parts;
    }
    Some(split)
}

/// Whether an axis of the last space may be split: what others say of those that are linked to it, too.
fn usable(step: &BoundStep, axis: usize, reduced: bool) -> bool {
    let last = step.spaces.len() - 1;
    let allowed = |kind: AxisKind, macs: i64| match kind {
        AxisKind::Parallel => true,
        AxisKind::Reduced => reduced && macs == 0,
        AxisKind::Recurrent | AxisKind::Serial => false,
    };
    let own = allowed(step.spaces[last].axes[axis].kind, step.spaces[last].macs);
    own && step.spaces[..last].iter().all(|space| {
        let mut linked =
            (0..space.axes.len()).filter(|&other| space.linked(other, &step.spaces[last]) == Some(axis)).peekable();
        // Results of different parts of the step are split in the same way.
        let apart = linked.peek().is_none() && space.writes(step.operands.len());
        !apart && linked.all(|other| allowed(space.axes[other].kind, space.macs))
    })
}

/// Over as many tiles as there are, from the outermost axis inwards or from the innermost outwards.
fn spread(step: &BoundStep, tiles: u32, reduced: bool, inwards: bool) -> Split {
    let mut split = Split::whole(step);
    let last = step.spaces.len() - 1;
    let mut axes: Vec<usize> = (0..step.spaces[last].axes.len()).filter(|&axis| usable(step, axis, reduced)).collect();
    if !inwards {
        axes.reverse();
    }
    let mut left = u64::from(tiles);
    for axis in axes {
        let extent = step.extents[last][axis].max(1) as u64;
        // Equal lengths: as few parts as give the same longest one.
        let own = extent.div_ceil(extent.div_ceil(left.min(extent)));
        split.tiles[last][axis] = u32::try_from(own).unwrap_or(u32::MAX);
        left /= own;
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_give_different_lengths() {
        assert_eq!(parts(1, 100), [1]);
        assert_eq!(parts(4, 100), [1, 2, 4]);
        assert_eq!(parts(10, 4), [1, 2, 3, 4]);
        let many = parts(1_000_000, 900_000);
        assert!(many.len() <= MOST_PARTS && many[..3] == [1, 2, 4], "{many:?}");
    }
}
