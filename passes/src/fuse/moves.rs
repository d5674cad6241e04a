//! What is computed of each element alone comes before exchanges of axes and views that lie between it and a product, which takes it in
//! then.
//!
//! ```text
//! constant @w : f32[8, 1, 3, 3] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @rows : i64[3] = i64[3]:00000000000000000800000000000000ffffffffffffffff
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 4, 6]) {
//!   %c : f32[n, 8, 4, 6] = convolution pads=[1, 1, 1, 1] groups=8 %x, @w from "depthwise"
//!   %f : f32[n, 8, 24] = reshape allow_zero=0 %c, @rows from "flat"
//!   %r : f32[n, 24, 8] = transpose permutation=[0, 2, 1] %f from "rows"
//!   %y : f32[n, 24, 8] = unary function=tanh %r from "tanh"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[8, 1, 3, 3] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @rows : i64[3] = i64[3]:00000000000000000800000000000000ffffffffffffffff
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 4, 6]) {
//!   %5 : f32[n, 8, 4, 6] = convolution pads=[1, 1, 1, 1] groups=8 program=["cast x : f32", "tanh %0 : f32", "return %1"] %x, @w, _ from "depthwise + tanh"
//!   %6 : f32[n, 8, 24] = reshape allow_zero=0 %5, @rows from "flat"
//!   %y : f32[n, 24, 8] = transpose permutation=[0, 2, 1] %6 from "rows"
//!   return %y
//! }
//! ```
//!
//! Results keep their bits. What is moved has no name any more: it is not what the model calls so. Leaves alone: steps that read another
//! value, or give another type, values that others read, too, and a second function behind further moves.

use super::elements::Elements;
use super::products::takes_functions;
use super::readers::Steps;
use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Map, Op};

/// Have elementwise steps of a block before what moves elements; gives how many have moved.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut moved = 0;
    for at in 0..steps.len() {
        let Some(path) = path(graph, &steps, at) else { continue };
        moved += usize::from(rewrite(graph, &mut steps, at, path).is_some());
    }
    steps.give_back(graph.block_mut(index));
    moved
}

/// What lies between a product and an elementwise step.
struct Path {
    elements: Elements,
    /// The result of the product.
    sums: ValueId,
    /// The steps that move it, the last one first.
    moves: Vec<usize>,
}

/// The way to the elementwise step at `at` from a product, of which nothing else reads anything.
fn path(graph: &Graph, steps: &Steps, at: usize) -> Option<Path> {
    let elements = Elements::of(graph, steps.get(at)?)?;
    let &[Operand::Value(read)] = elements.operands.as_slice() else { return None };
    let fact = &graph.value(read).fact;
    let is_alike = fact.dims() == Some(&elements.dims[..]) && elements.dtype(graph) == fact.dtype();
    is_alike.then_some(())?;
    let (mut reader, mut value, mut moves) = (at, read, Vec::new());
    loop {
        let producer = steps.only_for(reader, value)?;
        let step = steps.get(producer)?;
        let moved = match &step.op {
            Op::Transpose(_) => Some(0),
            _ if takes_functions(graph, step) => {
                return (!moves.is_empty()).then_some(Path { elements, sums: value, moves });
            }
            op => op.view_of(),
        };
        let (Operand::Value(next), [_]) = (*step.operands.get(moved?)?, step.results.as_slice()) else { return None };
        moves.push(producer);
        (reader, value) = (producer, next);
    }
}

/// Puts an elementwise step behind the product.
fn rewrite(graph: &mut Graph, steps: &mut Steps, at: usize, path: Path) -> Option<()> {
    let Path { elements, sums, moves } = path;
    let (&last, &first) = (moves.first()?, moves.last()?);
    let results = steps.get(at)?.results.clone();
    let fact = &graph.value(sums).fact;
    let fact = Fact::tensor(elements.dtype(graph)?, fact.dims()?.to_vec());
    let value = graph.add_value(fact, None);
    let name = elements.name();
    let operands = vec![Operand::Value(sums)];
    steps.insert_before(
        first,
        Step { op: Map { program: elements.program }.into(), operands, results: vec![value], name },
    );
    let (mut from, mut to) = (sums, value);
    for &moving in moves.iter().rev() {
        let mut step = steps.get(moving)?.clone();
        let moved = *step.results.first()?;
        let is_read = |operand: &&mut Operand| **operand == Operand::Value(from);
        step.operands.iter_mut().filter(is_read).for_each(|operand| *operand = Operand::Value(to));
        let fact = graph.value(moved).fact.clone();
        step.results = if moving == last { results.clone() } else { vec![graph.add_value(fact, None)] };
        (from, to) = (moved, *step.results.first()?);
        steps.replace(moving, step);
    }
    steps.join(at, last);
    Some(())
}
