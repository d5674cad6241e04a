//! A place in the arena for every result of a block whose size follows from bound dimensions, and the shapes of views.

use super::ends::{End, ends, viewed};
use super::extents::{Extents, extent_of};
use super::joins::{ALIGNMENT, Joins};
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::model::{BlockRecord, OperandRecord, StepRecord};
use std::collections::BTreeMap;

/// A shape for each result of a step.
pub(crate) type Shapes = Box<[Box<[usize]>]>;

/// Where the results of one block live.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockMemory {
    /// Bytes of the arena.
    pub(crate) bytes: usize,
    /// Offset and length of each value's place; `None` for those without.
    pub(crate) places: Vec<Option<(usize, usize)>>,
    /// For each step whose results are operand 0 in another shape, or parts of it one behind the other, the shapes of the results.
    views: Vec<Option<Shapes>>,
    /// What lies in the place of a larger value.
    joins: Joins,
    /// The dimensions that follow from symbols and decide the plan, as they were.
    dims: Vec<(Dim, Option<usize>)>,
}

impl BlockMemory {
    /// Whether this is the plan of its block at these dimensions, too.
    pub(crate) fn is_at(&self, bindings: &Bindings) -> bool {
        self.dims.iter().all(|(dim, extent)| extent_of(dim, bindings) == *extent)
    }

    /// The shapes of the results of a step that are operand 0, or parts of it one behind the other.
    pub(crate) fn view(&self, step: usize) -> Option<&[Box<[usize]>]> {
        self.views.get(step)?.as_deref()
    }

    /// The shape of the result of a step whose operands have their places one behind the other in its own.
    pub(crate) fn join(&self, step: usize) -> Option<&[usize]> {
        self.joins.steps.get(&step).map(AsRef::as_ref)
    }

    /// Whether the place of a value is within that of a larger one.
    pub(crate) fn is_part(&self, slot: u32) -> bool {
        self.joins.parts.contains_key(&(slot as usize))
    }
}

/// Values of a block that are placed by size: comparing each with each takes too long for more.
const MOST_BY_SIZE: usize = 2048;

/// Plan a block at these dimensions. Results of the block leave it and have no place. Where weights stream, steps that read any run,
/// shapes of views included: the stream is planned with all that steps read.
pub(crate) fn plan_block(block: &BlockRecord, bindings: &Bindings, weights_stream: bool) -> BlockMemory {
    let mut extents = Extents::new(bindings);
    let viewed: Vec<Option<usize>> = block.steps.iter().map(|step| viewed(block, step, &mut extents)).collect();
    let ends = ends(block, &viewed);
    let mut made = vec![false; block.values.len()];
    for (step, _) in block.steps.iter().zip(&viewed).filter(|(_, viewed)| viewed.is_none()) {
        step.results.iter().for_each(|&slot| made[slot as usize] = true);
    }
    let mut memory = BlockMemory::placed(block, &viewed, &ends, Joins::default(), &mut extents);
    let joins = Joins::of(block, &made, &ends, &mut extents);
    if !joins.steps.is_empty() {
        // A whole has its place from its first part on: that may take more.
        let joined = BlockMemory::placed(block, &viewed, &ends, joins, &mut extents);
        if joined.bytes <= memory.bytes {
            memory = joined;
        }
    }
    let steps = block.steps.iter().zip(&viewed);
    let runs = |step: &StepRecord| weights_stream && step.reads_weights();
    memory.views =
        steps.map(|(step, &viewed)| if runs(step) { None } else { view(block, step, viewed, &mut extents) }).collect();
    memory.dims = extents.into_asked();
    memory
}

impl BlockMemory {
    /// A place for each value that needs one.
    fn placed(
        block: &BlockRecord,
        viewed: &[Option<usize>],
        ends: &[End],
        joins: Joins,
        extents: &mut Extents<'_>,
    ) -> BlockMemory {
        let held = held(block, viewed, ends, &joins, extents);
        let offsets = if held.len() <= MOST_BY_SIZE { by_size(&held) } else { in_order(&held) };
        let mut memory = BlockMemory { places: vec![None; block.values.len()], ..BlockMemory::default() };
        for (held, offset) in held.iter().zip(offsets) {
            memory.places[held.slot] = Some((offset, held.bytes));
            memory.bytes = memory.bytes.max(offset.saturating_add(held.reserved()));
        }
        for (&part, &(whole, begin)) in &joins.parts {
            let bytes = extents.bytes_of(&block.values[part].kind);
            let place = memory.places[whole].zip(bytes);
            memory.places[part] = place.map(|((offset, _), bytes)| (offset + begin, bytes));
        }
        memory.joins = joins;
        memory
    }
}

/// The shapes of the results of a step that gives the bytes of operand 0; `None` where a type is another, or where data of the
/// run, which may be wrong, has a say in them.
fn view(block: &BlockRecord, step: &StepRecord, viewed: Option<usize>, extents: &mut Extents<'_>) -> Option<Shapes> {
    let (Some(0), [OperandRecord::Value(operand), further @ ..]) = (viewed, &*step.operands) else { return None };
    if further.iter().any(|operand| matches!(operand, OperandRecord::Value(_))) {
        return None;
    }
    let (dtype, _) = block.values[*operand as usize].kind.as_tensor()?;
    let shape = |&slot: &u32| {
        let kind = &block.values[slot as usize].kind;
        if kind.as_tensor()?.0 == dtype { extents.of_tensor(kind) } else { None }
    };
    step.results.iter().map(shape).collect()
}

/// The values of a block that have places of their own, in the order in which steps begin to make them.
fn held(
    block: &BlockRecord,
    viewed: &[Option<usize>],
    ends: &[End],
    joins: &Joins,
    extents: &mut Extents<'_>,
) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    // Where a whole is among those held, by slot.
    let mut wholes: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, step) in block.steps.iter().enumerate() {
        if viewed[at].is_some() {
            continue;
        }
        for &slot in &step.results {
            let End::Step(end) = ends[slot as usize] else { continue };
            let (whole, _) = joins.parts.get(&(slot as usize)).copied().unwrap_or((slot as usize, 0));
            let Some(bytes) = extents.bytes_of(&block.values[whole].kind) else { continue };
            let own = *wholes.entry(whole).or_insert(held.len());
            match held.get_mut(own) {
                Some(held) => held.last = held.last.max(end),
                None => held.push(Held { slot: whole, bytes, first: at, last: end.max(at) }),
            }
        }
    }
    held
}

/// A value that has a place from the step that makes it to the last that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    slot: usize,
    bytes: usize,
    first: usize,
    last: usize,
}

impl Held {
    fn reserved(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    fn meets(&self, other: &Held) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Offsets, chosen from the largest value to the smallest: each takes the smallest gap between those that live at the same time.
/// Little memory that is used again and again stays in the caches. (Pisarchyk and Lee, "Efficient memory management for deep neural
/// net inference", 2020: greedy by size.)
fn by_size(held: &[Held]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..held.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(held[index].bytes), index));
    let mut offsets = vec![0usize; held.len()];
    // Those that have a place, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(held.len());
    for index in order {
        let (own, mut end) = (held[index], 0usize);
        let mut best: Option<(usize, usize)> = None;
        for &other in placed.iter().filter(|&&other| own.meets(&held[other])) {
            let gap = offsets[other].saturating_sub(end);
            if gap >= own.reserved() && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(offsets[other].saturating_add(held[other].reserved()));
        }
        offsets[index] = best.map_or(end, |(_, offset)| offset);
        let at = placed.partition_point(|&other| offsets[other] <= offsets[index]);
        placed.insert(at, index);
    }
    offsets
}

/// Offsets in the order of steps: each value takes the smallest range that nobody holds any more.
fn in_order(held: &[Held]) -> Vec<usize> {
    let mut free = FreeRanges::default();
    let mut expiring: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut bytes = 0;
    let place = |held: &Held| {
        while let Some(entry) = expiring.first_entry().filter(|entry| *entry.key() < held.first) {
            for (offset, bytes) in entry.remove() {
                free.insert(offset, bytes);
            }
        }
        let offset = free.take(held.reserved(), &mut bytes);
        expiring.entry(held.last).or_default().push((offset, held.reserved()));
        offset
    };
    held.iter().map(place).collect()
}

/// Ranges that nobody holds, by offset.
#[derive(Default)]
struct FreeRanges {
    ranges: BTreeMap<usize, usize>,
}

impl FreeRanges {
    /// The smallest range that is large enough, else new memory at the end of the arena.
    fn take(&mut self, bytes: usize, arena_bytes: &mut usize) -> usize {
        let best = self.ranges.iter().filter(|(_, length)| **length >= bytes).min_by_key(|(_, length)| **length);
        if let Some((&offset, &length)) = best {
            self.ranges.remove(&offset);
            if length > bytes {
                self.ranges.insert(offset + bytes, length - bytes);
            }
            return offset;
        }
        // A free range at the very end is extended rather than left behind.
        let last = self.ranges.last_key_value().map(|(&offset, &length)| (offset, length));
        let offset = match last {
            Some((offset, length)) if offset + length == *arena_bytes => {
                self.ranges.remove(&offset);
                offset
            }
            _ => *arena_bytes,
        };
        *arena_bytes = offset.saturating_add(bytes);
        offset
    }

    fn insert(&mut self, mut offset: usize, mut length: usize) {
        if let Some((&before, &before_length)) = self.ranges.range(..offset).next_back()
            && before + before_length == offset
        {
            self.ranges.remove(&before);
            offset = before;
            length += before_length;
        }
        if let Some(&after_length) = self.ranges.get(&(offset + length)) {
            self.ranges.remove(&(offset + length));
            length += after_length;
        }
        self.ranges.insert(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::dtype::DType;
    use ipuc_formats::fact::{Shape, Type};
    use ipuc_formats::model::{Role, ValueRecord};
    use ipuc_formats::ops::{Append, Op, Split, Transpose};
    use proptest::prelude::*;

    #[test]
    fn freed_neighbours_join_and_are_reused() {
        let mut free = FreeRanges::default();
        let mut bytes = 0;
        let places: Vec<usize> = (0..3).map(|_| free.take(64, &mut bytes)).collect();
        assert_eq!((places.as_slice(), bytes), ([0, 64, 128].as_slice(), 192));
        free.insert(0, 64);
        free.insert(64, 64);
        assert_eq!(free.take(128, &mut bytes), 0);
        free.insert(128, 64);
        assert_eq!(free.take(256, &mut bytes), 128);
        assert_eq!(bytes, 384);
    }

    proptest! {
        #[test]
        fn values_that_live_at_the_same_time_do_not_overlap(
            values in proptest::collection::vec((1usize..5000, 0usize..40, 0usize..10), 0..60),
        ) {
            let mut held: Vec<Held> = values
                .iter()
                .map(|&(bytes, first, length)| Held { slot: 0, bytes, first, last: first + length })
                .collect();
            held.sort_by_key(|held| held.first);
            for offsets in [by_size(&held), in_order(&held)] {
                for (index, (one, start)) in held.iter().zip(&offsets).enumerate() {
                    prop_assert_eq!(start % ALIGNMENT, 0);
                    for (two, other) in held.iter().zip(&offsets).take(index).filter(|(two, _)| two.meets(one)) {
                        let apart = start + one.bytes <= *other || other + two.bytes <= *start;
                        prop_assert!(apart, "{:?} at {} and {:?} at {}", one, start, two, other);
                    }
                }
            }
        }
    }

    #[test]
    fn a_transpose_has_a_place_of_its_own_where_it_moves_elements() {
        let value = |dims: [Dim; 3]| ValueRecord {
            kind: Type::tensor(DType::F32, Shape::Ranked(dims.to_vec())),
            contents: None,
            role: Role::Activations,
            id: 0,
            name: None,
        };
        let (rows, heads, size) = (Dim::symbol("rows"), Dim::from(8i64), Dim::from(16i64));
        let step = |op: Op, operand: u32| StepRecord {
            op,
            operands: vec![OperandRecord::Value(operand)],
            results: vec![operand + 1],
            reads: Vec::new(),
            name: String::new(),
        };
        let by_query = [rows.clone(), heads.clone(), size.clone()];
        let by_head = [heads, rows, size];
        let block = BlockRecord {
            values: vec![value(by_query.clone()), value(by_query), value(by_head.clone()), value(by_head)],
            parameters: 1,
            steps: vec![
                step(Append { axis: 0, rows: None }.into(), 0),
                step(Transpose { permutation: vec![1, 0, 2] }.into(), 1),
                step(Append { axis: 0, rows: None }.into(), 2),
            ],
            results: vec![OperandRecord::Value(3)],
        };
        let plan = |rows: i64| plan_block(&block, &[("rows", rows)].into_iter().collect(), true);
        let places =
            |plan: BlockMemory| plan.places.into_iter().map(|place| place.map(|(_, bytes)| bytes)).collect::<Vec<_>>();
        assert_eq!(plan(1).view(1), Some(&[Box::from([8, 1, 16])][..]), "a step that only changes the shape");
        assert_eq!((plan(1).view(0), plan(2).view(1)), (None, None));
        assert_eq!(places(plan(1)), [None, Some(512), None, None]);
        assert_eq!(places(plan(2)), [None, Some(1024), Some(1024), None]);
    }

    #[test]
    fn parts_of_one_row_are_views_and_keep_its_place() {
        let value = |columns: i64| ValueRecord {
            kind: Type::tensor(DType::F32, Shape::Ranked(vec![Dim::symbol("rows"), Dim::from(columns)])),
            contents: None,
            role: Role::Activations,
            id: 0,
            name: None,
        };
        let step = |op: Op, operands: &[u32], results: &[u32]| StepRecord {
            op,
            operands: operands.iter().map(|&slot| OperandRecord::Value(slot)).collect(),
            results: results.to_vec(),
            reads: Vec::new(),
            name: String::new(),
        };
        let append = || Op::from(Append { axis: 0, rows: None });
        let mut block = BlockRecord {
            values: [48, 48, 16, 32, 16, 32].map(value).to_vec(),
            parameters: 1,
            steps: vec![
                step(append(), &[0], &[1]),
                step(Split { axis: 1, parts: 2, even: false }.into(), &[1], &[2, 3]),
                step(append(), &[2], &[4]),
                step(append(), &[3, 4], &[5]),
            ],
            results: vec![OperandRecord::Value(5)],
        };
        block.steps[1].operands.push(OperandRecord::Weight(0));
        let plan = |rows: i64| plan_block(&block, &[("rows", rows)].into_iter().collect(), false);
        let places =
            |plan: &BlockMemory| plan.places.iter().map(|place| place.map(|(_, bytes)| bytes)).collect::<Vec<_>>();
        let (one, two) = (plan(1), plan(2));
        assert_eq!(one.view(1), Some(&[Box::from([1, 16]), Box::from([1, 32])][..]));
        assert_eq!(places(&one), [None, Some(192), None, None, Some(64), None]);
        assert_ne!(one.places[1].unwrap().0, one.places[4].unwrap().0, "the second part is read after this is written");
        assert_eq!(two.view(1), None);
        assert_eq!(places(&two), [None, Some(384), Some(128), Some(256), Some(128), None]);
        let streamed = plan_block(&block, &[("rows", 1)].into_iter().collect(), true);
        assert_eq!(streamed.view(1), None, "the stream has the sizes for the step");
        assert_eq!(places(&streamed), places(&one));
        block.steps[1].operands[1] = OperandRecord::Value(0);
        let asked = plan_block(&block, &[("rows", 1)].into_iter().collect(), false);
        assert_eq!(asked.view(1), None, "sizes that the run gives are checked by the step");
    }

    #[test]
    fn a_plan_is_that_of_other_dimensions_where_no_size_in_it_changes() {
        let value = |dim: Dim| ValueRecord {
            kind: Type::tensor(DType::F32, Shape::Ranked(vec![dim])),
            contents: None,
            role: Role::Activations,
            id: 0,
            name: None,
        };
        let step = |operand: u32, result: u32| StepRecord {
            op: Append { axis: 0, rows: None }.into(),
            operands: vec![OperandRecord::Value(operand)],
            results: vec![result],
            reads: Vec::new(),
            name: String::new(),
        };
        // The result of the block has no place, whatever its size.
        let mut block = BlockRecord {
            values: vec![value(Dim::symbol("past")), value(Dim::from(4i64)), value(Dim::symbol("past"))],
            parameters: 1,
            steps: vec![step(0, 1), step(1, 2)],
            results: vec![OperandRecord::Value(2)],
        };
        let at = |past: i64| [("past", past)].into_iter().collect::<Bindings>();
        let plan = plan_block(&block, &at(5), false);
        assert_eq!((plan.bytes, plan.is_at(&at(5)), plan.is_at(&at(6))), (64, true, true));
        block.values.push(value(Dim::from(1i64)));
        block.steps.push(step(2, 3));
        block.results = vec![OperandRecord::Value(3)];
        let plan = plan_block(&block, &at(5), false);
        assert_eq!((plan.bytes, plan.is_at(&at(5)), plan.is_at(&at(6))), (128, true, false));
    }

    #[test]
    fn a_chain_takes_two_places() {
        // Each value is read by the next step, and the second is the largest.
        let held = [100, 900, 200, 300, 50].map(|bytes| bytes * ALIGNMENT).into_iter().enumerate();
        let held: Vec<Held> = held.map(|(at, bytes)| Held { slot: at, bytes, first: at, last: at + 1 }).collect();
        let offsets = by_size(&held);
        let end = held.iter().zip(offsets).map(|(held, offset)| offset + held.bytes).max();
        assert_eq!(end, Some(1100 * ALIGNMENT));
    }
}
