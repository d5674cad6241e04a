//! How far back steps read growing state: what lies behind the window of all attention over it may be forgotten.
//!
//! A state has a window where, in each entry that is given it, nobody needs its first positions: it is read by an append, whose
//! result is the next contents and is read by attention with a window, and by steps that ask for its extents only. Queries of such
//! attention stand behind the past: their first position is what the append has checked to be the length of the past, or is the extent
//! of a past. All else keeps all positions.

use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::model::{BlockRecord, EntryRecord, Growth, Manifest, OperandRecord, StepRecord};
use ipuc_formats::ops::{Attention, Op};
use ipuc_kernels::attention::BLOCK;

/// Positions behind the window that stay: so many can be taken back without reading all tokens again.
const TAKEN_BACK: usize = 128;

/// How many positions before its own a query sees of a state, the most of all attention that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window(usize);

impl Window {
    /// The first position that runs may read whose first query stands at `length`.
    pub(crate) fn first_read(self, length: usize) -> usize {
        length.saturating_sub(self.0)
    }

    /// The first position that is kept while `length` positions are the past of the last run, so that what it has appended can be
    /// taken back, and some positions before.
    pub(crate) fn first_kept(self, length: usize) -> usize {
        self.first_read(length).saturating_sub(TAKEN_BACK)
    }
}

/// The window of each state; `None` where all positions are kept.
pub(crate) fn windows(manifest: &Manifest) -> Vec<Option<Window>> {
    let of_state = |(state, growth): (u32, Option<Growth>)| {
        let growth = growth.filter(|growth| !growth.overwritten && growth.axis == 2)?;
        if !(growth.page as usize).is_multiple_of(BLOCK) {
            return None;
        }
        let given = manifest.entries.iter().filter_map(|entry| Some((entry, input_of(entry, state)?)));
        let mut most = None;
        for (entry, input) in given {
            let entry = Reading { manifest, entry, block: &manifest.blocks[entry.block as usize] };
            most = most.max(Some(entry.window(state, input)?));
        }
        most.map(Window)
    };
    let growths = manifest.states.iter().map(|record| record.growth);
    (0u32..).zip(growths).map(of_state).collect()
}

fn input_of(entry: &EntryRecord, state: u32) -> Option<u32> {
    entry.states.iter().find(|used| used.state == state)?.input
}

/// An entry, for what its steps read of state.
struct Reading<'a> {
    manifest: &'a Manifest,
    entry: &'a EntryRecord,
    block: &'a BlockRecord,
}

impl Reading<'_> {
    /// The most positions before its own that a query sees of a state; `None` where other steps read it.
    fn window(&self, state: u32, input: u32) -> Option<usize> {
        let mut most = None;
        for (step, operand) in self.readers(input) {
            if matches!(step.op, Op::ShapeOf(_)) {
                continue;
            }
            let (Op::Append(_), 0, &[joined]) = (&step.op, operand, step.results.as_slice()) else { return None };
            most = most.max(Some(self.window_of_joined(state, joined)?));
        }
        // As a result, the past would be read whole.
        if self.results(input).next().is_some() {
            return None;
        }
        most
    }

    /// The same of the past with what is new.
    fn window_of_joined(&self, state: u32, joined: u32) -> Option<usize> {
        if self.results(joined).any(|result| self.entry.state_of_output(result) != Some(state)) {
            return None;
        }
        let mut most = None;
        for (step, operand) in self.readers(joined) {
            if matches!(step.op, Op::ShapeOf(_)) {
                continue;
            }
            let (Op::Attention(attention), 1 | 2) = (&step.op, operand) else { return None };
            most = most.max(Some(self.window_of_attention(attention, step)?));
        }
        most
    }

    /// The window of attention over pages whose queries stand behind the past.
    fn window_of_attention(&self, attention: &Attention, step: &StepRecord) -> Option<usize> {
        let left = usize::try_from(attention.left_window?).ok()?;
        let is_f32 = |operand: usize| {
            let slot = value(step, operand)?;
            Some(self.block.values[slot as usize].kind.as_tensor()?.0 == DType::F32)
        };
        let precise = !matches!(attention.softmax_precision, Some(DType::F16 | DType::BF16));
        let reads_pages = precise
            && attention.arithmetic.is_default()
            && attention.scores.is_none()
            && !attention.present
            && (0..3).all(|operand| is_f32(operand) == Some(true));
        (reads_pages && self.is_behind_the_past(step)).then_some(left)
    }

    /// Whether the first query of attention stands behind the past, whatever the data.
    fn is_behind_the_past(&self, attention: &StepRecord) -> bool {
        let Some(first) = value(attention, 7) else { return false };
        let appends = [1, 2].map(|operand| value(attention, operand).and_then(|joined| self.append(joined)));
        let [Some((keys, past_keys)), Some((values, past_values))] = appends else { return false };
        // The append refuses to run where its own says anything else.
        if [keys, values].iter().any(|append| value(append, 2) == Some(first)) {
            return true;
        }
        let is_past = |dims: &[Dim]| !dims.is_empty() && dims.iter().all(|dim| dim == past_keys || dim == past_values);
        let contents = |slot: u32| self.block.values[slot as usize].contents.as_deref();
        let expanded = self.block.steps.iter().find(|step| step.results == [first] && matches!(step.op, Op::Expand(_)));
        let sources = [Some(first), expanded.and_then(|step| value(step, 0))];
        sources.into_iter().flatten().any(|slot| contents(slot).is_some_and(is_past))
    }

    /// The append to a state that gives this value, and the length of its past.
    fn append(&self, joined: u32) -> Option<(&StepRecord, &Dim)> {
        let append = |step: &&StepRecord| step.results == [joined] && matches!(step.op, Op::Append(_));
        let append = self.block.steps.iter().find(append)?;
        let past = value(append, 0)?;
        let state = self.entry.state_of_input(past as usize)?;
        let growth = self.manifest.states[state as usize].growth?;
        let (_, shape) = self.block.values[past as usize].kind.as_tensor()?;
        Some((append, shape.dims()?.get(growth.axis as usize)?))
    }

    fn readers(&self, slot: u32) -> impl Iterator<Item = (&StepRecord, usize)> {
        let operands = self.block.steps.iter().flat_map(|step| (0..step.operands.len()).map(move |at| (step, at)));
        operands.filter(move |&(step, operand)| value(step, operand) == Some(slot))
    }

    fn results(&self, slot: u32) -> impl Iterator<Item = usize> {
        let results = self.block.results.iter().enumerate();
        results.filter(move |(_, result)| **result == OperandRecord::Value(slot)).map(|(at, _)| at)
    }
}

fn value(step: &StepRecord, operand: usize) -> Option<u32> {
    match step.operands.get(operand) {
        Some(&OperandRecord::Value(slot)) => Some(slot),
        Some(OperandRecord::Weight(_) | OperandRecord::Absent) | None => None,
    }
}
