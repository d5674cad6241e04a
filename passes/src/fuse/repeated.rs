//! Integers that several steps compute alike are computed once, as the positions of each layer of a decoder are; and masks.
//!
//! ```text
//! constant @one : i64[] = i64[]:0100000000000000
//! constant @also_one : i64[] = i64[]:0100000000000000
//! entry "main"("p", "x") -> ("y", "z") = block 0
//! block 0(%p : i64[n], %x : f32[n, 4]) {
//!   %a : i64[n] = binary function=add %p, @one from "first"
//!   %y : f32[n, 4] = gather axis=0 %x, %a from "first rows"
//!   %b : i64[n] = binary function=add %p, @also_one from "second"
//!   %z : f32[n, 4] = gather axis=0 %y, %b from "second rows"
//!   return %y, %z
//! }
//! ```
//! becomes
//! ```text
//! constant @one : i64[] = i64[]:0100000000000000
//! entry "main"("p", "x") -> ("y", "z") = block 0
//! block 0(%p : i64[n], %x : f32[n, 4]) {
//!   %a : i64[n] = binary function=add %p, @one from "first"
//!   %y : f32[n, 4] = gather axis=0 %x, %a from "first rows"
//!   %z : f32[n, 4] = gather axis=0 %y, %a from "second rows"
//!   return %y, %z
//! }
//! ```
//!
//! Steps are alike if they are the same operator, without effect and bodies, over the same operands, or if what is known of their
//! contents is the same. Floats are left alone, as they would take memory from the first reader to the last, but for those that are
//! chosen by a condition, since that stays in memory as well. So are results of the block. Results keep their bits.

use crate::ir::{ConstantData, ConstantId, Graph, Operand, Step, ValueId, substitute};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Contents, Type};
use ipuc_formats::ops::{Effect, Op};
use std::collections::HashMap;

/// Constants of more elements are alike only if they are the same.
const MOST_ELEMENTS: usize = 16;

/// Compute integers of a block once; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut found = Found::default();
    let mut replaced: HashMap<ValueId, Operand> = HashMap::new();
    let mut kept = Vec::with_capacity(steps.len());
    let before = steps.len();
    for mut step in steps {
        substitute(&mut step.operands, &replaced);
        match found.first_like(graph, index, &step) {
            Some(first) => {
                replaced.insert(step.results[0], Operand::Value(first));
            }
            None => kept.push(step),
        }
    }
    let gone = before - kept.len();
    graph.block_mut(index).steps = kept;
    gone
}

/// What steps so far compute.
#[derive(Default)]
struct Found {
    by_operands: HashMap<Vec<Read>, Vec<(Op, ValueId)>>,
    by_contents: HashMap<(Type, Vec<Dim>), ValueId>,
}

/// An operand; small constants by their contents.
#[derive(PartialEq, Eq, Hash)]
enum Read {
    Operand(Operand),
    Elements(DType, Vec<usize>, Vec<u8>),
}

impl Found {
    /// The result of an earlier step that is alike; one without is remembered.
    fn first_like(&mut self, graph: &Graph, index: BlockIndex, step: &Step) -> Option<ValueId> {
        let &[result] = step.results.as_slice() else { return None };
        let fact = &graph.value(result).fact;
        let is_mask =
            matches!(step.op, Op::Select(_)) && step.operands.iter().skip(1).all(|&operand| is_number(graph, operand));
        let is_shared =
            is_mask || fact.kind.as_tensor().is_some_and(|(dtype, _)| dtype.is_integer() || dtype == DType::Bool);
        let is_result = graph.block(index).results.contains(&Operand::Value(result));
        if !is_shared || is_result || graph.effect(step) != Effect::Pure || !step.op.blocks().is_empty() {
            return None;
        }
        let reads = step.operands.iter().map(|&operand| Read::of(graph, operand)).collect();
        let alike = self.by_operands.entry(reads).or_default();
        if let Some((_, first)) = alike.iter().find(|(op, first)| *op == step.op && kind(graph, *first) == &fact.kind) {
            return Some(*first);
        }
        if let Some(Contents::Dims(dims)) = &fact.contents {
            let known = self.by_contents.entry((fact.kind.clone(), dims.clone())).or_insert(result);
            if *known != result {
                return Some(*known);
            }
        }
        alike.push((step.op.clone(), result));
        None
    }
}

/// Whether an operand is a constant of one element.
fn is_number(graph: &Graph, operand: Operand) -> bool {
    matches!(operand, Operand::Constant(id) if graph.constant(id).shape.iter().all(|&extent| extent == 1))
}

fn kind(graph: &Graph, value: ValueId) -> &Type {
    &graph.value(value).fact.kind
}

impl Read {
    fn of(graph: &Graph, operand: Operand) -> Read {
        let Operand::Constant(id) = operand else { return Read::Operand(operand) };
        elements(graph, id).unwrap_or(Read::Operand(operand))
    }
}

/// The contents of a small constant in memory.
fn elements(graph: &Graph, id: ConstantId) -> Option<Read> {
    let ConstantData::Tensor(tensor) = &graph.constant(id).data else { return None };
    let is_small = tensor.count() <= MOST_ELEMENTS && tensor.dtype() != DType::String;
    is_small.then(|| Read::Elements(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()))
}
