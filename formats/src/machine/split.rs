//! How the points of a step are spread over tiles and time, and what the busiest tile has of each tensor then.

use super::program::{BoundStep, BoundTensor};
use super::units::Bytes;
use crate::ops::{AxisKind, Space};
use std::ops::Range;

/// How the points of a step are spread: for each axis of each space, parts on tiles of their own and parts in time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    /// Parts on tiles of their own, by space and axis.
    pub tiles: Vec<Vec<u32>>,
    /// Parts one after another, by space and axis.
    pub time: Vec<Vec<u32>>,
}

impl Split {
    /// Everything on one tile, at once.
    pub fn whole(step: &BoundStep) -> Split {
        let ones = || step.spaces.iter().map(|space| vec![1; space.axes.len()]).collect();
        Split { tiles: ones(), time: ones() }
    }

    /// Tiles that it uses.
    pub fn tile_count(&self) -> u32 {
        let counts = self.tiles.iter().map(|parts| parts.iter().fold(1u32, |count, &part| count.saturating_mul(part)));
        counts.max().unwrap_or(1)
    }
}

/// How a value lies in tiles: parts along each of its axes. `None` where that is not known.
pub type Layout = Option<Vec<u32>>;

/// Points of the busiest tile along each axis of a space.
pub(super) fn tile_extents(step: &BoundStep, space: usize, split: &Split) -> Vec<i64> {
    let parts = &split.tiles[space];
    let extents = step.extents[space].iter().zip(parts);
    extents.map(|(&extent, &parts)| (extent + i64::from(parts) - 1) / i64::from(parts.max(1))).collect()
}

/// Points of the busiest tile along each axis of a space at one time.
pub(super) fn staged_extents(step: &BoundStep, space: usize, split: &Split) -> Vec<i64> {
    let extents = tile_extents(step, space, split);
    let parts = extents.iter().zip(&split.time[space]);
    parts.map(|(&extent, &parts)| (extent + i64::from(parts) - 1) / i64::from(parts.max(1))).collect()
}

/// Positions on each axis of a tensor that the points of the busiest tile touch; `None` where that is not known.
fn touched_extents(space: &Space, extents: &[i64], tensor: usize, bound: &BoundTensor) -> Option<Vec<f64>> {
    let tile: Vec<Range<i64>> = extents.iter().map(|&extent| 0..extent.max(1)).collect();
    let touched = space.footprint(&tile, tensor, &bound.extents)?;
    let own = touched.iter().zip(&bound.extents).enumerate();
    let own = own.map(|(axis, (range, &extent))| match apart(space, extents, tensor, axis) {
        Some(positions) => positions.min(extent).max(0) as f64,
        None => ((range.end - range.start).min(extent)).max(0) as f64,
    });
    Some(own.collect())
}

/// Bytes of a tensor that the points of the busiest tile touch.
fn tile_bytes(space: &Space, extents: &[i64], tensor: usize, bound: &BoundTensor) -> f64 {
    let all: f64 = bound.extents.iter().map(|&extent| extent as f64).product();
    let Some(touched) = touched_extents(space, extents, tensor, bound) else { return bound.bytes };
    let own: f64 = touched.iter().product();
    if all > 0.0 { bound.bytes * own / all } else { 0.0 }
}

/// Positions on each axis of an operand that a tile needs, in the space that needs most of it.
pub(super) fn needed_extents(step: &BoundStep, split: &Split, operand: usize) -> Option<Vec<f64>> {
    let bound = step.operands.get(operand)?.as_ref()?;
    let spaces = step.spaces.iter().enumerate();
    let touching =
        spaces.filter(|(_, space)| space.axes.iter().any(|axis| axis.at.get(operand).is_some_and(Option::is_some)));
    let touched =
        touching.filter_map(|(index, space)| touched_extents(space, &tile_extents(step, index, split), operand, bound));
    touched.max_by(|left, right| left.iter().product::<f64>().total_cmp(&right.iter().product()))
}

/// Positions on an axis of a tensor where two axes of the space are at it and the runs of one lie apart, as the rows of a
/// few elements in each of several gates do.
fn apart(space: &Space, extents: &[i64], tensor: usize, axis: usize) -> Option<i64> {
    let at = space.axes.iter().zip(extents).filter(|(_, extent)| **extent > 1);
    let at = at.filter_map(|(own, &extent)| Some((own.at.get(tensor).copied().flatten()?, extent)));
    let own: Vec<(i64, i64)> = at
        .filter(|(index, _)| index.axis as usize == axis)
        .map(|(index, extent)| (index.stride.abs(), extent))
        .collect();
    let [one, other] = own.as_slice() else { return None };
    let (runs, within) = if one.0 >= other.0 { (one, other) } else { (other, one) };
    (within.0 * within.1 < runs.0).then(|| runs.1 * within.1)
}

/// The share of the matrices of an operand that the points of a tile pick, at most one for each element of the index.
fn picked_share(step: &BoundStep, space: usize, extents: &[i64], tensor: usize, bound: &BoundTensor) -> f64 {
    let Some(picked) = step.picked.filter(|picked| picked.operand == tensor) else { return 1.0 };
    let axes = step.spaces[space].axes.iter().zip(extents);
    let index = axes.filter(|(axis, _)| axis.at.get(picked.index).is_some_and(Option::is_some));
    let picks: f64 = index.map(|(_, &extent)| extent as f64).product();
    let matrices = bound.extents.first().map_or(1.0, |&count| count as f64);
    (picks / matrices.max(1.0)).min(1.0)
}

/// Parts along each axis of a tensor when a space is split like this.
pub fn layout_of(step: &BoundStep, space: usize, split: &Split, tensor: usize, rank: usize) -> Vec<u32> {
    let mut parts = vec![1; rank];
    for (axis, &count) in step.spaces[space].axes.iter().zip(&split.tiles[space]) {
        if let Some(Some(index)) = axis.at.get(tensor)
            && let Some(slot) = parts.get_mut(index.axis as usize)
        {
            *slot *= count;
        }
    }
    parts
}

/// The points of a tile that something is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Points {
    /// All of them.
    All,
    /// Those of one part in time.
    Staged,
}

/// Bytes of an operand or result (counted over operands, then results) that the points of the busiest tile touch.
pub fn bytes_of_tile(step: &BoundStep, split: &Split, tensor: usize, points: Points) -> Bytes {
    let extents = |space: usize| match points {
        Points::All => tile_extents(step, space, split),
        Points::Staged => staged_extents(step, space, split),
    };
    let Some(last) = step.spaces.len().checked_sub(1) else { return Bytes(0.0) };
    if let Some(result) = tensor.checked_sub(step.operands.len()) {
        return Bytes(tile_bytes(&step.spaces[last], &extents(last), tensor, &step.results[result]));
    }
    let Some(bound) = &step.operands[tensor] else { return Bytes(0.0) };
    // A space that no axis of the operand is in does not read it, where another one does.
    let touched =
        |space: &usize| step.spaces[*space].axes.iter().any(|axis| axis.at.get(tensor).is_some_and(Option::is_some));
    let of_space = (0..=last).filter(touched).map(|space| {
        let all = tile_bytes(&step.spaces[space], &extents(space), tensor, bound);
        all * picked_share(step, space, &extents(space), tensor, bound)
    });
    Bytes(of_space.reduce(f64::max).unwrap_or(bound.bytes))
}

/// Bytes of partial sums that the busiest tile holds at once, where axes that are summed over are split.
pub fn partial_bytes(step: &BoundStep, split: &Split) -> Bytes {
    let of_space = (0..step.spaces.len()).filter(|&space| reduced_parts(step, space, split) > 1.0);
    let numbers = |space: usize| {
        kept_points(step, space, &staged_extents(step, space, split)) * f64::from(step.spaces[space].numbers)
    };
    of_space.map(|space| Bytes(numbers(space) * PARTIAL)).sum()
}

/// Bytes of a partial sum.
pub(super) const PARTIAL: f64 = 4.0;

/// Tiles that share the sums of a space.
pub(super) fn reduced_parts(step: &BoundStep, space: usize, split: &Split) -> f64 {
    let axes = step.spaces[space].axes.iter().zip(&split.tiles[space]);
    axes.filter(|(axis, _)| axis.kind == AxisKind::Reduced).map(|(_, &parts)| f64::from(parts)).product()
}

/// Points of a part that are not summed over.
pub(super) fn kept_points(step: &BoundStep, space: usize, extents: &[i64]) -> f64 {
    let axes = extents.iter().zip(&step.spaces[space].axes).filter(|(_, axis)| axis.kind != AxisKind::Reduced);
    axes.map(|(&extent, _)| extent as f64).product()
}
