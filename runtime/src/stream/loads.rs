//! Which chunks are in memory, which are read next and where to, and when their memory is free: no threads, no I/O, no
//! clock.
//!
//! A *load* is one read of a chunk: for the accesses that follow each other closely, through a slot of the ring, or once for
//! all accesses, to the place where a pinned chunk stays. Loads are planned in the order in which the lookahead comes to
//! their accesses, and read in that order. A load whose accesses are over is dropped, unless its chunk is pinned. A chunk
//! that is *unpinned* serves the accesses that were planned before, and is dropped after them; later ones find it in the
//! ring.

use super::lookahead::Lookahead;
use super::report::{PassReport, StepStall};
use super::residency::RecentChunks;
use super::schedule::Schedule;
use crate::memory::Charge;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How far a load is.
#[derive(Debug)]
pub(super) enum Status<B> {
    /// It is to be read, or being read.
    Pending,
    Ready(Arc<B>),
    Failed(String),
}

#[derive(Debug)]
struct Load<B> {
    chunk: u32,
    pass: u64,
    /// It stays when its accesses are over.
    pinned: bool,
    /// Accesses that are planned or whose bytes are held.
    accesses: u32,
    /// Where it is read to, once that has begun.
    target: Option<Target>,
    status: Status<B>,
}

/// Where a chunk is read to.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// The slot at this offset of the ring.
    Slot(usize),
    /// The place where it stays, whose memory is charged.
    Place(Arc<Charge>),
}

/// A chunk to be read.
#[derive(Debug, Clone)]
pub(super) struct ChunkRead {
    pub(super) load: u64,
    pub(super) chunk: u32,
    pub(super) target: Target,
}

/// What is known of a chunk.
#[derive(Debug)]
struct Chunk {
    length: u64,
    /// What its memory is charged with while it is pinned.
    charge: Option<Arc<Charge>>,
    /// Its last load.
    load: Option<u64>,
}

/// A step that the run has come to or will come to.
#[derive(Debug)]
struct PlannedStep {
    pass: u64,
    block: u32,
    step: u32,
    accesses: Vec<PlannedAccess>,
}

#[derive(Debug)]
struct PlannedAccess {
    weight: u32,
    part: u32,
    load: u64,
    over: bool,
}

/// The loads of one run after another.
#[derive(Debug)]
pub(super) struct Loads<B> {
    chunks: Vec<Chunk>,
    /// Chunks of which only rows are used: no step waits for them.
    rows_only: Vec<u32>,
    /// Offsets of slots that nothing is in; that used last, which is in caches still, is used next.
    free_slots: Vec<usize>,
    lookahead: Option<Lookahead>,
    recent: RecentChunks,
    upcoming: VecDeque<PlannedStep>,
    current: Vec<PlannedStep>,
    loads: BTreeMap<u64, Load<B>>,
    next_load: u64,
    to_read: VecDeque<u64>,
    in_flight: usize,
    /// Bytes of chunks that are unpinned and not dropped yet.
    unpinned_bytes: u64,
    /// The pass that runs, or the next one.
    pass: u64,
    /// What was read ahead is about to be dropped: no read begins.
    dropping: bool,
    /// Threads are to end.
    pub(super) closing: bool,
    /// Of the pass that runs, or the next one.
    report: PassReport,
    /// Of the pass after it.
    report_ahead: PassReport,
}

impl<B> Loads<B> {
    /// Nothing is in memory; `lengths` and `charges` are by chunk, a charge for those that are pinned.
    pub(super) fn new(lengths: &[u64], charges: Vec<Option<Charge>>, rows_only: Vec<u32>) -> Self {
        let chunk =
            |(&length, charge): (&u64, Option<Charge>)| Chunk { length, charge: charge.map(Arc::new), load: None };
        Loads {
            chunks: lengths.iter().zip(charges).map(chunk).collect(),
            rows_only,
            free_slots: Vec::new(),
            lookahead: None,
            recent: RecentChunks::default(),
            upcoming: VecDeque::new(),
            current: Vec::new(),
            loads: BTreeMap::new(),
            next_load: 0,
            to_read: VecDeque::new(),
            in_flight: 0,
            unpinned_bytes: 0,
            pass: 0,
            dropping: false,
            closing: false,
            report: PassReport::default(),
            report_ahead: PassReport::default(),
        }
    }

    /// The length of a chunk in bytes.
    pub(super) fn length(&self, chunk: u32) -> u64 {
        self.chunks[chunk as usize].length
    }

    /// Whether a chunk is to stay in memory.
    pub(super) fn is_pinned(&self, chunk: u32) -> bool {
        self.chunks[chunk as usize].charge.is_some()
    }

    /// The bytes of a pinned chunk, where they have been read.
    pub(super) fn pinned_bytes(&self, chunk: u32) -> Option<Arc<B>> {
        match self.status(self.chunks[chunk as usize].load.filter(|_| self.is_pinned(chunk))?)? {
            Status::Ready(bytes) => Some(bytes.clone()),
            Status::Pending | Status::Failed(_) => None,
        }
    }

    /// The bytes of all chunks, where all are to stay and have been read, and nothing is held for a pass any more: what was
    /// planned is forgotten then.
    pub(super) fn settle(&mut self) -> Option<Vec<Arc<B>>> {
        if !self.to_read.is_empty() || self.in_flight > 0 || !self.current.is_empty() {
            return None;
        }
        let all = (0..self.chunks.len() as u32).map(|chunk| self.pinned_bytes(chunk)).collect::<Option<Vec<_>>>()?;
        self.forget();
        Some(all)
    }

    /// Bytes of chunks that are unpinned and not dropped yet.
    pub(super) fn unpinned_bytes(&self) -> u64 {
        self.unpinned_bytes
    }

    /// The ring has as many slots of `slot_bytes` as `bytes` hold. Nothing may be in it.
    pub(super) fn set_ring(&mut self, bytes: u64, slot_bytes: u64) {
        let slots = bytes.checked_div(slot_bytes).unwrap_or(0);
        self.free_slots = (0..slots).rev().map(|slot| (slot * slot_bytes) as usize).collect();
    }

    /// The lookahead stands at the beginning of a pass of this entry.
    pub(super) fn is_aligned(&self, entry: u32) -> bool {
        let same = self.lookahead.as_ref().is_some_and(|lookahead| lookahead.entry() == entry);
        let begins = self.upcoming.front().is_none_or(|planned| planned.pass == self.pass);
        same && begins && self.current.is_empty()
    }

    /// Begins no more reads until [`Loads::forget`]; whether none is in flight.
    pub(super) fn prepare_to_forget(&mut self) -> bool {
        self.dropping = true;
        self.in_flight == 0
    }

    /// Forgets all that was planned, and drops what was read ahead; pinned chunks stay. No read may be in flight.
    pub(super) fn forget(&mut self) {
        self.dropping = false;
        self.lose();
        self.to_read.clear();
        for (id, mut load) in std::mem::take(&mut self.loads) {
            let is_ready = matches!(load.status, Status::Ready(_));
            if is_ready && load.pinned {
                load.accesses = 0;
                self.loads.insert(id, load);
                continue;
            }
            if is_ready && load.accesses > 0 && matches!(load.target, Some(Target::Slot(_))) {
                self.report.dropped_bytes += self.length(load.chunk);
            }
            self.drop_load(load);
        }
    }

    /// The run went where no lookahead had been: what it asks for is read directly until the next pass.
    fn lose(&mut self) {
        (self.lookahead, self.recent) = (None, RecentChunks::default());
        self.upcoming.clear();
        self.current.clear();
    }

    /// The run begins a pass of this entry.
    pub(super) fn begin_pass(&mut self, schedule: &Schedule, entry: u32) {
        let pass = self.pass;
        self.lookahead.get_or_insert_with(|| Lookahead::new(entry, pass));
        self.extend(schedule);
        for index in 0..self.rows_only.len() {
            let chunk = self.rows_only[index];
            if self.is_pinned(chunk) && self.chunks[chunk as usize].load.is_none_or(|id| !self.loads.contains_key(&id))
            {
                self.begin_load(chunk, pass);
            }
        }
    }

    /// What the pass read; it is over.
    pub(super) fn end_pass(&mut self) -> PassReport {
        self.pass += 1;
        std::mem::replace(&mut self.report, std::mem::take(&mut self.report_ahead))
    }

    /// The counts of the pass that runs.
    pub(super) fn report(&mut self) -> &mut PassReport {
        &mut self.report
    }

    /// The run comes to a scheduled step.
    pub(super) fn begin_step(&mut self, block: u32, step: u32) {
        let here = (self.pass, block, step);
        match self.upcoming.pop_front().filter(|next| (next.pass, next.block, next.step) == here) {
            Some(planned) => self.current.push(planned),
            None => self.lose(),
        }
    }

    /// The run enters a block of the step where it is.
    pub(super) fn enter_block(&mut self, schedule: &Schedule, body: u32) {
        let entered = match (&mut self.lookahead, self.current.last()) {
            (Some(lookahead), Some(here)) if self.upcoming.is_empty() => {
                lookahead.enter(schedule, here.block, here.step, body)
            }
            (Some(_) | None, _) => false,
        };
        match entered {
            true => self.extend(schedule),
            false => self.lose(),
        }
    }

    /// The run leaves the scheduled step where it is: what it did not ask for, it does not need.
    pub(super) fn end_step(&mut self, schedule: &Schedule, block: u32, step: u32) {
        let here = |planned: &mut PlannedStep| (planned.block, planned.step) == (block, step);
        let Some(planned) = self.current.pop_if(here) else { return self.lose() };
        for access in planned.accesses.iter().filter(|access| !access.over) {
            self.release(access.load);
        }
        if let Some(lookahead) = &mut self.lookahead
            && self.upcoming.is_empty()
        {
            lookahead.leave(schedule, block, step);
        }
        self.extend(schedule);
    }

    /// Plans as far as the order is known, at most to the end of the next pass.
    fn extend(&mut self, schedule: &Schedule) {
        let Some(mut lookahead) = self.lookahead.take() else { return };
        while let Some(upcoming) = lookahead.next(schedule, self.pass + 1) {
            let accesses = upcoming.step.accesses.iter().map(|access| PlannedAccess {
                weight: access.weight,
                part: access.part,
                load: self.plan_access(access.chunk, upcoming.pass),
                over: false,
            });
            let accesses = accesses.collect();
            let planned =
                PlannedStep { pass: upcoming.pass, block: upcoming.block, step: upcoming.step.step, accesses };
            self.upcoming.push_back(planned);
        }
        self.lookahead = Some(lookahead);
    }

    /// The load that serves the next access of a chunk.
    fn plan_access(&mut self, chunk: u32, pass: u64) -> u64 {
        let is_near = self.is_pinned(chunk) || self.recent.note(chunk, pass);
        let last = self.chunks[chunk as usize].load.filter(|id| is_near && self.loads.contains_key(id));
        let id = last.unwrap_or_else(|| self.begin_load(chunk, pass));
        self.loads.entry(id).and_modify(|load| load.accesses += 1);
        id
    }

    fn begin_load(&mut self, chunk: u32, pass: u64) -> u64 {
        let id = self.next_load;
        let pinned = self.is_pinned(chunk);
        self.next_load += 1;
        self.loads.insert(id, Load { chunk, pass, pinned, accesses: 0, target: None, status: Status::Pending });
        self.to_read.push_back(id);
        self.chunks[chunk as usize].load = Some(id);
        id
    }

    /// The load of the part of a weight that the step asks for; `None` where it is not expected here.
    pub(super) fn take(&mut self, weight: u32, part: u32) -> Option<u64> {
        let accesses = &mut self.current.last_mut()?.accesses;
        let wanted = |access: &&mut PlannedAccess| !access.over && (access.weight, access.part) == (weight, part);
        let access = accesses.iter_mut().find(wanted)?;
        access.over = true;
        Some(access.load)
    }

    /// Whether the step would get this part without waiting for it to be read on its turn.
    pub(super) fn is_ready(&self, weight: u32, part: u32) -> bool {
        let accesses = self.current.last().map_or(&[][..], |planned| &planned.accesses);
        let expected = accesses.iter().find(|access| !access.over && (access.weight, access.part) == (weight, part));
        expected.is_none_or(|access| !matches!(self.status(access.load), Some(Status::Pending)))
    }

    /// How far a load is.
    pub(super) fn status(&self, id: u64) -> Option<&Status<B>> {
        self.loads.get(&id).map(|load| &load.status)
    }

    /// The run has waited this long for bytes.
    pub(super) fn stalled(&mut self, duration: Duration) {
        let Some(&PlannedStep { block, step, .. }) = self.current.last() else { return };
        let stalls = &mut self.report.stalls;
        match stalls.last_mut().filter(|stall| (stall.block, stall.step) == (block, step)) {
            Some(stall) => stall.duration += duration,
            None => stalls.push(StepStall { block, step, duration }),
        }
    }

    /// An access of a load is over: its bytes are held no more, or will not be asked for.
    pub(super) fn release(&mut self, id: u64) {
        if let Some(load) = self.loads.get_mut(&id) {
            load.accesses = load.accesses.saturating_sub(1);
        }
        self.drop_unused(id);
    }

    /// A chunk is to stay no longer than the accesses that are planned need it.
    pub(super) fn unpin(&mut self, chunk: u32) {
        let (length, known) = (self.length(chunk), &mut self.chunks[chunk as usize]);
        known.charge = None;
        let Some(id) = known.load else { return };
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.pinned = false;
        if load.target.is_some() {
            self.unpinned_bytes += length;
        }
        self.drop_unused(id);
    }

    /// Drops a load that nobody needs any more.
    fn drop_unused(&mut self, id: u64) {
        let is_read = |load: &Load<B>| load.target.is_some() && matches!(load.status, Status::Pending);
        if self.loads.get(&id).is_some_and(|load| load.accesses == 0 && !load.pinned && !is_read(load))
            && let Some(load) = self.loads.remove(&id)
        {
            self.drop_load(load);
        }
    }

    fn drop_load(&mut self, load: Load<B>) {
        let length = self.length(load.chunk);
        match load.target {
            Some(Target::Slot(slot)) => self.free_slots.push(slot),
            Some(Target::Place(_)) if !load.pinned => self.unpinned_bytes -= length,
            Some(Target::Place(_)) | None => {}
        }
    }

    /// The next load that a read can be begun for.
    fn next_readable(&mut self) -> Option<u64> {
        while let Some(&id) = self.to_read.front().filter(|_| !self.dropping && !self.closing) {
            if let Some(load) = self.loads.get(&id) {
                return (load.pinned || !self.free_slots.is_empty()).then_some(id);
            }
            self.to_read.pop_front();
        }
        None
    }

    /// A read can be begun.
    pub(super) fn is_read_wanted(&mut self) -> bool {
        self.next_readable().is_some()
    }

    /// A read is in flight, or can be begun.
    pub(super) fn can_progress(&mut self) -> bool {
        self.in_flight > 0 || self.next_readable().is_some()
    }

    /// The next chunk to be read, where there is room for it.
    pub(super) fn begin_read(&mut self) -> Option<ChunkRead> {
        let id = self.next_readable()?;
        let load = self.loads.get_mut(&id)?;
        let charge = self.chunks[load.chunk as usize].charge.clone().filter(|_| load.pinned);
        let target = match charge {
            Some(charge) => Target::Place(charge),
            None => Target::Slot(self.free_slots.pop()?),
        };
        load.target = Some(target.clone());
        self.to_read.pop_front();
        self.in_flight += 1;
        Some(ChunkRead { load: id, chunk: load.chunk, target })
    }

    /// A read has completed.
    pub(super) fn complete(&mut self, read: &ChunkRead, result: Result<Arc<B>, String>) {
        self.in_flight -= 1;
        let length = self.length(read.chunk);
        let Some(load) = self.loads.get_mut(&read.load) else { return };
        let report = if load.pass > self.pass { &mut self.report_ahead } else { &mut self.report };
        report.stream_bytes += length;
        report.checked_bytes += length;
        report.reads += 1;
        load.status = result.map_or_else(Status::Failed, Status::Ready);
        self.drop_unused(read.load);
    }
}

#[cfg(test)]
mod tests;
