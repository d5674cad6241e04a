//! Activations that are nearly nothing are taken as zero before products that leave zeros out.

use crate::ir::{ConstantId, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Argument, CompareRelation, Function, Map, Op, Program, UnaryFunction};
use std::collections::{BTreeMap, HashMap};

/// Put a step before each product with one of these weights that makes zeros of magnitudes up to a threshold; gives how many.
/// NaN stays NaN.
pub(super) fn apply(graph: &mut Graph, thresholds: &BTreeMap<ConstantId, f32>) -> usize {
    if thresholds.is_empty() {
        return 0;
    }
    graph.reachable_blocks().into_iter().map(|index| apply_to(graph, index, thresholds)).sum()
}

fn apply_to(graph: &mut Graph, index: BlockIndex, thresholds: &BTreeMap<ConstantId, f32>) -> usize {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut made: Vec<Step> = Vec::with_capacity(steps.len());
    let mut known: HashMap<(ValueId, u32), ValueId> = HashMap::new();
    for mut step in steps {
        if let (Op::Matmul(_), [Operand::Value(x), Operand::Constant(weight), ..]) =
            (&step.op, step.operands.as_slice())
            && let Some(&threshold) = thresholds.get(weight)
        {
            let x = *x;
            let cut = *known.entry((x, threshold.to_bits())).or_insert_with(|| {
                let cut = graph.add_value(graph.value(x).fact.clone(), None);
                let op = Map { program: program(threshold) }.into();
                made.push(Step { op, operands: vec![Operand::Value(x)], results: vec![cut], name: step.name.clone() });
                cut
            });
            step.operands[0] = Operand::Value(cut);
        }
        made.push(step);
    }
    graph.block_mut(index).steps = made;
    known.len()
}

/// `|x| <= threshold ? 0 : x`.
fn program(threshold: f32) -> Program {
    let mut program = Program::default();
    let x = Argument::Operand(0);
    let magnitude = program.push(Function::Unary(UnaryFunction::Abs), vec![x], DType::F32);
    let relation = Function::Compare(CompareRelation::LessOrEqual);
    let is_small = program.push(relation, vec![magnitude, Argument::f32(threshold)], DType::Bool);
    let cut = program.push(Function::Select, vec![is_small, Argument::f32(0.0), x], DType::F32);
    program.results.push(cut);
    program
}
