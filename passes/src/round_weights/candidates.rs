//! Weights that may be rounded, and what is known of them.

use super::matches;
use crate::ir::{ConstantData, ConstantId, Graph, Operand, Step, Uses, ValueId};
use crate::rounding::Scheme;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Op, WeightMatrix};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A weight that products read as one matrix, or gathers by rows.
pub(super) struct Candidate {
    pub(super) id: ConstantId,
    /// Its name, or that of the first node that reads it.
    pub(super) name: String,
    /// Names of nodes that read it.
    nodes: BTreeSet<String>,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) elements: u64,
    pub(super) matrix: WeightMatrix,
    pub(super) uses: Uses,
    /// Numbers of the values that products multiply with it as calibration sees them; none where another reads it too.
    pub(super) inputs: Option<Vec<u32>>,
    /// Numbers of what steps compute with it.
    pub(super) results: Vec<u32>,
    /// Whether no other product follows one that reads it.
    is_last: bool,
}

impl Candidate {
    /// Whether a pattern matches its name or that of a node that reads it.
    pub(super) fn is_named(&self, pattern: &str) -> bool {
        matches(pattern, &self.name) || self.nodes.iter().any(|node| matches(pattern, node))
    }

    /// What calls for more than 4 bits.
    pub(super) fn role(&self) -> Option<&'static str> {
        if self.uses.rows > 0 {
            Some("rows that are read alone")
        } else if self.is_last {
            Some("the last product before an output")
        } else if self.is_convolution() {
            Some("a convolution")
        } else {
            None
        }
    }

    /// The axes of inputs and of outputs, where each is one axis; else the first axis counts outputs.
    fn axes(&self) -> Option<(usize, usize)> {
        let rank = self.shape.len();
        let (last, before) = (rank.checked_sub(1)?, rank.checked_sub(2)?);
        match self.matrix.output_axis {
            0 if self.is_pointwise() => Some((1, 0)),
            0 => (self.shape[last] as u64 == self.matrix.inputs).then_some((last, before)),
            _ => Some((before, last)),
        }
    }

    /// The axis along which its inputs lie, or their channels where filters have several taps.
    pub(super) fn input_axis(&self) -> usize {
        self.axes().map_or(1, |(inputs, _)| inputs)
    }

    /// The axis along which its outputs lie.
    pub(super) fn output_axis(&self) -> usize {
        self.axes().map_or(0, |(_, outputs)| outputs)
    }

    /// Channels of what it is multiplied with: its inputs, or those of filters with several taps.
    pub(super) fn input_channels(&self) -> usize {
        self.shape.get(self.input_axis()).copied().unwrap_or(1).max(1)
    }

    /// Whether it has filters of one tap: all inputs lie along axis 1.
    fn is_pointwise(&self) -> bool {
        let [_, channels, taps @ ..] = self.shape.as_slice() else { return false };
        let is_input = self.matrix.output_axis == 0 && *channels as u64 == self.matrix.inputs && self.matrix.inputs > 1;
        is_input && !taps.is_empty() && taps.iter().all(|&extent| extent == 1)
    }

    /// Whether its outputs are filters.
    pub(super) fn is_convolution(&self) -> bool {
        self.has_merged_inputs() || self.is_pointwise()
    }

    /// Whether several axes are inputs.
    pub(super) fn has_merged_inputs(&self) -> bool {
        self.axes().is_none()
    }

    /// Its extents.
    pub(super) fn extents(&self) -> Vec<u64> {
        self.shape.iter().map(|&extent| extent as u64).collect()
    }

    /// The shape of scales and zero points, and axis and size of blocks, as `Dequantize` has them.
    pub(super) fn parameters(&self, scheme: &Scheme) -> (Vec<usize>, i64, i64) {
        let Some((inputs, outputs)) = self.axes() else { return (vec![self.shape[0]], 0, 0) };
        if scheme.block == 0 && (self.matrix.groups == 1 || self.is_pointwise()) {
            return (vec![self.shape[outputs]], outputs as i64, 0);
        }
        let block = if scheme.block == 0 { self.matrix.inputs } else { scheme.block };
        let mut shape = self.shape.clone();
        shape[inputs] = scheme.blocks() as usize;
        (shape, inputs as i64, block as i64)
    }
}

/// All candidates of a graph, in the order of their numbers.
pub(super) fn candidates(graph: &Graph) -> Vec<Candidate> {
    let readers = readers(graph);
    let last = last_weights(graph);
    let inputs = product_inputs(graph);
    let candidate = |(id, uses): (ConstantId, Uses)| {
        let constant = graph.constant(id);
        let is_float = matches!(constant.dtype, DType::F32 | DType::F16 | DType::BF16);
        if !is_float || constant.encoding.is_some() || graph.quantized(id).is_some() || uses.others > 0 {
            return None;
        }
        let matrix = match (uses.matrix_in_panels(&constant.shape), constant.shape.as_slice()) {
            (Some(matrix), _) => matrix,
            (None, &[rows, inputs]) if uses.matrices.is_empty() => {
                WeightMatrix { groups: 1, inputs: inputs as u64, outputs: rows as u64, output_axis: 0 }
            }
            (_, _) => return None,
        };
        let elements = matrix.groups * matrix.outputs * matrix.inputs;
        let Readers { nodes, results, are_recurrent } = readers.get(&id).cloned().unwrap_or_default();
        let name = constant.name.as_deref().or(nodes.first().map(String::as_str)).unwrap_or_default().to_string();
        let (dtype, shape) = (constant.dtype, constant.shape.clone());
        let is_last = last.contains(&id);
        let inputs = inputs.get(&id).cloned().flatten();
        // Errors of these go on from step to step.
        (elements > 0 && !are_recurrent).then_some(Candidate {
            id,
            name,
            nodes,
            dtype,
            shape,
            elements,
            matrix,
            uses,
            inputs,
            results,
            is_last,
        })
    };
    graph.uses().into_iter().filter_map(candidate).collect()
}

/// A weight as it is now, as a constant of its own. What other recipes make of the weight (a transposed copy for a gather) they
/// make of that.
pub(super) fn copied(graph: &mut Graph, id: ConstantId) -> ConstantId {
    let constant = graph.constant(id).clone();
    let copy = graph.add_constant(constant);
    for other in &mut graph.constants {
        if let ConstantData::Recipe { operands, .. } = &mut other.data {
            let own = operands.iter_mut().filter(|operand| **operand == Some(id));
            own.for_each(|operand| *operand = Some(copy));
        }
    }
    copy
}

/// The steps that read a constant.
#[derive(Clone, Default)]
struct Readers {
    nodes: BTreeSet<String>,
    /// Numbers of their first results.
    results: Vec<u32>,
    /// Whether one is a recurrent layer.
    are_recurrent: bool,
}

fn readers(graph: &Graph) -> BTreeMap<ConstantId, Readers> {
    let mut readers: BTreeMap<ConstantId, Readers> = BTreeMap::new();
    for index in graph.reachable_blocks() {
        for step in &graph.block(index).steps {
            for operand in &step.operands {
                if let Operand::Constant(id) = operand {
                    let own = readers.entry(*id).or_default();
                    own.nodes.insert(step.name.to_string());
                    own.are_recurrent |= step.op.is_recurrent();
                    own.results.extend(step.results.first().map(|result| result.0));
                }
            }
        }
    }
    readers
}

/// The values that products of matrices multiply with each weight, along their last axis, and convolutions, in windows; none
/// where one does otherwise.
fn product_inputs(graph: &Graph) -> BTreeMap<ConstantId, Option<Vec<u32>>> {
    let mut inputs: BTreeMap<ConstantId, Option<Vec<u32>>> = BTreeMap::new();
    for index in graph.reachable_blocks() {
        for step in &graph.block(index).steps {
            let Some(weight) = product_weight(graph, step) else { continue };
            let read = match (&step.op, step.operands.as_slice()) {
                (Op::Matmul(product), [Operand::Value(value), ..]) if !product.transpose_a => Some(value.0),
                (Op::Convolution(product), [Operand::Value(value), ..]) if product.groups == 1 => Some(value.0),
                (_, _) => None,
            };
            let all = inputs.entry(weight).or_insert_with(|| Some(Vec::new()));
            match (all.as_mut(), read) {
                (Some(values), Some(read)) => values.push(read),
                (_, _) => *all = None,
            }
        }
    }
    inputs
}

/// Weights of products of entries that no other product with a weight follows.
fn last_weights(graph: &Graph) -> HashSet<ConstantId> {
    let blocks: BTreeSet<BlockIndex> = graph.entries.iter().map(|entry| entry.block).collect();
    let mut last = HashSet::new();
    for index in blocks {
        let mut before: HashSet<ValueId> = HashSet::new();
        for step in graph.block(index).steps.iter().rev() {
            let weight = product_weight(graph, step);
            let followed = step.results.iter().any(|result| before.contains(result));
            if let (Some(weight), false) = (weight, followed) {
                last.insert(weight);
            }
            // Bodies may hold products.
            if weight.is_some() || followed || !step.op.bodies().is_empty() {
                before.extend(step.operands.iter().filter_map(|operand| match operand {
                    Operand::Value(value) => Some(*value),
                    Operand::Constant(_) | Operand::Absent => None,
                }));
            }
        }
    }
    last
}

/// The constant that a product multiplies with; none of a recurrent layer, whose weights keep their values.
fn product_weight(graph: &Graph, step: &Step) -> Option<ConstantId> {
    if step.op.is_recurrent() {
        return None;
    }
    step.operands.iter().enumerate().find_map(|(position, operand)| match operand {
        Operand::Constant(id) => {
            let shape: Vec<u64> = graph.constant(*id).shape.iter().map(|&extent| extent as u64).collect();
            step.op.weight_matrix(position, &shape).map(|_| *id)
        }
        Operand::Value(_) | Operand::Absent => None,
    })
}
