//! Traces that `--profile` writes: what is in them.

use super::*;
use serde_json::Value as Json;

/// Begin and end of the spans on a track, by their begin.
fn spans(trace: &Json, track: &str) -> Vec<(f64, f64)> {
    let events = trace["traceEvents"].as_array().unwrap();
    let named = events.iter().find(|event| event["ph"] == "M" && event["args"]["name"] == track);
    let number = &named.unwrap_or_else(|| panic!("no track `{track}`: {trace}"))["tid"];
    let on_track = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == *number);
    let span = |event: &Json| {
        let (start, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        (start, start + duration)
    };
    let mut spans: Vec<_> = on_track.map(span).collect();
    spans.sort_by(|left, right| left.0.total_cmp(&right.0));
    spans
}

/// The run that is not counted is one of them, too.
#[test]
fn each_of_several_runs_is_marked() {
    let folder = folder_with_model();
    let output = run(folder.path(), "bench linear.onnx --runs 3 --threads 1 --profile trace.json");
    assert!(output.status.success(), "{}", errors(&output));
    let trace = fs::read_to_string(folder.path().join("trace.json")).unwrap();
    let trace: Json = serde_json::from_str(&trace).unwrap();
    let (runs, steps) = (spans(&trace, "runs"), spans(&trace, "steps"));
    assert_eq!((runs.len(), steps.len()), (4, 4), "one step a run: {trace}");
    assert!(runs.windows(2).all(|pair| pair[0].1 <= pair[1].0), "runs lie apart: {runs:?}");
    for (run, step) in runs.iter().zip(&steps) {
        assert!(run.0 <= step.0 && step.1 <= run.1, "each has its step: {run:?} {step:?}");
    }
}
