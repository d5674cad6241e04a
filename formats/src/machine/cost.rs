//! What a step costs on a machine when it is spread in a given way, in closed form.
//!
//! The `tile` pass searches over [`step_cost`], and the timeline of the fabric model runs what it chose. Exchange follows
//! from the loops and their split alone: a tile receives the parts of operands that its points touch.

use super::matrix::{self, TileProduct};
use super::program::{BoundProduct, BoundStep, BoundTensor, Source};
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
    let shared = cost.shared / target.exchange.shared.unwrap_or(target.exchange.receive);
    let alone = (cost.received - cost.shared) / target.exchange.receive;
    let per_tile = alone + shared + target.exchange.transfer * cost.transfers;
    let crossing = target.exchange.bisection.map_or(Cycles(0.0), |rate| cost.exchanged * 0.5 / rate);
    cost.exchange = per_tile.max(crossing) + target.exchange.phase * phases;
    // All tiles meet before they exchange and before they compute.
    cost.sync = match target.style {
        Style::Bsp => target.overhead.sync * (phases + 1.0),
        Style::Static | Style::Packet | Style::Queues | Style::Roofline => target.overhead.sync * phases,
    };
    Ok(cost)
}

/// Points of the busiest tile along each axis of a space.
fn tile_extents(step: &BoundStep, space: usize, split: &Split) -> Vec<i64> {
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
        cost.vector += Cycles(count * share / rate(class));
        cost.vector_energy += target.vector.energy.of(count);
    }
}

/// Bytes of a tensor that the points of the busiest tile touch.
fn tile_bytes(space: &Space, extents: &[i64], tensor: usize, bound: &BoundTensor) -> f64 {
    let tile: Vec<Range<i64>> = extents.iter().map(|&extent| 0..extent.max(1)).collect();
    let all: f64 = bound.extents.iter().map(|&extent| extent as f64).product();
    let Some(touched) = space.footprint(&tile, tensor, &bound.extents) else { return bound.bytes };
    let own = touched.iter().zip(&bound.extents).enumerate();
    let own = own.map(|(axis, (range, &extent))| match apart(space, extents, tensor, axis) {
        Some(positions) => positions.min(extent).max(0) as f64,
        None => ((range.end - range.start).min(extent)).max(0) as f64,
    });
    let own: f64 = own.product();
    if all > 0.0 { bound.bytes * own / all } else { 0.0 }
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
const PARTIAL: f64 = 4.0;

/// Tiles that share the sums of a space.
fn reduced_parts(step: &BoundStep, space: usize, split: &Split) -> f64 {
    let axes = step.spaces[space].axes.iter().zip(&split.tiles[space]);
    axes.filter(|(axis, _)| axis.kind == AxisKind::Reduced).map(|(_, &parts)| f64::from(parts)).product()
}

/// Points of a part that are not summed over.
fn kept_points(step: &BoundStep, space: usize, extents: &[i64]) -> f64 {
    let axes = extents.iter().zip(&step.spaces[space].axes).filter(|(_, axis)| axis.kind != AxisKind::Reduced);
    axes.map(|(&extent, _)| extent as f64).product()
}

/// Operands that lie elsewhere are received; everything touched is read from or written to the tiles' memories.
fn traffic(target: &Target, step: &BoundStep, split: &Split, layouts: &[Layout], cost: &mut StepCost) {
    let tiles = f64::from(cost.tiles);
    let Some(last) = step.spaces.len().checked_sub(1) else { return };
    let mut received = Bytes(0.0);
    for (operand, tensor) in step.operands.iter().enumerate() {
        let Some(tensor) = tensor else { continue };
        let needed = bytes_of_tile(step, split, operand, Points::All);
        let staged = bytes_of_tile(step, split, operand, Points::Staged);
        match tensor.source {
            // Of gathered weights only the parts that are picked are there.
            Source::Weight(_) => {
                cost.sram += staged.min(Bytes(step.weight_bytes));
                if !rests_in_place(target, step, split, operand) {
                    received += needed.min(Bytes(step.weight_bytes));
                    cost.transfers += 1.0;
                }
            }
            // State stays in the parts that the step which uses it needs, as weights do.
            Source::State(_) if layouts.get(operand).is_none_or(Option::is_none) => cost.sram += staged,
            Source::Value(_) | Source::State(_) => {
                cost.sram += staged;
                let from = layouts.get(operand).and_then(Option::as_ref);
                // What one tile computes alone may have been made there, where nothing says otherwise.
                if !is_local(step, split, operand, from) && (cost.tiles > 1 || from.is_some()) {
                    received += needed;
                    if readers(step, split, operand).is_multiple_of(2) {
                        cost.shared = cost.shared.max(needed);
                    }
                    cost.transfers += sources(from, &layout_of(step, last, split, operand, tensor.extents.len()));
                }
            }
        }
        let read = match tensor.source {
            Source::Weight(_) if step.weight_bytes > 0.0 => step.read_weight_bytes() / step.weight_bytes,
            Source::Weight(_) | Source::Value(_) | Source::State(_) => 1.0,
        };
        cost.sram_traffic += needed.min(Bytes(tensor.bytes)) * (tiles * read);
    }
    for index in 0..step.results.len() {
        let own = bytes_of_tile(step, split, step.operands.len() + index, Points::All);
        cost.sram += bytes_of_tile(step, split, step.operands.len() + index, Points::Staged);
        cost.sram_traffic += own * tiles;
        if step.moves {
            // Elements that were received in another order are put in place.
            cost.copies += own * 2.0 / target.tiles.bandwidth;
        }
    }
    if received.0 > 0.0 {
        cost.phases += 1;
        cost.received += received;
        cost.exchanged += received * tiles;
    }
}

/// Whether a weight lies where the points of a step need it: the tiles have room for what each of them needs from run to
/// run, or it comes from elsewhere than from tiles.
pub fn rests_in_place(target: &Target, step: &BoundStep, split: &Split, operand: usize) -> bool {
    let (Some(shares), Some(Some(tensor))) = (step.weight_shares, step.operands.get(operand)) else { return true };
    let share = tensor.bytes / f64::from(target.tiles.count.get());
    bytes_of_tile(step, split, operand, Points::All).0 <= share * shares
}

/// Tiles that need the same part of an operand. Of two operands, neighbours have only one in common.
fn readers(step: &BoundStep, split: &Split, operand: usize) -> u32 {
    let is_in = |axis: &crate::ops::Axis| axis.at.get(operand).is_some_and(Option::is_some);
    let reading = step.spaces.iter().zip(&split.tiles).filter(|(space, _)| space.axes.iter().any(is_in));
    let parts = reading.map(|(space, parts)| {
        let own = space.axes.iter().zip(parts).filter(|(axis, _)| is_in(axis));
        own.fold(1u32, |count, (_, &parts)| count.saturating_mul(parts))
    });
    split.tile_count() / parts.max().unwrap_or(1)
}

/// Whether each tile of a step finds its part of an operand where it computes: the operand lies in the same parts, and no
/// two tiles need the same one.
pub fn is_local(step: &BoundStep, split: &Split, operand: usize, from: Option<&Vec<u32>>) -> bool {
    let (Some(from), Some(last)) = (from, step.spaces.len().checked_sub(1)) else { return false };
    let parts = from.iter().fold(1u32, |count, &parts| count.saturating_mul(parts));
    parts == split.tile_count() && layout_of(step, last, split, operand, from.len()) == *from
}

/// Separate pieces that a part of a value comes in, when it was split in other parts than those it is needed in.
fn sources(from: Option<&Vec<u32>>, to: &[u32]) -> f64 {
    let Some(from) = from else { return 1.0 };
    from.iter().zip(to).map(|(&from, &to)| (f64::from(from) / f64::from(to)).ceil().max(1.0)).product()
}

/// Elements that a tile receives to combine so many results of so many parts, and in how many phases: each tile sums whole
/// elements, all parts at once, or first in groups and then over them, whichever is faster.
fn summed(target: &Target, tiles: u32, results: f64, parts: f64) -> (f64, u32) {
    let once = |results: f64, parts: f64| (results / parts).ceil() * (parts - 1.0);
    let groups = parts.sqrt().ceil();
    let direct = (once(results, parts), 1);
    let grouped = (once(results, groups) + once((results / groups).ceil(), (parts / groups).ceil()), 2);
    let phase = StepCost { tiles, phases: 1, ..StepCost::default() }.latency(target);
    let phase = phase + target.exchange.phase + target.overhead.sync;
    let cycles = |way: (f64, u32)| Bytes(way.0 * PARTIAL) / target.exchange.receive + phase * f64::from(way.1);
    if cycles(grouped) < cycles(direct) { grouped } else { direct }
}

/// Partial sums of axes that are split are combined in one more phase: each tile sums a share of the results. Where a later
/// space needs them, they come back to all tiles that share them in another phase.
fn reductions(target: &Target, step: &BoundStep, split: &Split, cost: &mut StepCost) {
    for space in 0..step.spaces.len() {
        let parts = reduced_parts(step, space, split);
        if parts <= 1.0 {
            continue;
        }
        let results = kept_points(step, space, &tile_extents(step, space, split));
        let (summed, levels) = summed(target, cost.tiles, results, parts);
        let received = summed * PARTIAL;
        let ways = if step.spaces[space].writes(step.operands.len()) { levels } else { 2 * levels };
        let returned = if ways > levels { 2.0 } else { 1.0 };
        cost.phases += ways;
        cost.received += Bytes(received * returned);
        cost.exchanged += Bytes(received * returned * f64::from(cost.tiles));
        cost.transfers += (parts - 1.0) * returned;
        cost.vector += Cycles(summed / target.vector.arithmetic);
    }
    cost.sram += partial_bytes(step, split);
}

/// Tiles that share the elements of a recurrent state get those of all others once for each step of the recurrence.
fn recurrences(step: &BoundStep, split: &Split, cost: &mut StepCost) {
    let Some(last) = step.spaces.len().checked_sub(1) else { return };
    let axes = || step.spaces[last].axes.iter().zip(&step.extents[last]).zip(&split.tiles[last]);
    let shared = axes().find(|((axis, _), parts)| axis.kind == AxisKind::Recurrent && **parts > 1);
    let Some(((_, &extent), &parts)) = shared else { return };
    let rounds = axes().find(|((axis, _), _)| axis.kind == AxisKind::Serial).map_or(1, |((_, &extent), _)| extent);
    let own = axes().zip(tile_extents(step, last, split));
    let sequences = own.filter(|(((axis, _), _), _)| axis.kind == AxisKind::Parallel).map(|(_, own)| own as f64);
    let others = extent - (extent + i64::from(parts) - 1) / i64::from(parts);
    let Some(result) = step.results.first() else { return };
    let elements = result.extents.iter().map(|&extent| extent as f64).product::<f64>().max(1.0);
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    let received = Bytes(sequences.product::<f64>() * others as f64 * result.bytes / elements) * f64::from(rounds);
    cost.phases = cost.phases.saturating_add(rounds);
    cost.received += received;
    cost.exchanged += received * f64::from(cost.tiles);
    cost.transfers += f64::from(parts - 1) * f64::from(rounds);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::built_in;

    #[test]
    fn tiles_sum_whole_elements_in_groups_where_there_are_few() {
        let target = built_in("cerebras-wse3", &[]).unwrap().unwrap();
        // 100 results of 10 parts: each tile receives 10 of 9 others.
        assert_eq!(summed(&target, 10, 100.0, 10.0), (90.0, 1));
        // One result of 400 parts: 20 parts in each of 20 groups, then their 20 sums.
        assert_eq!(summed(&target, 400, 1.0, 400.0), (38.0, 2));
        // A phase costs more than the elements that it saves.
        let target = built_in("graphcore-c600", &[]).unwrap().unwrap();
        assert_eq!(summed(&target, 16, 1.0, 16.0), (15.0, 1));
    }
}
