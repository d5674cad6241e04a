//! Zeros of activations: which multiplications and which weights a machine leaves out for them.
//!
//! Inputs of a product are left out in groups of [`Zeros::inputs`] neighbours, where they are zero in all rows that pass
//! the matrix unit together. How many groups that is follows from where zeros were in a run ([`ZeroMap`](super::zero_map::ZeroMap)), or from a share
//! of zeros that is assumed, each apart from its neighbours. Tiles that have fewer zeros than others take longer: the
//! greatest share that a tile keeps counts for time, that of all tiles for energy. Weights are read for an input that is
//! not zero in any row.

use super::program::{BoundProduct, BoundStep, Program, Source};
use super::roles::AxisRole;
use super::target::{Target, Zeros};
use super::zero_map::{ActivationZeros, StepZeros};
use crate::dtype::DType;
use crate::ops::AxisKind;
use std::collections::BTreeSet;
use std::ops::Range;

/// Shares of the groups of inputs that tiles multiply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Of the tile that keeps most.
    pub busiest: f64,
    /// Of all tiles together.
    pub mean: f64,
}

impl Program {
    /// Note the zeros of activations that a machine leaves out; `of` gives those of a step, by its index. Steps without
    /// products with weights, and machines that leave none out, stay as they are.
    pub fn leave_out(&mut self, target: &Target, of: impl Fn(usize, &BoundStep) -> Option<ActivationZeros>) {
        let Some(zeros) = &target.zeros else { return };
        for (index, step) in self.steps.iter_mut().enumerate() {
            step.zeros = of(index, step).and_then(|of| step_zeros(target, zeros, step, of));
        }
    }
}

fn step_zeros(target: &Target, zeros: &Zeros, step: &BoundStep, of: ActivationZeros) -> Option<StepZeros> {
    let weighted = |(_, product): &(usize, &BoundProduct)| {
        let operand = step.operands.get(product.stationary).and_then(Option::as_ref);
        operand.is_some_and(|tensor| matches!(tensor.source, Source::Weight(_)))
    };
    let (index, product) = step.products.iter().enumerate().find(weighted)?;
    // What is multiplied by further weights is made within the step: no run shows it.
    if matches!(of, ActivationZeros::Counted(_)) && step.products.len() != 1 {
        return None;
    }
    let axis = input_axis(step, product)?;
    let role = |role: AxisRole| {
        let axes = step.extents[product.space].iter().zip(&product.roles).filter(move |(_, own)| **own == role);
        axes.map(|(&extent, _)| extent.max(1) as usize).product::<usize>()
    };
    let rows = role(AxisRole::Rows);
    let group = (rows.min(rows_together(target, product.precision.activation)), zeros.inputs.get() as usize);
    // Weights of the inputs of a group lie together, output by output.
    let bits = product.precision.weight.bits() as f64;
    let together = group.1 as f64 * role(AxisRole::Outputs) as f64 * bits / 8.0;
    let (kept, read) = match &of {
        ActivationZeros::Share(share) => {
            let left_out = |rows: usize| share.powf((rows * group.1) as f64);
            (1.0 - left_out(group.0), 1.0 - left_out(rows))
        }
        ActivationZeros::Counted(map) => {
            let whole: Vec<Range<usize>> = map.extents.iter().map(|&extent| 0..extent).collect();
            let share = |(kept, all): (f64, f64)| if all > 0.0 { kept / all } else { 1.0 };
            let all_rows: usize = map.extents.iter().product();
            (share(map.groups(&whole, axis, group)), share(map.groups(&whole, axis, (all_rows, group.1))))
        }
    };
    let read = if together >= zeros.burst.0 { read } else { 1.0 };
    Some(StepZeros { of, kept, read, group, product: index, axis })
}

/// Rows that pass the matrix units together which take them with fewest.
fn rows_together(target: &Target, activation: DType) -> usize {
    let units = target.matrix.iter().filter(|unit| unit.types.contains(&activation));
    units.map(|unit| unit.rows.get() as usize).min().unwrap_or(1)
}

/// The axis of operand 0 that inputs are along and no rows: channels of a convolution, the last one of a matrix.
fn input_axis(step: &BoundStep, product: &BoundProduct) -> Option<usize> {
    let space = &step.spaces[product.space];
    let along = |role: AxisRole| -> BTreeSet<u32> {
        let axes = space.axes.iter().zip(&product.roles).filter(|(_, own)| **own == role);
        axes.filter_map(|(axis, _)| Some(axis.at.first().copied().flatten()?.axis)).collect()
    };
    let inputs = along(AxisRole::Inputs);
    inputs.difference(&along(AxisRole::Rows)).next().map(|&axis| axis as usize)
}

impl StepZeros {
    /// What tiles keep of a step that is spread like this, as far as it is known without looking at each of them: the
    /// expected greatest share where zeros are assumed.
    pub(super) fn expected(&self, step: &BoundStep, tiles: &[Vec<u32>]) -> Kept {
        let kept = self.kept;
        let ActivationZeros::Share(_) = self.of else { return Kept { busiest: kept, mean: kept } };
        let Some((_, parts)) = self.parts(step, tiles) else { return Kept { busiest: kept, mean: kept } };
        let elements = step
            .operands
            .first()
            .and_then(Option::as_ref)
            .map_or(0.0, |operand| operand.extents.iter().map(|&extent| extent as f64).product());
        let parts = parts.iter().map(|&parts| f64::from(parts)).product::<f64>().max(1.0);
        let groups = (elements / parts / (self.group.0 * self.group.1) as f64).max(1.0);
        // The greatest of so many sums of independent groups, for large numbers of them.
        let above = (2.0 * kept * (1.0 - kept) * parts.ln() / groups).sqrt();
        Kept { busiest: (kept + above).min(1.0), mean: kept }
    }

    /// What tiles keep, counted where each has its zeros.
    pub(super) fn counted(&self, step: &BoundStep, tiles: &[Vec<u32>]) -> Kept {
        let ActivationZeros::Counted(map) = &self.of else { return self.expected(step, tiles) };
        let whole = Kept { busiest: self.kept, mean: self.kept };
        let Some((product, parts)) = self.parts(step, tiles) else { return whole };
        let Some(Some(operand)) = step.operands.first() else { return whole };
        let (mut most, mut sums) = (0.0f64, (0.0, 0.0));
        for tile in all_tiles(&step.extents[product.space], &parts) {
            let Some(touched) = step.spaces[product.space].footprint(&tile, 0, &operand.extents) else { return whole };
            let inside = |(range, &extent): (&Range<i64>, &usize)| {
                let bound = |at: i64| at.clamp(0, extent as i64) as usize;
                bound(range.start)..bound(range.end)
            };
            let part: Vec<Range<usize>> = touched.iter().zip(&map.extents).map(inside).collect();
            let (kept, all) = map.groups(&part, self.axis, self.group);
            if all > 0.0 {
                most = most.max(kept / all);
                sums = (sums.0 + kept, sums.1 + all);
            }
        }
        if sums.1 > 0.0 { Kept { busiest: most, mean: sums.0 / sums.1 } } else { whole }
    }

    /// The product, and parts along each of its axes that is in operand 0 and may be split.
    fn parts<'a>(&self, step: &'a BoundStep, tiles: &[Vec<u32>]) -> Option<(&'a BoundProduct, Vec<u32>)> {
        let product = step.products.get(self.product)?;
        let axes = step.spaces[product.space].axes.iter().zip(tiles.get(product.space)?);
        let own = axes.map(|(axis, &parts)| {
            let splits = axis.kind != AxisKind::Serial && axis.at.first().copied().flatten().is_some();
            if splits { parts } else { 1 }
        });
        Some((product, own.collect()))
    }
}

/// The ranges of points of all tiles; tiles that are empty are left out.
fn all_tiles(extents: &[i64], parts: &[u32]) -> Vec<Vec<Range<i64>>> {
    extents.iter().zip(parts).fold(vec![Vec::new()], |tiles, (&extent, &parts)| {
        let length = (extent + i64::from(parts) - 1) / i64::from(parts.max(1));
        let own = (0..i64::from(parts)).map(|part| (part * length).min(extent)..((part + 1) * length).min(extent));
        let own: Vec<Range<i64>> = own.filter(|part| !part.is_empty()).collect();
        tiles.iter().flat_map(|tile| own.iter().map(move |part| [tile.clone(), vec![part.clone()]].concat())).collect()
    })
}
