//! The bookkeeping of streaming: no threads, no I/O, no clock.
//!
//! A *visit* is one time that a chunk is in memory. Visits are made in the order in which a walk ahead of the run comes to
//! them, are read in that order, and give their place in the ring back in that order: a visit whose parts have all been
//! given out, or whose steps are over, and that nobody holds, is done.

use super::order::{Order, Upcoming, Walker};
use super::report::{PassReport, StepStall};
use super::residency::Window;
use super::ring::Ring;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A run that has begun no more since it waited last is ahead of the device: one processor does as many in less time than
/// it takes to read what is under way.
const AHEAD_OPERATIONS: usize = 8_000_000;

/// Where the bytes of an access are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// In a chunk that stays.
    Pinned(u32),
    /// In the chunk of this visit.
    Visit(u64),
}

/// A chunk that stays.
#[derive(Debug)]
pub(super) enum Pinned<B> {
    /// It does not stay.
    No,
    /// Nobody has asked for it yet.
    Absent,
    /// It will be read.
    Queued,
    /// It is there.
    Loaded(Arc<B>),
    /// It could not be read.
    Failed(String),
}

/// How far the reading of a visit is.
#[derive(Debug)]
pub(super) enum Status<B> {
    Queued,
    Reading,
    Ready(Arc<B>),
    Failed(String),
    /// Its steps were over before it was read.
    Skipped,
}

#[derive(Debug)]
struct Visit<B> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) visit: u64,
    pub(super) chunk: u32,
    /// Offset in the ring; `None` for one that stays.
    pub(super) ring_offset: Option<usize>,
    pub(super) generation: u64,
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
pub(super) struct State<B> {
    pub(super) pinned: Vec<Pinned<B>>,
    lengths: Vec<usize>,
    /// Chunks that stay and that no step waits for: only rows of them are used.
    unawaited: Vec<u32>,
    ring: Ring,
    walker: Option<Walker>,
    window: Window,
    window_pass: u64,
    upcoming: VecDeque<Planned>,
    current: Vec<Planned>,
    visits: VecDeque<Visit<B>>,
    first_visit: u64,
    /// The next visit to be read.
    next_read: u64,
    pub(super) in_flight: usize,
    pub(super) generation: u64,
    pub(super) pass: u64,
    /// The run went where no walk had been: what it asks for is read directly until the pass is over.
    lost: bool,
    /// Whoever runs the pass looks after the reads, since it waits for them or comes back soon: no thread need be woken.
    pub(super) tended: bool,
    /// Operations that kernels have begun since the run waited last.
    begun_operations: usize,
    /// Readers are to end.
    pub(super) closing: bool,
    reports: BTreeMap<u64, PassReport>,
}

impl<B> State<B> {
    /// Nothing is in memory; `lengths` and `pinned` are by chunk.
    pub(super) fn new(lengths: Vec<usize>, pinned: &[bool], unawaited: Vec<u32>, ring: Ring) -> Self {
        State {
            unawaited,
            pinned: pinned.iter().map(|&stays| if stays { Pinned::Absent } else { Pinned::No }).collect(),
            lengths,
            ring,
            walker: None,
            window: Window::default(),
            window_pass: 0,
            upcoming: VecDeque::new(),
            current: Vec::new(),
            visits: VecDeque::new(),
            first_visit: 0,
            next_read: 0,
            in_flight: 0,
            generation: 0,
            pass: 0,
            lost: false,
            tended: false,
            begun_operations: usize::MAX,
            closing: false,
            reports: BTreeMap::new(),
        }
    }

    /// The walk ahead stands at the beginning of a pass of this entry.
    pub(super) fn is_aligned(&self, entry: u32) -> bool {
        let same = self.walker.as_ref().is_some_and(|walker| walker.entry() == entry);
        let begins = self.upcoming.front().is_none_or(|planned| planned.upcoming.pass == self.pass + 1);
        same && begins && self.current.is_empty() && !self.lost
    }

    /// Forget all that was expected. Nothing may be in flight.
    pub(super) fn forget(&mut self) {
        for visit in &self.visits {
            if visit.pinned {
                self.pinned[visit.chunk as usize] = Pinned::Absent;
            }
        }
        for pinned in &mut self.pinned {
            if matches!(pinned, Pinned::Failed(_)) {
                *pinned = Pinned::Absent;
            }
        }
        self.first_visit += self.visits.len() as u64;
        self.next_read = self.first_visit;
        self.visits.clear();
        self.ring.clear();
        self.walker = None;
        self.window = Window::default();
        self.upcoming.clear();
        self.current.clear();
        self.lost = false;
    }

    /// The run begins a pass of this entry.
    pub(super) fn begin_pass(&mut self, order: &Order, entry: u32) {
        self.pass += 1;
        self.reports.retain(|&pass, _| pass >= self.pass);
        if self.walker.is_none() {
            self.walker = Some(Walker::new(entry, self.pass, 0));
        }
        self.extend(order);
        for index in 0..self.unawaited.len() {
            self.visit(self.unawaited[index], self.pass);
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
    pub(super) fn enter_block(&mut self, order: &Order, block: u32) {
        let serial = self.current.last().map(|planned| planned.upcoming.serial);
        let entered = match (&mut self.walker, serial) {
            (Some(walker), Some(serial)) => walker.enter(serial, block),
            (None, _) | (_, None) => false,
        };
        self.lost |= !entered;
        self.extend(order);
    }

    /// The run leaves the stop where it is: what it did not ask for, it does not need.
    pub(super) fn end_step(&mut self, order: &Order, block: u32, step: u32) {
        let here = |planned: &Planned| (planned.upcoming.block, planned.step) == (block, step);
        if self.lost || !self.current.last().is_some_and(here) {
            self.lost = true;
            return;
        }
        let Some(planned) = self.current.pop() else { return };
        for access in planned.accesses.iter().filter(|access| !access.over) {
            self.settle(access.location);
        }
        if let Some(walker) = &mut self.walker {
            walker.leave(planned.upcoming.serial);
        }
        self.extend(order);
        self.retire();
    }

    /// Walk ahead as far as the order is known, at most to the end of the next pass.
    fn extend(&mut self, order: &Order) {
        let Some(mut walker) = self.walker.take() else { return };
        while !self.lost
            && let Some(upcoming) = walker.next(order, self.pass + 1)
        {
            let stop = &order.block(upcoming.block)[upcoming.stop];
            let accesses = stop.accesses.iter().map(|access| Expected {
                weight: access.weight,
                part: access.part,
                location: self.visit(access.chunk, upcoming.pass),
                over: false,
            });
            let planned = Planned { upcoming, step: stop.step, accesses: accesses.collect() };
            self.upcoming.push_back(planned);
        }
        self.walker = Some(walker);
    }

    /// The visit in which a chunk is used next, a new one where none is open.
    fn visit(&mut self, chunk: u32, pass: u64) -> Location {
        let pinned = match &self.pinned[chunk as usize] {
            Pinned::No => false,
            Pinned::Absent => true,
            Pinned::Queued | Pinned::Loaded(_) | Pinned::Failed(_) => return Location::Pinned(chunk),
        };
        if pinned {
            self.pinned[chunk as usize] = Pinned::Queued;
            self.visits.push_back(Visit { chunk, pass, pinned, pending: 0, holders: 0, status: Status::Queued });
            return Location::Pinned(chunk);
        }
        if self.window_pass != pass {
            self.window = Window::default();
            self.window_pass = pass;
        }
        if let Some(id) = self.window.find(chunk)
            && let Some(visit) = self.find_mut(id)
            && !matches!(visit.status, Status::Skipped | Status::Failed(_))
        {
            visit.pending += 1;
            return Location::Visit(id);
        }
        let id = self.first_visit + self.visits.len() as u64;
        self.window.push(chunk, id);
        self.visits.push_back(Visit { chunk, pass, pinned, pending: 1, holders: 0, status: Status::Queued });
        Location::Visit(id)
    }

    /// Where a visit stands among those that are open or to come.
    fn index(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.first_visit)?).ok()
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut Visit<B>> {
        let index = self.index(id)?;
        self.visits.get_mut(index)
    }

    /// An access has been given out or has gone by.
    fn settle(&mut self, location: Location) {
        if let Location::Visit(id) = location
            && let Some(visit) = self.find_mut(id)
        {
            visit.pending = visit.pending.saturating_sub(1);
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
            Location::Pinned(chunk) => !matches!(self.pinned[chunk as usize], Pinned::Queued),
            Location::Visit(id) => !matches!(self.status(id), Some(Status::Queued | Status::Reading)),
        })
    }

    /// The run waits for bytes.
    pub(super) fn waits(&mut self) {
        self.begun_operations = 0;
    }

    /// Kernels begin this many operations; whether the run will soon wait again.
    pub(super) fn stays_ahead(&mut self, operations: usize) -> bool {
        self.begun_operations = self.begun_operations.saturating_add(operations);
        self.begun_operations <= AHEAD_OPERATIONS
    }

    /// The block and step where the run is.
    fn position(&self) -> Option<(u32, u32)> {
        self.current.last().map(|planned| (planned.upcoming.block, planned.step))
    }

    /// The run has waited this long for bytes.
    pub(super) fn stalled(&mut self, duration: Duration) {
        let Some((block, step)) = self.position() else { return };
        let stalls = &mut self.report().stalls;
        match stalls.last_mut().filter(|stall| (stall.block, stall.step) == (block, step)) {
            Some(stall) => stall.duration += duration,
            None => stalls.push(StepStall { block, step, duration }),
        }
    }

    /// How far the reading of a visit is.
    pub(super) fn status(&self, id: u64) -> Option<&Status<B>> {
        self.visits.get(self.index(id)?).map(|visit| &visit.status)
    }

    /// The bytes of a visit that is ready, which somebody holds from now on.
    pub(super) fn hold(&mut self, id: u64) {
        if let Some(visit) = self.find_mut(id) {
            visit.holders += 1;
            visit.pending = visit.pending.saturating_sub(1);
        }
    }

    /// Somebody holds the bytes no more.
    pub(super) fn release(&mut self, id: u64) {
        if let Some(visit) = self.find_mut(id) {
            visit.holders = visit.holders.saturating_sub(1);
        }
        self.retire();
    }

    /// Drop visits that are done and give their places back.
    fn retire(&mut self) {
        while let Some(visit) = self.visits.front_mut() {
            let unused = visit.pending == 0 && visit.holders == 0;
            if unused && !visit.pinned && matches!(visit.status, Status::Queued) {
                visit.status = Status::Skipped;
            }
            let settled = match visit.status {
                Status::Queued | Status::Reading => false,
                Status::Ready(_) | Status::Failed(_) | Status::Skipped => visit.pinned || unused,
            };
            if !settled {
                return;
            }
            self.ring.free(self.first_visit);
            self.visits.pop_front();
            self.first_visit += 1;
            self.next_read = self.next_read.max(self.first_visit);
        }
    }

    /// A read can be begun.
    pub(super) fn can_read(&self) -> bool {
        let index = (self.next_read - self.first_visit) as usize;
        let next = self.visits.iter().skip(index).find(|visit| visit.pinned || visit.pending > 0);
        next.is_some_and(|visit| visit.pinned || self.ring.has_room())
    }

    /// The next chunk to be read, where there is room for it.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        loop {
            let id = self.next_read;
            let index = self.index(id)?;
            let visit = self.visits.get_mut(index)?;
            if !visit.pinned && visit.pending == 0 {
                visit.status = Status::Skipped;
                self.next_read += 1;
                continue;
            }
            let chunk = visit.chunk;
            let ring_offset = if visit.pinned { None } else { Some(self.ring.take(id)?) };
            visit.status = Status::Reading;
            self.next_read += 1;
            self.in_flight += 1;
            return Some(Job { visit: id, chunk, ring_offset, generation: self.generation });
        }
    }

    /// A read has ended.
    pub(super) fn finish(&mut self, job: Job, result: Result<Arc<B>, String>) {
        self.in_flight -= 1;
        if job.generation != self.generation {
            return;
        }
        let length = self.lengths[job.chunk as usize] as u64;
        let Some(visit) = self.find_mut(job.visit) else { return };
        let (pass, pinned) = (visit.pass, visit.pinned);
        visit.status = match &result {
            Ok(bytes) if !pinned => Status::Ready(bytes.clone()),
            Ok(_) => Status::Skipped,
            Err(reason) => Status::Failed(reason.clone()),
        };
        if pinned {
            self.pinned[job.chunk as usize] = match result {
                Ok(bytes) => Pinned::Loaded(bytes),
                Err(reason) => Pinned::Failed(reason),
            };
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
    use super::super::order::{Access, Bodies, Stop};
    use super::*;

    #[test]
    fn a_run_is_ahead_from_when_it_waits_until_it_has_done_much() {
        let mut state: State<()> = State::new(Vec::new(), &[], Vec::new(), Ring::new(0, 0));
        assert!(!state.stays_ahead(0), "it has not waited yet");
        state.waits();
        assert!(state.stays_ahead(AHEAD_OPERATIONS - 1) && state.stays_ahead(1));
        assert!(!state.stays_ahead(1) && !state.stays_ahead(usize::MAX) && !state.stays_ahead(0));
        state.waits();
        assert!(state.stays_ahead(1));
    }

    /// One step takes a part of a chunk that stays and two parts of chunks that stream, of which the ring holds one.
    #[test]
    fn parts_are_ready_once_they_are_read_and_until_they_are_given_out() {
        let accesses = (0..3).map(|part| Access { weight: 0, part, chunk: part }).collect();
        let stop = Stop { step: 0, accesses, bodies: Bodies::None, blocks: Vec::new() };
        let order = Order { blocks: vec![vec![stop]] };
        let mut state = State::new(vec![10; 3], &[true, false, false], Vec::new(), Ring::new(10, 10));
        state.begin_pass(&order, 0);
        state.begin_step(0, 0);
        let ready = |state: &State<()>| [0, 1, 2].map(|part| state.is_ready(0, part));
        assert_eq!(ready(&state), [false, false, false]);
        let (stays, first) = (state.next_job().unwrap(), state.next_job().unwrap());
        assert!(state.next_job().is_none(), "the ring is full");
        assert_eq!(ready(&state), [false, false, false], "both are being read");
        state.finish(stays, Ok(Arc::new(())));
        assert_eq!(ready(&state), [true, false, false]);
        state.finish(first, Err("broken".to_string()));
        assert_eq!(ready(&state), [true, true, false], "nobody has to wait for what has failed");
        assert_eq!(state.expect(0, 1), Some(Location::Visit(first.visit)));
        assert!(state.is_ready(0, 1), "what is not expected is read beside the ring, without waiting for a turn");
    }
}
