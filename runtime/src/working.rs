//! How much memory a run needs besides weights, as far as its dimensions say.

use crate::memory::{BoundMemory, Budget, Pool, value_bytes};
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{EntryRecord, Manifest, OperandRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that a run of an entry needs for its parameters and results; what has no size before it runs is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PortBytes {
    /// Inputs that the caller gives.
    pub(crate) inputs: u64,
    /// State before the run, as it is charged.
    pub(crate) state: u64,
    /// Outputs and state after the run and what bodies of control flow give, as they are charged.
    pub(crate) results: u64,
    /// By how much state grows.
    pub(crate) growth: u64,
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
        let mut ports = PortBytes::default();
        for parameter in 0..block.parameters as usize {
            match entry.states.iter().any(|state| state.input as usize == parameter) {
                true => ports.state += charged(parameter),
                false => ports.inputs += bytes(parameter) as u64,
            }
        }
        ports.results = memory.body_result_bytes(manifest);
        ports.results += (0..block.results.len()).filter_map(slot).map(charged).sum::<u64>();
        for state in entry.states.iter().filter(|state| state.append_axis.is_some()) {
            let after = slot(state.output as usize).map_or(0, bytes);
            ports.growth += after.saturating_sub(bytes(state.input as usize)) as u64;
        }
        ports
    }
}

/// Bytes that some entry needs at the greatest dimensions that the file allows, and with state of up to `context` positions;
/// 0 where neither says how large.
pub(crate) fn least_working_bytes(manifest: &Manifest, context: Option<u64>) -> u64 {
    let of_entry = |entry: &EntryRecord| {
        let Some(bindings) = greatest(manifest, entry, context) else { return 0 };
        let memory = BoundMemory::new(manifest, entry.block, bindings.clone(), Pool::new(Budget::new(None)));
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
    for state in &entry.states {
        let axis: Option<&Dim> = state.append_axis.and_then(|axis| dims(state.input as usize).get(axis as usize));
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
