//! Elementwise steps one after the other become one `map`.
//!
//! ```text
//! constant @three : f32[] = f32[]:00004040
//! constant @low : f32[] = f32[]:00000000
//! constant @high : f32[] = f32[]:0000c040
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 16]) {
//!   %a : f32[n, 16] = binary function=add %x, @three from "add"
//!   %b : f32[n, 16] = clamp %a, @low, @high from "clip"
//!   %c : f32[n, 16] = binary function=mul %x, %b from "mul"
//!   %y : f32[n, 16] = binary function=div %c, @high from "div"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 16]) {
//!   %y : f32[n, 16] = map program=["add $0 f32(3) : f32", "clamp %0 f32(0) f32(6) : f32", "mul $0 %1 : f32", "div %2 f32(6) : f32", "return %3"] %x from "add + clip + mul + div"
//!   return %y
//! }
//! ```
//!
//! A step takes in those that compute its operands for it alone, where they have the shape of its result: nothing is computed
//! twice. Constants of one element become constants of the program. Results keep their bits.

use super::elements::Elements;
use super::readers::Steps;
use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::ops::Map;

/// Join elementwise steps of a block; gives how many are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut gone = 0;
    for at in (0..steps.len()).rev() {
        let Some(mut elements) = steps.get(at).and_then(|step| Elements::of(graph, step)) else { continue };
        let mut joined = 0;
        while let Some((producer, longer)) = next(graph, &steps, at, &elements) {
            steps.join(producer, at);
            elements = longer;
            joined += 1;
        }
        let Some(results) = steps.get(at).map(|step| step.results.clone()).filter(|_| joined > 0) else { continue };
        let name = elements.name();
        let Elements { program, operands, .. } = elements;
        steps.replace(at, Step { op: Map { program }.into(), operands, results, name });
        gone += joined;
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// A step that can be joined to the one at `at`, which computes `elements` so far; and both as one.
fn next(graph: &Graph, steps: &Steps, at: usize, elements: &Elements) -> Option<(usize, Elements)> {
    elements.operands.iter().find_map(|&operand| {
        let Operand::Value(value) = operand else { return None };
        let producer = steps.only_for(at, value)?;
        let first = Elements::of(graph, steps.get(producer)?)?;
        joined(elements, value, &first).map(|longer| (producer, longer))
    })
}

fn joined(elements: &Elements, value: ValueId, first: &Elements) -> Option<Elements> {
    if first.dims == elements.dims { elements.after(value, first, 0) } else { None }
}
