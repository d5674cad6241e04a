//! The steps of a block while they are joined: who computes a value, and who reads it.

use crate::ir::{Block, Operand, Step, ValueId};
use std::collections::{BTreeSet, HashMap};

/// Who reads a value: a step of the block, or the block's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Step(usize),
    Results,
}

/// The steps of a block, some of which are gone.
pub(super) struct Steps {
    steps: Vec<Option<Step>>,
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
        Steps { steps: steps.into_iter().map(Some).collect(), producers, readers }
    }

    /// How many there were.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// A step that is not gone.
    pub(super) fn get(&self, at: usize) -> Option<&Step> {
        self.steps.get(at)?.as_ref()
    }

    /// The step that computes a value which only the step `reader` reads.
    pub(super) fn only_for(&self, reader: usize, value: ValueId) -> Option<usize> {
        let readers = self.readers.get(&value)?;
        let only = readers.len() == 1 && readers.contains(&Reader::Step(reader));
        self.producers.get(&value).copied().filter(|_| only)
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

    /// Puts the steps that are left back into the block.
    pub(super) fn give_back(self, block: &mut Block) {
        block.steps = self.steps.into_iter().flatten().collect();
    }
}
