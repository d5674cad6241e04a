//! How fast weights stream within a budget, beside what the disk delivers and beside a run with all weights in memory.
//!
//! ```text
//! cargo bench --bench stream [-- [--size 4GiB] [--budgets 5,10,25,50,75] [--turns 5] [--threads 2] [--folder DIR]]
//! ```
//!
//! The model is a chain of products of one row with square f32 matrices: nothing is computed that could hide a read. Each
//! budget (percent of the weights) has a process of its own, so that its peak memory is that of the budget. The first pass,
//! which also loads what stays, is printed and not counted. The others alternate with raw reads of the same file (direct,
//! blocks of 2 MiB, huge pages that were touched before, the best of 1 to 8 in flight), in turns of a second each: passes
//! follow each other as they do in use, and the little that was read ahead before the first of a turn does not count for
//! much. Medians are compared, of all passes and of the rates:
//!
//! - *of used*: bytes a second that the disk delivered to the pass, of what any use of the bytes gets in the same turns: of
//!   the rate (*used*) of a thread that reads the file through a queue and looks at each line once, at the best of some
//!   depths (goal: at least .92);
//! - *of beside*: the same where that thread also looks at as much memory as the pass has weights that stay. Where a virtual
//!   disk is filled by its host's copying, whoever reads memory takes bandwidth from the disk, and no pass can reach *used*;
//! - *time*: of max(bytes / raw rate, pass in memory);
//! - *of raw*, for information: of the rate of reads that nobody looks at. Where a virtual disk is filled by its host's
//!   copying, these are faster than any use of the bytes can be.
//!
//! Before that, all weights in memory: a budget in which they fit beside one contiguous copy (goal: within 5 %), and the
//! proportional set size of two processes that map the same file.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

mod chain;
#[path = "../figures/mod.rs"]
mod figures;
mod raw;
mod runner;
mod used;

use anyhow::{Context, Result, bail, ensure};
use chain::{LAYER_BYTES, chain};
use figures::{bytes_of, median};
use raw::Raw;
use runner::{Held, Pass, Runner, run_here, side_by_side};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use used::Used;

/// Memory that a process has besides its budget: code, records, stacks.
const SLACK_BYTES: u64 = 64 << 20;
/// Passes in memory that are compared.
const RESIDENT_PASSES: usize = 20;
/// Passes within a budget follow each other for as long as raw reads take, which is about this.
const TURN: Duration = Duration::from_secs(1);

struct Arguments {
    size: u64,
    budgets: Vec<u64>,
    turns: usize,
    threads: usize,
    folder: PathBuf,
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, file, held, threads] = given.as_slice()
        && mode == "--child"
    {
        return run_here(Path::new(file), held, threads.parse()?);
    }
    let arguments = parse(&given)?;
    let folder = tempfile::Builder::new().prefix("ipuc-stream-").tempdir_in(&arguments.folder)?;
    let file = chain(folder.path(), arguments.size / LAYER_BYTES)?;
    let weights = std::fs::metadata(&file)?.len();
    println!("weights {:.2} GiB, {} threads, {} turns", gib(weights), arguments.threads, arguments.turns);
    let resident_seconds = in_memory(&file, weights, &arguments)?;
    shared(&file, weights, &arguments)?;
    let mut limits = Limits { resident_seconds, raw: Raw::new(&file)?, used: Used::new(&file)? };
    println!(
        "budget  kept GiB  first s  passes  pass s  read GiB  used GB/s  of used  beside GB/s  of beside  time  raw GB/s  \
         of raw  stalls s  over budget MiB"
    );
    for &percent in &arguments.budgets {
        within_budget(&file, percent, weights / 100 * percent, &mut limits, &arguments)?;
    }
    Ok(())
}

/// A pass in which all weights fit, beside the same kernels over one contiguous copy. Gives its seconds.
fn in_memory(file: &Path, weights: u64, arguments: &Arguments) -> Result<f64> {
    let (copy, fits) = side_by_side(file, weights * 2, arguments.threads, RESIDENT_PASSES)?;
    let (copy, fits) = (median(&copy), median(&fits));
    println!(
        "all in memory: {fits:.4} s a pass, no read, no checksum; one contiguous copy {copy:.4} s: {:.3}",
        fits / copy
    );
    Ok(fits)
}

/// Two processes that map the same file.
fn shared(file: &Path, weights: u64, arguments: &Arguments) -> Result<()> {
    let mut runners =
        [(); 2].map(|()| Runner::start(file, Held::Map, arguments.threads)).into_iter().collect::<Result<Vec<_>>>()?;
    for runner in &mut runners {
        runner.pass()?;
    }
    let proportional: Vec<u64> = runners.iter().map(Runner::proportional_bytes).collect::<Result<_>>()?;
    let sum: u64 = proportional.iter().sum();
    println!(
        "two processes that map it: {:.2} GiB in all, {:.3} of the weights",
        gib(sum),
        sum as f64 / weights as f64
    );
    runners.into_iter().try_for_each(|runner| runner.finish().map(drop))
}

/// What a pass is compared with.
struct Limits {
    resident_seconds: f64,
    raw: Raw,
    used: Used,
}

fn within_budget(file: &Path, percent: u64, budget: u64, limits: &mut Limits, arguments: &Arguments) -> Result<()> {
    let mut runner = Runner::start(file, Held::Budget(budget), arguments.threads)?;
    let first = runner.pass()?;
    let second = runner.pass()?;
    // Where all weights stay, nothing is read beside them.
    let kept_per_byte = if second.bytes_read > 0.0 { first.pinned_bytes / second.bytes_read } else { 0.0 };
    let (mut passes, mut raws) = (Vec::new(), Vec::new());
    for _ in 0..arguments.turns {
        raws.push(limits.raw.rate()?);
        limits.used.turn(kept_per_byte)?;
        let begun = Instant::now();
        while begun.elapsed() < TURN {
            passes.push(runner.pass()?);
        }
    }
    let peak = runner.finish()?;
    let raw = median(&raws);
    let of = |value: fn(&Pass) -> f64| median(&passes.iter().map(value).collect::<Vec<_>>());
    let (seconds, read) = (of(|pass| pass.seconds), of(|pass| pass.bytes_read));
    let stalled = of(|pass| pass.stall_seconds);
    let bound = (read / raw).max(limits.resident_seconds);
    let [used, beside] = limits.used.rates().unwrap_or([f64::NAN; 2]);
    println!(
        "{percent:>5} %  {:>8.2}  {:>7.3}  {:>6}  {seconds:>6.3}  {:>8.2}  {:>9.2}  {:>7.2}  {:>11.2}  {:>9.2}  {:>4.2}  \
         {:>8.2}  {:>6.2}  {stalled:>8.3}  {:>8.1} {}",
        first.pinned_bytes / (1u64 << 30) as f64,
        first.seconds,
        passes.len(),
        read / (1u64 << 30) as f64,
        used / 1e9,
        read / seconds / used,
        beside / 1e9,
        read / seconds / beside,
        seconds / bound,
        raw / 1e9,
        read / seconds / raw,
        (peak as f64 - budget as f64) / (1 << 20) as f64,
        if peak <= budget + SLACK_BYTES { "ok" } else { "TOO MUCH" },
    );
    Ok(())
}

fn parse(given: &[String]) -> Result<Arguments> {
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut arguments = Arguments { size: 4 << 30, budgets: vec![5, 10, 25, 50, 75], turns: 5, threads: 2, folder };
    let mut given = given.iter();
    while let Some(flag) = given.next() {
        let mut value = || given.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--size" => arguments.size = bytes_of(value()?)?,
            "--budgets" => arguments.budgets = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--turns" => arguments.turns = value()?.parse()?,
            "--threads" => arguments.threads = value()?.parse()?,
            "--folder" => arguments.folder = PathBuf::from(value()?),
            _ => bail!("unknown argument {flag}"),
        }
    }
    ensure!(arguments.turns > 0 && arguments.size >= LAYER_BYTES, "at least one turn over one layer of 64 MiB");
    Ok(arguments)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
