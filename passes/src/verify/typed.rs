//! Stage *typed*: every value has the type that its operator infers.

use crate::ir::{BlockTyping, Graph};
use crate::verify::{Invariant, Violations, place};
use ipuc_formats::fact::Type;
use ipuc_formats::ops::InferContext;

pub(super) fn check(graph: &Graph, violations: &mut Violations) {
    for index in graph.reachable_blocks() {
        for (at, step) in graph.block(index).steps.iter().enumerate() {
            let inputs = graph.facts(&step.operands);
            let mut typing = BlockTyping::new(graph);
            let mut context = InferContext::new(&step.name, &graph.ranges, &mut typing);
            let inferred = match step.op.operator().infer(&inputs, &mut context) {
                Ok(inferred) => inferred,
                Err(error) => {
                    violations.report(Invariant::OperandsFit, place(index, at, step), error.to_string());
                    continue;
                }
            };
            if inferred.len() != step.results.len() {
                let message = format!("has {} results, infers {}", step.results.len(), inferred.len());
                violations.report(Invariant::ResultCount, place(index, at, step), message);
            }
            for (&result, fact) in step.results.iter().zip(&inferred) {
                let stored = &graph.value(result).fact.kind;
                if !compatible(stored, &fact.kind) {
                    let message = format!("{result} is {stored}, inferred {}", fact.kind);
                    violations.report(Invariant::ResultTypes, place(index, at, step), message);
                }
            }
        }
    }
}

fn compatible(stored: &Type, inferred: &Type) -> bool {
    match (stored, inferred) {
        (Type::Tensor { dtype, shape }, Type::Tensor { dtype: other, shape: other_shape }) => {
            let ranks = shape.rank().zip(other_shape.rank());
            dtype == other && ranks.is_none_or(|(one, two)| one == two)
        }
        (Type::Sequence(one), Type::Sequence(two)) | (Type::Optional(one), Type::Optional(two)) => compatible(one, two),
        (Type::Map { key, element }, Type::Map { key: other, element: other_element }) => {
            key == other && compatible(element, other_element)
        }
        _ => false,
    }
}
