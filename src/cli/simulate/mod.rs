//! `ipuc simulate`: what a run would take on a described machine.

mod functional;
mod page;
mod present;
mod sweep;
mod trace;

use super::Outcome;
use super::arguments::{Dimension, NamedModel, bindings};
use super::execute::{InputArguments, is_compiled};
use super::failure::in_models;
use super::failure::{Code, Failure};
use super::output::Output;
use super::targets::{Replaced, target};
use super::written::{self, Written, write_text};
use crate::compile::{CompileOptions, Source, describe};
use crate::files::SourceFile;
use crate::simulate::{SimulateOptions, Zeros, simulate};
use anyhow::Context;
use clap::Args;
use functional::Computed;
use ipuc_formats::dtype::{self, DType};
use ipuc_formats::machine::units::Seconds;
use ipuc_formats::model::{Manifest, read_manifest};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use sweep::Swept;

/// Tell what a run would take on a described machine: cycles, time, energy, bytes from each memory, stalls
///
/// With inputs, the outputs are computed too.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The model; of an .onnx file only shapes matter, and files of its weights may be missing
    #[arg(value_name = "MODEL.ipu|MODEL.onnx")]
    model: PathBuf,
    /// The machine: a name that `ipuc targets` lists, or a file
    #[arg(long, value_name = "NAME|FILE.toml")]
    target: String,
    /// A second machine, which the page of --html shows beside the first
    #[arg(long, value_name = "NAME|FILE.toml", requires = "html")]
    beside: Option<String>,
    /// Replace a value of the machine's description, as tiles.sram=512KiB
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Replaced>,
    /// Simulate with each of these values, as tiles.sram=512KiB,1MiB or target=a100,h100, and print a row for each;
    /// several keys give all combinations
    #[arg(long, value_name = "KEY=A,B,..", conflicts_with_all = ["trace", "html"])]
    sweep: Vec<Swept>,
    /// Write what happens when, for Perfetto or chrome://tracing; - is stdout, and the result goes to stderr
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Write a page to look at: timeline, memory of tiles, roofline, energy; - is stdout
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// The size of an open dimension
    #[arg(long, value_name = "NAME=N")]
    dim: Vec<Dimension>,
    /// The entry, where the model has several
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Hold and compute wider floats in this type, as f16
    #[arg(long, value_name = "TYPE", value_parser = numerics)]
    numerics: Option<DType>,
    /// Store weights and multiply in this type, as f8e4m3fn: values are converted where they are multiplied
    #[arg(long, value_name = "TYPE", value_parser = numerics)]
    products: Option<DType>,
    /// How many machines share the steps, of those that links join; as few as hold the program by default
    #[arg(long, value_name = "N")]
    chips: Option<NonZeroU32>,
    /// For how long the machine has run the same before, as 600s: one that has grown warm may have to slow down
    #[arg(long, value_name = "TIME")]
    warm: Option<Seconds>,
    /// Share of the activations that are zero where products with weights read them, or of those of the ONNX nodes whose
    /// names a pattern is (`*` stands for any text), for machines that leave zeros out
    #[arg(long, value_name = "SHARE|NODE=SHARE", value_parser = zero_share)]
    zeros: Vec<(String, f64)>,
    // With inputs the outputs are computed too, and zeros of activations are counted where the machine leaves them out.
    #[command(flatten)]
    inputs: InputArguments,
    /// Go on from the state in this file, which `ipuc run --save-state` has stored; --dim says how many positions it has
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    /// Store the outputs: as NAME.npy in a folder, in one archive, or the only one in one file
    #[arg(long, short, value_name = "DIR|FILE.npz|FILE.npy")]
    output: Option<PathBuf>,
    /// Of an .onnx file, an output that is the next content of an input; `auto` for the names that exporters give
    #[arg(long, value_name = "IN=OUT")]
    state: Vec<String>,
}

fn numerics(text: &str) -> Result<DType, String> {
    dtype::parse(text).ok_or_else(|| "expected an element type, as f16 or i8".to_string())
}

/// `0.6`, or `down*=0.6`.
fn zero_share(text: &str) -> Result<(String, f64), String> {
    let (pattern, share) = text.rsplit_once('=').unwrap_or(("*", text));
    match share.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) && !pattern.is_empty() => Ok((pattern.to_string(), share)),
        Ok(_) | Err(_) => Err("expected a share from 0 to 1, or NODE=SHARE".to_string()),
    }
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let trace = Written { what: "the trace", path: arguments.trace.as_deref(), is_text: true };
    let page = Written { what: "the page", path: arguments.html.as_deref(), is_text: true };
    written::prepare(&[trace, page], output)?;
    let target = target(&arguments.target, &arguments.set)?;
    // A sweep may go through machines with and without them.
    if arguments.sweep.is_empty() {
        let lacks = |table: &str, option: &str| {
            Failure::usage(format!("`{}` has no table `{table}`, which {option} is for", target.name))
        };
        if !arguments.zeros.is_empty() && target.zeros.is_none() {
            return Err(lacks("zeros", "--zeros").into());
        }
        if arguments.warm.is_some() && target.thermal.is_none() {
            return Err(lacks("thermal", "--warm").into());
        }
    }
    let mut dimensions = bindings(&arguments.dim)?;
    let computed = match arguments.inputs.is_given() {
        true => Some(functional::compute(arguments, &target, output)?),
        false if arguments.output.is_some() => {
            let failure = Failure::usage("there are no outputs to store: no inputs are given");
            return Err(failure
                .with_hint("give them with --input NAME=FILE.npy, or make them up with --random SEED")
                .into());
        }
        false if arguments.load_state.is_some() => {
            return Err(Failure::usage("state is of use where outputs are computed: no inputs are given").into());
        }
        false => None,
    };
    if let Some(computed) = &computed {
        dimensions = computed.bindings.clone();
    }
    let manifest = match &computed {
        Some(computed) => computed.manifest.clone(),
        None => manifest(arguments)?,
    };
    let counted = computed.as_ref().map_or_else(Default::default, |computed| computed.zeros.clone());
    let options = SimulateOptions {
        entry: arguments.entry.clone(),
        dimensions,
        numerics: arguments.numerics,
        products: arguments.products,
        zeros: Zeros { counted, assumed: arguments.zeros.clone() },
        chips: arguments.chips,
        warm: arguments.warm.unwrap_or(Seconds(0.0)),
    };
    let context = || format!("cannot simulate `{}`", arguments.model.display());
    if !arguments.sweep.is_empty() {
        let machine = (arguments.target.as_str(), arguments.set.as_slice());
        sweep::show(machine, &arguments.sweep, &manifest, &options, output)?;
        return Ok(Code::Success);
    }
    let simulated = simulate(&manifest, &target, &options).with_context(context)?;
    if let Some(path) = &arguments.trace {
        write_text(path, &trace::events(&target, &simulated).to_string())?;
    }
    if let Some(path) = &arguments.html {
        let mut runs = vec![(target.clone(), simulated.clone())];
        if let Some(name) = &arguments.beside {
            let other = super::targets::target(name, &[])?;
            let beside = simulate(&manifest, &other, &options).with_context(context)?;
            runs.push((other, beside));
        }
        let runs: Vec<_> = runs.iter().map(|(target, simulated)| (target, simulated)).collect();
        write_text(path, &page::page(&runs))?;
    }
    present::show(&target, &simulated, computed.as_ref().map(Computed::outputs), output)?;
    Ok(Code::Success)
}

/// The records of a compiled file, or of the file that a model would become.
fn manifest(arguments: &Arguments) -> anyhow::Result<Manifest> {
    let path: &Path = &arguments.model;
    if is_compiled(path)? {
        if !arguments.state.is_empty() {
            return Err(Failure::usage("--state is for .onnx files: the model is compiled already").into());
        }
        let file = SourceFile::open(path)?;
        let (_, manifest) = read_manifest(&file).with_context(|| format!("cannot open `{}`", path.display()))?;
        return Ok(manifest);
    }
    let model = NamedModel { name: None, path: path.to_owned() };
    let sources = [Source { entry: "main".to_string(), path: model.path }];
    let options = CompileOptions { states: arguments.state.clone(), ..CompileOptions::default() };
    describe(&sources, &options).map_err(|error| in_models(error, &sources))
}
