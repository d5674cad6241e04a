//! Remove steps whose results nobody uses.
//!
//! ```text
//! entry "main"("x") -> ("b") = block 0
//! block 0(%x : f32[n]) {
//!   %a : f32[n] = unary function=exp %x
//!   %b : f32[n] = unary function=neg %x
//!   return %b
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("x") -> ("b") = block 0
//! block 0(%x : f32[n]) {
//!   %b : f32[n] = unary function=neg %x
//!   return %b
//! }
//! ```
//!
//! Establishes: every step has a result that is read, or an effect.
//! Leaves alone: parameters and results of blocks. Cost: one backward visit a step.

use crate::error::PassError;
use crate::ir::{Changes, Graph, Operand, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::ops::Effect;
use std::collections::HashSet;

/// Remove what nobody uses; see the module.
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn remove_dead_code(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    for index in graph.reachable_blocks() {
        changes += sweep(graph, index);
    }
    Ok(Changes::of_steps(changes))
}

fn sweep(graph: &mut Graph, index: BlockIndex) -> usize {
    let block = graph.block_mut(index);
    let before = block.steps.len();
    let mut used: HashSet<ValueId> = block.results.iter().filter_map(as_value).collect();
    let mut kept = Vec::with_capacity(before);
    for step in std::mem::take(&mut block.steps).into_iter().rev() {
        let needed = step.results.iter().any(|result| used.contains(result));
        // An effect in a body is one of the step that runs the body.
        if needed || graph.effect(&step) == Effect::State {
            used.extend(step.operands.iter().filter_map(as_value));
            kept.push(step);
        }
    }
    kept.reverse();
    let removed = before - kept.len();
    graph.block_mut(index).steps = kept;
    removed
}

fn as_value(operand: &Operand) -> Option<ValueId> {
    match operand {
        Operand::Value(value) => Some(*value),
        Operand::Absent | Operand::Constant(_) => None,
    }
}
