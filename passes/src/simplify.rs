//! Remove steps that change nothing, and choose branches that are known.
//!
//!     %b = reshape %a, {4, 64}            : f32[4, 64], %a : f32[4, 64]
//!     %c = if %known ..
//! becomes
//!     %a in place of %b, and the steps of the known branch in place of %c
//!
//! Establishes: no view has the shape of what it views; no `if` has a constant condition. Leaves alone: everything that
//! costs arithmetic. Cost: one visit a step.

use crate::error::PassError;
use crate::ir::{Changes, Graph, Operand, Step, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use std::collections::HashMap;

/// Remove what changes nothing; see the module.
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn simplify(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    for index in graph.reachable_blocks() {
        changes += simplify_block(graph, index);
    }
    Ok(Changes(changes))
}

fn simplify_block(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut replaced: HashMap<ValueId, Operand> = HashMap::new();
    let mut kept = Vec::new();
    let mut changes = 0;
    let mut pending: Vec<Step> = std::mem::take(&mut graph.block_mut(index).steps);
    pending.reverse();
    while let Some(mut step) = pending.pop() {
        substitute(&mut step.operands, &replaced);
        if let Some(operand) = unchanged_operand(graph, &step) {
            changes += 1;
            replaced.insert(step.results[0], operand);
        } else {
            kept.push(step);
        }
    }
    let block = graph.block_mut(index);
    block.steps = kept;
    substitute(&mut block.results, &replaced);
    changes
}

fn substitute(operands: &mut [Operand], replaced: &HashMap<ValueId, Operand>) {
    for operand in operands {
        // A replacement may have been replaced itself since it was found.
        while let Operand::Value(value) = operand
            && let Some(replacement) = replaced.get(value)
        {
            *operand = *replacement;
        }
    }
}

/// The operand that a step's only result equals, type and all.
fn unchanged_operand(graph: &Graph, step: &Step) -> Option<Operand> {
    let [result] = step.results.as_slice() else { return None };
    let after = &graph.value(*result).fact;
    let operator = step.op.operator();
    let index = match operator.view_of() {
        Some(viewed) => viewed,
        None if operator.is_identity(&graph.facts(&step.operands), after) => 0,
        None => return None,
    };
    let operand = *step.operands.get(index)?;
    let known = after.kind.as_tensor().is_none_or(|(_, shape)| shape.rank().is_some());
    (known && graph.fact(operand)?.kind == after.kind).then_some(operand)
}
