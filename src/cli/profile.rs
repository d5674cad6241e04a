//! `--profile`: a trace that Perfetto and Chrome show, with a track for runs, steps, waits, each reader and each worker. A trace
//! that goes to stdout has it alone.
//!
//! The format is the JSON array of trace events (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>).

use super::failure::Failure;
use super::output::{Output, is_stdout};
use crate::files::OutputFile;
use ipuc_passes::emit::Output as _;
use ipuc_runtime::{Session, Trace, Track};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Refuse what cannot be, before anything is done.
pub(super) fn prepare(target: Option<&Path>, output: &mut Output) -> Result<(), Failure> {
    if target.is_some_and(is_stdout) && !output.leave_stdout() {
        return Err(Failure::usage("the trace and --json cannot both go to stdout"));
    }
    Ok(())
}

/// Note what the session does from now on, where there is a file to store it in.
pub(super) fn begin(session: &mut Session, target: Option<&Path>) -> Option<Arc<Trace>> {
    let trace = target.map(|_| Arc::new(Trace::default()));
    session.set_trace(trace.clone());
    trace
}

/// Store what was noted.
pub(super) fn end(
    session: &mut Session,
    trace: Option<Arc<Trace>>,
    target: Option<&Path>,
    output: &mut Output,
) -> anyhow::Result<()> {
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
    let trace = json!({ "traceEvents": events }).to_string();
    if is_stdout(target) {
        return Ok(writeln!(output.stdout(), "{trace}")?);
    }
    let unwritten = |error| Failure::output(format!("cannot write `{}`", target.display()), &error);
    let file = OutputFile::create(target).map_err(unwritten)?;
    file.write_at(0, trace.as_bytes()).map_err(unwritten)?;
    file.finish().map_err(|error| unwritten(error).into())
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
