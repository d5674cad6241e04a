//! Model-local functions: which there are, and a body for one call.
//!
//! A model-local function of the same domain and name shadows a built-in operator. Attributes of the body that refer to
//! attributes of the function are replaced by those of the call, or by the function's defaults, or left out.

use crate::import::lower_error::LowerError;
use crate::import::opsets::{Opsets, canonical_domain, opsets};
use ipuc_formats::onnx::schema::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use std::collections::HashMap;

/// What identifies a function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FunctionKey {
    domain: String,
    name: String,
    overload: String,
}

impl FunctionKey {
    pub(crate) fn of_node(node: &NodeProto) -> Self {
        FunctionKey::new(node.domain.as_deref(), node.op_type.as_deref(), node.overload.as_deref())
    }

    fn new(domain: Option<&str>, name: Option<&str>, overload: Option<&str>) -> Self {
        FunctionKey {
            domain: canonical_domain(domain).to_string(),
            name: name.unwrap_or("").to_string(),
            overload: overload.unwrap_or("").to_string(),
        }
    }
}

/// A function's body for one call.
pub(crate) struct Call {
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) opsets: Opsets,
}

/// The functions of a model.
pub(crate) struct Functions<'m> {
    by_key: HashMap<FunctionKey, &'m FunctionProto>,
}

impl<'m> Functions<'m> {
    pub(crate) fn new(functions: &'m [FunctionProto]) -> Self {
        let keyed = |function: &'m FunctionProto| {
            let key =
                FunctionKey::new(function.domain.as_deref(), function.name.as_deref(), function.overload.as_deref());
            (key, function)
        };
        Functions { by_key: functions.iter().map(keyed).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(crate) fn get(&self, key: &FunctionKey) -> Option<&'m FunctionProto> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn contains(&self, key: &FunctionKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// The body of a function with the attributes of a call filled in.
    pub(crate) fn instantiate(&self, key: &FunctionKey, call: &NodeProto) -> Result<Call, LowerError> {
        let function = self.by_key.get(key).ok_or_else(|| LowerError::Undefined(key.name.clone()))?;
        if call.input.len() > function.input.len() {
            let (given, taken) = (call.input.len(), function.input.len());
            return Err(LowerError::Unsupported(format!("a call with {given} inputs of a function with {taken}")));
        }
        let mut attributes: HashMap<&str, &AttributeProto> = function
            .attribute_proto
            .iter()
            .map(|attribute| (attribute.name.as_deref().unwrap_or(""), attribute))
            .collect();
        for attribute in &call.attribute {
            let name = attribute.name.as_deref().unwrap_or("");
            if !attributes.contains_key(name) && !function.attribute.iter().any(|declared| declared == name) {
                return Err(LowerError::UnknownAttributes(format!("`{name}`")));
            }
            attributes.insert(name, attribute);
        }
        let mut nodes = function.node.clone();
        for node in &mut nodes {
            substitute(node, &attributes);
        }
        Ok(Call {
            inputs: function.input.clone(),
            outputs: function.output.clone(),
            nodes,
            opsets: opsets(&function.opset_import),
        })
    }
}

/// Replace references to attributes of the function, in bodies of the node too.
fn substitute(node: &mut NodeProto, attributes: &HashMap<&str, &AttributeProto>) {
    let given = std::mem::take(&mut node.attribute);
    for mut attribute in given {
        let reference = attribute.ref_attr_name.take().filter(|name| !name.is_empty());
        if let Some(reference) = reference {
            if let Some(&value) = attributes.get(reference.as_str()) {
                node.attribute.push(AttributeProto { name: attribute.name, ..value.clone() });
            }
            continue;
        }
        if let Some(graph) = &mut attribute.g {
            substitute_graph(graph, attributes);
        }
        for graph in &mut attribute.graphs {
            substitute_graph(graph, attributes);
        }
        node.attribute.push(attribute);
    }
}

fn substitute_graph(graph: &mut GraphProto, attributes: &HashMap<&str, &AttributeProto>) {
    for node in &mut graph.node {
        substitute(node, attributes);
    }
}
