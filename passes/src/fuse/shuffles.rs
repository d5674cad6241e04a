//! What a concatenation puts one behind the other and an exchange of axes then takes by turns, as ShuffleNet does with channels, is
//! concatenated by turns: it is copied once, not twice.
//!
//! ```text
//! constant @two : i64[4] = i64[4]:0000000000000000020000000000000003000000000000002000000000000000
//! entry "main"("a", "b") -> ("y") = block 0
//! block 0(%a : f32[n, 3, 32], %b : f32[n, 3, 32]) {
//!   %c : f32[n, 6, 32] = concat axis=1 %a, %b from "concat"
//!   %v : f32[n, 2, 3, 32] = reshape allow_zero=0 %c, @two from "two"
//!   %y : f32[n, 3, 2, 32] = transpose permutation=[0, 2, 1, 3] %v from "turns"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @1 : i64[4] = i64[4]:0000000000000000030000000000000001000000000000002000000000000000
//! entry "main"("a", "b") -> ("y") = block 0
//! block 0(%a : f32[n, 3, 32], %b : f32[n, 3, 32]) {
//!   %5 : f32[n, 3, 1, 32] = reshape allow_zero=0 %a, @1 from "concat + two + turns"
//!   %6 : f32[n, 3, 1, 32] = reshape allow_zero=0 %b, @1 from "concat + two + turns"
//!   %y : f32[n, 3, 2, 32] = concat axis=2 %5, %6 from "concat + two + turns"
//!   return %y
//! }
//! ```
//!
//! Results keep their bits. Leaves alone: operands of different extents, concatenations that others read, too, and few elements behind
//! the axis.

use super::matching::joined_name;
use super::readers::Steps;
use crate::ir::{ExtentConstants, Graph, Operand, Step, ValueId, reshape_extents};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Concat, Op, Reshape, normalize_axis};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Elements behind the axis from which on they are copied as a row; fewer are transposed faster than they are copied.
const SHORTEST_RUN: i64 = 32;

/// Concatenate by turns what is taken by turns; gives how many steps are replaced or gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut shapes = ExtentConstants::default();
    let mut changed = 0;
    for at in 0..steps.len() {
        let Some(shuffle) = shuffle(graph, &steps, at) else { continue };
        changed += rewrite(graph, &mut steps, (at, shuffle), &mut shapes).unwrap_or(0);
    }
    steps.give_back(graph.block_mut(index));
    changed
}

/// Operands that are taken by turns.
struct Shuffle {
    operands: Vec<Operand>,
    /// The axis that they are concatenated along, behind which that of the turns comes.
    axis: usize,
    /// Extents of an operand.
    dims: Vec<Dim>,
    /// The concatenation, and the view of it with an axis for the operands.
    before: [usize; 2],
}

/// The exchange of axes at `at`, of a concatenation that nothing else reads.
fn shuffle(graph: &Graph, steps: &Steps, at: usize) -> Option<Shuffle> {
    let step = steps.get(at)?;
    let (Op::Transpose(transpose), &[Operand::Value(viewed)]) = (&step.op, step.operands.as_slice()) else {
        return None;
    };
    let view_at = steps.only_for(at, viewed)?;
    let view = steps.get(view_at)?;
    let Operand::Value(joined) = *view.operands.get(view.op.view_of()?)? else { return None };
    let concat_at = steps.only_for(view_at, joined)?;
    let concat = steps.get(concat_at)?;
    let Op::Concat(Concat { axis }) = concat.op else { return None };
    let of_first = graph.fact(*concat.operands.first()?)?;
    let dims = of_first.dims()?.to_vec();
    let axis = normalize_axis(axis, dims.len()).ok()?;
    let is_alike = |&operand: &Operand| graph.fact(operand).is_some_and(|fact| fact.kind == of_first.kind);
    let is_known = dims[axis].as_known().is_some();
    let run = dims[axis + 1..].iter().try_fold(1i64, |run, dim| run.checked_mul(dim.as_known()?));
    let count = i64::try_from(concat.operands.len()).ok()?;
    // The view has an axis for the operands before theirs, and the two change places.
    let mut taken_apart = dims.clone();
    taken_apart.insert(axis, Dim::known(count));
    let mut exchanged: Vec<i64> = (0..taken_apart.len() as i64).collect();
    exchanged.swap(axis, axis + 1);
    let fits = count > 1
        && is_known
        && run.is_some_and(|run| run >= SHORTEST_RUN)
        && concat.operands.iter().all(is_alike)
        && transpose.permutation == exchanged
        && graph.fact(Operand::Value(viewed))?.dims()? == taken_apart;
    fits.then(|| Shuffle { operands: concat.operands.clone(), axis, dims, before: [concat_at, view_at] })
}

/// Puts a concatenation by turns in the place of the exchange; gives how many steps are replaced or gone.
fn rewrite(
    graph: &mut Graph,
    steps: &mut Steps,
    (at, shuffle): (usize, Shuffle),
    shapes: &mut ExtentConstants,
) -> Option<usize> {
    let Shuffle { operands, axis, dims, before } = shuffle;
    let dtype = graph.fact(*operands.first()?)?.dtype()?;
    let mut with_turns = dims.clone();
    with_turns.insert(axis + 1, Dim::known(1));
    let extents = reshape_extents(&dims, &with_turns, &graph.ranges)?;
    let exchange = steps.get(at)?.clone();
    let name = joined_name(before.iter().filter_map(|&before| steps.get(before)).chain([&exchange]));
    let shape = shapes.constant(graph, extents);
    let mut by_turns: Vec<Operand> = Vec::with_capacity(operands.len());
    for operand in operands {
        let value: ValueId = graph.add_value(Fact::tensor(dtype, with_turns.clone()), None);
        let op = Reshape { allow_zero: false }.into();
        steps.insert_before(
            at,
            Step { op, operands: vec![operand, shape], results: vec![value], name: Arc::clone(&name) },
        );
        by_turns.push(Operand::Value(value));
    }
    let op = Concat { axis: axis as i64 + 1 }.into();
    let step = Step { op, operands: by_turns, results: exchange.results, name };
    Some(1 + steps.replace_several(at, step, &BTreeSet::from(before)))
}
