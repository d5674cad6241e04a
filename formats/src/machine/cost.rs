//! What a step costs on a machine when it is spread in a given way, in closed form.
//!
//! The `tile` pass searches over [`step_cost`], and the timeline of the fabric model runs what it chose. Exchange follows
//! from the loops and their split alone: a tile receives the parts of operands that its points touch.

use super::exchange::{Traffic, exchange_cycles, recurrences, reductions, traffic};
use super::grid::mean_hops;
use super::matrix::{self, TileProduct};
use super::program::{BoundProduct, BoundStep, BoundTensor};
use super::roles::AxisRole;
use super::rows;
use super::split::{Layout, Points, Split, bytes_of_tile, tile_extents};
use super::step_cost::StepCost;
use super::target::{Matrix, Style, Target};
use super::units::{Bytes, Cycles};
use super::zeros::Kept;
use crate::dtype::DType;
use crate::ops::{Axis, AxisKind, VectorClass};
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
        conversions(target, step, product, split, &mut cost);
        if target.tiles.gathers_windows {
            gather_windows(target, step, product, split, &mut cost);
        }
        if target.tiles.turns_values {
            turn_values(target, step, product, split, &mut cost);
        }
    }
    vector_cost(target, step, split, &mut cost);
    traffic(target, step, split, layouts, &mut cost);
    rows::charge(target, step, split, &mut cost);
    reductions(target, step, split, &mut cost);
    recurrences(target, step, split, &mut cost);
    cost.byte_hops = cost.exchanged * mean_hops(target, f64::from(cost.tiles));
    let phases = f64::from(cost.phases);
    cost.exchange = exchange_cycles(target, &Traffic::of(&cost));
    // All tiles meet before they exchange and before they compute.
    cost.sync = match target.style {
        Style::Bsp => target.overhead.sync * (phases + 1.0) + target.exchange.skew * phases,
        Style::Static | Style::Packet | Style::Queues => target.overhead.sync * phases,
        Style::Roofline => target.overhead.sync * f64::from(u8::from(cost.tiles > 1)),
    };
    Ok(cost)
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
    let way = matrix::fastest(target, (activation, product.precision.weight), &tile, false);
    // Rows and outputs change places where operand 0 stays: both must be of the type that passes.
    let turns = kept.is_none() && product.precision.weight == activation && product.stationary != 0;
    let turned = TileProduct { rows: tile.outputs, outputs: tile.rows, ..tile };
    let turned = turns.then(|| matrix::fastest(target, (activation, activation), &turned, true)).flatten();
    let is_faster = |other: &(&Matrix, Cycles)| way.is_some_and(|(_, cycles)| other.1 < cycles);
    let (way, other, stationary) = match turned {
        Some(turned) if is_faster(&turned) => (Some(turned), way, 0),
        Some(_) | None => (way, turned, product.stationary),
    };
    let Some((unit, cycles)) = way else {
        let mut known: Vec<&'static str> =
            target.matrix.iter().flat_map(|unit| &unit.types).map(|dtype| dtype.name()).collect();
        known.dedup();
        return Err(CostError::Type { step: step.name.clone(), target: target.name.clone(), dtype: activation, known });
    };
    cost.stationary = Some(stationary);
    cost.turned = other.map(|(_, cycles)| cycles);
    if activation.is_float() && !product.precision.weight.is_float() {
        let codes = tile.batch * tile.inputs * tile.outputs;
        cost.vector += Cycles(codes * target.vector.decodes / target.vector.arithmetic);
    }
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

/// A value that stays in the matrix unit has its outputs brought side by side, where inputs are: keys of attention, with those
/// of its cache.
fn turn_values(target: &Target, step: &BoundStep, product: &BoundProduct, split: &Split, cost: &mut StepCost) {
    let operand = product.stationary;
    if cost.stationary != Some(operand) {
        return;
    }
    let (Some(elements), Some(Some(tensor))) = (step.value_elements(operand), step.operands.get(operand)) else {
        return;
    };
    let Some(last) = tensor.extents.len().checked_sub(1) else { return };
    let extents = tile_extents(step, product.space, split);
    let axes = || step.spaces[product.space].axes.iter().zip(&product.roles).zip(&extents);
    let at = |axis: &Axis| axis.at.get(operand).copied().flatten().map(|index| index.axis as usize);
    if axes().any(|((axis, role), _)| *role == AxisRole::Inputs && at(axis) == Some(last)) {
        let matrix = axes().filter(|((_, role), _)| **role != AxisRole::Rows);
        let turned: f64 = matrix.map(|(_, &extent)| extent as f64).product();
        cost.copies += Bytes(tensor.bytes / elements.max(1.0) * turned * 2.0) / target.tiles.bandwidth;
    }
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
    let again = f64::from(rows::read_again(target, step));
    let widened = if target.vector.widens { widened(step, again) } else { 0.0 };
    for (class, count) in step.vector.iter().copied().chain([(VectorClass::Convert, widened)]) {
        // What the loops before the last make of each element is made again in the last, where they do not keep it.
        let count = if class == VectorClass::Transcendental { count * again.max(1.0) } else { count };
        let cycles = Cycles(count * share / rate(class));
        cost.vector += cycles;
        if matches!(class, VectorClass::Divide | VectorClass::Transcendental) {
            cost.special += cycles;
        }
        cost.vector_energy += target.vector.energy.of(count);
    }
}

/// Conversions of a step that computes elements: of those of two bytes in values that it reads, operand 0 so often again, and
/// of those that it writes.
fn widened(step: &BoundStep, again: f64) -> f64 {
    if step.vector.is_empty() || !step.products.is_empty() {
        return 0.0;
    }
    let of_two_bytes = |bytes: f64, count: f64| if (bytes - 2.0 * count).abs() < 0.5 { count } else { 0.0 };
    let of_operand = |(index, tensor): (usize, &Option<BoundTensor>)| {
        let elements = step.value_elements(index).zip(tensor.as_ref());
        let elements = elements.map_or(0.0, |(count, tensor)| of_two_bytes(tensor.bytes, count));
        elements * if index == 0 { 1.0 + again } else { 1.0 }
    };
    let read: f64 = step.operands.iter().enumerate().map(of_operand).sum();
    read + step.results.iter().map(|result| of_two_bytes(result.bytes, result.elements())).sum::<f64>()
}

/// Values that a product takes in a narrower type than they are held in are converted by the tiles that multiply them.
fn conversions(target: &Target, step: &BoundStep, product: &BoundProduct, split: &Split, cost: &mut StepCost) {
    if !product.converted {
        return;
    }
    for operand in [0, product.stationary] {
        let Some(elements) = step.value_elements(operand) else { continue };
        let Some(Some(tensor)) = step.operands.get(operand) else { continue };
        let share =
            if tensor.bytes > 0.0 { bytes_of_tile(step, split, operand, Points::All).0 / tensor.bytes } else { 0.0 };
        cost.vector += Cycles(elements * share / target.vector.convert);
        cost.vector_energy += target.vector.energy.of(elements);
    }
}
