//! What steps of a block mean for each other: the graph of dependencies, derived from the list; effects; substitution.

use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::ops::Effect;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::HashMap;

/// Steps of one block and what must run before what: node `i` is step `i`, an edge goes from a step to one that needs it.
/// An edge's weight is the value that is handed over, or `None` where only the order of effects is kept.
pub struct Dependencies {
    /// The graph.
    pub graph: DiGraph<(), Option<ValueId>>,
}

impl Graph {
    /// What a step does besides computing: what its operator does, and what the steps of the blocks do that it runs.
    pub fn effect(&self, step: &Step) -> Effect {
        let bodies = step.op.blocks().into_iter().flat_map(|index| &self.block(index).steps);
        bodies.map(|inner| self.effect(inner)).fold(step.op.effect(), Effect::max)
    }

    /// Derive the graph of dependencies of a block. Linear in steps and operands, bodies included.
    pub fn dependencies(&self, index: BlockIndex) -> Dependencies {
        let steps = &self.block(index).steps;
        let mut producers: HashMap<ValueId, NodeIndex> = HashMap::new();
        let mut graph = DiGraph::with_capacity(steps.len(), 2 * steps.len());
        for step in steps {
            let node = graph.add_node(());
            producers.extend(step.results.iter().map(|&result| (result, node)));
        }
        let mut last_effect = None;
        for (index, step) in steps.iter().enumerate() {
            let node = NodeIndex::new(index);
            for operand in &step.operands {
                if let Operand::Value(value) = operand
                    && let Some(&producer) = producers.get(value)
                {
                    graph.add_edge(producer, node, Some(*value));
                }
            }
            if self.effect(step) == Effect::State
                && let Some(earlier) = last_effect.replace(node)
            {
                graph.add_edge(earlier, node, None);
            }
        }
        Dependencies { graph }
    }
}

/// Replace operands by what they were found to be; a replacement may have been replaced itself since.
pub fn substitute(operands: &mut [Operand], found: &HashMap<ValueId, Operand>) {
    for operand in operands {
        while let Operand::Value(value) = operand
            && let Some(replacement) = found.get(value)
        {
            *operand = *replacement;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    #[test]
    fn steps_have_the_effects_of_their_bodies() {
        let graph = parse(
            r#"entry "main"("c", "x") -> ("y", "z", "r") = block 0
block 0(%c : bool[], %x : f32[2]) {
  %y : f32[2] = if then=1 otherwise=2 then_captures=1 %c, %x, %x from "drawn"
  %z : f32[2] = if then=3 otherwise=4 then_captures=1 %c, %x, %x from "plain"
  return %y, %z
}
block 1(%a : f32[2]) {
  return %a
}
block 2(%b : f32[2]) {
  %r : f32[2] = random distribution=uniform to=f32 low=0 high=1 shape=[2]
  return %r
}
block 3(%d : f32[2]) {
  return %d
}
block 4(%e : f32[2]) {
  %n : f32[2] = unary function=neg %e
  return %n
}
"#,
        )
        .unwrap();
        let effects: Vec<Effect> = graph.blocks[0].steps.iter().map(|step| graph.effect(step)).collect();
        assert_eq!(effects, [Effect::Random, Effect::Pure]);
        assert_eq!(graph.blocks[0].steps[0].op.effect(), Effect::Pure);
    }
}
