//! Stage *typed*:
//!
//! 1. every step has one result for each fact that its operator infers;
//! 2. the element types and ranks of results are those that the operator infers from the facts of its operands.
//!
//! Dimensions are not compared: a pass may know one better than the operator can infer.

use crate::ir::{BlockTyping, Graph};
use crate::verify::Violation;
use ipuc_formats::fact::Type;
use ipuc_formats::ops::InferContext;

pub(super) fn check(graph: &Graph, violations: &mut Vec<Violation>) {
    for index in graph.reachable_blocks() {
        for (at, step) in graph.block(index).steps.iter().enumerate() {
            let place = || format!("block {}, step {at} `{}` ({})", index.0, step.name, step.op);
            let inputs = graph.facts(&step.operands);
            let mut typing = BlockTyping::new(graph);
            let mut context = InferContext::new(&step.name, &graph.ranges, &mut typing);
            let inferred = match step.op.operator().infer(&inputs, &mut context) {
                Ok(inferred) => inferred,
                Err(error) => {
                    violations.push(Violation { place: place(), message: error.to_string() });
                    continue;
                }
            };
            if inferred.len() != step.results.len() {
                let message = format!("has {} results, infers {}", step.results.len(), inferred.len());
                violations.push(Violation { place: place(), message });
                continue;
            }
            for (&result, fact) in step.results.iter().zip(&inferred) {
                let stored = &graph.value(result).fact.kind;
                if !compatible(stored, &fact.kind) {
                    let message = format!("{result} is {stored}, inferred {}", fact.kind);
                    violations.push(Violation { place: place(), message });
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
