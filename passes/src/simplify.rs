//! Remove steps that change nothing, and choose branches that are known.
//!
//! ```text
//! constant @known : bool[] = bool[]:01
//! constant @shape : i64[2] = i64[2]:04000000000000004000000000000000
//! entry "main"("x") -> ("c") = block 0
//! block 0(%x : f32[4, 64]) {
//!   %b : f32[4, 64] = reshape %x, @shape
//!   %c : f32[4, 64] = if then=1 otherwise=2 then_captures=1 @known, %b, %b
//!   return %c
//! }
//! block 1(%p : f32[4, 64]) {
//!   %e : f32[4, 64] = unary function=exp %p
//!   return %e
//! }
//! block 2(%q : f32[4, 64]) {
//!   return %q
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("x") -> ("c") = block 0
//! block 0(%x : f32[4, 64]) {
//!   %c : f32[4, 64] = unary function=exp %x
//!   return %c
//! }
//! ```
//!
//! A product reads a transposed weight as it is stored, an elementwise step what an expansion repeats. Extents that are computed although the shapes of data tell them become
//! constants, so that nothing computes them at run time. Establishes: no view has the shape of what it views; no `if` has a
//! constant condition; in bodies too. Leaves alone: everything that costs arithmetic. Cost: one visit a step.

mod constant_shapes;

use crate::error::PassError;
use crate::ir::{Changes, ConstantData, ConstantId, Graph, Operand, Step, ValueId, substitute};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::ops::Op;
use std::collections::HashMap;

/// Remove what changes nothing; see the module.
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn simplify(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    for index in graph.reachable_blocks() {
        changes += simplify_block(graph, index);
        changes += constant_shapes::apply(graph, index);
    }
    Ok(Changes::of_steps(changes))
}

fn simplify_block(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut replaced: HashMap<ValueId, Operand> = HashMap::new();
    let mut kept = Vec::new();
    let mut changes = 0;
    let mut expanded: HashMap<ValueId, Operand> = HashMap::new();
    let mut pending: Vec<Step> = std::mem::take(&mut graph.block_mut(index).steps);
    pending.reverse();
    while let Some(mut step) = pending.pop() {
        substitute(&mut step.operands, &replaced);
        changes += usize::from(absorb_transposes(graph, &mut step)) + absorb_expansions(graph, &mut step, &expanded);
        if let (Op::Expand(_), &[result]) = (&step.op, step.results.as_slice()) {
            expanded.insert(result, step.operands[0]);
        }
        if let Some(operand) = unchanged_operand(graph, &step) {
            changes += 1;
            replaced.insert(step.results[0], operand);
        } else if let Some(branch) = known_branch(graph, &step) {
            changes += 1;
            inline(graph, &step, branch, &mut replaced, &mut pending);
        } else {
            kept.push(step);
        }
    }
    let block = graph.block_mut(index);
    block.steps = kept;
    substitute(&mut block.results, &replaced);
    changes
}

/// Let a matrix product read a transposed weight as it is stored, so that one copy serves all readers.
fn absorb_transposes(graph: &Graph, step: &mut Step) -> bool {
    let Op::Matmul(product) = &mut step.op else { return false };
    let mut changed = false;
    for (operand, flag) in step.operands.iter_mut().zip([&mut product.transpose_a, &mut product.transpose_b]) {
        let Operand::Constant(id) = operand else { continue };
        if let Some(stored) = transposed_last_axes(graph, *id) {
            *operand = Operand::Constant(stored);
            *flag = !*flag;
            changed = true;
        }
    }
    changed
}

/// Let an elementwise step read what expansions repeat, where it repeats that by itself; gives how many operands change.
fn absorb_expansions(graph: &Graph, step: &mut Step, expanded: &HashMap<ValueId, Operand>) -> usize {
    if !matches!(step.op, Op::Binary(_) | Op::Compare(_) | Op::Select(_)) {
        return 0;
    }
    let Some(&result) = step.results.first() else { return 0 };
    let mut changed = 0;
    for at in 0..step.operands.len() {
        let Operand::Value(value) = step.operands[at] else { continue };
        let Some(&data) = expanded.get(&value) else { continue };
        let mut operands = step.operands.clone();
        operands[at] = data;
        let facts = graph.inferred(&step.op, &operands);
        if facts.is_some_and(|facts| facts[0].kind == graph.value(result).fact.kind) {
            step.operands = operands;
            changed += 1;
        }
    }
    changed
}

/// The constant that a recipe transposes, where it exchanges the last two axes and no others.
fn transposed_last_axes(graph: &Graph, id: ConstantId) -> Option<ConstantId> {
    let ConstantData::Recipe { op: Op::Transpose(transpose), operands } = &graph.constant(id).data else { return None };
    let rank = graph.constant(id).shape.len();
    let mut exchanged: Vec<i64> = (0..rank as i64).collect();
    exchanged.swap(rank.checked_sub(2)?, rank - 1);
    let reversed = transpose.permutation.is_empty() && rank == 2;
    if reversed || transpose.permutation == exchanged { *operands.first()? } else { None }
}

/// The operand that a step's only result equals, type and all.
fn unchanged_operand(graph: &Graph, step: &Step) -> Option<Operand> {
    let [result] = step.results.as_slice() else { return None };
    let after = &graph.value(*result).fact;
    let index = match step.op.view_of() {
        Some(viewed) => viewed,
        None if step.op.is_identity(&graph.facts(&step.operands), after) => 0,
        None => return None,
    };
    let operand = *step.operands.get(index)?;
    let known = after.kind.as_tensor().is_none_or(|(_, shape)| shape.rank().is_some());
    (known && graph.fact(operand)?.kind == after.kind).then_some(operand)
}

/// A branch that a known condition chooses: its block and its captures.
struct Branch {
    block: BlockIndex,
    captures: Vec<Operand>,
}

fn known_branch(graph: &Graph, step: &Step) -> Option<Branch> {
    let Op::If(choice) = &step.op else { return None };
    let condition = graph.fact(*step.operands.first()?)?.elements_as_integers()?;
    let taken = *condition.first()? != 0;
    let captures = &step.operands[1..];
    let (then_captures, else_captures) = captures.split_at_checked(usize::try_from(choice.then_captures).ok()?)?;
    Some(if taken {
        Branch { block: choice.then, captures: then_captures.to_vec() }
    } else {
        Branch { block: choice.otherwise, captures: else_captures.to_vec() }
    })
}

/// Put the steps of a branch in place of the `if`. A branch belongs to one `if` only, so that its values stay unique.
fn inline(
    graph: &mut Graph,
    step: &Step,
    branch: Branch,
    replaced: &mut HashMap<ValueId, Operand>,
    pending: &mut Vec<Step>,
) {
    let block = std::mem::take(graph.block_mut(branch.block));
    replaced.extend(block.parameters.iter().copied().zip(branch.captures));
    pending.extend(block.steps.into_iter().rev());
    for (&result, mut operand) in step.results.iter().zip(block.results) {
        substitute(std::slice::from_mut(&mut operand), replaced);
        if let Operand::Value(value) = operand {
            let outer = graph.value(result).name.clone();
            graph.value_mut(value).name = outer;
        }
        replaced.insert(result, operand);
    }
}
