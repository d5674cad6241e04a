//! `ipuc targets calibrate`: the machine at hand as a target, from what small models take on it.
//!
//! Rates are those of the program's own kernels, so that a prediction says what the program would take. Cycles are
//! nanoseconds: what is measured is time. Energy is not measured.

use super::microbenchmarks::Model;
use crate::cli::Outcome;
use crate::cli::arguments::threads;
use crate::cli::failure::{Code, Failure};
use crate::cli::output::Output;
use crate::cli::progress::{Bar, Unit};
use crate::cli::written::{Written, prepare, write_text};
use crate::files::{DirectFile, OutputFile};
use anyhow::Context;
use clap::Args;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::read_target_with;
use ipuc_formats::read_at::ReadAt;
use ipuc_passes::emit::Output as _;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Measure this machine, some seconds long, and print its description, to simulate programs on it
///
/// It is kept in the folder of compiled models (IPUC_CACHE names another one), where `--target host` finds it.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Threads that a run shares; all cores by default
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Write the description to this file, and keep none; - is stdout
    #[arg(long, short, value_name = "HOST.toml")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let written = Written { what: "the description", path: arguments.output.as_deref(), is_text: true };
    prepare(&[written], output)?;
    let threads = match arguments.threads {
        Some(threads) if threads > 0 => threads,
        Some(_) | None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let caches = Caches::of_this_machine()?;
    let folder = tempfile::tempdir().context("no folder for temporary files")?;
    let bar = Bar::new(output, "measuring", Unit::Items);
    let measured = Measured::new(folder.path(), threads, &caches, |done, all| bar.set(done, all))?;
    drop(bar);
    let text = description(threads, &caches, &measured);
    let target = read_target_with("host.toml", &text, &[])?;
    match &arguments.output {
        Some(path) => write_text(path, &text)?,
        None => {
            output.line(text.trim_end())?;
            if let Some(path) = super::host_file() {
                let context = || format!("cannot write `{}`", path.display());
                path.parent().map_or(Ok(()), std::fs::create_dir_all).with_context(context)?;
                write_text(&path, &text)?;
                output.note(format_args!("kept as `host` in `{}`", path.display()));
            }
        }
    }
    output.json(&json!({"targets": [target]}))?;
    Ok(Code::Success)
}

/// Bytes of the caches of a core, and of the one that all share.
struct Caches {
    own: u64,
    shared: u64,
    memory: u64,
}

impl Caches {
    fn of_this_machine() -> anyhow::Result<Caches> {
        let size = |index: u32| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            let text = std::fs::read_to_string(path).ok()?;
            Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? * 1024)
        };
        let (Some(own), Some(shared)) = (size(2), size(3)) else {
            let failure = Failure::usage("the system does not tell the sizes of its caches".to_string());
            return Err(failure
                .with_hint("begin with a description that `ipuc targets NAME` prints".to_string())
                .into());
        };
        let memory = crate::memory::available_bytes().context("the system does not tell how much memory it has")?;
        Ok(Caches { own, shared, memory })
    }
}

/// Multiply-accumulates of a core in a nanosecond.
struct Products {
    types: &'static [DType],
    /// Types of weights that only these are for; none for all others.
    weights: &'static [DType],
    /// Many rows pass by the same weights.
    many: f64,
    /// One row.
    one: f64,
}

/// What was measured: rates of one core in a nanosecond, those of memories in bytes a second.
struct Measured {
    products: Vec<Products>,
    /// Of convolutions of each channel by itself.
    depthwise: f64,
    arithmetic: f64,
    convert: f64,
    divide: f64,
    transcendental: f64,
    copies: f64,
    step_seconds: f64,
    view_seconds: f64,
    /// What a step takes longer that threads share.
    sync_seconds: f64,
    cache: f64,
    memory: f64,
    disk: f64,
}

/// Types that are multiplied, with those that take the same kernels.
const TYPES: &[(DType, &[DType])] = &[
    (DType::F32, &[DType::F32]),
    (DType::F16, &[DType::F16]),
    (DType::BF16, &[DType::BF16]),
    (DType::I8, &[DType::I8, DType::U8]),
];

/// Weights that are codes: bits, the level of accuracy that rounds activations or leaves them, types of activations and of
/// the weights.
type Codes = (usize, i64, &'static [DType], &'static [DType]);
const CODES: &[Codes] = &[
    (4, 0, &[DType::F32, DType::F16, DType::BF16], &[DType::I4, DType::U4]),
    (4, 4, &[DType::I8], &[DType::I4, DType::U4]),
    (8, 0, &[DType::F32, DType::F16, DType::BF16], &[DType::I8, DType::U8]),
];

impl Measured {
    fn new(folder: &Path, threads: usize, caches: &Caches, progress: impl Fn(u64, u64)) -> anyhow::Result<Measured> {
        let all = (TYPES.len() + CODES.len()) as u64 * 2 + 11;
        let mut done = 0;
        let mut advance = || {
            progress(done, all);
            done += 1;
        };
        let cores = threads as f64;
        let products = products(folder, threads, &mut advance)?;
        advance();
        let image = [1, DEPTHWISE_CHANNELS, DEPTHWISE_EXTENT, DEPTHWISE_EXTENT];
        let convolved = Model::new(DType::F32, &image).depthwise(DEPTHWISE_CHANNELS);
        let macs = 9 * image.iter().product::<usize>();
        let depthwise = macs as f64 / convolved.seconds(folder, threads, (DType::F32, &image))? / 1e9 / cores;
        // Elements that fit into the cache of each core.
        let elements = (caches.own as usize / 16 * threads).max(1 << 14);
        let mut each = |count: usize, chain: fn(Model, usize) -> Model| -> anyhow::Result<f64> {
            advance();
            let model = chain(Model::new(DType::F32, &[elements]), count);
            let seconds = model.seconds(folder, threads, (DType::F32, &[elements]))?;
            Ok((elements * count) as f64 / seconds / 1e9 / cores)
        };
        let arithmetic = each(16, |model, count| {
            (0..count / 2).fold(model, |model, _| {
                model.step("Mul", Some((DType::F32, &[1])), None).step("Add", Some((DType::F32, &[1])), None)
            })
        })?;
        let divide = each(8, |model, count| model.steps(count, "Div", Some((DType::F32, &[1]))))?;
        let transcendental = each(8, |model, count| model.steps(count, "Tanh", None))?;
        let convert = each(8, |model, count| {
            (0..count / 2)
                .fold(model, |model, _| model.step("Cast", None, Some(DType::F16)).step("Cast", None, Some(DType::F32)))
        })?;
        advance();
        let copied = Model::new(DType::F32, &[1024, 1024]).step("Transpose", None, None);
        let copies = 2.0 * 4.0 * 1024.0 * 1024.0 / copied.seconds(folder, threads, (DType::F32, &[1024, 1024]))?;
        advance();
        let rounds = |count: usize, round: fn(Model) -> Model| {
            let model = Model::new(DType::F32, &[SMALL, SMALL]);
            let model = (0..count).fold(model, |model, _| round(model));
            model.seconds(folder, threads, (DType::F32, &[SMALL, SMALL]))
        };
        let each = |round| anyhow::Ok((rounds(1 + SMALL_ROUNDS, round)? - rounds(1, round)?) / SMALL_ROUNDS as f64);
        let (small, viewed) = (each(small_steps)?, each(viewed_steps)?);
        advance();
        let shared = |threads: usize| {
            let model = Model::new(DType::F32, &[32, 128]);
            model.steps(SMALL_ROUNDS, "MatMul", Some((DType::F32, &[128, 128]))).seconds(
                folder,
                threads,
                (DType::F32, &[32, 128]),
            )
        };
        let sync = if threads > 1 { (shared(threads)? - shared(1)? / cores) / SMALL_ROUNDS as f64 } else { 0.0 };
        let mut weights = |bytes: u64| -> anyhow::Result<f64> {
            advance();
            // A row of 4096 by as many outputs as the bytes give.
            let outputs = (bytes / 4 / 4096).max(16) as usize;
            let model = Model::new(DType::F32, &[1, 4096]).step("MatMul", Some((DType::F32, &[4096, outputs])), None);
            let seconds = model.seconds(folder, threads, (DType::F32, &[1, outputs]))?;
            Ok((4096 * outputs * 4) as f64 / seconds)
        };
        Ok(Measured {
            products,
            depthwise,
            arithmetic,
            convert,
            divide,
            transcendental,
            copies: copies / 1e9 / cores,
            step_seconds: (small / SMALL_STEPS as f64).max(1e-9),
            view_seconds: ((viewed - small) / 2.0).max(1e-9),
            sync_seconds: sync.max(0.0),
            cache: weights((caches.shared / 2).max(caches.own * 2))?,
            memory: weights(caches.shared * 4)?,
            disk: disk(folder)?,
        })
    }
}

/// Inputs and outputs of products of one row by a weight of 256 KB in f32, which a core reads from its cache, and how many products
/// a model has: so many that starting a run hardly counts.
const ONE_ROW: usize = 256;
const ONE_ROW_STEPS: usize = 16;

/// Channels of a depthwise convolution, and rows and columns of positions: 800 KB, as between layers of models.
const DEPTHWISE_CHANNELS: usize = 64;
const DEPTHWISE_EXTENT: usize = 56;

/// Rates of products of each kind.
fn products(folder: &Path, threads: usize, advance: &mut dyn FnMut()) -> anyhow::Result<Vec<Products>> {
    let mut products = Vec::new();
    for &(dtype, types) in TYPES {
        let (operator, result) = match dtype {
            DType::I8 => ("MatMulInteger", DType::I32),
            _ => ("MatMul", dtype),
        };
        // Steps share their weight, whose bytes are the same.
        let mut rate = |rows: usize, size: usize, steps: usize, threads: usize| -> anyhow::Result<f64> {
            advance();
            let model = Model::new(dtype, &[rows, size]).steps(steps, operator, Some((dtype, &[size, size])));
            let seconds = model.seconds(folder, threads, (result, &[rows, size]))?;
            Ok((rows * size * size * steps) as f64 / seconds / 1e9 / threads as f64)
        };
        let many = rate(256, 1024, 1, threads)?;
        let one = match dtype {
            DType::I8 => rate(1, 512, 1, threads)?,
            _ => rate(1, ONE_ROW, ONE_ROW_STEPS, 1)?,
        };
        products.push(Products { types, weights: &[], many, one });
    }
    for &(bits, accuracy, types, weights) in CODES {
        let mut rate = |rows: usize, size: usize| -> anyhow::Result<f64> {
            advance();
            let model = Model::new(DType::F32, &[rows, size]).codes(bits, accuracy, (size, size));
            let seconds = model.seconds(folder, threads, (DType::F32, &[rows, size]))?;
            Ok((rows * size * size) as f64 / seconds / 1e9 / threads as f64)
        };
        products.push(Products { types, weights, many: rate(256, 1024)?, one: rate(1, 1024)? });
    }
    Ok(products)
}

/// Rounds of small steps, and how many steps each is.
const SMALL_ROUNDS: usize = 16;
const SMALL_STEPS: usize = 5;
/// Rows in them, and elements of each.
const SMALL: usize = 16;

/// Steps of which each is of another kind than the one before, as in models: the code and the data of each come anew.
fn small_steps(model: Model) -> Model {
    model
        .step("MatMul", Some((DType::F32, &[SMALL, SMALL])), None)
        .step("Softmax", None, None)
        .step("Transpose", None, None)
        .step("LayerNormalization", Some((DType::F32, &[SMALL])), None)
        .step("Tanh", None, None)
}

/// [`small_steps`], two of which have values of another shape between them.
fn viewed_steps(model: Model) -> Model {
    model
        .step("MatMul", Some((DType::F32, &[SMALL, SMALL])), None)
        .reshape(&[SMALL / 4, SMALL * 4])
        .step("Softmax", None, None)
        .reshape(&[SMALL, SMALL])
        .step("Transpose", None, None)
        .step("LayerNormalization", Some((DType::F32, &[SMALL])), None)
        .step("Tanh", None, None)
}

/// Rate of reading a file past the page cache.
fn disk(folder: &Path) -> anyhow::Result<f64> {
    const CHUNK: usize = 2 << 20;
    const CHUNKS: u64 = 64;
    let path = folder.join("file.bin");
    let content: Vec<u8> = (0..CHUNK).map(|index| (index * 31 % 251) as u8).collect();
    let file = OutputFile::create(&path)?;
    for chunk in 0..CHUNKS {
        file.write_at(chunk * CHUNK as u64, &content)?;
    }
    file.finish()?;
    std::fs::File::open(&path)?.sync_all()?;
    let file = DirectFile::open(&path)?;
    // Direct reads want an address at a multiple of a block.
    let mut buffer = vec![0u8; CHUNK + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let begin = Instant::now();
    for chunk in 0..CHUNKS {
        file.read_exact_at(chunk * CHUNK as u64, &mut buffer[start..start + CHUNK])?;
    }
    Ok((CHUNK as u64 * CHUNKS) as f64 / begin.elapsed().as_secs_f64())
}

/// Outputs side by side in a panel of weights, and rows that a kernel passes by it together.
const OUTPUTS: f64 = 16.0;
const ROWS: f64 = 8.0;

fn description(threads: usize, caches: &Caches, measured: &Measured) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        r#"# Measured by `ipuc targets calibrate`: rates of the kernels of the program in models of one kind of step.
name = "host"
description = "this machine, {threads} threads"
style = "roofline"

[tiles]
# Threads that share a step.
count = {threads}
# Second-level cache of a core, as the system tells.
sram = "{own}B"
reserved = "4KiB"
# Cycles are nanoseconds.
clock = "1GHz"
holds_weights = false
# Transposition of 1024 x 1024 in f32.
bandwidth = "{copies:.3} B/cycle"
# Kernels take outputs side by side.
turns_values = true

[exchange]
# By way of the cache that cores share.
receive = "{receive:.3} B/cycle"
phase = "0 cycles"
hop = "0 cycles"
transfer = "0 cycles"
"#,
        own = caches.own,
        copies = measured.copies,
        receive = measured.cache / 1e9 / threads as f64,
    );
    for products in &measured.products {
        let names = |types: &[DType]| {
            types.iter().map(|dtype| format!("\"{}\"", dtype.name())).collect::<Vec<String>>().join(", ")
        };
        let weights = match products.weights {
            [] => String::new(),
            weights => format!("\nweights = [{}]", names(weights)),
        };
        let one = match (products.types.contains(&DType::I8), products.weights) {
            (_, [_, ..]) => "One row by 1024 x 1024",
            (true, []) => "One row by 512 x 512",
            (false, []) => "One row by 256 x 256, on one thread",
        };
        let kinds =
            [("256 rows by 1024 x 1024", ROWS, ROWS * OUTPUTS / products.many), (one, 1.0, OUTPUTS / products.one)];
        for (what, rows, pass) in kinds {
            let _ = write!(
                text,
                r#"
# {what}. Energy is not measured.
[[matrix]]
types = [{}]{weights}
units = 1
rows = {rows}
inputs = 1
outputs = {OUTPUTS}
pass = "{pass:.6} cycles"
load = "0 cycles"
overlapped = true
threads = 1
energy = "0pJ/op"
"#,
                names(products.types)
            );
        }
    }
    let _ = write!(
        text,
        r#"
# A depthwise convolution of 3 x 3 over {DEPTHWISE_CHANNELS} channels of {DEPTHWISE_EXTENT} x {DEPTHWISE_EXTENT}. Energy is not measured.
[[matrix]]
types = ["f32"]
units = 1
rows = {OUTPUTS}
inputs = 1
outputs = 1
pass = "{:.6} cycles"
load = "0 cycles"
overlapped = true
threads = 1
energy = "0pJ/op"
"#,
        OUTPUTS / measured.depthwise
    );
    let _ = write!(
        text,
        r#"
# Chains of eight and 16 steps on elements that fit into the caches of cores. Energy is not measured.
[vector]
arithmetic = {:.4}
convert = {:.4}
divide = {:.4}
transcendental = {:.4}
energy = "0pJ/op"
"#,
        measured.arithmetic, measured.convert, measured.divide, measured.transcendental
    );
    let tiers = [
        ("shared cache", "A row by weights that are half of it.", caches.shared, measured.cache, "4KiB"),
        ("memory", "A row by weights of four times the shared cache.", caches.memory, measured.memory, "64KiB"),
        (
            "disk",
            "A file of 128 MiB past the page cache; its capacity is not asked for.",
            1 << 40,
            measured.disk,
            "2MiB",
        ),
    ];
    for (name, what, capacity, rate, chunk) in tiers {
        let _ = write!(
            text,
            r#"
# {what}
[[tiers]]
name = "{name}"
capacity = "{capacity}B"
read = "{rate:.0}B/s"
write = "{rate:.0}B/s"
latency = "0ns"
chunk = "{chunk}"
energy = "0pJ/B"
"#
        );
    }
    let _ = write!(
        text,
        r#"
[policy]
weights = "auto"
activations = "auto"
state = "auto"
prefetch = false

[overhead]
# What each of {steps} small steps of {SMALL_STEPS} kinds adds to a run.
step = "{step:.1}ns"
# What each of {views} views between them adds.
view = "{view:.1}ns"
# What a product of 32 rows by 128 x 128 takes longer than its share of what one thread takes.
sync = "{sync:.1} cycles"

[energy]
# Not measured.
static_power = "0W"
"#,
        steps = SMALL_ROUNDS * SMALL_STEPS,
        views = SMALL_ROUNDS * 2,
        step = measured.step_seconds * 1e9,
        view = measured.view_seconds * 1e9,
        sync = measured.sync_seconds * 1e9,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_says_what_was_measured() {
        let products = vec![Products { types: &[DType::I8, DType::U8], weights: &[], many: 64.0, one: 8.0 }];
        let measured = Measured {
            products,
            depthwise: 4.0,
            arithmetic: 8.0,
            convert: 4.0,
            divide: 2.0,
            transcendental: 1.0,
            copies: 5.0,
            step_seconds: 1.5e-6,
            view_seconds: 4e-7,
            sync_seconds: 2e-6,
            cache: 4e10,
            memory: 1e10,
            disk: 1e9,
        };
        let caches = Caches { own: 1 << 20, shared: 32 << 20, memory: 16 << 30 };
        let target = read_target_with("host.toml", &description(2, &caches, &measured), &[]).unwrap();
        assert_eq!(target.peak_macs_per_second(DType::U8), Some(2.0 * 64.0 * 1e9));
        let depthwise = target.matrix.last().unwrap();
        assert_eq!((depthwise.types.as_slice(), depthwise.rows.get(), depthwise.pass.0), (&[DType::F32][..], 16, 4.0));
        assert!(target.tiles.turns_values);
        assert_eq!(target.tiers.iter().map(|tier| tier.read.0).collect::<Vec<_>>(), [4e10, 1e10, 1e9]);
        assert!((target.overhead.view.0 - 4e-7).abs() < 1e-12 && (target.overhead.sync.0 - 2000.0).abs() < 1e-6);
        assert!((target.overhead.step.0 - 1.5e-6).abs() < 1e-12 && target.exchange.receive.0 == 20.0);
    }
}
