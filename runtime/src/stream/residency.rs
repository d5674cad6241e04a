//! Which chunks stay in memory under a budget.
//!
//! Reads repeat in the same order each pass, so the best that any policy can do is to keep a fixed set and to stream the
//! rest: a pass then reads W less what is kept. Kept first is what would be read most often: chunks of loop bodies, then
//! chunks that several places use. What is left when all that every pass reads is kept goes to rows that are chosen by
//! index: all of them where they fit, else those used last. Of the rest, those which are kept are evenly spread over the pass,
//! however many leave later, so that the disk works while steps compute on what is kept.

use super::report::Residency;
use super::rows::UNITS_AT_ONCE_BYTES;
use super::schedule::{Bodies, Schedule, recorded_reads, streamed_weights};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::Pick;
use ipuc_formats::model::{EntryRecord, Manifest, StepRecord, WeightRecord};
use ipuc_formats::ops::Read;
use std::cmp::Reverse;
#[cfg(feature = "fabric")]
use std::collections::HashMap;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Reads in flight and what kernels hold take a third of a ring of this size; the rest is read ahead while steps compute.
const USUAL_RING_BYTES: u64 = 48 << 20;
/// Rows that are chosen by index get at least this part of what there is for weights,
const ROWS_SHARE: u64 = 64;
/// but no more than this before all else that fits is pinned: a fixed set saves every pass a read, a row only some.
const SET_APART_BYTES: u64 = 8 << 20;
/// Small matrices that a step picks are read together up to this many bytes: a read for each thread.
const PICKED_AT_ONCE_BYTES: u64 = 4 << 20;
/// Chunks that the ring holds at least: one in use, one being checked, and two being read.
const LEAST_RING_CHUNKS: u64 = 4;
/// Chunks that a pass returns to without reading them again.
const RECENT_CHUNKS: usize = 2;

/// The golden ratio, modulo 1, in units of 2^-64.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// A budget that is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The smallest that works.
    pub(super) needed_bytes: u64,
}

/// Most bytes of weights that a step takes as whole tensors, copied out of chunks.
pub(super) fn whole_bytes(manifest: &Manifest, weights: &[Arc<WeightRecord>]) -> u64 {
    let whole = |step: &StepRecord, index: u32| {
        let weight = &weights[index as usize];
        // Kernels take panels part by part, but those of recurrent layers keep them for all steps of a sequence; the stored
        // elements of others are in memory beside the values made of them.
        if weight.encoding.dense_panels().is_some() && !step.op.is_recurrent() {
            return 0;
        }
        let stored = weight.encoding.encoding().dtype();
        let narrow = if stored == weight.dtype { 0 } else { bytes(&weight.shape, stored) };
        bytes(&weight.shape, weight.dtype).saturating_add(narrow)
    };
    let step_bytes =
        |step| streamed_weights(step, weights).map(|index| whole(step, index)).fold(0, u64::saturating_add);
    let steps = manifest.blocks.iter().flat_map(|block| &block.steps);
    steps.map(step_bytes).max().unwrap_or(0)
}

/// Most bytes that a step picks and holds at a time: one matrix, or several small ones, or the units that its rows lie in.
pub(super) fn picked_bytes(manifest: &Manifest, weights: &[Arc<WeightRecord>]) -> u64 {
    let held = |(index, read): (u32, Read)| {
        let weight = &weights[index as usize];
        let picked = |pick, least: u64| weight.locate(pick).map_or(0, |place| place.length_bytes().max(least));
        let most = match read {
            // All matrices of a weight have the same size.
            Read::Groups => picked(Pick::Group(0), PICKED_AT_ONCE_BYTES),
            // Rows are gathered where they go, unless they lie in larger units.
            Read::Rows if weight.encoding.encoding().is_canonical(weight.logical()) => 0,
            Read::Rows => picked(Pick::Row(0), UNITS_AT_ONCE_BYTES),
            // Of a weight whose inputs are read one by one, some are held at a time.
            Read::Nonzero => PICKED_AT_ONCE_BYTES,
            Read::Once | Read::Repeated => 0,
        };
        let extents = weight.parts.iter().map(|part| manifest.extents[part.extent as usize].length);
        most.min(extents.fold(0, u64::saturating_add))
    };
    let steps = manifest.blocks.iter().flat_map(|block| &block.steps);
    steps.flat_map(recorded_reads).map(held).max().unwrap_or(0)
}

fn bytes(shape: &[u64], dtype: DType) -> u64 {
    let elements = shape.iter().fold(1u64, |count, &extent| count.saturating_mul(extent));
    elements.saturating_mul(dtype.bits() as u64).div_ceil(8)
}

/// The chunks that a pass of an entry reads, in order, each body once, and whether in a loop. `streams` tells those that do
/// not stay.
fn reads(schedule: &Schedule, entry: u32, streams: impl Fn(u32) -> bool) -> Vec<(u32, bool)> {
    let (mut reads, mut seen, mut recent) = (Vec::new(), HashSet::new(), RecentChunks::default());
    let mut stack = vec![(schedule.block(entry).iter(), false)];
    while let Some((steps, in_loop)) = stack.last_mut() {
        let Some(step) = steps.next() else {
            stack.pop();
            continue;
        };
        let chunks = step.accesses.iter().map(|access| access.chunk).filter(|&chunk| streams(chunk));
        reads.extend(chunks.filter(|&chunk| !recent.note(chunk, 0)).map(|chunk| (chunk, *in_loop)));
        let in_loop = *in_loop || step.bodies == Bodies::Loop;
        let bodies = step.blocks.iter().rev().filter(|&&body| seen.insert((body, in_loop)));
        stack.extend(bodies.map(|&body| (schedule.block(body).iter(), in_loop)));
    }
    reads
}

/// How all entries use a chunk.
#[derive(Debug, Clone, Copy)]
struct Use {
    chunk: u32,
    reads: u64,
    in_loop: bool,
}

/// How entries use the chunks that steps wait for, in the order of their first use.
fn uses(manifest: &Manifest, schedule: &Schedule) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    let mut index = vec![None; manifest.chunks.len()];
    for (chunk, in_loop) in manifest.entries.iter().flat_map(|entry| reads(schedule, entry.block, |_| true)) {
        let at = *index[chunk as usize].get_or_insert(uses.len());
        if at == uses.len() {
            uses.push(Use { chunk, reads: 0, in_loop: false });
        }
        uses[at].reads += 1;
        uses[at].in_loop |= in_loop;
    }
    uses
}

/// Chunks that steps wait for, the best to keep first: those that are read most often, and of those that are read equally often
/// such that however many are kept, they are evenly spread over a pass. Entries that share weights read most of them equally often.
fn keeping_order(uses: &[Use]) -> Vec<u32> {
    let mut classes: BTreeMap<Reverse<(bool, u64)>, Vec<u32>> = BTreeMap::new();
    for used in uses {
        classes.entry(Reverse((used.in_loop, used.reads))).or_default().push(used.chunk);
    }
    classes.into_values().flat_map(spread).collect()
}

/// Chunks such that the first ones, however many, are evenly spread over all.
fn spread(chunks: Vec<u32>) -> Vec<u32> {
    // Multiples of the golden ratio modulo 1: each part of the unit interval holds its share of them.
    let place = |(index, chunk): (u64, u32)| (index.wrapping_mul(GOLDEN_RATIO), chunk);
    let mut spread: Vec<(u64, u32)> = (0u64..).zip(chunks).map(place).collect();
    spread.sort_unstable();
    spread.into_iter().map(|(_, chunk)| chunk).collect()
}

/// Which chunks stay, and which of them leave first when working memory grows.
pub(super) struct Plan {
    pub(super) residency: Residency,
    /// Chunks that stay, in the order in which they leave: what is best to keep is last.
    pub(super) leaving_order: Vec<u32>,
    /// Chunks that no step waits for, since only rows of them are used.
    pub(super) rows_only: Vec<u32>,
    /// Bytes of a slot of the ring: the largest chunk that steps wait for.
    pub(super) slot_bytes: u64,
    /// Bytes of the ring as soon as something streams.
    pub(super) usual_ring_bytes: u64,
    /// Bytes of the smallest ring.
    pub(super) least_ring_bytes: u64,
}

/// Chunks that stay, within a budget of which `working_bytes` are for other things.
///
/// # Errors
/// [`Shortage`] where not even the ring fits.
pub(super) fn plan(
    manifest: &Manifest,
    schedule: &Schedule,
    budget_bytes: u64,
    working_bytes: u64,
) -> Result<Plan, Shortage> {
    let lengths: Vec<u64> = manifest.chunks.iter().map(|chunk| chunk.length).collect();
    let weights_bytes = lengths.iter().sum();
    let uses = uses(manifest, schedule);
    let available = budget_bytes.saturating_sub(working_bytes);
    let largest = uses.iter().map(|used| lengths[used.chunk as usize]).max().unwrap_or(0);
    let least = largest * LEAST_RING_CHUNKS;
    let fits = weights_bytes <= available;
    if !fits && available < least {
        return Err(Shortage { needed_bytes: working_bytes.saturating_add(least) });
    }
    let usual_ring_bytes = if largest == 0 { 0 } else { (available / 4).min(USUAL_RING_BYTES).max(least) };
    let ring_bytes = if fits { 0 } else { usual_ring_bytes };
    let used: HashSet<u32> = uses.iter().map(|used| used.chunk).collect();
    let rows_only: Vec<u32> = (0..lengths.len() as u32).filter(|chunk| !used.contains(chunk)).collect();
    let rows_bytes: u64 = rows_only.iter().map(|&chunk| lengths[chunk as usize]).sum();
    // The ring comes first: close to the smallest budget it leaves less than the share of rows.
    let beside_ring = available - ring_bytes;
    let share = rows_bytes.min(available / ROWS_SHARE).min(SET_APART_BYTES).min(beside_ring);
    let set_apart = if fits { 0 } else { share };
    let mut room = beside_ring - set_apart;
    let mut kept: Vec<u32> = Vec::new();
    let mut keep = |chunk: u32, room: &mut u64| {
        if lengths[chunk as usize] <= *room {
            *room -= lengths[chunk as usize];
            kept.push(chunk);
        }
    };
    keeping_order(&uses).into_iter().for_each(|chunk| keep(chunk, &mut room));
    room += set_apart;
    let rows_fit = rows_bytes <= room;
    if rows_fit {
        rows_only.iter().for_each(|&chunk| keep(chunk, &mut room));
    }
    let kept_rows_bytes = if rows_fit { 0 } else { room };
    let mut pinned = vec![false; lengths.len()];
    kept.iter().for_each(|&chunk| pinned[chunk as usize] = true);
    let residency = Residency {
        weights_bytes,
        budget_bytes,
        working_bytes,
        pinned_bytes: kept.iter().map(|&chunk| lengths[chunk as usize]).sum(),
        ring_bytes,
        kept_rows_bytes,
        bytes_per_pass: bytes_per_pass(manifest, schedule, &pinned),
        pinned,
    };
    let leaving_order = kept.into_iter().rev().collect();
    Ok(Plan { residency, leaving_order, rows_only, slot_bytes: largest, usual_ring_bytes, least_ring_bytes: least })
}

/// What stays in a memory of some size.
#[cfg(feature = "fabric")]
pub(crate) struct Kept {
    pub(crate) bytes: u64,
    /// Of what a step takes of weights, by its block and its index, the share that stays.
    pub(crate) shares: HashMap<(u32, u32), f64>,
}

/// Which weights stay in so much memory; `None` where not even a ring fits.
#[cfg(feature = "fabric")]
pub(crate) fn kept_shares(manifest: &Manifest, budget_bytes: u64) -> Option<Kept> {
    let weights: Vec<Arc<WeightRecord>> = manifest.weights.iter().cloned().map(Arc::new).collect();
    let schedule = Schedule::new(manifest, &weights);
    let Residency { pinned, pinned_bytes, .. } = plan(manifest, &schedule, budget_bytes, 0).ok()?.residency;
    let mut shares = HashMap::new();
    for (block, steps) in (0..).zip(&manifest.blocks) {
        for step in schedule.block(block).iter().filter(|step| (step.step as usize) < steps.steps.len()) {
            let length = |stays: bool| -> f64 {
                let own = step.accesses.iter().filter(|access| stays || !pinned[access.chunk as usize]);
                own.map(|access| {
                    let part = &weights[access.weight as usize].parts[access.part as usize];
                    manifest.extents[part.extent as usize].length as f64
                })
                .sum()
            };
            let all = length(true);
            if all > 0.0 {
                shares.insert((block, step.step), 1.0 - length(false) / all);
            }
        }
    }
    Some(Kept { bytes: pinned_bytes, shares })
}

/// Bytes that a pass of each entry reads, each body once, rows not included.
pub(super) fn bytes_per_pass(manifest: &Manifest, schedule: &Schedule, pinned: &[bool]) -> Vec<u64> {
    let of_entry = |entry: &EntryRecord| {
        let reads = reads(schedule, entry.block, |chunk| !pinned[chunk as usize]);
        reads.into_iter().map(|(chunk, _)| manifest.chunks[chunk as usize].length).sum()
    };
    manifest.entries.iter().map(of_entry).collect()
}

/// The chunks that were used last, to which a pass returns without reading them again.
#[derive(Debug, Default)]
pub(super) struct RecentChunks {
    pass: u64,
    recent: [Option<u32>; RECENT_CHUNKS],
}

impl RecentChunks {
    /// A pass uses this chunk; whether it is among those that it used last.
    pub(super) fn note(&mut self, chunk: u32, pass: u64) -> bool {
        if self.pass != pass {
            *self = RecentChunks { pass, ..RecentChunks::default() };
        }
        let is_recent = self.recent.contains(&Some(chunk));
        if !is_recent {
            self.recent.rotate_right(1);
            self.recent[0] = Some(chunk);
        }
        is_recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(chunk: u32, reads: u64, in_loop: bool) -> Use {
        Use { chunk, reads, in_loop }
    }

    #[test]
    fn loops_come_first_and_then_what_is_read_most_often() {
        let uses = [used(0, 1, false), used(1, 2, false), used(2, 1, true), used(3, 3, false)];
        assert_eq!(keeping_order(&uses), [2, 3, 1, 0]);
    }

    /// Also where two entries read each of them.
    #[test]
    fn equal_chunks_are_kept_evenly_spread() {
        const CHUNKS: u32 = 300;
        for reads in [1, 2] {
            let uses: Vec<Use> = (0..CHUNKS).map(|chunk| used(chunk, reads, false)).collect();
            let order = keeping_order(&uses);
            assert_eq!(order.iter().collect::<HashSet<_>>().len(), CHUNKS as usize);
            for kept in [30, 75, 150, 225] {
                let kept_chunks: HashSet<u32> = order[..kept].iter().copied().collect();
                for first in 0..CHUNKS - 60 {
                    let here = (first..first + 60).filter(|chunk| kept_chunks.contains(chunk)).count() as f64;
                    let share = kept as f64 * 60.0 / f64::from(CHUNKS);
                    assert!((here - share).abs() <= 3.0, "{reads} reads: {here} of 60 from {first}, of {kept} kept");
                }
            }
        }
    }
}
