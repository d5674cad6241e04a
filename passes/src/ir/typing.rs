//! Types a block for given facts of its parameters, without changing the graph.

use crate::ir::{Graph, Operand, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{BlockInference, InferContext, TypeError};
use std::collections::HashMap;

/// Types the blocks of a graph; see [`BlockInference`].
pub struct BlockTyping<'a> {
    graph: &'a Graph,
}

impl<'a> BlockTyping<'a> {
    /// Over the blocks of this graph.
    pub fn new(graph: &'a Graph) -> Self {
        BlockTyping { graph }
    }
}

impl BlockInference for BlockTyping<'_> {
    fn infer_block(&mut self, index: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        let block = self
            .graph
            .blocks
            .get(index.0 as usize)
            .ok_or_else(|| TypeError::Block(format!("block {} does not exist", index.0)))?;
        if block.parameters.len() != parameters.len() {
            let expected = format!("{}", block.parameters.len());
            return Err(TypeError::OperandCount { expected, found: parameters.len() });
        }
        let mut facts: HashMap<ValueId, Fact> =
            block.parameters.iter().copied().zip(parameters.iter().cloned()).collect();
        let look_up = |facts: &HashMap<ValueId, Fact>, operand: Operand| match operand {
            Operand::Value(value) => facts.get(&value).cloned(),
            Operand::Absent | Operand::Constant(_) => self.graph.fact(operand),
        };
        for step in &block.steps {
            let inputs: Vec<Option<Fact>> = step.operands.iter().map(|&operand| look_up(&facts, operand)).collect();
            let mut inner = BlockTyping { graph: self.graph };
            let mut context = InferContext::new(&step.name, &self.graph.ranges, &mut inner);
            let results = step
                .op
                .operator()
                .infer(&inputs, &mut context)
                .map_err(|error| TypeError::Block(format!("`{}`: {error}", step.name)))?;
            facts.extend(step.results.iter().copied().zip(results));
        }
        block
            .results
            .iter()
            .map(|&result| look_up(&facts, result).ok_or_else(|| TypeError::Block("a result is missing".to_string())))
            .collect()
    }
}
