//! An order in which a graph's nodes can run, and the checks that need all names at once.
//!
//! ONNX asks for sorted nodes; some writers do not sort, and a cycle must be told apart from that.

use ipuc_formats::onnx::schema::{GraphProto, NodeProto};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::HashMap;

/// Why nodes have no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrderError {
    /// A node waits for itself; the name of a value on the cycle.
    Cycle(String),
    /// Two definitions of one name.
    Duplicate(String),
}

/// Indices of nodes, each after those whose outputs it (or a body of it) uses; the given order where it can be kept.
pub(crate) fn run_order(graph: &GraphProto) -> Result<Vec<usize>, OrderError> {
    let mut producers: HashMap<&str, usize> = HashMap::with_capacity(graph.node.len());
    for (index, node) in graph.node.iter().enumerate() {
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            if producers.insert(output, index).is_some() {
                return Err(OrderError::Duplicate(output.clone()));
            }
        }
    }
    let given = graph.initializer.iter().map(|tensor| &tensor.name).chain(graph.input.iter().map(|input| &input.name));
    if let Some(name) = given.flatten().find(|name| producers.contains_key(name.as_str())) {
        return Err(OrderError::Duplicate(name.clone()));
    }
    let mut dependencies = DiGraph::<(), ()>::with_capacity(graph.node.len(), 2 * graph.node.len());
    for _ in &graph.node {
        dependencies.add_node(());
    }
    let mut sorted = true;
    for (index, node) in graph.node.iter().enumerate() {
        for_each_used_name(node, &mut |name| {
            if let Some(&producer) = producers.get(name) {
                sorted &= producer < index;
                dependencies.add_edge(NodeIndex::new(producer), NodeIndex::new(index), ());
            }
        });
    }
    if sorted {
        return Ok((0..graph.node.len()).collect());
    }
    match petgraph::algo::toposort(&dependencies, None) {
        Ok(order) => Ok(order.into_iter().map(NodeIndex::index).collect()),
        Err(cycle) => {
            let node = &graph.node[cycle.node_id().index()];
            Err(OrderError::Cycle(node.output.first().cloned().unwrap_or_default()))
        }
    }
}

/// Names that a node or its bodies use. Names that a body defines itself are given too: they have no producer outside.
fn for_each_used_name<'a>(node: &'a NodeProto, visit: &mut dyn FnMut(&'a str)) {
    for input in &node.input {
        visit(input);
    }
    for attribute in &node.attribute {
        for body in attribute.g.as_deref().into_iter().chain(&attribute.graphs) {
            let own: std::collections::HashSet<&str> = body
                .input
                .iter()
                .filter_map(|input| input.name.as_deref())
                .chain(body.initializer.iter().filter_map(|tensor| tensor.name.as_deref()))
                .chain(body.node.iter().flat_map(|node| node.output.iter().map(String::as_str)))
                .collect();
            let mut outer = |name: &'a str| {
                if !own.contains(name) {
                    visit(name);
                }
            };
            for inner in &body.node {
                for_each_used_name(inner, &mut outer);
            }
            for output in body.output.iter().filter_map(|output| output.name.as_deref()) {
                outer(output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[&str], outputs: &[&str]) -> NodeProto {
        NodeProto {
            input: inputs.iter().map(ToString::to_string).collect(),
            output: outputs.iter().map(ToString::to_string).collect(),
            ..NodeProto::default()
        }
    }

    fn order(nodes: Vec<NodeProto>) -> Result<Vec<usize>, OrderError> {
        run_order(&GraphProto { node: nodes, ..GraphProto::default() })
    }

    #[test]
    fn unsorted_nodes_are_sorted_and_cycles_named() {
        assert_eq!(order(vec![node(&["b"], &["c"]), node(&["a"], &["b"])]), Ok(vec![1, 0]));
        let cycle = order(vec![node(&["b"], &["a"]), node(&["a"], &["b"])]);
        assert!(matches!(cycle, Err(OrderError::Cycle(_))), "{cycle:?}");
        assert!(matches!(order(vec![node(&["a"], &["a"])]), Err(OrderError::Cycle(_))));
    }

    #[test]
    fn one_name_has_one_definition() {
        let twice = order(vec![node(&[], &["a"]), node(&[], &["a"])]);
        assert_eq!(twice, Err(OrderError::Duplicate("a".to_string())));
    }
}
