//! Steps that move codes, or choose the largest, between a `dequantize` and a `quantize` with the same parameters.

use super::parameters::{Parameters, codes, is_byte, target};
use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::ops::{Op, Pool, PoolFunction};

/// The operands of a step that are moved as they are; `None` where it does more with them.
fn moved_operands(op: &Op, operands: usize, target: &Parameters) -> Option<usize> {
    if matches!(op, Op::Concat(_)) {
        return Some(operands);
    }
    let moves_first = matches!(
        op,
        Op::Reshape(_)
            | Op::Flatten(_)
            | Op::Squeeze(_)
            | Op::Unsqueeze(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::Gather(_)
    );
    // Codes are in the order of their values.
    let chooses =
        is_byte(target.dtype) && matches!(op, Op::Pool(Pool { function: PoolFunction::Max, indices: false, .. }));
    (moves_first || chooses).then_some(1)
}

fn same(left: &Parameters, right: &Parameters) -> bool {
    left.dtype == right.dtype && left.scale == right.scale && left.zero == right.zero
}

/// The step over codes in place of the `quantize` at `place`, where what is quantized was only moved.
pub(super) fn moved(graph: &Graph, readers: &Readers, steps: &[Step], place: usize) -> Result<Option<Step>, PassError> {
    let step = &steps[place];
    let Some(target) = target(graph, step)? else { return Ok(None) };
    let Some(inner) = step.operands.first().and_then(|&x| readers.only_read(steps, x)) else { return Ok(None) };
    let Some(count) = moved_operands(&inner.op, inner.operands.len(), &target) else { return Ok(None) };
    let mut operands = inner.operands.clone();
    for operand in operands.iter_mut().take(count) {
        match codes(graph, readers, steps, *operand)? {
            Some(found) if same(&found.parameters, &target) => *operand = found.codes,
            Some(_) | None => return Ok(None),
        }
    }
    let moves = operands.first().is_some_and(|&operand| operand != Operand::Absent);
    let made = Step { op: inner.op.clone(), operands, results: step.results.clone(), name: inner.name.clone() };
    Ok(moves.then_some(made))
}
