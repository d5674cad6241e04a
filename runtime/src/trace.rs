//! What happened when: steps, waits, reads, and work on each thread, as spans on tracks of their own.

use ipuc_kernels::team::{Observer, Team};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a span is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// Runs of entries, from their first step to their last.
    Runs,
    /// Steps, one after another.
    Steps,
    /// Steps that wait for weights.
    Stalls,
    /// A reader of weights.
    Reader(usize),
    /// A thread that shares the work of steps.
    Worker(usize),
}

/// Something that took time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Where it is shown.
    pub track: Track,
    /// What it was.
    pub name: String,
    /// The block and the step in it, where it is the execution of a step.
    pub step: Option<(u32, u32)>,
    /// Since the beginning of the trace.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
    /// Bytes that were read.
    pub bytes: Option<u64>,
}

/// Spans of a session, as they end.
#[derive(Debug)]
pub struct Trace {
    begun: Instant,
    spans: Mutex<Vec<Span>>,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { begun: Instant::now(), spans: Mutex::default() }
    }
}

impl Trace {
    /// All spans so far, by their begin.
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by_key(|span| (span.start, span.track));
        spans
    }

    /// Add a span that ends now.
    pub(crate) fn add(&self, track: Track, name: String, begun: Instant, bytes: Option<u64>) {
        self.push(track, name, None, begun, bytes);
    }

    /// Add the execution of a step of a block, which ends now.
    pub(crate) fn add_step(&self, (block, step): (u32, u32), operator: &str, node: &str, begun: Instant) {
        self.push(Track::Steps, format!("{block}:{step} {operator} {node}"), Some((block, step)), begun, None);
    }

    fn push(&self, track: Track, name: String, step: Option<(u32, u32)>, begun: Instant, bytes: Option<u64>) {
        let (start, duration) = (begun.saturating_duration_since(self.begun), begun.elapsed());
        let span = Span { track, name, step, start, duration, bytes };
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }
}

/// Have each thread of a team tell what it does, or no more.
pub(crate) fn watch_workers(team: &Team, trace: Option<&Arc<Trace>>) {
    let observer = trace.cloned().map(|trace| -> Observer {
        Arc::new(move |index, begun| trace.add(Track::Worker(index), "work".to_string(), begun, None))
    });
    team.observe(observer);
}
