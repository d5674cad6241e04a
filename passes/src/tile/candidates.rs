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
    match step.products.as_slice() {
        [product] if step.spaces.len() == 1 => products(step, product, target),
        [] => {
            let mut ways = vec![Split::whole(step)];
            ways.extend(
                (0..step.operands.len())
                    .filter_map(|operand| inherited(step, operand, layouts.get(operand)?.as_ref()?)),
            );
            for reduced in [false, true] {
                for inwards in [true, false] {
                    ways.push(spread(step, tiles, reduced, inwards));
                }
            }
            ways
        }
        _ => [false, true]
            .into_iter()
            .map(|inwards| spread(step, tiles, false, inwards))
            .chain([Split::whole(step)])
            .collect(),
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

/// Numbers of parts that give different lengths of `blocks` blocks, from 1 on; evenly chosen where there are many.
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
    let last = all.len() - 1;
    let mut chosen: Vec<u64> = (0..MOST_PARTS).map(|index| all[index * last / (MOST_PARTS - 1)]).collect();
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

/// Over as many tiles as there are, from the outermost axis inwards or from the innermost outwards.
fn spread(step: &BoundStep, tiles: u32, reduced: bool, inwards: bool) -> Split {
    let mut split = Split::whole(step);
    for (index, space) in step.spaces.iter().enumerate() {
        let usable = |axis: &usize| match space.axes[*axis].kind {
            AxisKind::Parallel => true,
            AxisKind::Reduced => reduced && space.macs == 0,
            AxisKind::Serial => false,
        };
        let mut axes: Vec<usize> = (0..space.axes.len()).filter(usable).collect();
        // Spaces of one step share their first parallel axes; those that only one of them has stay whole.
        if step.spaces.len() > 1 {
            axes.retain(|&axis| {
                step.spaces
                    .iter()
                    .all(|other| other.axes.get(axis).is_some_and(|other| other.kind == AxisKind::Parallel))
                    && step.extents.iter().all(|extents| extents[axis] == step.extents[0][axis])
            });
        }
        if !inwards {
            axes.reverse();
        }
        let mut left = u64::from(tiles);
        for axis in axes {
            let extent = step.extents[index][axis].max(1) as u64;
            // Equal lengths: as few parts as give the same longest one.
            let own = extent.div_ceil(extent.div_ceil(left.min(extent)));
            split.tiles[index][axis] = u32::try_from(own).unwrap_or(u32::MAX);
            left /= own;
        }
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
        assert!(many.len() <= MOST_PARTS && many[0] == 1, "{many:?}");
    }
}
