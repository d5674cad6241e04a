//! Graphs of ONNX operators that say what a node means, written as lines: `OPERATOR inputs.. -> outputs..`.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, NodeProto, ValueInfoProto, attribute_proto::AttributeType,
};

/// An attribute that is an integer.
pub(crate) fn integer(name: &str, value: i64) -> AttributeProto {
    let kind = Some(AttributeType::Int as i32);
    AttributeProto { name: Some(name.to_string()), r#type: kind, i: Some(value), ..AttributeProto::default() }
}

/// An attribute that is a list of one integer.
pub(crate) fn integers(name: &str, value: i64) -> AttributeProto {
    let kind = Some(AttributeType::Ints as i32);
    AttributeProto { name: Some(name.to_string()), r#type: kind, ints: vec![value], ..AttributeProto::default() }
}

/// An attribute that is a number.
pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    let kind = Some(AttributeType::Float as i32);
    AttributeProto { name: Some(name.to_string()), r#type: kind, f: Some(value), ..AttributeProto::default() }
}

/// An attribute that is a graph.
pub(crate) fn block(name: &str, graph: GraphProto) -> AttributeProto {
    let (kind, g) = (Some(AttributeType::Graph as i32), Some(Box::new(graph)));
    AttributeProto { name: Some(name.to_string()), r#type: kind, g, ..AttributeProto::default() }
}

/// `OPERATOR inputs.. -> outputs..`, separated by spaces; an input `_` is left out.
pub(crate) fn step(line: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    let words = |text: &str| {
        let given = |word: &str| if word == "_" { String::new() } else { word.to_string() };
        text.split_whitespace().map(given).collect::<Vec<_>>()
    };
    let (left, outputs) = line.split_once("->").unwrap_or((line, ""));
    let mut input = words(left);
    let operator = input.remove(0);
    let (name, output) = (Some(outputs.trim().to_string()), words(outputs));
    NodeProto { op_type: Some(operator), input, output, attribute, name, ..NodeProto::default() }
}

/// A graph of steps between values of these names.
pub(crate) fn graph<N: AsRef<str>>(inputs: &[N], node: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let port = |name: &str| ValueInfoProto { name: Some(name.to_string()), ..ValueInfoProto::default() };
    GraphProto {
        node,
        input: inputs.iter().map(|name| port(name.as_ref())).collect(),
        output: outputs.iter().map(|name| port(name)).collect(),
        ..GraphProto::default()
    }
}

impl Lowering<'_, '_> {
    /// Steps over named operands: what values of these names are.
    pub(crate) fn defined(
        &mut self,
        operands: &[(&str, Operand)],
        steps: Vec<NodeProto>,
        outputs: &[&str],
        part: &str,
    ) -> Result<Vec<Operand>, LowerError> {
        let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
        let values: Vec<Operand> = operands.iter().map(|(_, operand)| *operand).collect();
        self.definition(&graph(&names, steps, outputs), &values, part)
    }
}
