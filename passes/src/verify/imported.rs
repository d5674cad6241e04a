//! Stage *imported*:
//!
//! 1. every block, value and constant that is named exists;
//! 2. every value is defined once, by a parameter or a result, in one block;
//! 3. a step reads values of its own block that are defined before it;
//! 4. a block is run by one step at most, or is the block of an entry, and no block runs itself;
//! 5. an entry names each parameter and each result of its block.

use crate::ir::{Graph, Operand, ValueId};
use crate::verify::Violation;
use ipuc_formats::attribute::BlockIndex;
use std::collections::HashSet;

pub(super) fn check(graph: &Graph, violations: &mut Vec<Violation>) {
    let mut report = |place: String, message: String| violations.push(Violation { place, message });
    let mut owners: Vec<usize> = vec![0; graph.blocks.len()];
    for entry in &graph.entries {
        let Some(block) = graph.blocks.get(entry.block.0 as usize) else {
            report(format!("entry {}", entry.name), format!("block {} does not exist", entry.block.0));
            return;
        };
        owners[entry.block.0 as usize] += 1;
        if (block.parameters.len(), block.results.len()) != (entry.inputs.len(), entry.outputs.len()) {
            report(format!("entry {}", entry.name), "names and signature differ in length".to_string());
        }
    }
    for (index, block) in graph.blocks.iter().enumerate() {
        for step in &block.steps {
            for body in step.op.operator().blocks() {
                match owners.get_mut(body.0 as usize) {
                    Some(_) if body.0 as usize == index => {
                        report(format!("block {index}"), "runs itself".to_string());
                        return;
                    }
                    Some(owner) => *owner += 1,
                    None => {
                        report(format!("block {index}, `{}`", step.name), format!("block {} does not exist", body.0));
                        return;
                    }
                }
            }
        }
    }
    if let Some(index) = owners.iter().position(|&count| count > 1) {
        report(format!("block {index}"), format!("is run from {} places", owners[index]));
        return;
    }
    let mut defined = HashSet::new();
    for index in graph.reachable_blocks() {
        check_block(graph, index, &mut defined, &mut report);
    }
}

fn check_block(
    graph: &Graph,
    index: BlockIndex,
    defined: &mut HashSet<ValueId>,
    report: &mut impl FnMut(String, String),
) {
    let block = graph.block(index);
    let mut visible: HashSet<ValueId> = HashSet::new();
    let mut define =
        |values: &[ValueId], visible: &mut HashSet<ValueId>, place: &str, report: &mut dyn FnMut(String, String)| {
            for &value in values {
                if value.0 as usize >= graph.values.len() {
                    report(place.to_string(), format!("{value} does not exist"));
                }
                if !defined.insert(value) {
                    report(place.to_string(), format!("{value} is defined twice"));
                }
                visible.insert(value);
            }
        };
    define(&block.parameters, &mut visible, &format!("block {}", index.0), report);
    for (at, step) in block.steps.iter().enumerate() {
        let place = format!("block {}, step {at} `{}` ({})", index.0, step.name, step.op);
        check_operands(graph, &step.operands, &visible, &place, report);
        define(&step.results, &mut visible, &place, report);
    }
    check_operands(graph, &block.results, &visible, &format!("results of block {}", index.0), report);
}

fn check_operands(
    graph: &Graph,
    operands: &[Operand],
    visible: &HashSet<ValueId>,
    place: &str,
    report: &mut impl FnMut(String, String),
) {
    for operand in operands {
        match operand {
            Operand::Absent => {}
            Operand::Value(value) if visible.contains(value) => {}
            Operand::Value(value) => report(place.to_string(), format!("{value} is read before it is defined")),
            Operand::Constant(id) if (id.0 as usize) < graph.constants.len() => {}
            Operand::Constant(id) => report(place.to_string(), format!("{id} does not exist")),
        }
    }
}
