//! What steps of a block mean for each other's values.

use crate::ir::{ConstantId, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use std::collections::{HashMap, HashSet};

/// Who defines values of a block, and how often they are read.
pub(super) struct Readers {
    producers: HashMap<ValueId, usize>,
    pub(super) reads: HashMap<ValueId, usize>,
    /// Constants that steps read otherwise than as the weight of a product.
    elsewhere: HashSet<ConstantId>,
}

impl Readers {
    pub(super) fn new(graph: &Graph, index: BlockIndex) -> Readers {
        let block = graph.block(index);
        let mut readers = Readers { producers: HashMap::new(), reads: HashMap::new(), elsewhere: HashSet::new() };
        for (place, step) in block.steps.iter().enumerate() {
            readers.producers.extend(step.results.iter().map(|&result| (result, place)));
            for (position, operand) in step.operands.iter().enumerate() {
                let Operand::Constant(id) = operand else { continue };
                let shape: Vec<u64> = graph.constant(*id).shape.iter().map(|&extent| extent as u64).collect();
                if step.op.weight_matrix(position, &shape).is_none() {
                    readers.elsewhere.insert(*id);
                }
            }
        }
        for operand in block.steps.iter().flat_map(|step| &step.operands).chain(&block.results) {
            if let Operand::Value(value) = operand {
                *readers.reads.entry(*value).or_default() += 1;
            }
        }
        readers
    }

    /// The step that defines an operand.
    pub(super) fn producer<'a>(&self, steps: &'a [Step], operand: Operand) -> Option<&'a Step> {
        let Operand::Value(value) = operand else { return None };
        steps.get(*self.producers.get(&value)?)
    }

    /// The step that defines an operand, where nothing else reads it.
    pub(super) fn only_read<'a>(&self, steps: &'a [Step], operand: Operand) -> Option<&'a Step> {
        let Operand::Value(value) = operand else { return None };
        if self.reads.get(&value) == Some(&1) { self.producer(steps, operand) } else { None }
    }

    /// Whether products alone read a constant, as their weight.
    pub(super) fn only_weighs(&self, id: ConstantId) -> bool {
        !self.elsewhere.contains(&id)
    }

    /// Whether one of these values is read.
    pub(super) fn reads_any(&self, values: &[ValueId]) -> bool {
        values.iter().any(|value| self.reads.get(value).is_some_and(|&reads| reads > 0))
    }

    /// A step that was put in reads these.
    pub(super) fn remember(&mut self, step: &Step) {
        for operand in &step.operands {
            if let Operand::Value(value) = operand {
                *self.reads.entry(*value).or_default() += 1;
            }
        }
    }

    /// A step reads nothing any more.
    pub(super) fn forget(&mut self, step: &Step) {
        for operand in &step.operands {
            if let Operand::Value(value) = operand
                && let Some(reads) = self.reads.get_mut(value)
            {
                *reads = reads.saturating_sub(1);
            }
        }
    }
}
