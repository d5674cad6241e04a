//! When values are read last.

use super::extents::Extents;
use ipuc_formats::model::{BlockRecord, OperandRecord, StepRecord};
use ipuc_formats::ops::Op;

/// When a value is read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody reads it.
    Unread,
    /// By this step, itself or through a view.
    Step(usize),
    /// By the caller of the block.
    Result,
}

/// The operand whose bytes are those of the results: that of a view, or of a transpose or split that leaves elements in order at
/// these dimensions.
pub(super) fn viewed(block: &BlockRecord, step: &StepRecord, extents: &mut Extents<'_>) -> Option<usize> {
    let keeps_order: &dyn Fn(&[usize]) -> bool = match &step.op {
        Op::Transpose(transpose) => &|shape| transpose.keeps_order(shape),
        Op::Split(split) => &|shape| split.keeps_order(shape),
        other => return other.view_of(),
    };
    let Some(OperandRecord::Value(slot)) = step.operands.first() else { return None };
    keeps_order(&extents.of_tensor(&block.values[*slot as usize].kind)?).then_some(0)
}

/// The end of each value.
pub(super) fn ends(block: &BlockRecord, viewed: &[Option<usize>]) -> Vec<End> {
    let mut ends = vec![End::Unread; block.values.len()];
    for operand in &block.results {
        if let OperandRecord::Value(slot) = operand {
            ends[*slot as usize] = End::Result;
        }
    }
    // Backwards, so that a view's end is known when what it views is met.
    for (at, step) in block.steps.iter().enumerate().rev() {
        let view_end = step.results.iter().map(|&slot| ends[slot as usize]).fold(End::Unread, later);
        for (index, operand) in step.operands.iter().enumerate() {
            let OperandRecord::Value(slot) = operand else { continue };
            let end = &mut ends[*slot as usize];
            *end = later(*end, End::Step(at));
            if viewed[at] == Some(index) {
                *end = later(*end, view_end);
            }
        }
    }
    ends
}

fn later(one: End, two: End) -> End {
    match (one, two) {
        (End::Result, _) | (_, End::Result) => End::Result,
        (End::Unread, other) | (other, End::Unread) => other,
        (End::Step(first), End::Step(second)) => End::Step(first.max(second)),
    }
}
