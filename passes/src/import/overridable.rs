//! Inputs with a default: what the caller gives, or the initializer.

use crate::import::importer::Importer;
use crate::import::lower_error::LowerError;
use crate::ir::Operand;
use ipuc_formats::onnx::schema::attribute_proto::AttributeType;
use ipuc_formats::onnx::schema::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};

fn node(operator: &str, input: &str, output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_string()),
        input: vec![input.to_string()],
        output: vec![output.to_string()],
        ..NodeProto::default()
    }
}

fn port(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_string()), ..ValueInfoProto::default() }
}

/// A branch of one node, which gives `chosen`.
fn branch(name: &str, operator: &str, input: &str) -> AttributeProto {
    let body = GraphProto {
        node: vec![node(operator, input, "chosen")],
        output: vec![port("chosen")],
        ..GraphProto::default()
    };
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(body)),
        ..AttributeProto::default()
    }
}

impl Importer<'_> {
    /// What is in the optional `given`, or `default` where it is empty.
    pub(super) fn given_or_default(
        &mut self,
        given: Operand,
        default: Operand,
        name: &str,
    ) -> Result<Operand, LowerError> {
        let mut choice = node("If", "is given", "value");
        choice.attribute =
            vec![branch("then_branch", "OptionalGetElement", "given"), branch("else_branch", "Identity", "default")];
        let graph = GraphProto {
            node: vec![node("OptionalHasElement", "given", "is given"), choice],
            input: vec![port("given"), port("default")],
            output: vec![port("value")],
            ..GraphProto::default()
        };
        let values = self.lower_definition(&graph, &[given, default], format!("{name}/default"))?;
        values.first().copied().ok_or_else(|| LowerError::Undefined(name.to_string()))
    }
}
