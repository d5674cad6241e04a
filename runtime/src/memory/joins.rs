//! Values that lie one behind the other in the value of the concat that reads them: it copies nothing then.
//!
//! The results of several concats may be runs of one value, as where each layer reads those of all layers before it.

use super::ends::End;
use super::extents::Extents;
use ipuc_formats::model::{BlockRecord, OperandRecord, StepRecord};
use ipuc_formats::ops::Op;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Places begin at cache lines.
pub(super) const ALIGNMENT: usize = 64;

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
        let mut known = BTreeSet::new();
        let mut bytes = 0usize;
        for operand in &step.operands {
            let &OperandRecord::Value(slot) = operand else { return None };
            let slot = slot as usize;
            if !known.insert(slot) || !is_placed(slot) || !bytes.is_multiple_of(ALIGNMENT) {
                return None;
            }
            operands.push((slot, bytes));
            bytes = extents.bytes_of(&block.values[slot].kind)?.checked_add(bytes)?;
        }
        let is_whole = is_placed(result as usize) && extents.bytes_of(kind) == Some(bytes) && !operands.is_empty();
        is_whole.then_some(Candidate { step: at, result: result as usize, extents: shape, operands, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::plan_block;
    use super::*;
    use ipuc_formats::dim::{Bindings, Dim};
    use ipuc_formats::dtype::DType;
    use ipuc_formats::fact::{Shape, Type};
    use ipuc_formats::model::{Role, ValueRecord};
    use ipuc_formats::ops::{Append, Concat};

    /// A block of steps that give vectors of so many f32 from others: concats, and steps that write a value of their own. Value 0 is
    /// the parameter, and the last is the result.
    fn block(extents: &[i64], steps: &[(&str, &[u32])]) -> BlockRecord {
        let value = |&extent: &i64| ValueRecord {
            kind: Type::tensor(DType::F32, Shape::Ranked(vec![Dim::from(extent)])),
            contents: None,
            role: Role::Activations,
            id: 0,
            name: None,
        };
        let step = |(at, &(op, operands)): (usize, &(&str, &[u32]))| StepRecord {
            op: if op == "concat" { Concat { axis: 0 }.into() } else { Append { axis: 0, rows: None }.into() },
            operands: operands.iter().map(|&slot| OperandRecord::Value(slot)).collect(),
            results: vec![at as u32 + 1],
            reads: Vec::new(),
            name: String::new(),
        };
        BlockRecord {
            values: extents.iter().map(value).collect(),
            parameters: 1,
            steps: steps.iter().enumerate().map(step).collect(),
            results: vec![OperandRecord::Value(extents.len() as u32 - 1)],
        }
    }

    /// The places, and the steps that join.
    fn plan(extents: &[i64], steps: &[(&str, &[u32])]) -> (Vec<Option<(usize, usize)>>, Vec<usize>) {
        let memory = plan_block(&block(extents, steps), &Bindings::default(), false);
        let joined = (0..steps.len()).filter(|&step| memory.join(step).is_some()).collect();
        (memory.places, joined)
    }

    #[test]
    fn operands_lie_in_the_result_and_so_do_results_of_earlier_concats() {
        let (places, joined) = plan(
            &[16, 16, 32, 48, 16, 64, 16],
            &[("own", &[0]), ("own", &[0]), ("concat", &[1, 2]), ("own", &[3]), ("concat", &[1, 2, 4]), ("own", &[5])],
        );
        assert_eq!(joined, [2, 4]);
        assert_eq!(
            places,
            [None, Some((0, 64)), Some((64, 128)), Some((0, 192)), Some((192, 64)), Some((0, 256)), None]
        );
        let nested = plan(
            &[16, 16, 16, 32, 16, 48, 16],
            &[("own", &[0]), ("own", &[0]), ("concat", &[1, 2]), ("own", &[0]), ("concat", &[4, 3]), ("own", &[5])],
        );
        assert_eq!(nested.1, [2, 4]);
        assert_eq!(nested.0[1..5], [Some((64, 64)), Some((128, 64)), Some((64, 128)), Some((0, 64))]);
    }

    #[test]
    fn what_cannot_lie_there_is_copied() {
        let after = |extents: &[i64], operands: &[u32]| {
            plan(extents, &[("own", &[0]), ("own", &[0]), ("concat", operands), ("own", &[3])]).1
        };
        assert_eq!(after(&[16, 16, 16, 32, 16], &[1, 2]), [2]);
        assert_eq!(after(&[16, 16, 16, 32, 16], &[0, 1]), [0; 0], "a parameter lies where its caller has it");
        assert_eq!(after(&[16, 16, 16, 32, 16], &[1, 1]), [0; 0], "one value is not in two places");
        assert_eq!(after(&[16, 12, 16, 28, 16], &[1, 2]), [0; 0], "places begin at cache lines");
        assert_eq!(after(&[16, 16, 16, 40, 16], &[1, 2]), [0; 0], "a type that promises another size");
        let result = plan(&[16, 16, 16, 32], &[("own", &[0]), ("own", &[0]), ("concat", &[1, 2])]);
        assert_eq!(result.1, [0; 0], "the result of the block has no place");
        let (places, joined) = plan(
            &[16, 16, 16, 16, 32, 32, 16],
            &[("own", &[0]), ("own", &[0]), ("own", &[0]), ("concat", &[1, 2]), ("concat", &[2, 3]), ("own", &[4, 5])],
        );
        assert_eq!(
            (joined, places[3].map(|(_, bytes)| bytes)),
            (vec![3], Some(64)),
            "a value is in one of two concats"
        );
    }

    #[test]
    fn a_join_that_takes_more_memory_is_none() {
        let steps: [(&str, &[u32]); 6] =
            [("own", &[0]), ("own", &[1]), ("own", &[2]), ("own", &[3]), ("concat", &[1, 4]), ("own", &[5])];
        // While the second and the third value are there, the place of the concat's other operand would be held for nothing.
        assert_eq!(plan(&[16, 16, 800, 800, 64, 80, 16], &steps).1, [0; 0]);
        assert_eq!(plan(&[16, 16, 80, 80, 512, 528, 16], &steps).1, [4]);
    }
}
