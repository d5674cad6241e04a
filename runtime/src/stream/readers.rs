//! Threads that bring chunks: one that keeps a queue of the system full and others that check what has come, or, where
//! there is no such queue, several that read and check in turn.

use super::engine::Engine;
use super::pace::Pace;
use super::promptness::run_promptly;
use super::ring::Reuse;
use super::source::{ChunkBytes, heap};
use super::state::Job;
use crate::trace::Track;
use ipuc_formats::onnx::{EndedRead, ReadQueue};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Threads that check what a queue brings.
const CHECKERS: usize = 2;

/// A chunk that has been read, or what stands in its way; the read began at this time.
struct Arrival {
    job: Job,
    lane: usize,
    begun: Instant,
    chunk: Result<ChunkBytes, String>,
}

/// A queue, with what is in it by token, and the numbers that a trace gives to reads side by side.
struct Lanes {
    queue: Box<dyn ReadQueue>,
    idle: Vec<usize>,
    under_way: BTreeMap<u64, (Job, usize, Instant)>,
}

/// Starts whatever reads: `reads` in flight, 0 for what suits most devices. Where not all threads can be started the others
/// do their work; where none can, parts are read directly.
pub(super) fn start(engine: &Arc<Engine>, reads: usize) -> Vec<JoinHandle<()>> {
    let pace = Pace::new(reads);
    let most = pace.most_reads();
    let threads = match engine.source.file.queue(most) {
        Some(queue) => queued(engine, queue, pace),
        // They check before they read on, so that more are needed than the device asks for.
        None => (0..most).filter_map(|lane| thread(engine, "read", move |engine| engine.read(lane))).collect(),
    };
    engine.readers.store(threads.len(), Ordering::Relaxed);
    threads
}

fn thread(engine: &Arc<Engine>, name: &str, work: impl FnOnce(&Engine) + Send + 'static) -> Option<JoinHandle<()>> {
    let engine = engine.clone();
    Builder::new()
        .name(format!("ipuc-{name}"))
        .spawn(move || {
            run_promptly();
            work(&engine);
        })
        .ok()
}

/// A thread for the queue and those that check.
fn queued(engine: &Arc<Engine>, queue: Box<dyn ReadQueue>, pace: Pace) -> Vec<JoinHandle<()>> {
    let (sender, receiver) = channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let checker = |_| {
        let receiver = receiver.clone();
        thread(engine, "check", move |engine| engine.check_arrivals(&receiver))
    };
    let mut threads: Vec<_> = (0..CHECKERS).filter_map(checker).collect();
    if threads.is_empty() {
        return threads;
    }
    match thread(engine, "read", move |engine| engine.keep_full(queue, pace, &sender)) {
        Some(thread) => threads.push(thread),
        // Those that check end with the sender.
        None => threads.clear(),
    }
    threads
}

impl Engine {
    /// Reads and checks chunks, one after another.
    fn read(&self, lane: usize) {
        while let Some(job) = self.next_job(Reuse::Latest) {
            let begun = Instant::now();
            let chunk = self.read_in_place(job, self.place(job));
            self.take_in(Arrival { job, lane, begun, chunk });
        }
    }

    /// The next chunk to be read, as soon as there is one; `None` when the plan ends.
    fn next_job(&self, reuse: Reuse) -> Option<Job> {
        let mut state = self.lock();
        while !state.closing {
            if let Some(job) = state.next_job(reuse) {
                return Some(job);
            }
            state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Chunks that can be read at once, at most `most`.
    fn jobs(&self, most: usize, reuse: Reuse) -> Vec<Job> {
        let mut state = self.lock();
        if state.closing { Vec::new() } else { (0..most).map_while(|_| state.next_job(reuse)).collect() }
    }

    /// Keeps as many reads in the queue as the pace says, as long as there is something to read and room for it.
    fn keep_full(&self, queue: Box<dyn ReadQueue>, mut pace: Pace, arrivals: &Sender<Arrival>) {
        let idle = (0..pace.most_reads()).rev().collect();
        let mut lanes = Lanes { queue, idle, under_way: BTreeMap::new() };
        let mut ended: Vec<Arrival> = Vec::new();
        loop {
            let most = pace.reads().saturating_sub(lanes.under_way.len());
            ended.extend(self.jobs(most, pace.reuse()).into_iter().filter_map(|job| self.begin(&mut lanes, job)));
            // Now that the device has work again. Nobody listens any more only when the plan has ended.
            ended.drain(..).for_each(|arrival| _ = arrivals.send(arrival));
            if lanes.under_way.is_empty() {
                let Some(job) = self.next_job(pace.reuse()) else { return };
                ended.extend(self.begin(&mut lanes, job));
                continue;
            }
            let reads = lanes.queue.wait().unwrap_or_else(|_| {
                // The reads go on; asking again at once would only take the processor from them.
                std::thread::sleep(Duration::from_millis(1));
                Vec::new()
            });
            for EndedRead { token, buffer, filled } in reads {
                let Some((job, lane, begun)) = lanes.under_way.remove(&token) else { continue };
                lanes.idle.push(lane);
                if job.ring_offset.is_some() {
                    pace.ended(begun, Instant::now(), buffer.bytes().len() as u64);
                }
                let chunk = if filled { Ok(buffer) } else { self.read_in_place(job, buffer) };
                ended.push(Arrival { job, lane, begun, chunk });
            }
        }
    }

    /// Puts a read into the queue; one that the queue does not take is done here.
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

    fn check_arrivals(&self, arrivals: &Mutex<Receiver<Arrival>>) {
        loop {
            let arrival = arrivals.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(arrival) = arrival else { return };
            self.take_in(arrival);
        }
    }

    /// Checks a chunk and says that it is there.
    fn take_in(&self, Arrival { job, lane, begun, chunk }: Arrival) {
        let result = chunk.and_then(|chunk| self.check(job, chunk)).map(Arc::new);
        let bytes = self.source.manifest.chunks[job.chunk as usize].length;
        self.note(Track::Reader(lane), || format!("chunk {}", job.chunk), begun, Some(bytes));
        self.lock().finish(job, result);
        self.arrived.notify_all();
        self.wanted.notify_all();
    }

    /// Where a chunk goes.
    fn place(&self, job: Job) -> ChunkBytes {
        let length = self.source.manifest.chunks[job.chunk as usize].length as usize;
        let offset = job.ring_offset.map_or(self.places[job.chunk as usize], |offset| self.ring_start + offset);
        match self.arena.as_ref().and_then(|arena| arena.take(offset, length)) {
            Some(piece) => Box::new(piece),
            None => Box::new(heap(length)),
        }
    }

    fn read_in_place(&self, job: Job, mut buffer: ChunkBytes) -> Result<ChunkBytes, String> {
        let offset = self.source.manifest.chunks[job.chunk as usize].offset;
        let target = buffer.bytes_mut().unwrap_or_default();
        let read = self.source.file.read_exact_at(offset, target);
        read.map_err(|error| unusable(job, offset, &error))?;
        Ok(buffer)
    }

    fn check(&self, job: Job, chunk: ChunkBytes) -> Result<ChunkBytes, String> {
        let manifest = &self.source.manifest;
        let record = manifest.chunks[job.chunk as usize];
        for index in manifest.extents_of_chunk(job.chunk) {
            let extent = &manifest.extents[index];
            let bytes = &chunk.bytes()[extent.range_in(&record)];
            extent.check(index as u32, bytes).map_err(|error| unusable(job, record.offset, &error))?;
        }
        Ok(chunk)
    }
}

fn unusable(job: Job, offset: u64, error: &dyn std::fmt::Display) -> String {
    format!("chunk {} at offset {offset} cannot be used: {error}", job.chunk)
}
