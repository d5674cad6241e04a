//! `ipuc bench`: how long a run takes, and what it reads.

use super::Outcome;
use super::arguments::times;
use super::execute::{DimensionArguments, InputArguments, Loaded, ModelArguments, gather};
use super::failure::Code;
use super::output::{Output, Unit, bytes, count, seconds};
use super::profile;
use clap::Args;
use ipuc_formats::model::Manifest;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Run a model several times and print how long it takes; inputs that are not given are made up
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    inputs: InputArguments,
    #[command(flatten)]
    dimensions: DimensionArguments,
    /// How often it is run, after one run that is not counted
    #[arg(long, value_name = "N", default_value = "10", value_parser = times)]
    runs: u32,
    /// Store a trace of reads, waits, steps and workers, which Perfetto shows
    #[arg(long, value_name = "TRACE.json")]
    profile: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    model: String,
    entry: String,
    /// Stored bytes of all weights.
    weights_bytes: u64,
    /// Memory that weights and activations may use; null where there is no limit.
    budget_bytes: Option<u64>,
    /// Bytes of weights that stay in memory.
    pinned_bytes: u64,
    /// Planned bytes of activations.
    arena_bytes: u64,
    /// Most memory that the process had at any time, mapped files included; null where the system does not tell.
    peak_rss_bytes: Option<u64>,
    /// The run that is not counted.
    first: Run,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    seconds: f64,
    /// Bytes of weights that were read from the file.
    bytes_read: u64,
    /// What of that are rows that were chosen by index.
    row_bytes: u64,
    /// Time that steps waited for weights.
    stall_seconds: f64,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let loaded = Loaded::open(&arguments.model, &arguments.dimensions, output)?;
    let entry = loaded.model.entry(arguments.model.entry.as_deref())?;
    let inputs = arguments.inputs.or_random();
    let inputs = gather(&loaded, entry, &inputs, &arguments.dimensions.dim, output)?;
    let mut session = loaded.session()?;
    let target = arguments.profile.as_deref();
    let trace = profile::begin(&mut session, target);
    let mut timed = || -> anyhow::Result<Run> {
        let given = inputs.clone();
        session.reset();
        let start = Instant::now();
        session.run(Some(&entry.name), given)?;
        let duration = start.elapsed();
        let pass = session.last_pass().unwrap_or_default();
        Ok(Run {
            seconds: duration.as_secs_f64(),
            bytes_read: pass.bytes_read(),
            row_bytes: pass.row_bytes,
            stall_seconds: pass.stalled().as_secs_f64(),
        })
    };
    let first = timed()?;
    let total = arguments.runs;
    let bar = output.bar("running", Unit::Items);
    let mut runs = Vec::new();
    for index in 0..total {
        bar.set(u64::from(index), u64::from(total));
        runs.push(timed()?);
    }
    drop(bar);
    profile::end(&mut session, trace, target)?;
    let weights_bytes = stored_bytes(loaded.model.manifest());
    let peak_rss_bytes = peak_rss_bytes();
    let mut sorted: Vec<Duration> = runs.iter().map(|run| Duration::from_secs_f64(run.seconds)).collect();
    sorted.sort();
    let (least, median) = (sorted[0], sorted[sorted.len() / 2]);
    output.line(format_args!(
        "{}: median {}, least {}, first {}",
        count(runs.len(), "run"),
        seconds(median),
        seconds(least),
        seconds(Duration::from_secs_f64(first.seconds))
    ))?;
    let arena_bytes = session.arena_bytes();
    let peak = peak_rss_bytes.map_or_else(String::new, |peak| format!(", {} of memory at most", bytes(peak)));
    output.line(format_args!("{} of weights, {} of activations{peak}", bytes(weights_bytes), bytes(arena_bytes)))?;
    let residency = loaded.model.residency();
    if let Some(residency) = &residency {
        let last = runs.last().map_or(0, |run| run.bytes_read);
        output.line(format_args!(
            "{} of weights stay, {} pass through {}, {} read in the last run",
            bytes(residency.pinned_bytes),
            bytes(residency.weights_bytes - residency.pinned_bytes),
            bytes(residency.ring_bytes),
            bytes(last)
        ))?;
    }
    output.json(&Summary {
        model: loaded.path.display().to_string(),
        entry: entry.name.clone(),
        weights_bytes,
        budget_bytes: residency.as_ref().map(|residency| residency.budget_bytes),
        pinned_bytes: residency.as_ref().map_or(weights_bytes, |residency| residency.pinned_bytes),
        arena_bytes,
        peak_rss_bytes,
        first,
        runs,
    })?;
    Ok(Code::Success)
}

fn stored_bytes(manifest: &Manifest) -> u64 {
    manifest.extents.iter().map(|extent| extent.length).sum()
}

/// The high-water mark that Linux keeps of each process.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
