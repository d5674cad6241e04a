//! The graph of a block's steps, derived from the list.

use crate::ir::{Block, Operand, ValueId};
use ipuc_formats::ops::Effect;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::HashMap;

/// Steps of one block and what must run before what: node `i` is step `i`, an edge goes from a step to one that needs it.
/// An edge's weight is the value that is handed over, or `None` where only the order of effects is kept.
pub struct Dependencies {
    /// The graph.
    pub graph: DiGraph<(), Option<ValueId>>,
}

impl Block {
    /// Derive the graph of dependencies. Linear in steps and operands.
    pub fn dependencies(&self) -> Dependencies {
        let mut producers: HashMap<ValueId, NodeIndex> = HashMap::new();
        let mut graph = DiGraph::with_capacity(self.steps.len(), 2 * self.steps.len());
        for step in &self.steps {
            let node = graph.add_node(());
            producers.extend(step.results.iter().map(|&result| (result, node)));
        }
        let mut last_effect = None;
        for (index, step) in self.steps.iter().enumerate() {
            let node = NodeIndex::new(index);
            for operand in &step.operands {
                if let Operand::Value(value) = operand
                    && let Some(&producer) = producers.get(value)
                {
                    graph.add_edge(producer, node, Some(*value));
                }
            }
            if step.op.operator().effect() == Effect::State
                && let Some(earlier) = last_effect.replace(node)
            {
                graph.add_edge(earlier, node, None);
            }
        }
        Dependencies { graph }
    }

    /// Put the steps into an order in which they can run, keeping the given order where it can be kept.
    /// Gives the index of a step on a cycle where there is none.
    ///
    /// # Errors
    /// The index (in the given order) of a step that waits for itself.
    pub fn sort_steps(&mut self) -> Result<(), usize> {
        let graph = self.dependencies().graph;
        if graph.edge_indices().all(|edge| graph.edge_endpoints(edge).is_none_or(|(from, to)| from < to)) {
            return Ok(());
        }
        petgraph::algo::toposort(&graph, None).map_err(|cycle| cycle.node_id().index())?;
        // The smallest ready index first: stable, unlike the depth-first order of `toposort`.
        let mut waiting: Vec<usize> = graph
            .node_indices()
            .map(|node| graph.neighbors_directed(node, petgraph::Direction::Incoming).count())
            .collect();
        let mut ready: std::collections::BTreeSet<usize> = (0..waiting.len()).filter(|&at| waiting[at] == 0).collect();
        let mut order = Vec::with_capacity(waiting.len());
        while let Some(next) = ready.pop_first() {
            order.push(next);
            for follower in graph.neighbors(NodeIndex::new(next)) {
                waiting[follower.index()] -= 1;
                if waiting[follower.index()] == 0 {
                    ready.insert(follower.index());
                }
            }
        }
        let mut steps: Vec<Option<_>> = std::mem::take(&mut self.steps).into_iter().map(Some).collect();
        self.steps = order.into_iter().filter_map(|index| steps[index].take()).collect();
        Ok(())
    }
}
