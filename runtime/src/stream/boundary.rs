//! The boundary between working memory and weights within one budget.
//!
//! Working memory (activations, state, inputs and outputs) grows from the bottom; the pinned chunks lie above it, in the
//! order in which they leave; the ring is at the top. Where working memory grows, the lowest chunks are unpinned: those that
//! a planned pass uses are used once more, so that nothing is read twice that was in memory. A pass that needs more at once
//! drops what was read ahead. Nothing moves, and what stays is not read again.

use super::loader::{Loader, Locked};
use super::report::Residency;
use super::residency::{Plan, bytes_per_pass};
use super::rows::BlockCache;
use crate::memory::{Budget, Charge};
use std::sync::Arc;

/// State grows by blocks of this size.
const BLOCK_BYTES: u64 = 2 << 20;

/// Memory that a pass needs before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes besides those that are charged already.
    pub(crate) bytes: u64,
    /// By how many bytes the pass makes state grow, on average over the pages that passes like it fill.
    pub(crate) growth_bytes: u64,
    /// Bytes of pages that the next passes add where each makes state grow as this one does: until the chunks that are
    /// unpinned from now on are gone.
    pub(crate) growth_ahead_bytes: u64,
}

/// What of the budget is charged for weights, and what leaves next.
pub(super) struct Boundary {
    budget: Arc<Budget>,
    plan: Plan,
    /// Chunks in the leaving order that have been unpinned.
    unpinned: usize,
    ring_charge: Option<Charge>,
    rows_charge: Charge,
    last_growth_bytes: u64,
    /// What was planned for other things than weights.
    planned_bytes: u64,
}

impl Boundary {
    /// As planned; the ring and the rows are charged.
    pub(super) fn new(budget: Arc<Budget>, plan: Plan, ring_charge: Option<Charge>, rows_charge: Charge) -> Self {
        // What other models have is for other things than these weights.
        let residency = &plan.residency;
        let weights = residency.pinned_bytes + residency.ring_bytes + residency.kept_rows_bytes;
        let others = budget.in_use_bytes().saturating_sub(weights);
        let planned_bytes = residency.working_bytes.saturating_add(others);
        Boundary { budget, plan, unpinned: 0, ring_charge, rows_charge, last_growth_bytes: 0, planned_bytes }
    }

    /// What stays now, and what streams.
    pub(super) fn residency(&self, loader: &Loader) -> Residency {
        let (manifest, schedule) = (&loader.source.manifest, &loader.source.schedule);
        let mut residency = self.plan.residency.clone();
        residency.bytes_per_pass = bytes_per_pass(manifest, schedule, &residency.pinned);
        residency
    }

    /// Bytes of the ring; 0 where nothing streams.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.plan.residency.ring_bytes
    }

    /// Makes room for a pass that is about to begin, and for the growth of those after it. Before weights leave for it, that is
    /// told.
    ///
    /// # Errors
    /// The smallest budget that works, where this one does not.
    pub(super) fn make_room(
        &mut self,
        loader: &Loader,
        rows: &BlockCache,
        need: Need,
        weights_leave: &mut dyn FnMut(&mut Locked<'_>),
    ) -> Result<(), u64> {
        let mut loads = loader.lock();
        let unpinned_bytes = loads.unpinned_bytes();
        let working = self.note_working(need.bytes, unpinned_bytes);
        let ahead = self.bytes_ahead(need);
        let wanted = if working <= self.planned_bytes { need.bytes } else { need.bytes.saturating_add(ahead) };
        let had_ring = self.has_ring(&mut loads, need.bytes);
        let free = self.budget.free_bytes();
        if had_ring && free >= need.bytes && free + unpinned_bytes >= wanted {
            return Ok(());
        }
        let possible = (free + unpinned_bytes + self.releasable_bytes()).saturating_sub(self.missing_ring_bytes());
        if possible < need.bytes {
            return Err(self.budget.limit_bytes() - possible + need.bytes);
        }
        weights_leave(&mut loads);
        let wanted = wanted.saturating_add(if self.ring_bytes() == 0 { self.plan.usual_ring_bytes } else { 0 });
        if had_ring {
            self.unpin(&mut loads, wanted);
            if self.has_ring(&mut loads, need.bytes) && self.budget.free_bytes() >= need.bytes {
                return Ok(());
            }
        }
        loads = loader.drop_reads_ahead(loads);
        self.unpin(&mut loads, wanted);
        self.shrink_rows(rows, need.bytes + self.missing_ring_bytes());
        // The ring is made anew, of what is left.
        self.ring_charge = None;
        self.plan.residency.ring_bytes = 0;
        let has_ring = self.has_ring(&mut loads, need.bytes);
        drop(loads);
        loader.discard_ring(self.ring_bytes() as usize, self.plan.usual_ring_bytes as usize);
        let free = self.budget.free_bytes();
        if has_ring && free >= need.bytes {
            return Ok(());
        }
        Err(self.budget.limit_bytes() - free + need.bytes + self.missing_ring_bytes())
    }

    /// Bytes by which working memory will grow until chunks that are unpinned from now on are gone: by a block at least where
    /// state grows.
    fn bytes_ahead(&mut self, need: Need) -> u64 {
        let last_growth_bytes = std::mem::replace(&mut self.last_growth_bytes, need.growth_bytes);
        // What one pass needs once, as a prefill does, is no rate of growth.
        let repeated = need.growth_bytes <= last_growth_bytes;
        let ahead = if repeated { need.growth_ahead_bytes } else { 0 };
        ahead.max(need.growth_bytes.min(1)).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX)
    }

    /// Notes how much of the budget is for other things than weights, and gives it.
    fn note_working(&mut self, bytes: u64, unpinned_bytes: u64) -> u64 {
        let residency = &mut self.plan.residency;
        let weights = residency.pinned_bytes + unpinned_bytes + residency.ring_bytes + residency.kept_rows_bytes;
        let working = self.budget.in_use_bytes().saturating_sub(weights).saturating_add(bytes);
        residency.working_bytes = residency.working_bytes.max(working);
        working
    }

    /// Bytes that weights could still give to working memory.
    fn releasable_bytes(&self) -> u64 {
        let residency = &self.plan.residency;
        residency.pinned_bytes
            + residency.kept_rows_bytes
            + residency.ring_bytes.saturating_sub(self.plan.least_ring_bytes)
    }

    /// Bytes of the smallest ring, where there is none yet.
    fn missing_ring_bytes(&self) -> u64 {
        if self.ring_bytes() == 0 { self.plan.least_ring_bytes } else { 0 }
    }

    /// There is a ring, or nothing streams. A missing one is made of what is free, as far as a pass that needs `bytes` can
    /// spare it.
    fn has_ring(&mut self, loads: &mut Locked<'_>, bytes: u64) -> bool {
        let residency = &mut self.plan.residency;
        if residency.pinned_bytes == residency.weights_bytes || residency.ring_bytes > 0 || self.plan.slot_bytes == 0 {
            return true;
        }
        let spare = self.budget.free_bytes().saturating_sub(bytes).min(self.plan.usual_ring_bytes);
        let ring_bytes = spare / self.plan.slot_bytes * self.plan.slot_bytes;
        if ring_bytes >= self.plan.least_ring_bytes
            && let Ok(charge) = self.budget.charge(ring_bytes)
        {
            self.ring_charge = Some(charge);
            residency.ring_bytes = ring_bytes;
            loads.set_ring(ring_bytes, self.plan.slot_bytes);
        }
        residency.ring_bytes > 0
    }

    /// Unpins chunks until `wanted` bytes are free or about to be, as far as there are any.
    fn unpin(&mut self, loads: &mut Locked<'_>, wanted: u64) {
        let residency = &mut self.plan.residency;
        while self.budget.free_bytes() + loads.unpinned_bytes() < wanted
            && let Some(&chunk) = self.plan.leaving_order.get(self.unpinned)
        {
            self.unpinned += 1;
            residency.pinned[chunk as usize] = false;
            residency.pinned_bytes -= loads.length(chunk);
            loads.unpin(chunk);
        }
    }

    /// Takes from the rows that are kept what `bytes` need and is not free.
    fn shrink_rows(&mut self, rows: &BlockCache, bytes: u64) {
        let kept = &mut self.plan.residency.kept_rows_bytes;
        *kept -= bytes.saturating_sub(self.budget.free_bytes()).min(*kept);
        rows.set_most_bytes(*kept);
        self.rows_charge.shrink(*kept);
    }
}
