//! Reads that the system carries out while somebody looks after them: the run while it waits for them, or a thread of their
//! own while it does not.
//!
//! Whoever waits for bytes looks after the reads itself, so that the end of a read wakes the one thread that goes on with it:
//! it begins the next read, checks what has come, and computes. A thread in between would have to be woken, and to wake the
//! run, some thousand times a second each. That costs more than it says: the processors of a virtual machine that are woken
//! so often are hardly ever idle for its host, which then more often runs the thread that fills a virtual disk beside
//! another cache than ours.

use super::engine::Engine;
use super::pace::{Lines, Pace};
use super::source::ChunkBytes;
use super::state::Job;
use ipuc_formats::onnx::{EndedRead, ReadQueue};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A chunk that has been read, or what stands in its way; the read began at this time.
pub(super) struct Arrival {
    pub(super) job: Job,
    /// Its number among those side by side.
    pub(super) lane: usize,
    pub(super) begun: Instant,
    pub(super) chunk: Result<ChunkBytes, String>,
}

/// Whether somebody who looks after reads waits for the next that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It waits.
    Waits,
    /// It takes what is there.
    Looks,
}

/// A queue with the reads that are in it, by token.
pub(super) struct Lanes {
    queue: Box<dyn ReadQueue>,
    pace: Pace,
    /// Numbers of lanes without a read.
    idle: Vec<usize>,
    under_way: BTreeMap<u64, (Job, usize, Instant)>,
}

impl Lanes {
    /// Nothing is under way.
    pub(super) fn new(queue: Box<dyn ReadQueue>, pace: Pace) -> Self {
        let idle = (0..pace.most_reads()).rev().collect();
        Lanes { queue, pace, idle, under_way: BTreeMap::new() }
    }
}

impl Engine {
    /// Keeps as many reads under way as the pace says, and takes in what has ended.
    pub(super) fn tend(&self, lanes: &mut Lanes, patience: Patience) {
        let mut arrivals = self.begin_reads(lanes);
        if arrivals.is_empty() {
            let ended = match patience {
                Patience::Waits => lanes.queue.wait().unwrap_or_else(|_| {
                    // The reads go on; asking again at once would only take the processor from them.
                    std::thread::sleep(Duration::from_millis(1));
                    Vec::new()
                }),
                Patience::Looks => lanes.queue.ended(),
            };
            arrivals.extend(ended.into_iter().filter_map(|read| self.arrival(lanes, read)));
            // The device has work again before anything is checked.
            arrivals.extend(self.begin_reads(lanes));
        }
        arrivals.into_iter().for_each(|arrival| self.take_in(arrival));
    }

    /// Begins reads; gives those that the queue does not take, which are done here.
    fn begin_reads(&self, lanes: &mut Lanes) -> Vec<Arrival> {
        let most = lanes.pace.reads().saturating_sub(lanes.under_way.len());
        self.lines_leave.store(lanes.pace.lines() == Lines::Leave, Ordering::Relaxed);
        let mut state = self.lock();
        let jobs: Vec<Job> =
            if state.closing { Vec::new() } else { (0..most).map_while(|_| state.next_job()).collect() };
        drop(state);
        jobs.into_iter().filter_map(|job| self.begin(lanes, job)).collect()
    }

    fn begin(&self, lanes: &mut Lanes, job: Job) -> Option<Arrival> {
        let (begun, lane) = (Instant::now(), lanes.idle.pop().unwrap_or(0));
        let offset = self.source.manifest.chunks[job.chunk as usize].offset;
        let Err(buffer) = lanes.queue.begin(job.visit, offset, self.place(job)) else {
            lanes.under_way.insert(job.visit, (job, lane, begun));
            return None;
        };
        lanes.idle.push(lane);
        Some(Arrival { job, lane, begun, chunk: self.read_in_place(job, buffer) })
    }

    fn arrival(&self, lanes: &mut Lanes, read: EndedRead) -> Option<Arrival> {
        let (job, lane, begun) = lanes.under_way.remove(&read.token)?;
        lanes.idle.push(lane);
        match job.ring_offset {
            Some(_) => lanes.pace.ended(begun, Instant::now(), read.buffer.bytes().len() as u64),
            None => lanes.pace.interrupted(Instant::now()),
        }
        let chunk = if read.filled { Ok(read.buffer) } else { self.read_in_place(job, read.buffer) };
        Some(Arrival { job, lane, begun, chunk })
    }
}
