//! How long simulating takes: reading the model, choosing how each step is spread, placing it, and the timeline.
//!
//! `cargo bench --bench fabric` prints the median of five rounds for each, beside what it may take on two processors.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

#[allow(dead_code, reason = "other benchmarks use the rest")]
#[path = "../validate/models.rs"]
mod models;

use anyhow::Context;
use ipuc::compile::{CompileOptions, Source, describe};
use ipuc::simulate::{SimulateOptions, simulate};
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{Target, built_in};
use ipuc_formats::model::Manifest;
use models::{Decoder, F16, Weights, decode, resnet50};
use rayon::prelude::*;
use std::path::Path;
use std::time::Instant;

const LLAMA: Decoder =
    Decoder { layers: 32, width: 4096, heads: 32, key_heads: 8, head: 128, inner: 14336, vocabulary: 128_256 };
const DENSE_102B: Decoder =
    Decoder { layers: 96, width: 9216, heads: 72, key_heads: 8, head: 128, inner: 32768, vocabulary: 128_256 };
const ROUNDS: usize = 5;
const SWEPT: u32 = 100;

fn machine(name: &str, set: &[(&str, String)]) -> anyhow::Result<Target> {
    let set: Vec<(String, String)> = set.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
    Ok(built_in(name, &set).with_context(|| format!("no target `{name}`"))??)
}

fn read(folder: &Path, model: &[u8], states: bool) -> anyhow::Result<Manifest> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model)?;
    let states = if states { vec!["past.*=present.*".to_string()] } else { Vec::new() };
    let source = Source { entry: "main".to_string(), path };
    Ok(describe(&[source], &CompileOptions { states, ..CompileOptions::default() })?)
}

fn run(manifest: &Manifest, target: &Target, numerics: DType) -> anyhow::Result<f64> {
    let options = SimulateOptions { numerics: Some(numerics), ..SimulateOptions::default() };
    Ok(simulate(manifest, target, &options)?.report.makespan.0)
}

fn row(what: &str, limit: f64, once: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        once()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    println!("| {what} | {:.2} s | {limit} s |", seconds[ROUNDS / 2]);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let (resnet, llama) = (resnet50(F16, 1), decode(F16, 1, 1000, &LLAMA, Weights::I8));
    let dense = decode(F16, 1, 4096, &DENSE_102B, Weights::I4);
    println!("| what | median of {ROUNDS} | may take |\n| --- | --- | --- |");
    row("ResNet-50 on the 1,472 tiles of `graphcore-c600`", 0.5, || {
        run(&read(folder, &resnet, false)?, &machine("graphcore-c600", &[])?, DType::F16).map(|_| ())
    })?;
    row("a token of a decoder of 32 layers on `ipu-server`", 1.0, || {
        run(&read(folder, &llama, true)?, &machine("ipu-server", &[])?, DType::BF16).map(|_| ())
    })?;
    row("a token of a decoder of 102 billion parameters on `ipu-edge`", 10.0, || {
        run(&read(folder, &dense, true)?, &machine("ipu-edge", &[])?, DType::BF16).map(|_| ())
    })?;
    row("ResNet-50 on 100 machines with different memories and clocks", 20.0, || {
        let manifest = read(folder, &resnet, false)?;
        let machines = (0..SWEPT).map(|index| {
            let sram = format!("{}KiB", 512 + 32 * (index % 10));
            let clock = format!("{}MHz", 1000 + 50 * (index / 10));
            machine("graphcore-c600", &[("tiles.sram", sram), ("tiles.clock", clock)])
        });
        let machines: Vec<Target> = machines.collect::<anyhow::Result<_>>()?;
        let times: Vec<f64> =
            machines.par_iter().map(|target| run(&manifest, target, DType::F16)).collect::<anyhow::Result<_>>()?;
        anyhow::ensure!(times.len() == SWEPT as usize, "{} of {SWEPT} ran", times.len());
        Ok(())
    })
}
