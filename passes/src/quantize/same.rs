//! Weights that are the same codes under the same parameters become one, as those of an embedding and of a last product that
//! nodes of two kinds decode.

use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Quantized};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Op;
use std::collections::{BTreeMap, HashMap};

/// Constants that only change the shape of others, one behind another, at most.
const DEPTH: usize = 8;

/// Tensors of more bytes are not compared: what is large lies in a file.
const COMPARED_BYTES: u64 = 4096;

/// What the elements of a constant are in their order, whatever its shape.
#[derive(PartialEq)]
enum Elements<'a> {
    /// Those of this constant, which is looked at no further.
    Own(ConstantId),
    /// Those of this constant, which is in memory or in a file.
    Leaf(DType, &'a ConstantData),
    /// The bits of others as another type.
    Cast(DType, Box<Elements<'a>>),
}

fn elements(graph: &Graph, id: ConstantId, depth: usize) -> Elements<'_> {
    let Constant { dtype, data, .. } = graph.constant(id);
    match data {
        ConstantData::Stored(_) | ConstantData::Hashed(_) => Elements::Leaf(*dtype, data),
        ConstantData::Tensor(_) if graph.constant(id).byte_count() <= COMPARED_BYTES => Elements::Leaf(*dtype, data),
        ConstantData::Recipe { op, operands } if depth > 0 => {
            let Some(&Some(from)) = operands.first() else { return Elements::Own(id) };
            let keeps = matches!(op, Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_));
            if keeps && graph.constant(from).dtype == *dtype {
                return elements(graph, from, depth - 1);
            }
            if matches!(op, Op::BitCast(_)) {
                return Elements::Cast(*dtype, Box::new(elements(graph, from, depth - 1)));
            }
            Elements::Own(id)
        }
        ConstantData::Tensor(_) | ConstantData::Recipe { .. } | ConstantData::Rounded(_) => Elements::Own(id),
    }
}

/// Whether two constants of the same type and shape dequantize the same codes in the same way.
fn are_same(graph: &Graph, one: &Quantized, other: &Quantized) -> bool {
    let same = |one: ConstantId, other: ConstantId| elements(graph, one, DEPTH) == elements(graph, other, DEPTH);
    let parameters = |one: &Quantized| -> Vec<_> { one.parameters().collect() };
    let (left, right) = (parameters(one), parameters(other));
    let pairs = left.iter().zip(&right);
    (one.axis, one.block_size) == (other.axis, other.block_size)
        && one.output_scale.is_none()
        && other.output_scale.is_none()
        && left.len() == right.len()
        && { pairs }.all(|((role, one), (other_role, other))| role == other_role && same(*one, *other))
        && same(one.codes, other.codes)
}

/// Have steps read the first of constants that are the same; gives how many operands are others now.
pub(super) fn merge(graph: &mut Graph) -> usize {
    let mut known: BTreeMap<Vec<usize>, Vec<(ConstantId, Quantized)>> = BTreeMap::new();
    let mut found: HashMap<ConstantId, ConstantId> = HashMap::new();
    for id in graph.uses().into_keys() {
        let constant = graph.constant(id);
        let Some(quantized) = graph.quantized(id).filter(|_| constant.encoding.is_none()) else { continue };
        let others = known.entry(constant.shape.clone()).or_default();
        let is_same = |(other, own): &&(ConstantId, Quantized)| {
            graph.constant(*other).dtype == constant.dtype && are_same(graph, own, &quantized)
        };
        match others.iter().find(is_same) {
            Some((other, _)) => {
                found.insert(id, *other);
            }
            None => others.push((id, quantized)),
        }
    }
    let mut changes = 0;
    if found.is_empty() {
        return changes;
    }
    for index in graph.reachable_blocks() {
        for operand in graph.block_mut(index).steps.iter_mut().flat_map(|step| &mut step.operands) {
            if let Operand::Constant(id) = operand
                && let Some(first) = found.get(id)
            {
                *id = *first;
                changes += 1;
            }
        }
    }
    changes
}
