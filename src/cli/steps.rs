//! `bench --per-step`: where the time of a run goes, beside what each step computes and moves.
//!
//! The time of a step is the median of its executions, times how often a run executes it, without the steps of its bodies. Work is
//! that of `inspect --work` at the sizes of the run; what only the run itself tells has no rates. The share of the limit is the
//! time that the machine would take at least, by what it was measured to give in the same process, over the time taken: for bytes,
//! as if all came from memory (what lies in caches is faster), or for multiply-accumulates, whichever is longer.

use super::inspect::work::bound;
use super::output::{Output, seconds};
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::model::{KnownStep, Manifest};
use ipuc_formats::ops::{Gathered, Precision};
use ipuc_runtime::{Limits, Span, Track};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps that the table shows.
const MOST_SHOWN: usize = 20;

/// What a run spends on a step.
#[derive(Debug, Serialize)]
pub(super) struct StepTime {
    block: u32,
    step: u32,
    operator: &'static str,
    /// The ONNX nodes that it came from.
    node: String,
    /// How often a run executes it.
    executions: f64,
    /// Time of a run, without the steps of its bodies.
    seconds: f64,
    /// The part of all steps.
    share: f64,
    /// Multiply-accumulates of a run.
    macs: Option<u64>,
    /// Bytes that a run reads and writes: weights as they are stored, values.
    bytes: Option<u64>,
    /// Two operations a multiply-accumulate, in 10^9 a second.
    gigaflops: Option<f64>,
    /// In 10^9 bytes a second.
    gigabytes_per_second: Option<f64>,
    /// What would bound it.
    limit: Option<&'static str>,
    /// The time that this limit allows, over the time taken.
    limit_share: Option<f64>,
}

/// The time that a run takes at least, as far as the work of its steps is known.
pub(super) fn seconds_at_limits(steps: &[StepTime]) -> f64 {
    // (A sum of nothing is -0.)
    steps.iter().filter_map(|step| Some(step.limit_share? * step.seconds)).fold(0.0, |sum, seconds| sum + seconds)
}

/// What bounds so many multiply-accumulates and bytes, and the seconds that it allows.
fn bounding(macs: &[(Precision, u64)], bytes: Option<u64>, limits: &Limits) -> Option<(&'static str, f64)> {
    let of_bytes = |precision: &Precision| {
        [precision.activation, precision.weight].iter().all(|dtype| dtype.is_integer() && dtype.bits() <= 8)
    };
    let seconds = |wanted: bool, rate: f64| {
        let macs = macs.iter().filter(|(precision, _)| of_bytes(precision) == wanted).map(|(_, count)| *count as f64);
        2.0 * macs.sum::<f64>() / rate
    };
    let bounds = [
        ("f32", seconds(false, limits.float_operations)),
        ("i8", seconds(true, limits.byte_operations)),
        ("memory", bytes.unwrap_or(0) as f64 / limits.memory_bytes),
    ];
    bounds.into_iter().filter(|(_, seconds)| *seconds > 0.0).max_by(|one, other| one.1.total_cmp(&other.1))
}

/// The steps of `runs` runs by their time, the longest first, beside what the machine gives at most where that was measured.
pub(super) fn step_times(
    spans: &[Span],
    runs: usize,
    manifest: &Manifest,
    bindings: &Bindings,
    limits: Option<&Limits>,
) -> Vec<StepTime> {
    let own = own_times(spans);
    let total: f64 = own.values().map(|times| of_a_run(times, runs)).sum();
    let mut steps: Vec<StepTime> = own
        .iter()
        .filter_map(|(&(block, step), times)| {
            let record = manifest.blocks.get(block as usize)?.steps.get(step as usize)?;
            let seconds = of_a_run(times, runs);
            let executions = times.len() as f64 / runs as f64;
            let work =
                KnownStep::new(manifest, block as usize, step as usize).map(|known| bound(known.work(), bindings));
            let of_all = |dim: Dim| dim.as_known().map(|count| (count as f64 * executions) as u64);
            let macs = work.as_ref().and_then(|work| of_all(work.total_macs()));
            let by_type = work.as_ref().map(|work| {
                let count = |(precision, count): &(Precision, Dim)| Some((*precision, of_all(count.clone())?));
                work.macs.iter().filter_map(count).collect::<Vec<_>>()
            });
            let bytes = work.and_then(|work| {
                let gathered = |gathered: Gathered| gathered.parts * gathered.part_bytes;
                of_all(work.stored + work.moved + work.gathered.map_or(Dim::ZERO, gathered))
            });
            let bound = limits.and_then(|limits| bounding(&by_type.unwrap_or_default(), bytes, limits));
            let rate = |count: u64| count as f64 / seconds.max(1e-12) / 1e9;
            Some(StepTime {
                block,
                step,
                operator: record.op.name(),
                node: record.name.clone(),
                executions,
                seconds,
                share: seconds / total.max(1e-12),
                macs,
                bytes,
                gigaflops: macs.map(|macs| 2.0 * rate(macs)),
                gigabytes_per_second: bytes.map(rate),
                limit: bound.map(|(name, _)| name),
                limit_share: bound.map(|(_, least)| least / seconds.max(1e-12)),
            })
        })
        .collect();
    steps.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
    steps
}

/// The times of each execution of each step, in order, without the steps within.
fn own_times(spans: &[Span]) -> BTreeMap<(u32, u32), Vec<Duration>> {
    let mut own: BTreeMap<(u32, u32), Vec<Duration>> = BTreeMap::new();
    // Steps that are not over: their end, and where their time is.
    let mut open: Vec<(Duration, (u32, u32), usize)> = Vec::new();
    for span in spans.iter().filter(|span| span.track == Track::Steps) {
        let Some(step) = span.step else { continue };
        while open.last().is_some_and(|(end, ..)| *end <= span.start) {
            open.pop();
        }
        if let Some((_, outer, index)) = open.last() {
            let outer = own.get_mut(outer).and_then(|times| times.get_mut(*index));
            outer.into_iter().for_each(|time| *time = time.saturating_sub(span.duration));
        }
        let times = own.entry(step).or_default();
        open.push((span.start + span.duration, step, times.len()));
        times.push(span.duration);
    }
    own
}

/// Seconds of a run, from the median of executions.
fn of_a_run(times: &[Duration], runs: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0.0, Duration::as_secs_f64) * times.len() as f64 / runs as f64
}

/// The table of the longest steps.
pub(super) fn show(steps: &[StepTime], output: &mut Output) -> anyhow::Result<()> {
    let mut table =
        vec![["time", "share", "GFLOP/s", "GB/s", "of limit", "step", "operator", "nodes"].map(str::to_string)];
    let rate = |rate: Option<f64>| match rate {
        Some(rate) if rate >= 0.05 => format!("{rate:.1}"),
        Some(_) | None => String::new(),
    };
    let of_limit = |step: &StepTime| match (step.limit_share, step.limit) {
        (Some(share), Some(limit)) => format!("{:.0} % {limit}", 100.0 * share),
        (None, _) | (_, None) => String::new(),
    };
    for step in steps.iter().take(MOST_SHOWN) {
        table.push([
            seconds(Duration::from_secs_f64(step.seconds)),
            format!("{:.1} %", 100.0 * step.share),
            rate(step.gigaflops),
            rate(step.gigabytes_per_second),
            of_limit(step),
            format!("{}:{}", step.block, step.step),
            step.operator.to_string(),
            step.node.clone(),
        ]);
    }
    output.table(table)?;
    if let Some(rest) = steps.get(MOST_SHOWN..).filter(|rest| !rest.is_empty()) {
        let time: f64 = rest.iter().map(|step| step.seconds).sum();
        output.line(format_args!("and {} steps more: {}", rest.len(), seconds(Duration::from_secs_f64(time))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::dtype::DType;

    #[test]
    fn what_takes_longest_at_its_limit_bounds_a_step() {
        let limits = Limits { memory_bytes: 10.0, float_operations: 4.0, byte_operations: 8.0 };
        let precision = |activation, weight, accumulator| Precision { activation, weight, accumulator };
        let float = (precision(DType::F32, DType::I8, DType::F32), 6);
        let bytes = (precision(DType::U8, DType::I8, DType::I32), 20);
        assert_eq!(bounding(&[float], Some(20), &limits), Some(("f32", 3.0)));
        assert_eq!(bounding(&[float, bytes], None, &limits), Some(("i8", 5.0)));
        assert_eq!(bounding(&[float], Some(70), &limits), Some(("memory", 7.0)));
        assert_eq!(bounding(&[], None, &limits), None);
    }

    #[test]
    fn time_of_bodies_is_not_that_of_the_step_that_runs_them() {
        let span = |track, step, start: u64, duration: u64| Span {
            track,
            name: String::new(),
            step,
            start: Duration::from_micros(start),
            duration: Duration::from_micros(duration),
            bytes: None,
        };
        let spans = [
            span(Track::Runs, None, 0, 100),
            span(Track::Steps, Some((0, 0)), 0, 10),
            span(Track::Steps, Some((0, 1)), 10, 60),
            span(Track::Steps, Some((1, 0)), 12, 20),
            span(Track::Steps, Some((2, 0)), 14, 5),
            span(Track::Steps, Some((1, 0)), 35, 30),
            span(Track::Steps, Some((0, 2)), 70, 30),
        ];
        let own = own_times(&spans);
        let micros = |step| own[&step].iter().map(Duration::as_micros).collect::<Vec<_>>();
        assert_eq!((micros((0, 0)), micros((0, 1)), micros((0, 2))), (vec![10], vec![10], vec![30]));
        assert_eq!((micros((1, 0)), micros((2, 0))), (vec![15, 30], vec![5]));
        assert_eq!(of_a_run(&own[&(1, 0)], 1), 60e-6, "twice the median");
    }
}
