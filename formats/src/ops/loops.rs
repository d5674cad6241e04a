//! Builds [`Space`]s: one axis after another, and the nests that several operators share.

use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::program::Program;
use crate::ops::space::{Axis, AxisKind, Index, Space};
use crate::ops::step_facts::StepFacts;
use std::collections::BTreeSet;

/// A place in an operand or a result that an axis of a space is at.
#[derive(Debug, Clone, Copy)]
pub struct At {
    result: bool,
    tensor: usize,
    index: Index,
}

impl At {
    /// In steps of so many elements.
    pub fn stride(mut self, stride: i64) -> At {
        self.index.stride = stride;
        self
    }

    /// From this position on.
    pub fn offset(mut self, offset: i64) -> At {
        self.index.offset = offset;
        self
    }
}

/// Along an axis of an operand.
pub fn operand(tensor: usize, axis: usize) -> At {
    At { result: false, tensor, index: Index { axis: axis as u32, stride: 1, offset: 0 } }
}

/// Along an axis of a result.
pub fn result(tensor: usize, axis: usize) -> At {
    At { result: true, tensor, index: Index { axis: axis as u32, stride: 1, offset: 0 } }
}

/// A nest of loops that grows inwards.
pub struct Loops {
    operands: usize,
    tensors: usize,
    axes: Vec<Axis>,
}

impl Loops {
    /// No loop yet.
    pub fn new(facts: &StepFacts<'_>) -> Loops {
        let operands = facts.inputs.len();
        Loops { operands, tensors: operands + facts.outputs.len(), axes: Vec::new() }
    }

    /// One loop further in. What is said of tensors that the step does not have is left out.
    pub fn axis(mut self, kind: AxisKind, extent: &Dim, places: impl IntoIterator<Item = At>) -> Loops {
        let mut at = vec![None; self.tensors];
        for place in places {
            let tensor = if place.result { self.operands + place.tensor } else { place.tensor };
            if place.result || place.tensor < self.operands {
                at.get_mut(tensor).into_iter().for_each(|slot| *slot = Some(place.index));
            }
        }
        self.axes.push(Axis { extent: extent.clone(), kind, at });
        self
    }

    /// A loop whose points have results of their own.
    pub fn parallel(self, extent: &Dim, places: impl IntoIterator<Item = At>) -> Loops {
        self.axis(AxisKind::Parallel, extent, places)
    }

    /// A loop whose points contribute to the same results.
    pub fn reduced(self, extent: &Dim, places: impl IntoIterator<Item = At>) -> Loops {
        self.axis(AxisKind::Reduced, extent, places)
    }

    /// A loop that is not split: what it touches is needed whole.
    pub fn serial(self, extent: &Dim) -> Loops {
        self.axis(AxisKind::Serial, extent, [])
    }

    /// The nest, with this many multiply-accumulates a point.
    pub fn products(self, macs: i64) -> Space {
        Space { axes: self.axes, macs, numbers: 1 }
    }

    /// The nest, without multiply-accumulates.
    pub fn space(self) -> Space {
        self.products(0)
    }

    /// The nest, without multiply-accumulates, whose points give so many numbers together.
    pub fn numbers(self, numbers: u32) -> Space {
        Space { numbers, ..self.space() }
    }
}

/// One loop that cannot be split, over the elements of operand 0, or of result 0 where there is no operand.
pub fn serial(facts: &StepFacts<'_>) -> Vec<Space> {
    let elements = if facts.inputs.is_empty() { facts.result_elements(0) } else { facts.elements(0) };
    vec![Loops::new(facts).serial(&elements).space()]
}

/// One loop over an unknown number of points, each with this many multiply-accumulates: of a product whose shapes are not
/// known, even in their ranks.
pub fn unknown(facts: &StepFacts<'_>, macs: i64) -> Vec<Space> {
    vec![Loops::new(facts).serial(&facts.fresh("points")).products(macs)]
}

/// A loop for each axis of result 0. The first operands are where they broadcast to, further results beside it; other
/// operands are needed whole. `kind` says which axes may be split.
pub fn broadcast(facts: &StepFacts<'_>, operands: usize, kind: impl Fn(usize) -> AxisKind) -> Vec<Space> {
    let Some(dims) = facts.result(0) else { return serial(facts) };
    let mut loops = Loops::new(facts);
    for (axis, extent) in dims.iter().enumerate() {
        let mut places = Vec::new();
        for (position, fact) in facts.inputs.iter().take(operands).enumerate() {
            places.extend(aligned(fact.as_ref(), dims, axis).map(|own| operand(position, own)));
        }
        for (position, fact) in facts.outputs.iter().enumerate() {
            places.extend(aligned(Some(fact), dims, axis).map(|own| result(position, own)));
        }
        loops = match kind(axis) {
            AxisKind::Serial => loops.serial(extent),
            kind @ (AxisKind::Parallel | AxisKind::Reduced | AxisKind::Recurrent) => loops.axis(kind, extent, places),
        };
    }
    vec![loops.space()]
}

/// The axis of a tensor, aligned at its end with `dims`, that has the extent of axis `axis`; none where it is repeated
/// along it, or may be.
fn aligned(fact: Option<&Fact>, dims: &[Dim], axis: usize) -> Option<usize> {
    let own = fact?.dims()?;
    let at = (axis + own.len()).checked_sub(dims.len())?;
    (own[at] == dims[axis]).then_some(at)
}

/// The loops of a product that a program follows, with the operands of the program where result 0 is that they broadcast
/// to; operands that the product reads as well stay where they are.
pub fn beside_result(mut spaces: Vec<Space>, facts: &StepFacts<'_>, program: &Program) -> Vec<Space> {
    let Some(dims) = facts.result(0) else { return spaces };
    let read = |operand: usize| {
        spaces.iter().flat_map(|space| &space.axes).any(|axis| axis.at.get(operand).is_some_and(Option::is_some))
    };
    let operands: BTreeSet<usize> = program.operands().filter(|&operand| !read(operand)).collect();
    for axis in spaces.iter_mut().flat_map(|space| &mut space.axes) {
        let Some(result) = axis.at.get(facts.inputs.len()).copied().flatten() else { continue };
        for &operand in &operands {
            let own = aligned(facts.operand(operand), dims, result.axis as usize);
            let index = own.map(|own| Index { axis: own as u32, ..result });
            axis.at.get_mut(operand).into_iter().for_each(|slot| *slot = index);
        }
    }
    spaces
}

/// A loop for each axis of result 0; `from` says where operands are along it.
pub fn mapped(facts: &StepFacts<'_>, from: impl Fn(usize) -> Option<At>) -> Vec<Space> {
    let Some(dims) = facts.result(0) else { return serial(facts) };
    let nest = dims.iter().enumerate().fold(Loops::new(facts), |loops, (axis, extent)| {
        loops.parallel(extent, from(axis).into_iter().chain([result(0, axis)]))
    });
    vec![nest.space()]
}

/// A loop for each axis of operand 0: those of `axes` are of this kind, the others are parallel and in all results, which
/// keep the axes of `axes` (with extent 1) or have them no longer.
pub fn along(facts: &StepFacts<'_>, axes: &[usize], kind: AxisKind, keep: bool) -> Vec<Space> {
    let Some(dims) = facts.dims(0) else { return serial(facts) };
    let mut loops = Loops::new(facts);
    for (axis, extent) in dims.iter().enumerate() {
        let gone = if keep { 0 } else { axes.iter().filter(|&&other| other < axis).count() };
        let results = (0..facts.outputs.len()).map(|position| result(position, axis - gone));
        loops = match (axes.contains(&axis), kind) {
            (false, _) => loops.parallel(extent, results.chain([operand(0, axis)])),
            (true, AxisKind::Serial) => loops.serial(extent),
            (true, AxisKind::Parallel | AxisKind::Reduced | AxisKind::Recurrent) => {
                loops.axis(kind, extent, [operand(0, axis)])
            }
        };
    }
    vec![loops.space()]
}

/// The loops that find what elements of operand 0 along these axes have in common (a sum, a maximum), one number, before the
/// loops that follow use it. They write no result.
pub fn statistics(facts: &StepFacts<'_>, axes: impl Fn(usize) -> bool) -> Option<Space> {
    let nest = facts.dims(0)?.iter().enumerate().fold(Loops::new(facts), |nest, (axis, extent)| {
        let kind = if axes(axis) { AxisKind::Reduced } else { AxisKind::Parallel };
        nest.axis(kind, extent, [operand(0, axis)])
    });
    Some(nest.space())
}

/// The loops of a view of operand 0: axes that both have in front and at the end are where they are; between them each
/// part of the result may need all of the operand.
pub fn view(facts: &StepFacts<'_>) -> Vec<Space> {
    let (Some(from), Some(to)) = (facts.dims(0), facts.result(0)) else { return serial(facts) };
    let front = from.iter().zip(to).take_while(|(left, right)| left == right).count();
    let rest = (from.len() - front).min(to.len() - front);
    let back = from.iter().rev().zip(to.iter().rev()).take(rest).take_while(|(left, right)| left == right).count();
    mapped(facts, |axis| {
        if axis < front {
            return Some(operand(0, axis));
        }
        (axis + back >= to.len()).then(|| operand(0, axis + from.len() - to.len()))
    })
}

/// Parallel loops over the first axes of operand 0 and result 0, then one loop that cannot be split over `rest` points.
pub fn leading(facts: &StepFacts<'_>, count: usize, rest: &Dim) -> Vec<Space> {
    let Some(dims) = facts.dims(0).filter(|dims| dims.len() >= count) else { return serial(facts) };
    let nest = dims[..count].iter().enumerate().fold(Loops::new(facts), |loops, (axis, extent)| {
        let results = (0..facts.outputs.len()).map(|position| result(position, axis));
        loops.parallel(extent, results.chain([operand(0, axis)]))
    });
    vec![nest.serial(rest).space()]
}
