//! Layer normalization and root mean square normalization that are written out become one step.
//!
//! ```text
//! constant @two : f32[] = f32[]:00000040
//! constant @axes : i64[1] = i64[1]:ffffffffffffffff
//! constant @epsilon : f32[] = f32[]:0000803f
//! constant @scale : f32[4] = f32[4]:0000803f000000400000803f00000040
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 4]) {
//!   %square : f32[n, 4] = binary function=pow %x, @two from "pow"
//!   %mean : f32[n, 1] = reduce function=mean keep_axes=1 %square, @axes from "mean"
//!   %sum : f32[n, 1] = binary function=add %mean, @epsilon from "add"
//!   %root : f32[n, 1] = unary function=sqrt %sum from "sqrt"
//!   %inverse : f32[n, 1] = unary function=reciprocal %root from "reciprocal"
//!   %standard : f32[n, 4] = binary function=mul %x, %inverse from "mul"
//!   %y : f32[n, 4] = binary function=mul @scale, %standard from "scale"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @scale : f32[4] = f32[4]:0000803f000000400000803f00000040
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 4]) {
//!   %y : f32[n, 4] = layer_normalization axis=-1 epsilon=1 center=0 stash=f32 %x, @scale from "pow + mean + add + sqrt + reciprocal + mul + scale"
//!   return %y
//! }
//! ```
//!
//! The square is `x * x` or `x ^ 2`, the inverse root a reciprocal, a quotient or a power; with a mean that is subtracted first it is
//! layer normalization. Halves that are widened for it and rounded again are those of the operator. Results differ by the
//! rounding of sums. Leaves alone: other axes than the last, scales that are computed for each row.

use super::matching::{Match, operands_of};
use super::readers::Steps;
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, LayerNormalization, Op, ReduceFunction, UnaryFunction};
use std::collections::BTreeSet;

/// Join normalizations of a block; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut gone = 0;
    for at in (0..steps.len()).rev() {
        let Some((mut step, found)) = normalization(graph, &steps, at) else { continue };
        // The mean and the inverse deviation, which nobody reads.
        let facts = graph.inferred(&step.op, &step.operands).unwrap_or_default();
        step.results.extend(facts.into_iter().skip(1).map(|fact| graph.add_value(fact, None)));
        gone += steps.replace_several(at, step, &found);
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// The step at `at` as a normalization, with as much of what follows as it takes in; and the steps before it that it takes the
/// place of.
fn normalization(graph: &Graph, steps: &Steps, at: usize) -> Option<(Step, BTreeSet<usize>)> {
    let step = steps.get(at)?;
    let &[result] = step.results.as_slice() else { return None };
    [biased, scaled, plain].into_iter().find_map(|form: Form| {
        let mut matched = Match::new(graph, steps, at);
        let Standardized { data, epsilon, center, further } = form(&mut matched, step)?;
        let op: Op = LayerNormalization { axis: -1, epsilon: epsilon as f32, center, stash: DType::F32 }.into();
        let operands: Vec<Operand> = std::iter::once(data).chain(further).collect();
        let facts = graph.inferred(&op, &operands)?;
        (facts.first()?.kind == graph.value(result).fact.kind).then_some(())?;
        let step = Step { op, operands, results: vec![result], name: matched.name() };
        Some((step, matched.found()))
    })
}

/// Rows less their mean, over their deviation.
struct Standardized {
    data: Operand,
    epsilon: f64,
    /// Whether the mean is subtracted.
    center: bool,
    /// Scale and bias.
    further: Vec<Operand>,
}

type Form = fn(&mut Match<'_>, &Step) -> Option<Standardized>;

/// `scaled + bias`.
fn biased(matched: &mut Match<'_>, step: &Step) -> Option<Standardized> {
    matched.either(operands_of(step, BinaryFunction::Add)?, |matched, [value, bias]| {
        is_row(matched, bias).then_some(())?;
        let step = matched.only_producer(step, value)?;
        let mut standardized = scaled(matched, step)?;
        standardized.further.push(bias);
        Some(standardized)
    })
}

/// `standardized * scale`.
fn scaled(matched: &mut Match<'_>, step: &Step) -> Option<Standardized> {
    matched.either(operands_of(step, BinaryFunction::Mul)?, |matched, [value, scale]| {
        is_row(matched, scale).then_some(())?;
        let step = matched.only_producer(step, value)?;
        let standardized = plain(matched, step)?;
        Some(Standardized { further: vec![scale], ..standardized })
    })
}

/// Whether an operand has one element, or one for each of a row, the same for all rows.
fn is_row(matched: &Match<'_>, operand: Operand) -> bool {
    let constant = matches!(operand, Operand::Constant(_));
    constant && matched.dims(operand).is_some_and(|dims| dims.iter().rev().skip(1).all(|dim| dim.as_known() == Some(1)))
}

/// `x * (1 / root)` or `x / root`, where x may be rows less their mean; rounded again where halves were widened.
fn plain(matched: &mut Match<'_>, step: &Step) -> Option<Standardized> {
    if let Op::Cast(_) = &step.op {
        let dtype = matched.graph.value(*step.results.first()?).fact.dtype()?;
        let wide = matched.only_producer(step, *step.operands.first()?)?;
        let standardized = plain(matched, wide)?;
        let cast = matched.producer(standardized.data)?;
        let (Op::Cast(_), &[data]) = (&cast.op, cast.operands.as_slice()) else { return None };
        let is_narrow = matched.graph.fact(data)?.dtype() == Some(dtype) && matches!(dtype, DType::F16 | DType::BF16);
        return is_narrow.then_some(Standardized { data, ..standardized });
    }
    if let Some([data, root]) = operands_of(step, BinaryFunction::Div) {
        let sum = matched.unary(root, UnaryFunction::Sqrt)?;
        return standardized(matched, data, sum);
    }
    matched.either(operands_of(step, BinaryFunction::Mul)?, |matched, [data, inverse]| {
        let sum = inverse_root(matched, inverse)?;
        standardized(matched, data, sum)
    })
}

/// What an inverse root is taken of.
fn inverse_root(matched: &mut Match<'_>, operand: Operand) -> Option<Operand> {
    if let Some(root) = matched.unary(operand, UnaryFunction::Reciprocal) {
        return matched.unary(root, UnaryFunction::Sqrt);
    }
    if let Some([one, root]) = matched.binary(operand, BinaryFunction::Div) {
        return (matched.single(one) == Some(1.0)).then(|| matched.unary(root, UnaryFunction::Sqrt)).flatten();
    }
    let [sum, exponent] = matched.binary(operand, BinaryFunction::Pow)?;
    (matched.single(exponent) == Some(-0.5)).then_some(sum)
}

/// The rows whose mean square, and what is added to it, is `sum`.
fn standardized(matched: &mut Match<'_>, rows: Operand, sum: Operand) -> Option<Standardized> {
    let terms = matched.binary(sum, BinaryFunction::Add)?;
    let (mean, epsilon) = matched.either(terms, |matched, [mean, epsilon]| Some((mean, matched.single(epsilon)?)))?;
    let square = mean_of(matched, mean)?;
    let is_square = match matched.binary(square, BinaryFunction::Pow) {
        Some([base, exponent]) => base == rows && matched.single(exponent) == Some(2.0),
        None => matched.binary(square, BinaryFunction::Mul)? == [rows, rows],
    };
    is_square.then_some(())?;
    let plain = Standardized { data: rows, epsilon, center: false, further: Vec::new() };
    let mut centered = || {
        let [data, mean] = matched.binary(rows, BinaryFunction::Sub)?;
        (mean_of(matched, mean)? == data).then_some(data)
    };
    Some(match centered() {
        Some(data) => Standardized { data, center: true, ..plain },
        None => plain,
    })
}

/// What a mean over the last axis, which is kept, is taken of.
fn mean_of(matched: &mut Match<'_>, operand: Operand) -> Option<Operand> {
    let step = matched.producer(operand)?;
    let (Op::Reduce(reduce), &[data, axes]) = (&step.op, step.operands.as_slice()) else { return None };
    let (axis, rank) = (matched.single(axes)?, matched.dims(data)?.len() as f64);
    let is_last = axis == -1.0 || axis == rank - 1.0;
    (reduce.function == ReduceFunction::Mean && reduce.keep_axes && is_last).then_some(data)
}
