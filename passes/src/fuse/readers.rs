//! The steps of a block while they are joined: who computes a value, and who reads it.

use crate::ir::{Block, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Who reads a value: a step of the block, one that was put in, or the block's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Step(usize),
    Inserted,
    Results,
}

/// Join steps of a block, in their order, to what computes an operand of theirs: `joined` gives the step that goes and what stands in
/// place of both. Gives how many are gone.
pub(super) fn join_each(
    graph: &mut Graph,
    index: BlockIndex,
    joined: impl Fn(&mut Graph, &Steps, usize) -> Option<(usize, Step)>,
) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut gone = 0;
    for at in 0..steps.len() {
        let Some((producer, both)) = joined(graph, &steps, at) else { continue };
        steps.join(producer, at);
        steps.replace(at, both);
        gone += 1;
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// The steps of a block, some of which are gone.
pub(super) struct Steps {
    steps: Vec<Option<Step>>,
    /// Steps that come before one.
    inserted: BTreeMap<usize, Vec<Step>>,
    producers: HashMap<ValueId, usize>,
    readers: HashMap<ValueId, BTreeSet<Reader>>,
}

fn values(operands: &[Operand]) -> impl Iterator<Item = ValueId> {
    operands.iter().filter_map(|operand| match operand {
        Operand::Value(value) => Some(*value),
        Operand::Absent | Operand::Constant(_) => None,
    })
}

impl Steps {
    /// Takes the steps out of a block.
    pub(super) fn take(block: &mut Block) -> Steps {
        let steps = std::mem::take(&mut block.steps);
        let mut producers = HashMap::new();
        let mut readers: HashMap<ValueId, BTreeSet<Reader>> = HashMap::new();
        for (at, step) in steps.iter().enumerate() {
            producers.extend(step.results.iter().map(|&result| (result, at)));
            for value in values(&step.operands) {
                readers.entry(value).or_default().insert(Reader::Step(at));
            }
        }
        for value in values(&block.results) {
            readers.entry(value).or_default().insert(Reader::Results);
        }
        Steps { steps: steps.into_iter().map(Some).collect(), inserted: BTreeMap::new(), producers, readers }
    }

    /// How many there were.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// A step that is not gone.
    pub(super) fn get(&self, at: usize) -> Option<&Step> {
        self.steps.get(at)?.as_ref()
    }

    /// The step that computes a value, where one of the block does that is not gone.
    pub(super) fn producer(&self, value: ValueId) -> Option<(usize, &Step)> {
        let at = *self.producers.get(&value)?;
        Some((at, self.get(at)?))
    }

    /// The step that computes a value which only the step `reader` reads.
    pub(super) fn only_for(&self, reader: usize, value: ValueId) -> Option<usize> {
        let readers = self.readers.get(&value)?;
        let only = readers.len() == 1 && readers.contains(&Reader::Step(reader));
        self.producers.get(&value).copied().filter(|_| only)
    }

    /// Whether only these steps read a value.
    pub(super) fn is_read_within(&self, value: ValueId, steps: &BTreeSet<usize>) -> bool {
        let within = |reader: &Reader| matches!(reader, Reader::Step(at) if steps.contains(at));
        self.readers.get(&value).is_none_or(|readers| readers.iter().all(within))
    }

    /// The steps that read a value, where no others do.
    pub(super) fn readers(&self, value: ValueId) -> Option<Vec<usize>> {
        let step = |reader: &Reader| if let Reader::Step(at) = reader { Some(*at) } else { None };
        self.readers.get(&value)?.iter().map(step).collect()
    }

    /// The only step that reads a value.
    pub(super) fn only_reader(&self, value: ValueId) -> Option<usize> {
        let mut readers = self.readers.get(&value)?.iter();
        match (readers.next(), readers.next()) {
            (Some(&Reader::Step(at)), None) => Some(at),
            _ => None,
        }
    }

    /// Joins a step to one that reads its results: it is gone, and its operands are read there.
    pub(super) fn join(&mut self, at: usize, reader: usize) {
        let Some(step) = self.steps.get_mut(at).and_then(Option::take) else { return };
        for value in values(&step.operands) {
            let readers = self.readers.entry(value).or_default();
            readers.remove(&Reader::Step(at));
            readers.insert(Reader::Step(reader));
        }
    }

    /// Puts another step in the place of one, with the same results; it reads what those that were joined read.
    pub(super) fn replace(&mut self, at: usize, step: Step) {
        if let Some(place) = self.steps.get_mut(at) {
            *place = Some(step);
        }
    }

    /// Puts another step in the place of one, with the same results. Of `others`, whose values it computes itself, those are gone
    /// that nobody reads any more; gives how many.
    pub(super) fn replace_several(&mut self, at: usize, step: Step, others: &BTreeSet<usize>) -> usize {
        for value in values(&step.operands) {
            self.readers.entry(value).or_default().insert(Reader::Step(at));
        }
        let now: BTreeSet<ValueId> = values(&step.operands).collect();
        let Some(before) = self.steps.get_mut(at).and_then(|place| place.replace(step)) else { return 0 };
        values(&before.operands).filter(|value| !now.contains(value)).for_each(|value| self.forget(value, at));
        let mut gone = 0;
        for &other in others.iter().rev() {
            let is_read = |value: &ValueId| self.readers.get(value).is_some_and(|readers| !readers.is_empty());
            let unread = self.get(other).is_some_and(|step| !step.results.iter().any(is_read));
            let Some(step) = self.steps.get_mut(other).filter(|_| unread).and_then(Option::take) else { continue };
            values(&step.operands).for_each(|value| self.forget(value, other));
            gone += 1;
        }
        gone
    }

    /// Puts another step before one; it takes part in no further pattern of this kind.
    pub(super) fn insert_before(&mut self, at: usize, step: Step) {
        for value in values(&step.operands) {
            self.readers.entry(value).or_default().insert(Reader::Inserted);
        }
        self.inserted.entry(at).or_default().push(step);
    }

    fn forget(&mut self, value: ValueId, reader: usize) {
        if let Some(readers) = self.readers.get_mut(&value) {
            readers.remove(&Reader::Step(reader));
        }
    }

    /// Puts the steps that are left back into the block.
    pub(super) fn give_back(self, block: &mut Block) {
        let Steps { steps, mut inserted, .. } = self;
        let each = |(at, step): (usize, Option<Step>)| inserted.remove(&at).unwrap_or_default().into_iter().chain(step);
        block.steps = steps.into_iter().enumerate().flat_map(each).collect();
    }
}
