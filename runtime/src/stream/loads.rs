//! Which chunks are in memory, which are read next and where to, who holds them, and when their places are free: no
//! threads, no I/O, no clock.
//!
//! A *load* is one time that a chunk passes through the ring, or the only time that a chunk which stays is read. Loads are
//! made in the order in which the lookahead comes to them and are read in that order. A load whose parts have all been given
//! out, or whose steps are over, and that nobody holds, is done; places in the ring are given back in the order of loads.

use super::chunks::{Chunks, Pinned};
use super::lookahead::{Lookahead, Upcoming};
use super::report::{PassReport, StepStall};
use super::residency::RecentChunks;
use super::ring::Ring;
use super::schedule::Schedule;
use crate::memory::Charge;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A run that has begun no more operations since it waited last will soon wait again: one processor does as many in less
/// time than the reads in flight take.
const SHORT_OPERATIONS: usize = 8_000_000;

/// Where the bytes of an access are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// In a chunk that stays.
    Pinned(u32),
    /// In the chunk of this load.
    Load(u64),
}

/// How far the reading of a load is.
#[derive(Debug)]
pub(super) enum Status<B> {
    Queued,
    Reading,
    Ready(Arc<B>),
    Failed(String),
    /// Its steps were over before it was read, or it was for a chunk that stays.
    Skipped,
}

#[derive(Debug)]
struct Load<B> {
    chunk: u32,
    pass: u64,
    pinned: bool,
    /// Accesses that have neither been given out nor gone by.
    pending: u32,
    /// How many hold its bytes.
    holders: u32,
    status: Status<B>,
}

/// A chunk to be read.
#[derive(Debug, Clone)]
pub(super) struct ChunkRead {
    pub(super) load: u64,
    pub(super) chunk: u32,
    pub(super) target: Target,
    generation: u64,
}

/// Where a chunk is read to.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// At this offset of the ring.
    Ring(usize),
    /// To the place where it stays, whose memory is charged.
    Place(Option<Arc<Charge>>),
}

/// One access of a stop that the run has come to or will come to.
#[derive(Debug)]
struct Expected {
    weight: u32,
    part: u32,
    location: Location,
    over: bool,
}

/// A stop with its accesses.
#[derive(Debug)]
struct Planned {
    upcoming: Upcoming,
    step: u32,
    accesses: Vec<Expected>,
}

/// Everything that is known about one run after another.
#[derive(Debug)]
pub(super) struct Loads<B> {
    pub(super) chunks: Chunks<B>,
    /// Chunks of which only rows are used: no step waits for them.
    rows_only: Vec<u32>,
    ring: Ring,
    lookahead: Option<Lookahead>,
    recent: RecentChunks,
    recent_pass: u64,
    upcoming: VecDeque<Planned>,
    current: Vec<Planned>,
    loads: VecDeque<Load<B>>,
    first_load: u64,
    /// The next load to be read.
    next_read: u64,
    pub(super) in_flight: usize,
    /// Changes when all that was planned is forgotten.
    pub(super) generation: u64,
    pass: u64,
    /// The run went where no lookahead had been: what it asks for is read directly until the pass is over.
    lost: bool,
    /// What was read ahead is about to be dropped: no read begins.
    dropping: bool,
    /// The run polls for completed reads, since it waits for them or soon will: no thread need be woken.
    pub(super) run_polls: bool,
    /// Operations that kernels have begun since the run waited last.
    begun_operations: usize,
    /// Threads are to end.
    pub(super) closing: bool,
    reports: BTreeMap<u64, PassReport>,
}

impl<B> Loads<B> {
    /// Nothing is in memory.
    pub(super) fn new(chunks: Chunks<B>, rows_only: Vec<u32>, ring: Ring) -> Self {
        Loads {
            chunks,
            rows_only,
            ring,
            lookahead: None,
            recent: RecentChunks::default(),
            recent_pass: 0,
            upcoming: VecDeque::new(),
            current: Vec::new(),
            loads: VecDeque::new(),
            first_load: 0,
            next_read: 0,
            in_flight: 0,
            generation: 0,
            pass: 0,
            lost: false,
            dropping: false,
            run_polls: false,
            begun_operations: usize::MAX,
            closing: false,
            reports: BTreeMap::new(),
        }
    }

    /// The lookahead stands at the beginning of a pass of this entry.
    pub(super) fn is_aligned(&self, entry: u32) -> bool {
        let same = self.lookahead.as_ref().is_some_and(|lookahead| lookahead.entry() == entry);
        let begins = self.upcoming.front().is_none_or(|planned| planned.upcoming.pass == self.pass + 1);
        same && begins && self.current.is_empty() && !self.lost
    }

    /// What was planned will be forgotten as soon as nothing is in flight: begin no more reads.
    pub(super) fn prepare_to_forget(&mut self) {
        self.generation += 1;
        self.dropping = true;
    }

    /// Forget all that was planned, and drop what was read ahead. Nothing may be in flight.
    pub(super) fn forget(&mut self) {
        self.dropping = false;
        let mut dropped_bytes = 0;
        for load in self.loads.drain(..) {
            self.first_load += 1;
            if !load.pinned && load.pending > 0 && matches!(load.status, Status::Ready(_)) {
                dropped_bytes += self.chunks.length(load.chunk);
            }
        }
        self.next_read = self.first_load;
        self.ring.clear();
        self.lookahead = None;
        self.recent = RecentChunks::default();
        self.upcoming.clear();
        self.current.clear();
        self.lost = false;
        self.reports.entry(self.pass + 1).or_default().dropped_bytes += dropped_bytes;
        self.chunks.forget();
    }

    /// The run begins a pass of this entry.
    pub(super) fn begin_pass(&mut self, schedule: &Schedule, entry: u32) {
        self.pass += 1;
        self.reports.retain(|&pass, _| pass >= self.pass);
        if self.lookahead.is_none() {
            self.lookahead = Some(Lookahead::new(entry, self.pass, 0));
        }
        self.extend(schedule);
        for index in 0..self.rows_only.len() {
            let chunk = self.rows_only[index];
            if self.chunks.queue(chunk) {
                self.push_pinned(chunk, self.pass);
            }
        }
    }

    /// What the pass read; it is over.
    pub(super) fn end_pass(&mut self) -> PassReport {
        self.reports.remove(&self.pass).unwrap_or_default()
    }

    /// The counts of the running pass.
    pub(super) fn report(&mut self) -> &mut PassReport {
        self.reports.entry(self.pass).or_default()
    }

    /// The run comes to a stop.
    pub(super) fn begin_step(&mut self, block: u32, step: u32) {
        let expected = self.upcoming.front().is_some_and(|planned| {
            (planned.upcoming.block, planned.step) == (block, step) && planned.upcoming.pass == self.pass
        });
        if !expected || self.lost {
            self.lost = true;
            return;
        }
        self.current.extend(self.upcoming.pop_front());
    }

    /// The run enters a block of the stop where it is.
    pub(super) fn enter_block(&mut self, schedule: &Schedule, block: u32) {
        let serial = self.current.last().map(|planned| planned.upcoming.serial);
        let entered = match (&mut self.lookahead, serial) {
            (Some(lookahead), Some(serial)) => lookahead.enter(serial, block),
            (None, _) | (_, None) => false,
        };
        self.lost |= !entered;
        self.extend(schedule);
    }

    /// The run leaves the stop where it is: what it did not ask for, it does not need.
    pub(super) fn end_step(&mut self, schedule: &Schedule, block: u32, step: u32) {
        let here = |planned: &Planned| (planned.upcoming.block, planned.step) == (block, step);
        if self.lost || !self.current.last().is_some_and(here) {
            self.lost = true;
            return;
        }
        let Some(planned) = self.current.pop() else { return };
        for access in planned.accesses.iter().filter(|access| !access.over) {
            self.settle(access.location);
        }
        if let Some(lookahead) = &mut self.lookahead {
            lookahead.leave(planned.upcoming.serial);
        }
        self.extend(schedule);
        self.retire();
    }

    /// Plan as far as the order is known, at most to the end of the next pass.
    fn extend(&mut self, schedule: &Schedule) {
        let Some(mut lookahead) = self.lookahead.take() else { return };
        while !self.lost
            && let Some(upcoming) = lookahead.next(schedule, self.pass + 1)
        {
            let stop = &schedule.block(upcoming.block)[upcoming.stop];
            let accesses = stop.accesses.iter().map(|access| Expected {
                weight: access.weight,
                part: access.part,
                location: self.locate(access.chunk, upcoming.pass),
                over: false,
            });
            let planned = Planned { upcoming, step: stop.step, accesses: accesses.collect() };
            self.upcoming.push_back(planned);
        }
        self.lookahead = Some(lookahead);
    }

    /// Where the next access of a chunk finds it; a new load where none is open.
    fn locate(&mut self, chunk: u32, pass: u64) -> Location {
        if self.chunks.stays(chunk) {
            self.chunks.plan_use(chunk);
            if self.chunks.queue(chunk) {
                self.push_pinned(chunk, pass);
            }
            return Location::Pinned(chunk);
        }
        if self.recent_pass != pass {
            self.recent = RecentChunks::default();
            self.recent_pass = pass;
        }
        if let Some(id) = self.recent.find(chunk)
            && let Some(load) = self.find_mut(id)
            && !matches!(load.status, Status::Skipped | Status::Failed(_))
        {
            load.pending += 1;
            return Location::Load(id);
        }
        let id = self.first_load + self.loads.len() as u64;
        self.recent.push(chunk, id);
        self.loads.push_back(Load { chunk, pass, pinned: false, pending: 1, holders: 0, status: Status::Queued });
        Location::Load(id)
    }

    fn push_pinned(&mut self, chunk: u32, pass: u64) {
        self.loads.push_back(Load { chunk, pass, pinned: true, pending: 0, holders: 0, status: Status::Queued });
    }

    /// Another ring. Nothing may be in the present one.
    pub(super) fn set_ring(&mut self, ring: Ring) {
        self.ring = ring;
    }

    /// Where a load stands among those that are open or to come.
    fn index(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.first_load)?).ok()
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut Load<B>> {
        let index = self.index(id)?;
        self.loads.get_mut(index)
    }

    /// An access has been given out or has gone by.
    fn settle(&mut self, location: Location) {
        match location {
            Location::Load(id) => {
                if let Some(load) = self.find_mut(id) {
                    load.pending = load.pending.saturating_sub(1);
                }
            }
            Location::Pinned(chunk) => self.chunks.settle_use(chunk),
        }
    }

    /// Where the part of a weight is that the step asks for; `None` where it is not expected here.
    pub(super) fn expect(&mut self, weight: u32, part: u32) -> Option<Location> {
        if self.lost {
            return None;
        }
        let accesses = &mut self.current.last_mut()?.accesses;
        let access =
            accesses.iter_mut().find(|access| !access.over && (access.weight, access.part) == (weight, part))?;
        access.over = true;
        Some(access.location)
    }

    /// Whether the step would get this part without waiting for it to be read on its turn.
    pub(super) fn is_ready(&self, weight: u32, part: u32) -> bool {
        let accesses = self.current.last().map_or(&[][..], |planned| &planned.accesses);
        let expected = accesses.iter().find(|access| !access.over && (access.weight, access.part) == (weight, part));
        expected.is_none_or(|access| match access.location {
            Location::Pinned(chunk) => !matches!(self.chunks.pinned(chunk), Pinned::Queued),
            Location::Load(id) => !matches!(self.status(id), Some(Status::Queued | Status::Reading)),
        })
    }

    /// The run waits for bytes.
    pub(super) fn waits(&mut self) {
        self.begun_operations = 0;
    }

    /// Kernels begin this many operations; whether the run will soon wait again.
    pub(super) fn waits_soon(&mut self, operations: usize) -> bool {
        self.begun_operations = self.begun_operations.saturating_add(operations);
        self.begun_operations <= SHORT_OPERATIONS
    }

    /// The run has waited this long for bytes.
    pub(super) fn stalled(&mut self, duration: Duration) {
        let Some(planned) = self.current.last() else { return };
        let (block, step) = (planned.upcoming.block, planned.step);
        let stalls = &mut self.report().stalls;
        match stalls.last_mut().filter(|stall| (stall.block, stall.step) == (block, step)) {
            Some(stall) => stall.duration += duration,
            None => stalls.push(StepStall { block, step, duration }),
        }
    }

    /// How far the reading of a load is.
    pub(super) fn status(&self, id: u64) -> Option<&Status<B>> {
        self.loads.get(self.index(id)?).map(|load| &load.status)
    }

    /// The bytes of an access have been given out; those of a load are held until [`Loads::release`].
    pub(super) fn give_out(&mut self, location: Location) {
        if let Location::Load(id) = location
            && let Some(load) = self.find_mut(id)
        {
            load.holders += 1;
        }
        self.settle(location);
    }

    /// Somebody holds the bytes of a load no more.
    pub(super) fn release(&mut self, id: u64) {
        if let Some(load) = self.find_mut(id) {
            load.holders = load.holders.saturating_sub(1);
        }
        self.retire();
    }

    /// Drop loads that are done and give their places back.
    fn retire(&mut self) {
        while let Some(load) = self.loads.front_mut() {
            let unused = load.pending == 0 && load.holders == 0;
            if unused && !load.pinned && matches!(load.status, Status::Queued) {
                load.status = Status::Skipped;
            }
            let settled = match load.status {
                Status::Queued | Status::Reading => false,
                Status::Ready(_) | Status::Failed(_) | Status::Skipped => load.pinned || unused,
            };
            if !settled {
                return;
            }
            self.ring.free(self.first_load);
            self.loads.pop_front();
            self.first_load += 1;
            self.next_read = self.next_read.max(self.first_load);
        }
    }

    /// A load still has to be read: for a chunk that stays, that it still does; for another, that somebody needs it.
    fn is_wanted(&self, load: &Load<B>) -> bool {
        if load.pinned { matches!(self.chunks.pinned(load.chunk), Pinned::Queued) } else { load.pending > 0 }
    }

    /// A read can be begun.
    pub(super) fn can_read(&self) -> bool {
        if self.dropping {
            return false;
        }
        let index = (self.next_read - self.first_load) as usize;
        let next = self.loads.iter().skip(index).find(|load| self.is_wanted(load));
        next.is_some_and(|load| load.pinned || self.ring.has_room())
    }

    /// The next chunk to be read, where there is room for it.
    pub(super) fn next_read(&mut self) -> Option<ChunkRead> {
        while !self.dropping {
            let id = self.next_read;
            let index = self.index(id)?;
            let wanted = self.is_wanted(self.loads.get(index)?);
            let load = self.loads.get_mut(index)?;
            if !wanted {
                load.status = Status::Skipped;
                self.next_read += 1;
                continue;
            }
            let target = match load.pinned {
                true => Target::Place(self.chunks.charge(load.chunk)),
                false => Target::Ring(self.ring.take(id)?),
            };
            load.status = Status::Reading;
            self.next_read += 1;
            self.in_flight += 1;
            return Some(ChunkRead { load: id, chunk: load.chunk, target, generation: self.generation });
        }
        None
    }

    /// A read has ended.
    pub(super) fn finish(&mut self, read: &ChunkRead, result: Result<Arc<B>, String>) {
        self.in_flight -= 1;
        if read.generation != self.generation {
            let length = self.chunks.length(read.chunk);
            let report = self.reports.entry(self.pass + 1).or_default();
            report.stream_bytes += length;
            report.dropped_bytes += length;
            report.reads += 1;
            return;
        }
        let Some(load) = self.find_mut(read.load) else { return };
        let (pass, pinned) = (load.pass, load.pinned);
        load.status = match &result {
            Ok(bytes) if !pinned => Status::Ready(bytes.clone()),
            Ok(_) => Status::Skipped,
            Err(reason) => Status::Failed(reason.clone()),
        };
        let length = self.chunks.length(read.chunk);
        if pinned {
            self.chunks.finish(read.chunk, result);
        }
        let report = self.reports.entry(pass).or_default();
        report.stream_bytes += length;
        report.checked_bytes += length;
        report.reads += 1;
        self.retire();
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::{Access, Bodies, Stop};
    use super::*;
    use crate::memory::Budget;

    #[test]
    fn a_run_waits_soon_until_it_has_begun_much() {
        let mut loads: Loads<()> = Loads::new(Chunks::new(&[], Vec::new()), Vec::new(), Ring::new(0, 0));
        assert!(!loads.waits_soon(0), "it has not waited yet");
        loads.waits();
        assert!(loads.waits_soon(SHORT_OPERATIONS - 1) && loads.waits_soon(1));
        assert!(!loads.waits_soon(1) && !loads.waits_soon(usize::MAX) && !loads.waits_soon(0));
        loads.waits();
        assert!(loads.waits_soon(1));
    }

    /// One step that takes a part of each of `chunks` chunks of 10 bytes, of which the first `pinned` stay.
    fn loads(chunks: u32, pinned: u32, budget: &Arc<Budget>) -> (Schedule, Loads<()>) {
        let accesses = (0..chunks).map(|part| Access { weight: 0, part, chunk: part }).collect();
        let stop = Stop { step: 0, accesses, bodies: Bodies::None, blocks: Vec::new() };
        let charges = (0..chunks).map(|chunk| (chunk < pinned).then(|| budget.charge(10).unwrap())).collect();
        let lengths = vec![10; chunks as usize];
        (
            Schedule { blocks: vec![vec![stop]] },
            Loads::new(Chunks::new(&lengths, charges), Vec::new(), Ring::new(10, 10)),
        )
    }

    /// Reads what can be read; gives the chunks.
    fn read_all(loads: &mut Loads<()>) -> Vec<u32> {
        let reads: Vec<ChunkRead> = std::iter::from_fn(|| loads.next_read()).collect();
        reads.iter().for_each(|read| loads.finish(read, Ok(Arc::new(()))));
        reads.iter().map(|read| read.chunk).collect()
    }

    /// Asks for the part of a chunk, and gives it back at once.
    fn take(loads: &mut Loads<()>, part: u32) -> Location {
        let location = loads.expect(0, part).unwrap();
        loads.give_out(location);
        if let Location::Load(load) = location {
            loads.release(load);
        }
        location
    }

    #[test]
    fn a_chunk_that_is_leaving_is_used_once_more_then_dropped_and_read_through_the_ring() {
        let budget = Budget::new(None);
        let (schedule, mut loads) = loads(2, 2, &budget);
        loads.begin_pass(&schedule, 0);
        loads.begin_step(0, 0);
        assert_eq!(read_all(&mut loads), [0, 1]);
        take(&mut loads, 0);
        take(&mut loads, 1);
        loads.end_step(&schedule, 0, 0);
        loads.end_pass();
        loads.chunks.unpin(0);
        assert_eq!(
            (loads.chunks.leaving_bytes(), budget.in_use_bytes()),
            (10, 20),
            "the second pass is planned with it"
        );
        loads.begin_pass(&schedule, 0);
        loads.begin_step(0, 0);
        assert_eq!(take(&mut loads, 0), Location::Pinned(0));
        assert_eq!((loads.chunks.leaving_bytes(), budget.in_use_bytes()), (0, 10), "after that use it is dropped");
        take(&mut loads, 1);
        loads.end_step(&schedule, 0, 0);
        assert_eq!((loads.end_pass().stream_bytes, read_all(&mut loads)), (0, vec![0]), "read ahead for the next pass");
        loads.begin_pass(&schedule, 0);
        loads.begin_step(0, 0);
        assert!(matches!(take(&mut loads, 0), Location::Load(_)));
        assert_eq!((take(&mut loads, 1), loads.end_pass().stream_bytes), (Location::Pinned(1), 10));
        // What is read ahead is dropped and counted, and what is leaving goes at once.
        loads.end_step(&schedule, 0, 0);
        assert_eq!(read_all(&mut loads), [0]);
        loads.chunks.unpin(1);
        loads.forget();
        assert_eq!((budget.in_use_bytes(), loads.chunks.leaving_bytes()), (0, 0));
        loads.begin_pass(&schedule, 0);
        assert_eq!((loads.report().dropped_bytes, read_all(&mut loads)), (10, vec![0]));
    }

    #[test]
    fn a_chunk_that_leaves_before_it_is_read_is_not_read_to_its_place() {
        let budget = Budget::new(None);
        let (schedule, mut loads) = loads(2, 2, &budget);
        loads.chunks.unpin(0);
        assert_eq!(budget.in_use_bytes(), 10);
        loads.begin_pass(&schedule, 0);
        let reads: Vec<ChunkRead> = std::iter::from_fn(|| loads.next_read()).collect();
        assert!(matches!(
            reads[..],
            [ChunkRead { target: Target::Ring(0), .. }, ChunkRead { target: Target::Place(_), .. }]
        ));
    }

    /// One step takes a part of a chunk that stays and two parts of chunks that stream, of which the ring holds one.
    #[test]
    fn parts_are_ready_once_they_are_read_and_until_they_are_given_out() {
        let (schedule, mut ahead) = loads(3, 1, &Budget::new(None));
        ahead.begin_pass(&schedule, 0);
        ahead.begin_step(0, 0);
        let ready = |ahead: &Loads<()>| [0, 1, 2].map(|part| ahead.is_ready(0, part));
        assert_eq!(ready(&ahead), [false, false, false]);
        let (stays, first) = (ahead.next_read().unwrap(), ahead.next_read().unwrap());
        assert!(ahead.next_read().is_none(), "the ring is full");
        assert_eq!(ready(&ahead), [false, false, false], "both are being read");
        ahead.finish(&stays, Ok(Arc::new(())));
        assert_eq!(ready(&ahead), [true, false, false]);
        ahead.finish(&first, Err("broken".to_string()));
        assert_eq!(ready(&ahead), [true, true, false], "nobody has to wait for what has failed");
        assert_eq!(ahead.expect(0, 1), Some(Location::Load(first.load)));
        assert!(ahead.is_ready(0, 1), "what is not expected is read beside the ring, without waiting for a turn");
    }
}
