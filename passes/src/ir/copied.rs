//! Copies of blocks.

use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use std::collections::HashMap;

impl Graph {
    /// A block like this one, of values of its own; `None` where a step cannot be copied.
    pub fn copy_block(&mut self, index: BlockIndex) -> Option<BlockIndex> {
        let graph = self;
        let original = graph.block(index).clone();
        let copy = graph.add_block();
        let mut values: HashMap<ValueId, ValueId> = HashMap::new();
        let mut copied = |graph: &mut Graph, value: ValueId| {
            *values.entry(value).or_insert_with(|| {
                let original = graph.value(value).clone();
                graph.add_value(original.fact, original.name.as_deref())
            })
        };
        let operand = |graph: &mut Graph, copied: &mut dyn FnMut(&mut Graph, ValueId) -> ValueId, operand| match operand
        {
            Operand::Value(value) => Operand::Value(copied(graph, value)),
            Operand::Absent | Operand::Constant(_) => operand,
        };
        let parameters = original.parameters.iter().map(|&value| copied(graph, value)).collect();
        let mut steps = Vec::with_capacity(original.steps.len());
        for step in original.steps {
            let bodies = step.op.blocks();
            let op = if bodies.is_empty() {
                step.op
            } else {
                let bodies = bodies.into_iter().map(|body| graph.copy_block(body)).collect::<Option<Vec<_>>>()?;
                step.op.with_bodies(&bodies)?
            };
            let operands = step.operands.into_iter().map(|one| operand(graph, &mut copied, one)).collect();
            let results = step.results.into_iter().map(|value| copied(graph, value)).collect();
            steps.push(Step { op, operands, results, name: step.name });
        }
        let results = original.results.into_iter().map(|one| operand(graph, &mut copied, one)).collect();
        let block = graph.block_mut(copy);
        (block.parameters, block.steps, block.results) = (parameters, steps, results);
        Some(copy)
    }
}
