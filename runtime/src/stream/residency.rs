//! Which chunks stay in memory under a budget.
//!
//! Reads repeat in the same order each pass, so the best that any policy can do is to keep a fixed set and to stream the
//! rest: a pass then reads W less what is kept. Kept first is what would be read most often: chunks of loop bodies, then
//! chunks that several places use. What is left when all that every pass reads is kept goes to rows that are chosen by
//! index: all of them where they fit, else those used last. Of the rest, kept and streamed chunks alternate in proportion, so that the disk works
//! while steps compute on what is kept.

use super::order::{Access, Bodies, Order, streamed_weights};
use super::report::Residency;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::Layout;
use ipuc_formats::model::{Manifest, WeightRecord};
use std::collections::HashSet;
use std::sync::Arc;

/// Reads in flight and what kernels hold take a third of a ring of this size; the rest is read ahead while steps compute.
const USUAL_RING_BYTES: u64 = 48 << 20;
/// Rows that are chosen by index get at least this part of what there is for weights,
const ROWS_SHARE: u64 = 64;
/// but no more than this before all else that fits is pinned: a fixed set saves every pass a read, a row only some.
const SET_APART_BYTES: u64 = 8 << 20;
/// Chunks that the ring holds at least: one in use, one being checked, and two being read.
const LEAST_RING_CHUNKS: u64 = 4;
/// Chunks that a walk returns to without reading them again.
const WINDOW: usize = 2;

/// A budget that is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The smallest that works.
    pub(super) needed_bytes: u64,
}

/// Most bytes of weights that a step takes as whole tensors, copied out of chunks.
pub(super) fn whole_bytes(manifest: &Manifest, weights: &[Arc<WeightRecord>]) -> u64 {
    let whole = |index: u32| {
        let weight = &weights[index as usize];
        let narrow = match &weight.layout {
            Layout::Panels(_) => return 0,
            Layout::Strings => 0,
            Layout::Plain { dtype } if *dtype == weight.dtype => 0,
            Layout::Plain { dtype } => bytes(&weight.shape, *dtype),
        };
        bytes(&weight.shape, weight.dtype).saturating_add(narrow)
    };
    let step_bytes = |step| streamed_weights(step).map(whole).fold(0, u64::saturating_add);
    let steps = manifest.blocks.iter().flat_map(|block| &block.steps);
    steps.map(step_bytes).max().unwrap_or(0)
}

fn bytes(shape: &[u64], dtype: DType) -> u64 {
    let elements = shape.iter().fold(1u64, |count, &extent| count.saturating_mul(extent));
    elements.saturating_mul(dtype.bits() as u64).div_ceil(8)
}

/// How often and where a chunk is used.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    runs: u64,
    in_loop: bool,
}

/// What a walk through all entries finds.
struct Survey<'a> {
    order: &'a Order,
    uses: Vec<Use>,
    /// Chunks in order of first use.
    touched: Vec<u32>,
    seen: HashSet<(u32, bool)>,
    window: Window,
}

impl Survey<'_> {
    fn block(&mut self, block: u32, in_loop: bool) {
        if !self.seen.insert((block, in_loop)) {
            return;
        }
        let order = self.order;
        for stop in order.block(block) {
            for access in &stop.accesses {
                self.access(access.chunk, in_loop);
            }
            for &body in &stop.blocks {
                self.block(body, in_loop || stop.bodies == Bodies::Loop);
            }
        }
    }

    fn access(&mut self, chunk: u32, in_loop: bool) {
        let used = &mut self.uses[chunk as usize];
        if used.runs == 0 {
            self.touched.push(chunk);
        }
        used.in_loop |= in_loop;
        if self.window.find(chunk).is_none() {
            used.runs += 1;
            self.window.push(chunk, 0);
        }
    }
}

/// Chunks that stay, within a budget of which `working_bytes` are for other things.
///
/// # Errors
/// [`Shortage`] where not even the ring fits.
pub(super) fn plan(
    manifest: &Manifest,
    order: &Order,
    budget_bytes: u64,
    working_bytes: u64,
) -> Result<Residency, Shortage> {
    let lengths: Vec<u64> = manifest.chunks.iter().map(|chunk| chunk.length).collect();
    let weights_bytes = lengths.iter().sum();
    let mut residency = Residency {
        weights_bytes,
        budget_bytes,
        working_bytes,
        pinned_bytes: weights_bytes,
        ring_bytes: 0,
        kept_rows_bytes: 0,
        pinned: vec![true; lengths.len()],
        bytes_per_pass: vec![0; manifest.entries.len()],
    };
    let available = budget_bytes.saturating_sub(working_bytes);
    if weights_bytes <= available {
        return Ok(residency);
    }
    let uses = vec![Use::default(); lengths.len()];
    let mut survey = Survey { order, uses, touched: Vec::new(), seen: HashSet::new(), window: Window::default() };
    for entry in &manifest.entries {
        survey.block(entry.block, false);
        survey.window = Window::default();
    }
    let largest = survey.touched.iter().map(|&chunk| lengths[chunk as usize]).max().unwrap_or(0);
    let least = largest * LEAST_RING_CHUNKS;
    if available < least {
        return Err(Shortage { needed_bytes: working_bytes.saturating_add(least) });
    }
    residency.ring_bytes = (available / 4).min(USUAL_RING_BYTES).max(least);
    let chosen: Vec<u32> = (0..lengths.len() as u32).filter(|&chunk| survey.uses[chunk as usize].runs == 0).collect();
    let rows_bytes: u64 = chosen.iter().map(|&chunk| lengths[chunk as usize]).sum();
    let set_apart = rows_bytes.min(available / ROWS_SHARE).min(SET_APART_BYTES);
    let mut room = Room {
        lengths: &lengths,
        pinned: vec![false; lengths.len()],
        bytes: available - residency.ring_bytes - set_apart,
    };
    pin(&survey, &mut room);
    room.bytes += set_apart;
    if rows_bytes <= room.bytes {
        chosen.iter().for_each(|&chunk| _ = room.keep(chunk));
    } else {
        residency.kept_rows_bytes = room.bytes;
    }
    residency.pinned = room.pinned;
    residency.pinned_bytes = lengths.iter().zip(&residency.pinned).filter(|(_, pinned)| **pinned).map(|(l, _)| l).sum();
    for (bytes, entry) in residency.bytes_per_pass.iter_mut().zip(&manifest.entries) {
        let mut pass =
            Pass { order, lengths: &lengths, pinned: &residency.pinned, window: Window::default(), bytes: 0 };
        pass.block(entry.block);
        *bytes = pass.bytes;
    }
    Ok(residency)
}

/// Room that is left for chunks that stay.
struct Room<'a> {
    lengths: &'a [u64],
    pinned: Vec<bool>,
    bytes: u64,
}

impl Room<'_> {
    /// Keep a chunk where it fits; gives its length where it is new.
    fn keep(&mut self, chunk: u32) -> u64 {
        let length = self.lengths[chunk as usize];
        if self.pinned[chunk as usize] || length > self.bytes {
            return 0;
        }
        self.pinned[chunk as usize] = true;
        self.bytes -= length;
        length
    }
}

/// Keeps what is read most often; chunks of which only rows are read are left out.
fn pin(survey: &Survey<'_>, room: &mut Room<'_>) {
    let lengths = room.lengths;
    let using = |chunk: &u32| survey.uses[*chunk as usize];
    let often = |chunk: &u32| using(chunk).in_loop || using(chunk).runs > 1;
    let (mut repeated, once): (Vec<u32>, Vec<u32>) = survey.touched.iter().copied().partition(often);
    repeated.sort_by_key(|chunk| std::cmp::Reverse((using(chunk).in_loop, using(chunk).runs)));
    for &chunk in &repeated {
        room.keep(chunk);
    }
    let all = once.iter().map(|&chunk| u128::from(lengths[chunk as usize])).sum::<u128>();
    let share = u128::from(room.bytes);
    let (mut passed, mut kept) = (0, 0);
    for &chunk in &once {
        passed += u128::from(lengths[chunk as usize]);
        // Kept so far over passed so far follows what is to be kept over all.
        if kept * all < passed * share {
            kept += u128::from(room.keep(chunk));
        }
    }
    // What rounding left.
    for chunk in once {
        room.keep(chunk);
    }
}

/// The chunks that were visited last, to which a walk returns without reading them again.
#[derive(Debug, Default)]
pub(super) struct Window {
    recent: [Option<(u32, u64)>; WINDOW],
}

impl Window {
    /// The visit of this chunk, where it is among the last.
    pub(super) fn find(&self, chunk: u32) -> Option<u64> {
        self.recent.iter().flatten().find(|(recent, _)| *recent == chunk).map(|&(_, visit)| visit)
    }

    /// A new visit.
    pub(super) fn push(&mut self, chunk: u32, visit: u64) {
        self.recent.rotate_right(1);
        self.recent[0] = Some((chunk, visit));
    }
}

/// Counts what a pass reads, each body once.
struct Pass<'a> {
    order: &'a Order,
    lengths: &'a [u64],
    pinned: &'a [bool],
    window: Window,
    bytes: u64,
}

impl Pass<'_> {
    fn block(&mut self, block: u32) {
        let order = self.order;
        for stop in order.block(block) {
            stop.accesses.iter().for_each(|access| self.access(access));
            stop.blocks.iter().for_each(|&body| self.block(body));
        }
    }

    fn access(&mut self, access: &Access) {
        if self.pinned[access.chunk as usize] || self.window.find(access.chunk).is_some() {
            return;
        }
        self.window.push(access.chunk, 0);
        self.bytes += self.lengths[access.chunk as usize];
    }
}
