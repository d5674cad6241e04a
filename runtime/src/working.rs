//! How much memory a run needs besides weights, as far as its dimensions say.

use crate::memory::{BoundMemory, Budget, Pool, value_bytes};
use crate::steps::kernel;
use crate::versions::Version;
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, EntryRecord, Growth, Manifest, OperandRecord, StepRecord};
use ipuc_formats::ops::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Passes for whose growth room is made ahead. What is unpinned is used in one pass more; then input and output of a state
/// both grow.
const PASSES_AHEAD: u64 = 4;

/// Bytes that a run of an entry needs for its parameters and results; what has no size before it runs is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PortBytes {
    /// Inputs that the caller gives.
    pub(crate) inputs: u64,
    /// State before the run, as it is charged.
    pub(crate) state: u64,
    /// Outputs and state after the run and what bodies of control flow give, as they are charged.
    pub(crate) results: u64,
    /// By how much state grows, of pages that are filled in part as much as is filled.
    pub(crate) growth: u64,
    /// Bytes of the pages that the next [`PASSES_AHEAD`] runs add where each makes state grow as this one does.
    pub(crate) growth_ahead: u64,
}

impl PortBytes {
    /// Of an entry at these dimensions, for which `memory` is planned.
    pub(crate) fn new(manifest: &Manifest, entry: &EntryRecord, bindings: &Bindings, memory: &BoundMemory) -> Self {
        let block = &manifest.blocks[entry.block as usize];
        let bytes = |slot: usize| value_bytes(&block.values[slot].kind, bindings).unwrap_or(0);
        let charged = |slot: usize| Pool::capacity(bytes(slot)) as u64;
        let slot = |result: usize| match block.results[result] {
            OperandRecord::Value(slot) => Some(slot as usize),
            OperandRecord::Weight(_) | OperandRecord::Absent => None,
        };
        let growing = |state: Option<u32>| state.and_then(|state| manifest.states[state as usize].growth);
        let paged = |slot: usize, growth: Growth| page_bytes(&block.values[slot].kind, growth, bindings);
        let mut ports = PortBytes::default();
        for parameter in 0..block.parameters as usize {
            let state = entry.state_of_input(parameter);
            match (state, growing(state)) {
                (None, _) => ports.inputs += bytes(parameter) as u64,
                (Some(_), None) => ports.state += charged(parameter),
                (Some(_), Some(growth)) => ports.state += paged(parameter, growth).all(),
            }
        }
        let paged_values = paged_values(manifest, entry);
        ports.results = memory.body_result_bytes(manifest) + copied_bytes(block, &paged_values, bindings);
        for index in 0..block.results.len() {
            let Some(slot) = slot(index) else { continue };
            let state = entry.state_of_output(index);
            let Some(growth) = growing(state) else {
                ports.results += charged(slot);
                continue;
            };
            let before = entry.states.iter().find(|used| Some(used.state) == state).and_then(|used| used.input);
            let before = before.map_or(Pages::NONE, |input| paged(input as usize, growth));
            let after = paged(slot, growth);
            // What no step appends to or overwrites is copied into pages.
            ports.results += if paged_values[slot] { 0 } else { charged(slot) };
            if growth.overwritten {
                // A run may overwrite positions of every page.
                ports.results += after.all();
                continue;
            }
            // A shared last page is copied, too.
            ports.results += after.all().saturating_sub(before.all()) + after.one;
            // Pages are added now and then: this is what a pass adds on average.
            let added = after.positions.saturating_sub(before.positions);
            ports.growth = ports.growth.saturating_add(after.filled_by(added));
            let ahead = after.added_by(added.saturating_mul(PASSES_AHEAD));
            ports.growth_ahead = ports.growth_ahead.saturating_add(ahead);
        }
        ports
    }
}

/// The pages of a growing state.
struct Pages {
    /// Bytes of a page.
    one: u64,
    /// Positions of a page.
    page: u64,
    /// Positions of the state.
    positions: u64,
}

impl Pages {
    const NONE: Pages = Pages { one: 0, page: 1, positions: 0 };

    /// Bytes of all pages.
    fn all(&self) -> u64 {
        self.one.saturating_mul(self.positions.div_ceil(self.page))
    }

    /// Bytes of what so many positions fill.
    fn filled_by(&self, positions: u64) -> u64 {
        self.one.saturating_mul(positions) / self.page
    }

    /// Bytes of the pages that so many positions more add.
    fn added_by(&self, positions: u64) -> u64 {
        let pages = self.positions.saturating_add(positions).div_ceil(self.page) - self.positions.div_ceil(self.page);
        self.one.saturating_mul(pages)
    }
}

fn page_bytes(kind: &Type, growth: Growth, bindings: &Bindings) -> Pages {
    let Some((dtype, Shape::Ranked(dims))) = kind.as_tensor() else { return Pages::NONE };
    let extents = dims.iter().map(|dim| dim.evaluate(bindings).ok().and_then(|extent| usize::try_from(extent).ok()));
    let Some(extents) = extents.collect::<Option<Vec<usize>>>() else { return Pages::NONE };
    // A version without positions knows what a page takes.
    let Ok(version) = Version::empty(dtype, &extents, growth) else { return Pages::NONE };
    let one = Pool::capacity(version.page_bytes()) as u64;
    Pages { one, page: (version.page_positions() as u64).max(1), positions: extents[growth.axis as usize] as u64 }
}

/// Which values of the block of an entry are held in pages.
fn paged_values(manifest: &Manifest, entry: &EntryRecord) -> Vec<bool> {
    let block = &manifest.blocks[entry.block as usize];
    let mut paged = vec![false; block.values.len()];
    for (slot, is_paged) in paged.iter_mut().enumerate().take(block.parameters as usize) {
        let state = entry.state_of_input(slot);
        *is_paged = state.is_some_and(|state| manifest.states[state as usize].growth.is_some());
    }
    for step in &block.steps {
        let &[slot] = step.results.as_slice() else { continue };
        paged[slot as usize] = match (&step.op, step.operands.first()) {
            (Op::Append(_), _) => true,
            (Op::TensorScatter(_), Some(&OperandRecord::Value(cache))) => {
                cache < block.parameters && paged[cache as usize]
            }
            _ => false,
        };
    }
    paged
}

/// The most bytes that a step needs for copies of growing state, because its kernel does not read pages.
fn copied_bytes(block: &BlockRecord, paged_values: &[bool], bindings: &Bindings) -> u64 {
    let of_step = |step: &StepRecord| -> u64 {
        if kernel(&step.op).reads_pages() {
            return 0;
        }
        let slots = step.operands.iter().filter_map(|operand| match *operand {
            OperandRecord::Value(slot) => Some(slot as usize),
            OperandRecord::Weight(_) | OperandRecord::Absent => None,
        });
        let paged = slots.filter(|&slot| paged_values[slot]);
        let bytes = paged.filter_map(|slot| value_bytes(&block.values[slot].kind, bindings));
        bytes.map(|bytes| Pool::capacity(bytes) as u64).sum()
    };
    block.steps.iter().map(of_step).max().unwrap_or(0)
}

/// Bytes that some entry needs at the greatest dimensions that the file allows, and with state of up to `context` positions;
/// 0 where neither says how large.
pub(crate) fn least_working_bytes(manifest: &Manifest, context: Option<u64>) -> u64 {
    let of_entry = |entry: &EntryRecord| {
        let Some(bindings) = greatest(manifest, entry, context) else { return 0 };
        let memory = BoundMemory::new(manifest, false, entry.block, bindings.clone(), Pool::new(Budget::new(None)));
        let ports = PortBytes::new(manifest, entry, &bindings, &memory);
        ports.inputs.saturating_add(ports.state).saturating_add(ports.results).saturating_add(memory.arena_bytes())
    };
    manifest.entries.iter().map(of_entry).max().unwrap_or(0)
}

/// The greatest values of all symbols of an entry's inputs, where each has one. With a context, positions of state have that
/// many, and what else has no greatest value is 1.
fn greatest(manifest: &Manifest, entry: &EntryRecord, context: Option<u64>) -> Option<Bindings> {
    let block = &manifest.blocks[entry.block as usize];
    let dims = |parameter: usize| match &block.values[parameter].kind {
        Type::Tensor { shape: Shape::Ranked(dims), .. } => dims.as_slice(),
        Type::Tensor { shape: Shape::Unranked, .. } | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. } => &[],
    };
    let mut positions: BTreeMap<Arc<str>, i64> = BTreeMap::new();
    for used in &entry.states {
        let growth = manifest.states[used.state as usize].growth;
        let axis: Option<&Dim> =
            growth.zip(used.input).and_then(|(growth, input)| dims(input as usize).get(growth.axis as usize));
        if let (Some(context), Some(axis)) = (context, axis) {
            let context = i64::try_from(context).ok()?;
            positions.extend(axis.symbols().into_iter().map(|symbol| (symbol, context)));
        }
    }
    let names: BTreeSet<Arc<str>> =
        (0..block.parameters as usize).flat_map(dims).flat_map(|dim| dim.symbols()).collect();
    let mut bindings = Bindings::new();
    for name in names {
        let maximum = manifest.symbols.iter().find(|symbol| *symbol.name == *name).map(|symbol| symbol.maximum);
        let maximum = maximum.filter(|&maximum| maximum <= i64::from(u32::MAX));
        let value = match (positions.get(&name), maximum) {
            (Some(&context), Some(maximum)) => context.min(maximum),
            (Some(&context), None) => context,
            (None, Some(maximum)) => maximum,
            (None, None) if context.is_some() => 1,
            (None, None) => return None,
        };
        bindings.insert(name, value);
    }
    Some(bindings)
}
