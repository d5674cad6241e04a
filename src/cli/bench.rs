//! `ipuc bench`: how long a run takes, and what it reads.

use super::Outcome;
use super::arguments::times;
use super::execute::{DimensionArguments, InputArguments, Inputs, Loaded, ModelArguments, gather, result_types};
use super::failure::{Code, Failure};
use super::output::{Output, bytes, count, seconds};
use super::profile;
use super::progress::running;
use super::random::Generator;
use super::sizes::{Beginning, Sizes, states};
use super::steps::{self, StepTime, seconds_at_limits, step_times};
use super::written;
use crate::memory;
use clap::Args;
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::value::Value;
use ipuc_runtime::{RunError, Session, Trace};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes from which reading memory is measured: several times the caches of most machines.
const LIMIT_BYTES: usize = 256 << 20;

/// What a run begins with, below the options.
const BEGINNING: &str = "\
Each run begins anew. Where state grows, --dim gives the positions that it has
before (as past_sequence_length=512); their contents are made up.";

/// Run a model several times and print how long it takes; inputs that are not given are made up
#[derive(Debug, Args)]
#[command(after_help = BEGINNING)]
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
    /// Store a trace of reads, waits, steps and workers, which Perfetto shows; - is stdout, and the result goes to stderr
    #[arg(long, value_name = "TRACE.json")]
    profile: Option<PathBuf>,
    /// Print where the time goes, step by step, of as many runs more
    #[arg(long)]
    per_step: bool,
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
    /// Where state grows: positions that it has before each run; null elsewhere.
    context: Option<u64>,
    /// Positions that a run adds to it, the tokens of a language model.
    tokens: Option<u64>,
    /// Tokens a second in the median run, of each sequence of a batch.
    tokens_per_second: Option<f64>,
    /// Times of the runs that are counted: the median, and what nine of ten and 99 of 100 are not above.
    median_seconds: f64,
    p90_seconds: f64,
    p99_seconds: f64,
    /// The run that is not counted.
    first: Run,
    runs: Vec<Run>,
    /// What the machine gave at most, right after the runs; null where there was no memory to measure it.
    limits: Option<MachineLimits>,
    /// The time that a run would take at least at these limits, its steps one after another, over that of the median.
    limit_share: Option<f64>,
    /// The steps, the longest first, where they were asked for.
    steps: Option<Vec<StepTime>>,
}

/// Greatest rates, in units a second.
#[derive(Serialize)]
struct MachineLimits {
    memory_bytes: f64,
    f32_operations: f64,
    i8_operations: f64,
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
    /// Multiply-accumulates that products left out, since activations were zero.
    skipped_macs: u64,
    /// Bytes of weights that these would have read, from memory or from the file.
    skipped_bytes: u64,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    written::prepare(&[profile::written(arguments.profile.as_deref())], output)?;
    let loaded = Loaded::open(&arguments.model, &arguments.dimensions, output)?;
    let entry = loaded.model.entry(arguments.model.entry.as_deref())?;
    let inputs = arguments.inputs.or_random();
    let sizes = Sizes { dimensions: &arguments.dimensions.dim, beginning: Beginning::MadeUp };
    let inputs = gather(&loaded, entry, &inputs, sizes, output)?;
    let manifest = loaded.model.manifest();
    let states = made_up_states(manifest, entry, &inputs.bindings)?;
    let mut session = loaded.session()?;
    let target = arguments.profile.as_deref();
    let trace = profile::begin(&mut session, target);
    let timed = |session: &mut Session| {
        let timed = timed(session, entry, &states, inputs.values.clone());
        timed.map_err(|error| Inputs::failure(&inputs.bindings, &inputs.made_up, error))
    };
    let running = running(output, &mut session, "first run, which is not counted");
    let first = timed(&mut session)?;
    let total = arguments.runs;
    let mut runs = Vec::new();
    for index in 1..=total {
        running.say(format_args!("run {index} of {total}"));
        runs.push(timed(&mut session)?);
    }
    profile::end(&mut session, trace, target)?;
    let latency = Latency::of(&runs);
    output.line(format_args!("{}: {latency}, first {}", count(runs.len(), "run"), first.time()))?;
    let growing = growing(manifest, entry, &inputs.bindings);
    let tokens_per_second = growing.map(|growing| growing.tokens as f64 / latency.median.as_secs_f64().max(1e-9));
    if let (Some(growing), Some(rate)) = (growing, tokens_per_second) {
        let (context, tokens) = (count(growing.context, "token"), count(growing.tokens, "token"));
        output.line(format_args!("{rate:.1} tokens/s: {tokens} a run after a context of {context}"))?;
    }
    let peak_rss_bytes = peak_rss_bytes();
    // In runs of their own: what is noted of each step takes time, too.
    let noted = if arguments.per_step { total } else { 1 };
    let trace = Arc::new(Trace::default());
    session.set_trace(Some(trace.clone()));
    for index in 1..=noted {
        running.say(format_args!("run {index} of {noted} in which each step is noted"));
        timed(&mut session)?;
    }
    session.set_trace(None);
    session.set_counter(None);
    running.say("measuring the limits of the machine");
    let has_room = memory::available_bytes().is_none_or(|available| available / 2 >= LIMIT_BYTES as u64);
    let limits = has_room.then(|| session.threads().measure(LIMIT_BYTES)).flatten();
    drop(running);
    let whole = loaded.model.whole_manifest();
    let times = step_times(&trace.spans(), noted as usize, &whole, &inputs.bindings, limits.as_ref());
    let limit_share = limits.map(|_| seconds_at_limits(&times) / latency.median.as_secs_f64().max(1e-12));
    if let (Some(limits), Some(share)) = (&limits, limit_share) {
        let [memory, floats, bytes] =
            [limits.memory_bytes, limits.float_operations, limits.byte_operations].map(|rate| rate / 1e9);
        output.line(format_args!(
            "{:.0} % of the machine's limits: {memory:.1} GB/s of memory, {floats:.0} GFLOP/s f32, {bytes:.0} GOP/s i8",
            100.0 * share
        ))?;
    }
    if arguments.per_step {
        steps::show(&times, output)?;
    }
    let summary = Summary {
        model: loaded.path.display().to_string(),
        entry: entry.name.clone(),
        weights_bytes: stored_bytes(manifest),
        budget_bytes: None,
        pinned_bytes: stored_bytes(manifest),
        arena_bytes: session.arena_bytes(),
        peak_rss_bytes,
        context: growing.map(|growing| growing.context as u64),
        tokens: growing.map(|growing| growing.tokens as u64),
        tokens_per_second,
        median_seconds: latency.median.as_secs_f64(),
        p90_seconds: latency.p90.as_secs_f64(),
        p99_seconds: latency.p99.as_secs_f64(),
        first,
        runs,
        limits: limits.map(|limits| MachineLimits {
            memory_bytes: limits.memory_bytes,
            f32_operations: limits.float_operations,
            i8_operations: limits.byte_operations,
        }),
        limit_share,
        steps: arguments.per_step.then_some(times),
    };
    print_memory(&loaded, summary, output)?;
    Ok(Code::Success)
}

impl Run {
    fn time(&self) -> String {
        seconds(Duration::from_secs_f64(self.seconds))
    }
}

/// How long runs take.
struct Latency {
    median: Duration,
    /// What nine of ten do not exceed.
    p90: Duration,
    /// What 99 of 100 do not exceed.
    p99: Duration,
    least: Duration,
}

impl Latency {
    /// Of at least one run.
    fn of(runs: &[Run]) -> Latency {
        let mut sorted: Vec<Duration> = runs.iter().map(|run| Duration::from_secs_f64(run.seconds)).collect();
        sorted.sort();
        let percentile = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        Latency { median: sorted[sorted.len() / 2], p90: percentile(90), p99: percentile(99), least: sorted[0] }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, p90, p99, least] = [self.median, self.p90, self.p99, self.least].map(seconds);
        write!(formatter, "median {median}, p90 {p90}, p99 {p99}, least {least}")
    }
}

/// One run from the beginning.
fn timed(
    session: &mut Session,
    entry: &EntryRecord,
    states: &[(String, Value)],
    inputs: Vec<(String, Value)>,
) -> Result<Run, RunError> {
    session.reset();
    for (name, value) in states {
        session.set_state(name, value.clone())?;
    }
    let start = Instant::now();
    session.run(Some(&entry.name), inputs)?;
    let duration = start.elapsed();
    let pass = session.last_pass().unwrap_or_default();
    let skipped = session.skipped();
    Ok(Run {
        seconds: duration.as_secs_f64(),
        bytes_read: pass.bytes_read(),
        row_bytes: pass.row_bytes,
        stall_seconds: pass.stalled().as_secs_f64(),
        skipped_macs: skipped.multiplications,
        skipped_bytes: skipped.bytes,
    })
}

/// Contents of each state that the sizes give positions to.
fn made_up_states(
    manifest: &Manifest,
    entry: &EntryRecord,
    bindings: &Bindings,
) -> Result<Vec<(String, Value)>, Failure> {
    let mut generator = Generator::new(0);
    let mut made_up = Vec::new();
    for state in states(manifest, entry) {
        let positions = state.positions().and_then(|positions| positions.evaluate(bindings).ok());
        if positions.is_some_and(|positions| positions > 0) {
            made_up.push((state.name.to_string(), generator.value(state.name, state.kind, bindings)?));
        }
    }
    Ok(made_up)
}

/// What a run appends to.
#[derive(Clone, Copy)]
struct Growing {
    /// Positions that are there before.
    context: usize,
    /// Positions that are appended.
    tokens: usize,
}

/// The first state that an entry appends to, as far as sizes tell.
fn growing(manifest: &Manifest, entry: &EntryRecord, bindings: &Bindings) -> Option<Growing> {
    let results = result_types(manifest, entry);
    let block = &manifest.blocks[entry.block as usize];
    entry.states.iter().find_map(|used| {
        let growth = manifest.states[used.state as usize].growth.filter(|growth| !growth.overwritten)?;
        let extent = |kind: &Type| {
            let dim = kind.as_tensor()?.1.dims()?.get(growth.axis as usize)?;
            usize::try_from(dim.evaluate(bindings).ok()?).ok()
        };
        let context = extent(&block.values[used.input? as usize].kind)?;
        let tokens = extent(results.get(used.output? as usize)?)?.checked_sub(context)?;
        Some(Growing { context, tokens })
    })
}

/// The lines about memory, and the whole as JSON.
fn print_memory(loaded: &Loaded, mut summary: Summary, output: &mut Output) -> anyhow::Result<()> {
    let peak = summary.peak_rss_bytes.map_or_else(String::new, |peak| format!(", {} of memory at most", bytes(peak)));
    let (weights, arena) = (bytes(summary.weights_bytes), bytes(summary.arena_bytes));
    output.line(format_args!("{weights} of weights, {arena} of activations{peak}"))?;
    if let Some(last) = summary.runs.last().filter(|run| run.skipped_macs > 0) {
        let (macs, read) = (last.skipped_macs, bytes(last.skipped_bytes));
        output.line(format_args!("{macs} multiply-accumulates and {read} of weights left out in the last run"))?;
    }
    if let Some(residency) = loaded.model.residency() {
        let last = summary.runs.last().map_or(0, |run| run.bytes_read);
        output.line(format_args!(
            "{} of weights stay, {} pass through {}, {} read in the last run",
            bytes(residency.pinned_bytes),
            bytes(residency.weights_bytes - residency.pinned_bytes),
            bytes(residency.ring_bytes),
            bytes(last)
        ))?;
        summary.budget_bytes = Some(residency.budget_bytes);
        summary.pinned_bytes = residency.pinned_bytes;
    }
    output.json(&summary)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_of_runs() {
        let run = |milliseconds: u32| Run {
            seconds: f64::from(milliseconds) / 1e3,
            bytes_read: 0,
            row_bytes: 0,
            stall_seconds: 0.0,
            skipped_macs: 0,
            skipped_bytes: 0,
        };
        let shown = |runs: &[Run]| Latency::of(runs).to_string();
        let hundred: Vec<Run> = (1..=100).rev().map(run).collect();
        assert_eq!(shown(&hundred), "median 51.0 ms, p90 90.0 ms, p99 99.0 ms, least 1.0 ms");
        assert_eq!(shown(&[run(7)]), "median 7.0 ms, p90 7.0 ms, p99 7.0 ms, least 7.0 ms");
    }
}
