//! Extents that are computed although the shapes of data tell them become constants: of a reshape those that are the extents of
//! the same axis of the data become 0, of an expansion 1.

use crate::ir::{ExtentConstants, Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::ops::{Op, Reshape};

/// Replace computed extents of a block; gives of how many steps.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut extents = ExtentConstants::default();
    let mut replaced = 0;
    for step in &mut steps {
        let Some((op, shape)) = constant_shape(graph, step) else { continue };
        let operands = vec![step.operands[0], extents.constant(graph, shape)];
        let same = |&result| {
            graph.inferred(&op, &operands).is_some_and(|facts| facts[0].kind == graph.value(result).fact.kind)
        };
        if step.results.first().is_some_and(same) {
            (step.op, step.operands) = (op, operands);
            replaced += 1;
        }
    }
    graph.block_mut(index).steps = steps;
    replaced
}

/// The step's operator and its extents, where all are known or those of its data.
fn constant_shape(graph: &Graph, step: &Step) -> Option<(Op, Vec<i64>)> {
    let (&[data, Operand::Value(_)], &[result]) = (step.operands.as_slice(), step.results.as_slice()) else {
        return None;
    };
    let (data, result) = (graph.fact(data)?, &graph.value(result).fact);
    let (data, result) = (data.dims()?, result.dims()?);
    if let Op::Reshape(_) = &step.op {
        let extent = |(axis, dim): (usize, &Dim)| match dim.as_known() {
            // 0 would be the extent of the data.
            Some(extent) => (extent != 0).then_some(extent),
            None => (data.get(axis) == Some(dim)).then_some(0),
        };
        let shape = result.iter().enumerate().map(extent).collect::<Option<Vec<i64>>>()?;
        return Some((Reshape { allow_zero: false }.into(), shape));
    }
    if let Op::Expand(_) = &step.op {
        let added = result.len().checked_sub(data.len())?;
        let extent = |(axis, dim): (usize, &Dim)| match dim.as_known() {
            Some(extent) => Some(extent),
            None => (data.get(axis.checked_sub(added)?) == Some(dim)).then_some(1),
        };
        let shape = result.iter().enumerate().map(extent).collect::<Option<Vec<i64>>>()?;
        return Some((step.op.clone(), shape));
    }
    None
}
