//! Threads that bring chunks: one that looks after the reads of the system while the run does not, or, where the system has
//! no queue for them, several that read in turn.

use super::engine::Engine;
use super::lanes::{Arrival, Patience};
use super::promptness::run_promptly;
use super::source::{ChunkBytes, heap};
use super::state::Job;
use crate::trace::Track;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// Threads that read in turn. They check before they read on, so that more are needed than the device asks for.
const USUAL_READERS: usize = 8;

/// Starts whatever reads; `readers` are the threads that read in turn, 0 for as many as suit most devices. Where not all
/// threads can be started the others do their work; where none can, the run reads what it waits for.
pub(super) fn start(engine: &Arc<Engine>, readers: usize) -> Vec<JoinHandle<()>> {
    let threads: Vec<_> = if engine.lanes.is_some() {
        thread(engine, Engine::look_after_lanes).into_iter().collect()
    } else {
        let readers = if readers == 0 { USUAL_READERS } else { readers };
        (0..readers).filter_map(|lane| thread(engine, move |engine| engine.read(lane))).collect()
    };
    engine.readers.store(threads.len(), Ordering::Relaxed);
    threads
}

fn thread(engine: &Arc<Engine>, work: impl FnOnce(&Engine) + Send + 'static) -> Option<JoinHandle<()>> {
    let engine = engine.clone();
    Builder::new()
        .name("ipuc-read".to_string())
        .spawn(move || {
            run_promptly();
            work(&engine);
        })
        .ok()
}

impl Engine {
    /// Reads and checks chunks, one after another.
    fn read(&self, lane: usize) {
        while let Some(job) = self.next_job() {
            let begun = Instant::now();
            let chunk = self.read_in_place(job, self.place(job));
            self.take_in(Arrival { job, lane, begun, chunk });
        }
    }

    /// The next chunk to be read, as soon as there is one; `None` when the plan ends.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        while !state.closing {
            if let Some(job) = state.next_job() {
                return Some(job);
            }
            state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Looks after the reads of the system whenever the run does not, until the plan ends.
    fn look_after_lanes(&self) {
        let Some(lanes) = &self.lanes else { return };
        let mut state = self.lock();
        while !state.closing {
            if state.tended || (state.in_flight == 0 && !state.can_read()) {
                // The run may be waiting for the lanes that this thread has just left.
                self.arrived.notify_all();
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            self.tend(&mut lanes.lock().unwrap_or_else(PoisonError::into_inner), Patience::Waits);
            state = self.lock();
        }
    }

    /// Checks a chunk and says that it is there.
    pub(super) fn take_in(&self, Arrival { job, lane, begun, chunk }: Arrival) {
        let result = chunk.and_then(|chunk| self.check(job, chunk)).map(Arc::new);
        let bytes = self.source.manifest.chunks[job.chunk as usize].length;
        self.note(Track::Reader(lane), || format!("chunk {}", job.chunk), begun, Some(bytes));
        let mut state = self.lock();
        state.finish(job, result);
        self.call_readers(state);
        self.arrived.notify_all();
    }

    /// Where a chunk goes.
    pub(super) fn place(&self, job: Job) -> ChunkBytes {
        let length = self.source.manifest.chunks[job.chunk as usize].length as usize;
        let offset = job.ring_offset.map_or(self.places[job.chunk as usize], |offset| self.ring_start + offset);
        match self.arena.as_ref().and_then(|arena| arena.take(offset, length)) {
            Some(piece) => Box::new(piece),
            None => Box::new(heap(length)),
        }
    }

    pub(super) fn read_in_place(&self, job: Job, mut buffer: ChunkBytes) -> Result<ChunkBytes, String> {
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
