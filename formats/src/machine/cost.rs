//! What a step costs on a machine when it is spread in a given way, in closed form.
//!
//! The `tile` pass searches over [`step_cost`], and the timeline of the fabric model runs what it chose. Exchange follows
//! from the loops and their split alone: a tile receives the parts of operands that its points touch.

use super::exchange::{Traffic, exchange_cycles, recurrences, reductions, traffic};
use super::matrix::{self, TileProduct};
use super::program::{BoundProduct, BoundStep, BoundTensor};
use super::roles::AxisRole;
use super::target::{Style, Target};
use super::units::{Bytes, Cycles, Joules, Seconds};
use super::zeros::Kept;
use crate::dtype::DType;
use crate::ops::{AxisKind, Space, VectorClass};
use std::ops::Range;
use thiserror::Error;

/// Why a step cannot run on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CostError {
    /// No matrix unit takes the type.
    #[error("step `{step}`: `{target}` computes no products of {dtype} (it takes {})", known.join(", "))]
    Type {
        /// Name of the step.
        step: String,
        /// Name of the target.
        target: String,
        /// The type of the activations.
        dtype: DType,
        /// Types that its matrix units take.
        known: Vec<&'static str>,
    },
    /// No way of spreading it fits.
    #[error("step `{step}`: `{target}` has {available} for values in a tile, and it needs {needed}")]
    Memory {
        /// Name of the step.
        step: String,
        /// Name of the target.
        target: String,
        /// What the best way needs.
        needed: String,
        /// What there is.
        available: String,
    },
    /// Weights or values fit nowhere.
    #[error("`{target}` holds {available}, and the {what} need {needed}: {chips} of them would hold it")]
    Capacity {
        /// Name of the target.
        target: String,
        /// What does not fit.
        what: &'static str,
        /// What it needs.
        needed: String,
        /// What there is.
        available: String,
        /// How many such machines would be enough.
        chips: u64,
    },
}

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

/// What a step costs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepCost {
    /// Tiles that take part.
    pub tiles: u32,
    /// Of the busiest tile in its matrix units.
    pub matrix: Cycles,
    /// Of the busiest tile in its vector unit.
    pub vector: Cycles,
    /// Of those, for divisions and special functions.
    pub special: Cycles,
    /// Of the busiest tile in copies within its own memory.
    pub copies: Cycles,
    /// Of all exchange phases.
    pub exchange: Cycles,
    /// Meetings of all tiles.
    pub sync: Cycles,
    /// Exchange phases.
    pub phases: u32,
    /// Parts in which the results are made, one after another.
    pub stages: u32,
    /// Bytes that the busiest tile receives.
    pub received: Bytes,
    /// Of those, bytes that its neighbour receives at the same time.
    pub shared: Bytes,
    /// Bytes that all tiles receive.
    pub exchanged: Bytes,
    /// Separate transfers that the busiest tile receives.
    pub transfers: f64,
    /// Bytes that the busiest of the tiles sends which hold operands.
    pub sent: Bytes,
    /// Separate transfers that it sends.
    pub transfers_sent: f64,
    /// Bytes that cross the middle of the machine.
    pub crossing: Bytes,
    /// The part of the exchange that brings values into other parts than those that they were computed in.
    pub relayout: Cycles,
    /// Bytes that all tiles receive for it.
    pub relayout_bytes: Bytes,
    /// Separate transfers that the busiest tile receives for it.
    pub relayout_transfers: f64,
    /// Memory of a tile that it needs at once.
    pub sram: Bytes,
    /// Bytes that all tiles read from and write to their own memories.
    pub sram_traffic: Bytes,
    /// Multiply-accumulates, without those that are left out.
    pub macs: f64,
    /// Energy of multiply-accumulates.
    pub matrix_energy: Joules,
    /// Energy of operations on single elements.
    pub vector_energy: Joules,
}

impl StepCost {
    /// How long it runs when all data is there.
    pub fn duration(&self, target: &Target) -> Seconds {
        let Cycles(matrix) = self.matrix;
        let Cycles(vector) = self.vector + self.copies;
        let exchange = (self.exchange + self.sync).0;
        let cycles = match target.style {
            Style::Bsp => matrix + vector + exchange,
            Style::Static | Style::Queues => matrix.max(vector).max(exchange),
            Style::Packet | Style::Roofline => (matrix + vector).max(exchange),
        };
        // Packets arrive late by the way that they have come, which no computation hides.
        let latency = if target.style == Style::Packet { self.latency(target).0 } else { 0.0 };
        Cycles(cycles + latency) / target.tiles.clock + target.overhead.step + target.overhead.host
    }

    /// Of hops from one end to the other of the square of tiles that take part, once a phase.
    pub fn latency(&self, target: &Target) -> Cycles {
        let side = f64::from(self.tiles).sqrt();
        target.exchange.hop * (f64::from(self.phases) * 2.0 * side)
    }
}

/// The cost of a step when it is spread like this and its operands lie like that, for all tiles alike in what they leave out
/// of it.
///
/// # Errors
/// [`CostError::Type`] where no matrix unit takes the type of its products.
pub fn step_cost(target: &Target, step: &BoundStep, split: &Split, layouts: &[Layout]) -> Result<StepCost, CostError> {
    cost_of_kept(target, step, split, layouts, step.zeros.as_ref().map(|zeros| zeros.expected(step, &split.tiles)))
}

/// [`step_cost`], with the zeros that each tile has been counted.
///
/// # Errors
/// As [`step_cost`].
pub fn counted_cost(
    target: &Target,
    step: &BoundStep,
    split: &Split,
    layouts: &[Layout],
) -> Result<StepCost, CostError> {
    cost_of_kept(target, step, split, layouts, step.zeros.as_ref().map(|zeros| zeros.counted(step, &split.tiles)))
}

fn cost_of_kept(
    target: &Target,
    step: &BoundStep,
    split: &Split,
    layouts: &[Layout],
    kept: Option<Kept>,
) -> Result<StepCost, CostError> {
    let mut cost = StepCost { tiles: split.tile_count(), stages: stages(step, split), ..StepCost::default() };
    if step.view {
        cost.tiles = 0;
        return Ok(cost);
    }
    for (index, product) in step.products.iter().enumerate() {
        // Of the others no zeros are known.
        let own = kept.filter(|_| step.zeros.as_ref().is_some_and(|zeros| zeros.product == index));
        product_cost(target, step, product, (split, own), &mut cost)?;
        if target.tiles.gathers_windows {
            gather_windows(target, step, product, split, &mut cost);
        }
    }
    vector_cost(target, step, split, &mut cost);
    traffic(target, step, split, layouts, &mut cost);
    reductions(target, step, split, &mut cost);
    recurrences(step, split, &mut cost);
    let phases = f64::from(cost.phases);
    cost.exchange = exchange_cycles(target, &Traffic::of(&cost));
    // All tiles meet before they exchange and before they compute.
    cost.sync = match target.style {
        Style::Bsp => target.overhead.sync * (phases + 1.0) + target.exchange.skew * phases,
        Style::Static | Style::Packet | Style::Queues | Style::Roofline => target.overhead.sync * phases,
    };
    Ok(cost)
}

/// Points of the busiest tile along each axis of a space.
pub(super) fn tile_extents(step: &BoundStep, space: usize, split: &Split) -> Vec<i64> {
    let parts = &split.tiles[space];
    let extents = step.extents[space].iter().zip(parts);
    extents.map(|(&extent, &parts)| (extent + i64::from(parts) - 1) / i64::from(parts.max(1))).collect()
}

/// Points of the busiest tile along each axis of a space at one time.
fn staged_extents(step: &BoundStep, space: usize, split: &Split) -> Vec<i64> {
    let extents = tile_extents(step, space, split);
    let parts = extents.iter().zip(&split.time[space]);
    parts.map(|(&extent, &parts)| (extent + i64::from(parts) - 1) / i64::from(parts.max(1))).collect()
}

fn product_cost(
    target: &Target,
    step: &BoundStep,
    product: &BoundProduct,
    (split, kept): (&Split, Option<Kept>),
    cost: &mut StepCost,
) -> Result<(), CostError> {
    let extents = tile_extents(step, product.space, split);
    let of = |role: AxisRole| {
        let axes = extents.iter().zip(&product.roles).filter(|(_, own)| **own == role);
        axes.map(|(&extent, _)| extent as f64).product::<f64>()
    };
    let tile = TileProduct {
        batch: of(AxisRole::Batch),
        rows: of(AxisRole::Rows),
        // Inputs that are left out make room for others.
        inputs: (of(AxisRole::Inputs) * kept.map_or(1.0, |kept| kept.busiest)).ceil(),
        outputs: of(AxisRole::Outputs),
    };
    let activation = product.precision.activation;
    let Some((unit, cycles)) = matrix::fastest(target, (activation, product.precision.weight), &tile) else {
        let mut known: Vec<&'static str> =
            target.matrix.iter().flat_map(|unit| &unit.types).map(|dtype| dtype.name()).collect();
        known.dedup();
        return Err(CostError::Type { step: step.name.clone(), target: target.name.clone(), dtype: activation, known });
    };
    let macs = product.macs * kept.map_or(1.0, |kept| kept.mean);
    cost.matrix += cycles;
    cost.macs += macs;
    cost.matrix_energy += unit.energy.of(macs);
    Ok(())
}

/// Parts in time of what is not summed over: results of one part are complete before those of the next.
fn stages(step: &BoundStep, split: &Split) -> u32 {
    let Some(last) = step.spaces.len().checked_sub(1) else { return 1 };
    let axes = step.spaces[last].axes.iter().zip(&split.time[last]);
    axes.filter(|(axis, _)| axis.kind != AxisKind::Reduced).fold(1, |count, (_, &parts)| count.saturating_mul(parts))
}

/// Windows that overlap are copied out, a row of inputs for each row of results, and brought into the order that the
/// matrix unit takes. Windows are where an axis of rows and one of inputs step along the same axis of operand 0.
fn gather_windows(target: &Target, step: &BoundStep, product: &BoundProduct, split: &Split, cost: &mut StepCost) {
    let extents = tile_extents(step, product.space, split);
    let axes = || step.spaces[product.space].axes.iter().zip(&product.roles).zip(&extents);
    let along = |role: AxisRole| {
        let own = axes().filter(move |((_, own), extent)| **own == role && **extent > 1);
        own.filter_map(|((axis, _), _)| axis.at.first().copied().flatten().map(|index| index.axis))
            .collect::<Vec<u32>>()
    };
    let rows = along(AxisRole::Rows);
    if !along(AxisRole::Inputs).iter().any(|axis| rows.contains(axis)) {
        return;
    }
    let Some(Some(operand)) = step.operands.first() else { return };
    let elements = operand.extents.iter().map(|&extent| extent as f64).product::<f64>().max(1.0);
    let gathered = axes().filter(|((_, role), _)| **role != AxisRole::Outputs);
    let gathered: f64 = gathered.map(|(_, &extent)| extent as f64).product();
    cost.copies += Bytes(operand.bytes / elements * gathered * 2.0) / target.tiles.bandwidth;
    cost.vector += Cycles(gathered / target.vector.convert);
}

fn vector_cost(target: &Target, step: &BoundStep, split: &Split, cost: &mut StepCost) {
    let rate = |class: VectorClass| match class {
        VectorClass::Arithmetic => target.vector.arithmetic,
        VectorClass::Convert => target.vector.convert,
        VectorClass::Divide => target.vector.divide,
        VectorClass::Transcendental => target.vector.transcendental,
    };
    // The share of the busiest tile in all points: parts of equal length but the last are rounded up.
    let share = step.spaces.first().map_or(1.0, |_| {
        let own: f64 = tile_extents(step, 0, split).iter().map(|&extent| extent as f64).product();
        let all: f64 = step.extents[0].iter().map(|&extent| extent as f64).product();
        if all > 0.0 { own / all } else { 0.0 }
    });
    for &(class, count) in &step.vector {
        let cycles = Cycles(count * share / rate(class));
        cost.vector += cycles;
        if matches!(class, VectorClass::Divide | VectorClass::Transcendental) {
            cost.special += cycles;
        }
        cost.vector_energy += target.vector.energy.of(count);
    }
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
    of_space.map(|space| Bytes(kept_points(step, space, &staged_extents(step, space, split)) * PARTIAL)).sum()
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
