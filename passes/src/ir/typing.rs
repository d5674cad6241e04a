//! Types a block for given facts of its parameters, without changing the graph.

use crate::ir::{Graph, Operand, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{BlockInference, InferContext, Op, TypeError};
use std::collections::HashMap;

/// Types the blocks of a graph; see [`BlockInference`].
pub struct BlockTyping<'a> {
    graph: &'a Graph,
    /// Facts of every value of a block that was typed, from the last time it was.
    pub recorded: HashMap<ValueId, Fact>,
}

impl<'a> BlockTyping<'a> {
    /// Over the blocks of this graph.
    pub fn new(graph: &'a Graph) -> Self {
        BlockTyping { graph, recorded: HashMap::new() }
    }

    fn fact(&self, operand: Operand) -> Option<Fact> {
        match operand {
            Operand::Value(value) => self.recorded.get(&value).cloned(),
            Operand::Absent | Operand::Constant(_) => self.graph.fact(operand),
        }
    }
}

impl Graph {
    /// The facts that an operator gives for these operands; `None` where they do not fit, or it asks the bind for something
    /// new.
    pub fn inferred(&self, op: &Op, operands: &[Operand]) -> Option<Vec<Fact>> {
        let mut typing = BlockTyping::new(self);
        let mut context = InferContext::new("", &self.ranges, &mut typing);
        let facts = op.operator().infer(&self.facts(operands), &mut context).ok()?;
        context.obligations.iter().all(|one| self.obligations.contains(one)).then_some(facts)
    }
}

impl BlockInference for BlockTyping<'_> {
    fn infer_block(&mut self, index: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        let graph = self.graph;
        let block = graph
            .blocks
            .get(index.0 as usize)
            .ok_or_else(|| TypeError::Block(format!("block {} does not exist", index.0)))?;
        if block.parameters.len() != parameters.len() {
            let expected = block.parameters.len().to_string();
            return Err(TypeError::OperandCount { expected, found: parameters.len() });
        }
        self.recorded.extend(block.parameters.iter().copied().zip(parameters.iter().cloned()));
        for step in &block.steps {
            let inputs: Vec<Option<Fact>> = step.operands.iter().map(|&operand| self.fact(operand)).collect();
            let mut context = InferContext::new(&step.name, &graph.ranges, self);
            let results = step
                .op
                .operator()
                .infer(&inputs, &mut context)
                .map_err(|error| TypeError::Block(format!("`{}`: {error}", step.name)))?;
            self.recorded.extend(step.results.iter().copied().zip(results));
        }
        let missing = || TypeError::Block("a result is missing".to_string());
        block.results.iter().map(|&result| self.fact(result).ok_or_else(missing)).collect()
    }
}
