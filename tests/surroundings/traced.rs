//! Traces that `--profile` writes: what is in them, and where they go.

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

fn is_of_one_run(trace: &[u8]) {
    let trace: Json = serde_json::from_slice(trace).unwrap();
    assert_eq!((spans(&trace, "runs").len(), spans(&trace, "steps").len()), (1, 1), "{trace}");
}

/// A trace that goes to stdout has it alone: the result goes to stderr.
#[test]
fn a_trace_goes_through_devices_and_pipes() {
    let folder = folder_with_model();
    let folder = folder.path();
    let command = "run linear.onnx --random 1 -q --profile";
    let result = String::from_utf8(run(folder, "run linear.onnx --random 1 -q").stdout).unwrap();
    assert!(result.starts_with("y: f32[1, 2] "), "{result}");
    for target in ["-", "/dev/stdout"] {
        let piped = run(folder, &format!("{command} {target}"));
        assert_eq!((piped.status.code(), errors(&piped)), (Some(0), result.clone()), "{target}");
        is_of_one_run(&piped.stdout);
        let mut stored = ipuc(folder);
        stored.args(command.split(' ')).arg(target).stdout(fs::File::create(folder.join("stored.json")).unwrap());
        assert!(stored.status().unwrap().success(), "{target}");
        is_of_one_run(&fs::read(folder.join("stored.json")).unwrap());
        let both = run(folder, &format!("{command} {target} --json"));
        let refused = "error: the trace and --json cannot both go to stdout\n".to_string();
        assert_eq!((both.status.code(), errors(&both)), (Some(2), refused), "{target}");
    }
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let read = std::thread::spawn(move || fs::read(pipe).unwrap());
    let named = run(folder, &format!("{command} pipe"));
    assert_eq!((named.status.code(), named.stdout), (Some(0), result.clone().into_bytes()));
    is_of_one_run(&read.join().unwrap());
    assert_eq!(run(folder, &format!("{command} /dev/null")).stdout, result.into_bytes());
    assert_eq!(others(folder, &["linear.onnx", "stored.json", "pipe"]), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_without_room_is_an_error() {
    let folder = folder_with_model();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for target in ["-", "/dev/full"] {
        let mut command = ipuc(folder.path());
        command.args(["run", "linear.onnx", "--random", "1", "--profile", target]).stdout(full());
        let output = command.output().unwrap();
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(4), "{target}: {text}");
        assert!(text.contains("No space left on device"), "{target}: {text}");
    }
}
