//! Rotation by position that is written out with halves of heads becomes one step.
//!
//! ```text
//! constant @axis : i64[1] = i64[1]:0300000000000000
//! constant @zero : i64[1] = i64[1]:0000000000000000
//! constant @half : i64[1] = i64[1]:0400000000000000
//! constant @end : i64[1] = i64[1]:ffffffffffffff7f
//! constant @one : i64[1] = i64[1]:0100000000000000
//! entry "main"("x", "angles") -> ("y") = block 0
//! block 0(%x : f32[b, h, s, 8], %angles : f32[b, s, 4]) {
//!   %both : f32[b, s, 8] = concat axis=-1 %angles, %angles from "both"
//!   %cosine : f32[b, s, 8] = unary function=cos %both from "cos"
//!   %sine : f32[b, s, 8] = unary function=sin %both from "sin"
//!   %cos : f32[b, 1, s, 8] = unsqueeze %cosine, @one from "cos of heads"
//!   %sin : f32[b, 1, s, 8] = unsqueeze %sine, @one from "sin of heads"
//!   %first : f32[b, h, s, 4] = slice %x, @zero, @half, @axis from "first"
//!   %second : f32[b, h, s, 4] = slice %x, @half, @end, @axis from "second"
//!   %negative : f32[b, h, s, 4] = unary function=neg %second from "neg"
//!   %turned : f32[b, h, s, 8] = concat axis=-1 %negative, %first from "turned"
//!   %along : f32[b, h, s, 8] = binary function=mul %x, %cos from "along"
//!   %across : f32[b, h, s, 8] = binary function=mul %turned, %sin from "across"
//!   %y : f32[b, h, s, 8] = binary function=add %along, %across from "add"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("x", "angles") -> ("y") = block 0
//! block 0(%x : f32[b, h, s, 8], %angles : f32[b, s, 4]) {
//!   %13 : f32[b, s, 4] = unary function=cos %angles from "cos"
//!   %14 : f32[b, s, 4] = unary function=sin %angles from "sin"
//!   %y : f32[b, h, s, 8] = rotary_embedding interleaved=0 %x, %13, %14 from "both + cos + sin + cos of heads + sin of heads + first + second + neg + turned + along + across + add"
//!   return %y
//! }
//! ```
//!
//! Both halves of cosines and sines must be the same: of a constant, or since they are taken of angles that are joined with
//! themselves. Results differ by the rounding of products. Leaves alone: other types than f32, other axes.

use super::matching::{Match, operands_of};
use super::readers::Steps;
use crate::ir::{Constant, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Binary, BinaryFunction, Op, RotaryEmbedding, Unary, UnaryFunction};
use ipuc_formats::tensor::{Tensor, room};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Sequences for each of which a constant has a copy.
const MOST_BATCH: usize = 16;

/// Join rotations of a block; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    // Layers share cosines and sines.
    let mut halves: HashMap<Operand, Operand> = HashMap::new();
    let mut gone = 0;
    for at in 0..steps.len() {
        let Some(rotation) = rotation(graph, &steps, at) else { continue };
        let mut angles = Vec::new();
        for (whole, half) in &rotation.angles {
            let operand = halves.get(whole).copied().or_else(|| half.operand(graph, &mut steps, at));
            let Some(operand) = operand else { break };
            halves.insert(*whole, operand);
            angles.push(operand);
        }
        let &[cos, sin] = angles.as_slice() else { continue };
        let op: Op = RotaryEmbedding { interleaved: false, rotated: None, heads: None }.into();
        let operands = vec![rotation.data, cos, sin];
        let kinds =
            graph.inferred(&op, &operands).map(|facts| facts.into_iter().map(|fact| fact.kind).collect::<Vec<_>>());
        if kinds != Some(vec![graph.value(rotation.result).fact.kind.clone()]) {
            continue;
        }
        let step = Step { op, operands, results: vec![rotation.result], name: rotation.name };
        gone += steps.replace_several(at, step, &rotation.found);
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// A rotation as several steps.
struct Rotation {
    data: Operand,
    /// Cosines and sines: as the steps read them, and their first half.
    angles: [(Operand, Half); 2],
    result: ValueId,
    name: Arc<str>,
    found: BTreeSet<usize>,
}

/// `[b, s, d / 2]`.
#[derive(Clone)]
enum Half {
    Constant(Tensor),
    /// The function of angles, times factors.
    Computed {
        angles: Operand,
        function: UnaryFunction,
        factors: Vec<Operand>,
        name: Arc<str>,
    },
}

impl Half {
    /// An operand with these elements, which steps before the one at `at` compute.
    fn operand(&self, graph: &mut Graph, steps: &mut Steps, at: usize) -> Option<Operand> {
        let (angles, function, factors, name) = match self {
            Half::Constant(tensor) => {
                return Some(Operand::Constant(graph.add_constant(Constant::of(tensor.clone(), None))));
            }
            Half::Computed { angles, function, factors, name } => (*angles, *function, factors, name),
        };
        let mut put = |graph: &mut Graph, op: Op, operands: Vec<Operand>| {
            let fact = graph.inferred(&op, &operands)?.into_iter().next()?;
            let value = graph.add_value(fact, None);
            steps.insert_before(at, Step { op, operands, results: vec![value], name: name.clone() });
            Some(Operand::Value(value))
        };
        let mut half = put(graph, Unary { function }.into(), vec![angles])?;
        for &factor in factors {
            half = put(graph, Binary { function: BinaryFunction::Mul }.into(), vec![half, factor])?;
        }
        Some(half)
    }
}

/// `x * cos + turned(x) * sin`.
fn rotation(graph: &Graph, steps: &Steps, at: usize) -> Option<Rotation> {
    let step = steps.get(at)?;
    let &[result] = step.results.as_slice() else { return None };
    let fact = &graph.value(result).fact;
    (fact.dtype() == Some(DType::F32) && fact.rank() == Some(4)).then_some(())?;
    let terms = operands_of(step, BinaryFunction::Add)?;
    let mut matched = Match::new(graph, steps, at);
    let (data, [cos, sin]) = matched.either(terms, |matched, [along, across]| {
        let across =
            matched.only_producer(step, across).and_then(|step| Some((step, operands_of(step, BinaryFunction::Mul)?)));
        let (across_step, across) = across?;
        let (data, sin) =
            matched.either(across, |matched, [turned, sin]| Some((turned_from(matched, across_step, turned)?, sin)))?;
        let along = matched.only_producer(step, along).and_then(|step| operands_of(step, BinaryFunction::Mul))?;
        let cos = matched.either(along, |_, [own, cos]| (own == data).then_some(cos))?;
        Some((data, [cos, sin]))
    })?;
    let dims = matched.dims(data)?;
    let [batch, _, length, size] = dims.as_slice() else { return None };
    let size = size.as_known()?;
    let mut half = |operand, function| half(&mut matched, operand, function, [batch, length], size);
    let angles = [(cos, half(cos, UnaryFunction::Cos)?), (sin, half(sin, UnaryFunction::Sin)?)];
    let name = matched.name();
    Some(Rotation { data, angles, result, name, found: matched.found() })
}

/// What a step turns: its second half, negative, comes before the first.
fn turned_from(matched: &mut Match<'_>, reader: &Step, operand: Operand) -> Option<Operand> {
    let joined = matched.only_producer(reader, operand)?;
    let (Op::Concat(concat), &[negative, first]) = (&joined.op, joined.operands.as_slice()) else { return None };
    matches!(concat.axis, -1 | 3).then_some(())?;
    let first = matched.only_producer(joined, first)?;
    let negative = matched.only_producer(joined, negative)?;
    let Op::Unary(Unary { function: UnaryFunction::Neg }) = &negative.op else { return None };
    let second = matched.only_producer(negative, *negative.operands.first()?)?;
    let data = *first.operands.first()?;
    let size = matched.dims(data)?.last()?.as_known()?;
    let is_half = |step, range| part_of_last(matched.graph, step, size) == Some(range);
    let halves = is_half(first, (0, size / 2)) && is_half(second, (size / 2, size));
    (size % 2 == 0 && halves && second.operands.first() == Some(&data)).then_some(data)
}

/// The range of a slice of the last of four axes, one after another.
fn part_of_last(graph: &Graph, step: &Step, size: i64) -> Option<(i64, i64)> {
    let Op::Slice(_) = &step.op else { return None };
    let one = |operand: usize| match *graph.fact(*step.operands.get(operand)?)?.elements_as_integers()? {
        [element] => Some(element),
        _ => None,
    };
    let forward = step.operands.get(4).is_none_or(|&operand| operand == Operand::Absent) || one(4) == Some(1);
    let from_front = |place: i64| (if place < 0 { place.saturating_add(size) } else { place }).clamp(0, size);
    (matches!(one(3)?, -1 | 3) && forward).then(|| Some((from_front(one(1)?), from_front(one(2)?))))?
}

/// The first half of cosines or sines that are the same in both: `[b, 1, s, d]`, with broadcasting.
fn half(
    matched: &mut Match<'_>,
    operand: Operand,
    function: UnaryFunction,
    [batch, length]: [&Dim; 2],
    size: i64,
) -> Option<Half> {
    if let Operand::Constant(id) = operand {
        let tensor = matched.graph.load_constant(id).ok()?;
        let batch = usize::try_from(batch.as_known()?).ok().filter(|&batch| batch <= MOST_BATCH)?;
        return constant_half(&tensor, batch, length, usize::try_from(size).ok()?).map(Half::Constant);
    }
    let unsqueeze = matched.producer(operand).filter(|step| step.op.view_of() == Some(0))?;
    let mut whole = *unsqueeze.operands.first()?;
    let three = matched.dims(whole)? == [batch.clone(), length.clone(), Dim::known(size)];
    let four = matched.dims(operand)? == [batch.clone(), Dim::ONE, length.clone(), Dim::known(size)];
    (three && four).then_some(())?;
    let mut factors = Vec::new();
    loop {
        let step = matched.producer(whole)?;
        if let Some(operands) = operands_of(step, BinaryFunction::Mul) {
            let (value, factor) =
                matched.either(operands, |matched, [value, factor]| matched.single(factor).map(|_| (value, factor)))?;
            factors.push(factor);
            whole = value;
            continue;
        }
        let Op::Unary(unary) = &step.op else { return None };
        (unary.function == function).then_some(())?;
        let name = step.name.clone();
        let both = matched.producer(*step.operands.first()?)?;
        let (Op::Concat(concat), &[angles, again]) = (&both.op, both.operands.as_slice()) else { return None };
        factors.reverse();
        let same = angles == again && matches!(concat.axis, -1 | 2);
        return same.then_some(Half::Computed { angles, function, factors, name });
    }
}

/// The first half of each row of a constant `[.., s, d]`, as `[b, s, d / 2]`.
fn constant_half(tensor: &Tensor, batch: usize, length: &Dim, size: usize) -> Option<Tensor> {
    let [outer @ .., rows, width] = tensor.shape() else { return None };
    let fits = outer.iter().all(|&extent| extent == 1) && *width == size && length.as_known() == Some(*rows as i64);
    let elements = tensor.elements::<f32>().ok().filter(|_| fits && size > 0)?;
    let halves: Vec<_> = elements.chunks_exact(size).map(|row| row.split_at(size / 2)).collect();
    let same = |&(first, second): &(&[f32], &[f32])| first.iter().zip(second).all(|(x, y)| x.to_bits() == y.to_bits());
    let first: Vec<f32> =
        halves.iter().all(same).then(|| halves.iter().flat_map(|(first, _)| *first).copied().collect())?;
    let mut repeated = room(first.len().checked_mul(batch)?).ok()?;
    (0..batch).for_each(|_| repeated.extend_from_slice(&first));
    Tensor::from_vec(&[batch, *rows, size / 2], repeated).ok()
}
