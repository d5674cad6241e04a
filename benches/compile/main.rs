//! How fast models compile, in how much memory, and how import grows with the number of nodes.
//!
//! ```text
//! cargo bench --bench compile [-- [--size 1GiB] [--external-only] [--runs 5] [--memory SIZE] [--threads N] [--folder DIR]
//!                                 [--nodes 15000,30000,60000] [--cold] [--keep]]
//! ```
//!
//! *Weights*: a seeded model of this size is generated into the folder, with weights inline (up to 2 GiB, which is as much
//! as a protobuf message holds) and in a file beside it. Compiling it alternates with copying the same bytes within the
//! same folder; medians are compared:
//!
//! - *cp*: the system's `cp`, then fsync of what it wrote;
//! - *dd*: one stream of blocks of 2 MiB, read and written just as the compiler reads models and writes its output
//!   (through the same types: read through the page cache, written past it into reserved room, fsync, rename); once out
//!   of a buffer as `dd` has it, and once out of one on a huge page, as the compiler has them.
//!
//! Each compilation runs in a process of its own, so that its peak resident memory (`VmHWM`) is that of the compilation;
//! its processor time, which depends less on what else the machine does, is printed too. The figure for other sizes:
//! `--size 8GiB`. With `--cold` the page cache forgets the model before each run, of all.
//!
//! *Nodes*: graphs of so many nodes without weights are imported and put in order; times must grow as the nodes do.
//!
//! What the figures should be stands beside them. Everything that is generated is removed at the end.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

mod copies;
#[path = "../figures/mod.rs"]
mod figures;
mod models;

use anyhow::{Context, Result, bail, ensure};
use copies::CopyKind;
use figures::{bytes_of, median};
use ipuc::compile::{CompileOptions, Source, compile};
use models::{HEAD_BYTES, INLINE_LIMIT, chain, generate};
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use strum::VariantArray as _;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Arguments {
    size: u64,
    external_only: bool,
    runs: usize,
    memory: Option<u64>,
    threads: usize,
    folder: PathBuf,
    nodes: Vec<usize>,
    cold: bool,
    keep: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, model, output, memory, threads] = arguments.as_slice()
        && mode == "--child"
    {
        return compile_here(Path::new(model), Path::new(output), memory.parse()?, threads.parse()?);
    }
    let arguments = parse(&arguments)?;
    let folder = tempfile::Builder::new().prefix("ipuc-bench-").tempdir_in(&arguments.folder)?;
    if arguments.size > 0 {
        let inline = arguments.size <= INLINE_LIMIT && !arguments.external_only;
        if inline {
            weights("inline", folder.path(), &arguments)?;
        }
        weights("external", folder.path(), &arguments)?;
    }
    nodes(folder.path(), &arguments.nodes)?;
    if arguments.keep {
        println!("kept {}", folder.keep().display());
    }
    Ok(())
}

fn parse(given: &[String]) -> Result<Arguments> {
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut arguments = Arguments {
        size: GIB,
        external_only: false,
        runs: 5,
        memory: None,
        threads: 0,
        folder,
        nodes: vec![15_000, 30_000, 60_000],
        cold: false,
        keep: false,
    };
    let mut given = given.iter();
    while let Some(flag) = given.next() {
        let mut value = || given.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--size" => arguments.size = bytes_of(value()?)?,
            "--external-only" => arguments.external_only = true,
            "--runs" => arguments.runs = value()?.parse()?,
            "--memory" => arguments.memory = Some(bytes_of(value()?)?),
            "--threads" => arguments.threads = value()?.parse()?,
            "--folder" => arguments.folder = PathBuf::from(value()?),
            "--nodes" => arguments.nodes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--cold" => arguments.cold = true,
            "--keep" => arguments.keep = true,
            _ => bail!("unknown argument {flag}"),
        }
    }
    ensure!(arguments.runs > 0, "--runs must be at least 1");
    Ok(arguments)
}

/// Compile in this process, and print seconds, those of the processor and peak memory for the parent.
fn compile_here(model: &Path, output: &Path, memory: u64, threads: usize) -> Result<()> {
    let memory = (memory > 0).then_some(memory);
    let options = CompileOptions { memory, ..CompileOptions::default() };
    let source = Source { entry: "main".to_string(), path: model.to_owned() };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let start = Instant::now();
    pool.install(|| compile(&[source], output, &options))?;
    let elapsed = start.elapsed().as_secs_f64();
    let processor = clock_gettime(ClockId::ProcessCPUTime);
    let processor = processor.tv_sec as f64 + processor.tv_nsec as f64 / 1e9;
    println!("{elapsed} {processor} {}", peak_resident_bytes().unwrap_or(0));
    Ok(())
}

/// The peak of resident memory of this process, file pages included, where the system tells it.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// One compilation.
struct Run {
    seconds: f64,
    processor_seconds: f64,
    peak_bytes: u64,
}

/// A compilation in a process of its own.
fn compile_apart(model: &Path, output: &Path, arguments: &Arguments) -> Result<Run> {
    let memory = arguments.memory.unwrap_or(0).to_string();
    let child = Command::new(std::env::current_exe()?)
        .arg("--child")
        .args([model, output])
        .args([memory, arguments.threads.to_string()])
        .output()?;
    ensure!(child.status.success(), "the compilation failed: {}", String::from_utf8_lossy(&child.stderr));
    let line = String::from_utf8(child.stdout)?;
    let mut fields = line.split_whitespace();
    let mut next = || fields.next().context("the compilation reports too little");
    Ok(Run { seconds: next()?.parse()?, processor_seconds: next()?.parse()?, peak_bytes: next()?.parse()? })
}

/// Let the page cache forget these files, where that is asked for.
fn forget(files: &[PathBuf], arguments: &Arguments) -> Result<()> {
    for file in files.iter().filter(|_| arguments.cold) {
        let file = File::open(file)?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn weights(place: &str, folder: &Path, arguments: &Arguments) -> Result<()> {
    let files = generate(folder, place, arguments.size)?;
    let (model, output, copied) = (&files[0], folder.join("model.ipu"), folder.join("copy"));
    // What was just written is on its way to the disk: that belongs to neither.
    for file in &files {
        File::open(file)?.sync_all()?;
    }
    let mut copies: Vec<(CopyKind, Vec<f64>)> = CopyKind::VARIANTS.iter().map(|&kind| (kind, Vec::new())).collect();
    let mut compiled = Vec::new();
    for _ in 0..arguments.runs {
        for (kind, seconds) in &mut copies {
            forget(&files, arguments)?;
            seconds.push(kind.seconds(&files, &copied)?);
        }
        forget(&files, arguments)?;
        compiled.push(compile_apart(model, &output, arguments)?);
        std::fs::remove_file(&output)?;
    }
    let size: u64 = files.iter().map(|file| file.metadata().map_or(0, |data| data.len())).sum();
    println!("{place}: {:.2} GiB, largest weight {} MiB", size as f64 / GIB as f64, HEAD_BYTES / MIB);
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" ");
    let rate = |seconds: &[f64]| size as f64 / 1e6 / median(seconds);
    let seconds: Vec<f64> = compiled.iter().map(|run| run.seconds).collect();
    let processor: Vec<f64> = compiled.iter().map(|run| run.processor_seconds).collect();
    println!(
        "{place}: compiling {} s, {:.0} MB/s; processor time {} s",
        list(&seconds),
        rate(&seconds),
        list(&processor)
    );
    for (kind, copied) in &copies {
        let percent = 100.0 * median(copied) / median(&seconds);
        let goal = kind.goal().map_or(String::new(), |goal| format!(" ({goal})"));
        println!(
            "{place}: {kind} {} s, {:.0} MB/s; compiling reaches {percent:.0} % of it{goal}",
            list(copied),
            rate(copied)
        );
    }
    let peak = compiled.iter().map(|run| run.peak_bytes).max().unwrap_or(0);
    let limit = (256 * MIB + HEAD_BYTES).min(512 * MIB);
    println!("{place}: peak resident memory {} MiB (should be under {})", peak / MIB, limit / MIB);
    if !arguments.keep {
        files.iter().try_for_each(std::fs::remove_file)?;
    }
    Ok(())
}

/// Import and order graphs of so many nodes.
fn nodes(folder: &Path, counts: &[usize]) -> Result<()> {
    for &count in counts {
        let path = folder.join("nodes.onnx");
        std::fs::write(&path, chain(count).encode_to_vec())?;
        let source = Source { entry: "main".to_string(), path };
        let start = Instant::now();
        let compiled = compile(&[source], &folder.join("nodes.ipu"), &CompileOptions::default())?;
        let whole = start.elapsed().as_secs_f64();
        let of = |name: &str| {
            let reports = compiled.reports.iter().filter(|report| report.pass == name);
            reports.map(|report| report.time.as_secs_f64()).sum::<f64>()
        };
        let steps = compiled.emitted.manifest.blocks.iter().map(|block| block.steps.len()).sum::<usize>();
        println!(
            "{count} nodes: import {:.3} s (60,000 should take less than 3), order {:.3} s for {steps} steps \
             (60,000 should take at most 1), infer {:.3} s, the whole compilation {whole:.3} s",
            of("import"),
            of("order"),
            of("infer"),
        );
    }
    Ok(())
}
