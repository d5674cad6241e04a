//! `--profile`: a trace that Perfetto and Chrome show, with a track for runs, steps, waits, each reader and each worker.
//!
//! The format is the JSON array of trace events (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>).

use super::written::{Written, write_text};
use ipuc_runtime::{Session, Trace, Track};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The trace, among the files that a command writes.
pub(super) fn written(path: Option<&Path>) -> Written<'_> {
    Written { what: "the trace", path, is_text: true }
}

/// Note what the session does from now on, where there is a file to store it in.
pub(super) fn begin(session: &mut Session, target: Option<&Path>) -> Option<Arc<Trace>> {
    let trace = target.map(|_| Arc::new(Trace::default()));
    session.set_trace(trace.clone());
    trace
}

/// Store what was noted.
pub(super) fn end(session: &mut Session, trace: Option<Arc<Trace>>, target: Option<&Path>) -> anyhow::Result<()> {
    session.set_trace(None);
    let (Some(trace), Some(target)) = (trace, target) else { return Ok(()) };
    let spans = trace.spans();
    let tracks: BTreeSet<Track> = spans.iter().map(|span| span.track).collect();
    let mut events = Vec::with_capacity(spans.len() + tracks.len());
    for track in tracks {
        let (number, name) = place(track);
        events.push(json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": { "name": name } }));
    }
    for span in spans {
        let mut event = json!({
            "ph": "X",
            "name": span.name,
            "pid": 1,
            "tid": place(span.track).0,
            "ts": span.start.as_nanos() as f64 / 1e3,
            "dur": span.duration.as_nanos() as f64 / 1e3,
        });
        if let Some(bytes) = span.bytes {
            event["args"] = json!({ "bytes": bytes });
        }
        events.push(event);
    }
    write_text(target, &json!({ "traceEvents": events }).to_string())
}

/// Number and name of a track.
fn place(track: Track) -> (usize, String) {
    match track {
        Track::Runs => (0, "runs".to_string()),
        Track::Steps => (1, "steps".to_string()),
        Track::Stalls => (2, "waits for weights".to_string()),
        Track::Reader(index) => (100 + index, format!("reader {index}")),
        Track::Worker(index) => (1000 + index, format!("worker {index}")),
    }
}
