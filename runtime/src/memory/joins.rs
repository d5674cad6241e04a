//! Values that lie one behind the other in the value of the concat that reads them: it copies nothing then.
//!
//! The results of several concats may be runs of one value, as where each layer reads those of all layers before it.

use super::plan::{ALIGNMENT, End, Extents};
use ipuc_formats::model::{BlockRecord, OperandRecord, StepRecord};
use ipuc_formats::ops::Op;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Where values of a block lie that are parts of larger ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Joins {
    /// The whole, and where the part begins in it, by the slot of the part.
    pub(super) parts: BTreeMap<usize, (usize, usize)>,
    /// The steps that join parts, and the extents of what they give.
    pub(super) steps: BTreeMap<usize, Box<[usize]>>,
}

/// A concat whose operands may lie in its result.
struct Candidate {
    step: usize,
    result: usize,
    extents: Box<[usize]>,
    /// Slots, and where they would begin.
    operands: Vec<(usize, usize)>,
    bytes: usize,
}

impl Joins {
    /// Of a block; `made` are the values that steps write to places of their own.
    pub(super) fn of(block: &BlockRecord, made: &[bool], ends: &[End], extents: &mut Extents<'_>) -> Joins {
        let is_placed = |slot: usize| made[slot] && matches!(ends[slot], End::Step(_));
        let candidates = block.steps.iter().enumerate();
        let mut candidates: Vec<Candidate> =
            candidates.filter_map(|(at, step)| Candidate::of(block, at, step, &is_placed, extents)).collect();
        // The largest first: those within it find their operands there.
        candidates.sort_by_key(|candidate| (Reverse(candidate.bytes), candidate.step));
        let mut joins = Joins::default();
        let mut wholes = BTreeSet::new();
        for candidate in candidates {
            let Candidate { step, result, extents, operands, .. } = candidate;
            let is_free = |slot: usize, joins: &Joins| !joins.parts.contains_key(&slot) && !wholes.contains(&slot);
            if operands.iter().all(|&(slot, _)| is_free(slot, &joins)) {
                let (whole, begin) = joins.parts.get(&result).copied().unwrap_or((result, 0));
                joins.parts.extend(operands.iter().map(|&(slot, offset)| (slot, (whole, begin + offset))));
                wholes.insert(whole);
            } else if let Some(&(whole, begin)) = joins.parts.get(&operands[0].0)
                && is_free(result, &joins)
                && operands.iter().all(|(slot, offset)| joins.parts.get(slot) == Some(&(whole, begin + offset)))
            {
                joins.parts.insert(result, (whole, begin));
            } else {
                continue;
            }
            joins.steps.insert(step, extents);
        }
        joins
    }
}

impl Candidate {
    fn of(
        block: &BlockRecord,
        at: usize,
        step: &StepRecord,
        is_placed: &dyn Fn(usize) -> bool,
        extents: &mut Extents<'_>,
    ) -> Option<Candidate> {
        let (Op::Concat(concat), &[result]) = (&step.op, step.results.as_slice()) else { return None };
        let kind = &block.values[result as usize].kind;
        let (dtype, _) = kind.as_tensor()?;
        let shape =
            extents.of_tensor(kind).filter(|shape| concat.keeps_order(shape) && dtype.bits().is_multiple_of(8))?;
        let mut operands = Vec::with_capacity(step.operands.len());
        let mut bytes = 0usize;
        for operand in &step.operands {
            let &OperandRecord::Value(slot) = operand else { return None };
            let slot = slot as usize;
            let is_new = operands.iter().all(|&(other, _)| other != slot);
            if !is_new || !is_placed(slot) || !bytes.is_multiple_of(ALIGNMENT) {
                return None;
            }
            operands.push((slot, bytes));
            bytes = extents.bytes_of(&block.values[slot].kind)?.checked_add(bytes)?;
        }
        let is_whole = is_placed(result as usize) && extents.bytes_of(kind) == Some(bytes) && !operands.is_empty();
        is_whole.then_some(Candidate { step: at, result: result as usize, extents: shape, operands, bytes })
    }
}
