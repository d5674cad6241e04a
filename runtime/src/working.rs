//! How much memory a run needs besides weights, as far as its dimensions say.

use crate::memory::{BoundMemory, value_bytes};
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{EntryRecord, Manifest};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of an entry's inputs and outputs, state among them, at these dimensions. What has no size before it runs is left out.
pub(crate) fn port_bytes(manifest: &Manifest, entry: &EntryRecord, bindings: &Bindings) -> u64 {
    let block = &manifest.blocks[entry.block as usize];
    let parameters = block.values.iter().take(block.parameters as usize).map(|value| &value.kind);
    let results = block.results.iter().filter_map(|result| match *result {
        ipuc_formats::model::OperandRecord::Value(slot) => Some(&block.values[slot as usize].kind),
        ipuc_formats::model::OperandRecord::Weight(_) | ipuc_formats::model::OperandRecord::Absent => None,
    });
    parameters.chain(results).filter_map(|kind| value_bytes(kind, bindings)).map(|bytes| bytes as u64).sum()
}

/// Bytes that some entry needs at the greatest dimensions that the file allows; 0 where none is bounded.
pub(crate) fn least_working_bytes(manifest: &Manifest) -> u64 {
    let of_entry = |entry: &EntryRecord| {
        let Some(bindings) = greatest(manifest, entry) else { return 0 };
        let ports = port_bytes(manifest, entry, &bindings);
        ports.saturating_add(BoundMemory::new(manifest, entry.block, bindings, Arc::default()).arena_bytes())
    };
    manifest.entries.iter().map(of_entry).max().unwrap_or(0)
}

/// The greatest values of all symbols of an entry's inputs, where each has one.
fn greatest(manifest: &Manifest, entry: &EntryRecord) -> Option<Bindings> {
    let block = &manifest.blocks[entry.block as usize];
    let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
    for value in block.values.iter().take(block.parameters as usize) {
        if let Type::Tensor { shape: Shape::Ranked(dims), .. } = &value.kind {
            dims.iter().for_each(|dim| names.extend(dim.symbols()));
        }
    }
    let mut bindings = Bindings::new();
    for name in names {
        let symbol = manifest.symbols.iter().find(|symbol| *symbol.name == *name)?;
        if symbol.maximum > i64::from(u32::MAX) {
            return None;
        }
        bindings.insert(name, symbol.maximum);
    }
    Some(bindings)
}
