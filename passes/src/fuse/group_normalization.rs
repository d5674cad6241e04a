//! Normalization of groups of channels that is written out becomes one step.
//!
//! ```text
//! constant @groups : i64[3] = i64[3]:00000000000000000200000000000000ffffffffffffffff
//! constant @planes : i64[3] = i64[3]:000000000000000004000000000000000300000000000000
//! constant @one : f32[2] = f32[2]:0000803f0000803f
//! constant @zero : f32[2] = f32[2]:0000000000000000
//! constant @scale : f32[4, 1] = f32[4, 1]:0000803f000000400000803f00000040
//! constant @bias : f32[4, 1] = f32[4, 1]:000000000000803f000000000000803f
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 4, 3]) {
//!   %apart : f32[n, 2, 6] = reshape allow_zero=0 %x, @groups from "reshape"
//!   %standard : f32[n, 2, 6] = group_normalization epsilon=1 scale_per_group=0 stash=f32 in_blocks=0 %apart, @one, @zero from "standardize"
//!   %together : f32[n, 4, 3] = reshape allow_zero=0 %standard, @planes from "back"
//!   %scaled : f32[n, 4, 3] = binary function=mul %together, @scale from "scale"
//!   %y : f32[n, 4, 3] = binary function=add %scaled, @bias from "bias"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @scale : f32[4] = f32[4]:0000803f000000400000803f00000040
//! constant @bias : f32[4] = f32[4]:000000000000803f000000000000803f
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 4, 3]) {
//!   %y : f32[n, 4, 3] = group_normalization groups=2 epsilon=1 stash=f32 %x, @scale, @bias from "reshape + standardize + back + scale + bias"
//!   return %y
//! }
//! ```
//!
//! This is how torch's exporters write it before opset 21: groups become channels of `InstanceNormalization`, whose scale is 1 and
//! whose bias is 0. The deviation and the scale are one factor then, so that results differ by a rounding. Leaves alone: other types
//! than f32, numbers of channels that are not known, groups of no whole channels, scales that are computed or the same for all channels.

use super::matching::{Match, operands_of};
use super::readers::Steps;
use crate::ir::{Constant, Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, GroupNormalization, Op};
use ipuc_formats::tensor::Tensor;
use std::collections::BTreeSet;

/// Join normalizations of a block; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut gone = 0;
    for at in (0..steps.len()).rev() {
        let Some((mut step, parameters, found)) = normalization(graph, &steps, at) else { continue };
        let parameters = parameters.into_iter().map(|constant| Operand::Constant(graph.add_constant(constant)));
        step.operands.extend(parameters);
        gone += steps.replace_several(at, step, &found);
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// The step at `at` as a normalization that reads the data, its scale and bias, and the steps before it that it takes the place of.
fn normalization(graph: &Graph, steps: &Steps, at: usize) -> Option<(Step, [Constant; 2], BTreeSet<usize>)> {
    let step = steps.get(at)?;
    let &[result] = step.results.as_slice() else { return None };
    let mut matched = Match::new(graph, steps, at);
    let sum = operands_of(step, BinaryFunction::Add)?;
    let (op, data, parameters) = matched.either(sum, |matched, [scaled, bias]| {
        let product = matched.only_producer(step, scaled)?;
        matched.either(operands_of(product, BinaryFunction::Mul)?, |matched, [together, scale]| {
            let dims = matched.dims(together)?;
            let parameters = [of_channels(matched, scale, &dims)?, of_channels(matched, bias, &dims)?];
            let back = matched.only_producer(product, together)?;
            let (op, data) = standardized(matched, back, &dims)?;
            Some((op, data, parameters))
        })
    })?;
    let is_f32 = graph.value(result).fact.dtype() == Some(DType::F32);
    (is_f32 && matched.dims(Operand::Value(result))? == matched.dims(data)?).then_some(())?;
    let step = Step { op, operands: vec![data], results: vec![result], name: matched.name() };
    Some((step, parameters, matched.found()))
}

/// A constant with an element for each channel of `[n, c, ..]`, as `[c]`.
fn of_channels(matched: &Match<'_>, operand: Operand, data: &[Dim]) -> Option<Constant> {
    let Operand::Constant(id) = operand else { return None };
    let dims = matched.dims(operand)?;
    // Axes are counted from the last.
    let axis = (dims.len() + 1).checked_sub(data.len())?;
    let is_one = |(at, dim): (usize, &Dim)| at == axis || dim.as_known() == Some(1);
    (dims.get(axis) == data.get(1) && dims.iter().enumerate().all(is_one)).then_some(())?;
    let channels = usize::try_from(data.get(1)?.as_known()?).ok()?;
    let tensor = matched.graph.load_constant(id).ok()?.reshaped(&[channels]).ok()?;
    Some(Constant::of(tensor, matched.graph.constant(id).name.as_deref()))
}

/// What is standardized in groups, where `back` gives the result the extents `[n, c, ..]` of the data, and how.
fn standardized(matched: &mut Match<'_>, back: &Step, dims: &[Dim]) -> Option<(Op, Operand)> {
    matches!(back.op, Op::Reshape(_)).then_some(())?;
    let step = matched.only_producer(back, *back.operands.first()?)?;
    let (Op::GroupNormalization(own), &[apart, scale, bias]) = (&step.op, step.operands.as_slice()) else {
        return None;
    };
    let is_plain = own.groups.is_none() && !own.in_blocks;
    (is_plain && is_all(matched, scale, 1.0) && is_all(matched, bias, 0.0)).then_some(())?;
    let groups = matched.dims(apart)?;
    let reshape = matched.producer(apart)?;
    matches!(reshape.op, Op::Reshape(_)).then_some(())?;
    let data = *reshape.operands.first()?;
    // Elements are as many: those of a group are of as many whole channels.
    let (channels, count) = (dims.get(1)?.as_known()?, groups.get(1)?.as_known()?);
    let are_channels = channels.checked_rem(count) == Some(0) && groups.first() == dims.first();
    (are_channels && matched.dims(data)? == dims).then_some(())?;
    Some((GroupNormalization { groups: Some(count), scale_per_group: false, ..own.clone() }.into(), data))
}

/// Whether a constant of f32 has this value in all its elements.
fn is_all(matched: &Match<'_>, operand: Operand, value: f32) -> bool {
    let Operand::Constant(id) = operand else { return false };
    let tensor: Option<Tensor> = matched.graph.load_constant(id).ok();
    tensor.is_some_and(|tensor| tensor.elements::<f32>().is_ok_and(|own| own.iter().all(|&element| element == value)))
}
