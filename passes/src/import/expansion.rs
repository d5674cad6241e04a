//! How large a model becomes when its model-local functions are put in place of their calls, counted before that is done.
//!
//! A few functions that call each other several times expand without measure, so that each function is counted once: its
//! own nodes, and how often it puts in place a graph that its caller gives as an attribute.

use crate::import::functions::{FunctionKey, Functions};
use ipuc_formats::limits;
use ipuc_formats::onnx::schema::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use prost::Message as _;
use std::collections::{BTreeMap, HashMap};
use thiserror::Error;

/// Why functions are not expanded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExpansionError {
    /// A function calls itself, by way of others or not.
    #[error("function `{name}` calls itself")]
    Recursive {
        /// Name of the function.
        name: String,
    },
    /// Calls inside calls.
    #[error("its functions call each other more than {} deep, which is the limit", limits::ONNX_GRAPH_NESTING)]
    Nesting,
    /// Too many nodes.
    #[error(
        "its functions expand to more than {} nodes or {} bytes, which is the limit",
        limits::ONNX_EXPANDED_NODES,
        limits::ONNX_DECODED_BYTES
    )]
    TooLarge,
}

/// Nodes and what they take, names with the calls that lead to them included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    nodes: u64,
    bytes: u64,
}

/// How often a graph that a caller gives is put in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Uses {
    times: u64,
    /// Bytes of all calls' names before those of its nodes.
    label_bytes: u64,
}

/// What nodes expand to: a size, and graphs that are given by the names of attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Expanded {
    own: Size,
    given: BTreeMap<String, Uses>,
}

impl Expanded {
    fn add(&mut self, other: &Expanded) {
        self.own.nodes = self.own.nodes.saturating_add(other.own.nodes);
        self.own.bytes = self.own.bytes.saturating_add(other.own.bytes);
        for (name, uses) in &other.given {
            self.add_given(name, *uses);
        }
    }

    fn add_given(&mut self, name: &str, uses: Uses) {
        let sum = self.given.entry(name.to_string()).or_default();
        sum.times = sum.times.saturating_add(uses.times);
        sum.label_bytes = sum.label_bytes.saturating_add(uses.label_bytes);
    }

    /// The same so many times, its nodes with further bytes before their names in all of them together.
    fn repeated(&self, uses: Uses) -> Expanded {
        let bytes = |bytes: u64, count: u64| {
            bytes.saturating_mul(uses.times).saturating_add(count.saturating_mul(uses.label_bytes))
        };
        let own =
            Size { nodes: self.own.nodes.saturating_mul(uses.times), bytes: bytes(self.own.bytes, self.own.nodes) };
        let given = self.given.iter().map(|(name, inner)| {
            let times = inner.times.saturating_mul(uses.times);
            (name.clone(), Uses { times, label_bytes: bytes(inner.label_bytes, inner.times) })
        });
        Expanded { own, given: given.collect() }
    }
}

/// Refuse a graph that expands to more than the limits allow.
///
/// # Errors
/// [`ExpansionError`].
pub(super) fn check(graph: &GraphProto, functions: &Functions<'_>) -> Result<(), ExpansionError> {
    // Without functions the decoder's own limit holds.
    if functions.is_empty() {
        return Ok(());
    }
    let mut counter = Counter::new(functions);
    counter.nodes(&graph.node).map(|_| ())
}

struct Counter<'f, 'm> {
    functions: &'f Functions<'m>,
    /// `None` while a function is counted.
    counted: HashMap<FunctionKey, Option<Expanded>>,
    /// Functions that are being counted.
    depth: usize,
}

impl<'f, 'm> Counter<'f, 'm> {
    fn new(functions: &'f Functions<'m>) -> Self {
        Counter { functions, counted: HashMap::new(), depth: 0 }
    }

    fn nodes(&mut self, nodes: &[NodeProto]) -> Result<Expanded, ExpansionError> {
        let mut sum = Expanded::default();
        for node in nodes {
            let bytes = node.encoded_len() as u64;
            sum.add(&Expanded { own: Size { nodes: 1, bytes }, given: BTreeMap::new() });
            let key = FunctionKey::of_node(node);
            match self.functions.get(&key) {
                Some(function) => sum.add(&self.call(node, key, function)?),
                None => {
                    for attribute in &node.attribute {
                        sum.add(&self.attribute(attribute)?);
                    }
                }
            }
            if sum.own.nodes > limits::ONNX_EXPANDED_NODES || sum.own.bytes > limits::ONNX_DECODED_BYTES {
                return Err(ExpansionError::TooLarge);
            }
        }
        Ok(sum)
    }

    /// The graphs of an attribute, or the one that a caller gives.
    fn attribute(&mut self, attribute: &AttributeProto) -> Result<Expanded, ExpansionError> {
        let mut sum = Expanded::default();
        if let Some(name) = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty()) {
            sum.add_given(name, Uses { times: 1, label_bytes: 0 });
            return Ok(sum);
        }
        for graph in attribute.g.as_deref().into_iter().chain(&attribute.graphs) {
            sum.add(&self.nodes(&graph.node)?);
        }
        Ok(sum)
    }

    /// A function's body for one call, with the graphs of the call in it.
    fn call(
        &mut self,
        node: &NodeProto,
        key: FunctionKey,
        function: &FunctionProto,
    ) -> Result<Expanded, ExpansionError> {
        let body = self.function(key, function)?;
        let label = node.name.iter().chain(&node.output).map(|name| name.len() as u64 + 1).max().unwrap_or(0);
        let Expanded { own, given } = body.repeated(Uses { times: 1, label_bytes: label });
        let mut sum = Expanded { own, given: BTreeMap::new() };
        let named = |attribute: &&AttributeProto, name: &str| attribute.name.as_deref() == Some(name);
        for (name, uses) in &given {
            let value = node.attribute.iter().find(|attribute| named(attribute, name));
            let value = value.or_else(|| function.attribute_proto.iter().find(|attribute| named(attribute, name)));
            if let Some(value) = value {
                let value_bytes = value.encoded_len() as u64;
                let once = self.attribute(value)?;
                sum.add(&once.repeated(*uses));
                // An attribute of text or elements is repeated, too.
                sum.own.bytes = sum.own.bytes.saturating_add(value_bytes.saturating_mul(uses.times));
            }
        }
        Ok(sum)
    }

    fn function(&mut self, key: FunctionKey, function: &FunctionProto) -> Result<Expanded, ExpansionError> {
        match self.counted.get(&key) {
            Some(Some(counted)) => return Ok(counted.clone()),
            Some(None) => {
                return Err(ExpansionError::Recursive { name: function.name.clone().unwrap_or_default() });
            }
            None => {}
        }
        if self.depth >= limits::ONNX_GRAPH_NESTING {
            return Err(ExpansionError::Nesting);
        }
        self.depth += 1;
        self.counted.insert(key.clone(), None);
        let counted = self.nodes(&function.node)?;
        self.depth -= 1;
        self.counted.insert(key, Some(counted.clone()));
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::onnx::schema::ModelProto;

    fn call(name: &str, output: &str) -> NodeProto {
        NodeProto {
            op_type: Some(name.to_string()),
            domain: Some("local".to_string()),
            output: vec![output.to_string()],
            ..NodeProto::default()
        }
    }

    /// Functions `f0`, `f1`, ..: each calls the next `calls` times, the last has as many nodes.
    fn chain(length: usize, calls: usize) -> ModelProto {
        let function = |index: usize| FunctionProto {
            name: Some(format!("f{index}")),
            domain: Some("local".to_string()),
            node: (0..calls).map(|at| call(&format!("f{}", index + 1), &format!("y{at}"))).collect(),
            ..FunctionProto::default()
        };
        let graph = GraphProto { node: vec![call("f0", "y")], ..GraphProto::default() };
        ModelProto { graph: Some(graph), functions: (0..length).map(function).collect(), ..ModelProto::default() }
    }

    fn check_model(model: &ModelProto) -> Result<(), ExpansionError> {
        check(model.graph.as_ref().unwrap(), &Functions::new(&model.functions))
    }

    #[test]
    fn calls_are_counted_without_expanding_them() {
        assert_eq!(check_model(&chain(5, 10)), Ok(()));
        // 10^8 nodes, and more than can be counted.
        assert_eq!(check_model(&chain(8, 10)), Err(ExpansionError::TooLarge));
        assert_eq!(check_model(&chain(29, 1000)), Err(ExpansionError::TooLarge));
        let functions = chain(3, 2);
        let functions = Functions::new(&functions.functions);
        let mut counter = Counter::new(&functions);
        let expanded = counter.nodes(&[call("f0", "y")]).unwrap();
        assert_eq!(expanded.own.nodes, 1 + 2 + 4 + 8);
    }

    #[test]
    fn graphs_that_are_given_count_wherever_they_are_put() {
        let mut model = chain(2, 3);
        // The last function puts a graph in place that its caller's caller gives.
        let reference = |name: &str| AttributeProto {
            name: Some(name.to_string()),
            ref_attr_name: Some("body".to_string()),
            ..AttributeProto::default()
        };
        for node in &mut model.functions[0].node {
            node.attribute.push(reference("body"));
        }
        for node in &mut model.functions[1].node {
            node.attribute.push(reference("then_branch"));
        }
        let body = GraphProto { node: vec![NodeProto::default(); 7], ..GraphProto::default() };
        let mut first = call("f0", "y");
        first.attribute.push(AttributeProto {
            name: Some("body".to_string()),
            g: Some(Box::new(body)),
            ..AttributeProto::default()
        });
        let functions = Functions::new(&model.functions);
        let mut counter = Counter::new(&functions);
        assert_eq!(counter.nodes(&[first]).unwrap().own.nodes, 1 + 3 + 9 + 9 * 7);
    }

    #[test]
    fn long_names_of_calls_count() {
        let mut model = chain(4, 10);
        let long = "n".repeat(1 << 20);
        model.graph.as_mut().unwrap().node[0].name = Some(long);
        assert_eq!(check_model(&model), Err(ExpansionError::TooLarge));
    }

    #[test]
    fn calls_nest_no_deeper_than_graphs() {
        assert_eq!(check_model(&chain(limits::ONNX_GRAPH_NESTING, 1)), Ok(()));
        assert_eq!(check_model(&chain(limits::ONNX_GRAPH_NESTING + 1, 1)), Err(ExpansionError::Nesting));
    }

    #[test]
    fn functions_that_call_themselves_are_refused() {
        let mut model = chain(2, 2);
        model.functions[1].node[0].op_type = Some("f0".to_string());
        assert_eq!(check_model(&model), Err(ExpansionError::Recursive { name: "f0".to_string() }));
    }
}
