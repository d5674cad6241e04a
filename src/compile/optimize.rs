//! Importing models, and the passes over their graph.

use super::emission::{emit_options, weights_bytes};
use super::error::CompileError;
use super::opened::{Opened, Opener};
use super::options::{Branch, CompileOptions};
use ipuc_passes::emit::describe as records;
use ipuc_passes::error::PassError;
use ipuc_passes::import::{ImportError, Model, import};
use ipuc_passes::ir::{Changes, Evaluator, Graph};
use ipuc_passes::options::{Budget, Options};
use ipuc_passes::pipeline::{PipelineError, Report, run};
use ipuc_passes::round_weights::stored_bytes;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// What an attempt at a program adds to the options.
#[derive(Clone, Copy, Default)]
pub(super) struct Attempt {
    pub sizes_only: bool,
    pub reserved_bytes: u64,
}

/// Import models and run all passes; gives the graph and what happened.
pub(super) fn optimize(
    opened: &[Opened],
    options: &CompileOptions,
    Attempt { sizes_only, reserved_bytes }: Attempt,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Graph, CompileError> {
    let openers = opened.iter().map(|model| Opener { files: &model.external, failed: OnceCell::new(), sizes_only });
    let mut openers: Vec<Opener<'_>> = openers.collect();
    let models: Vec<Model<'_>> = opened
        .iter()
        .zip(&openers)
        .map(|(model, files)| Model {
            entry: &model.entry,
            file_name: &model.name,
            proto: &model.proto,
            bytes: model.file.clone(),
            files,
            overridable: &options.overridable,
        })
        .collect();
    let start = Instant::now();
    let imported = import(&models);
    drop(models);
    let mut graph = imported.map_err(|error| {
        let mut failures = opened.iter().zip(&mut openers);
        let external = failures.find_map(|(model, opener)| Some((model.file.path(), opener.failed.take()?)));
        match (error, external) {
            (ImportError::Weight { .. }, Some((path, error))) => {
                CompileError::ExternalData { path: path.to_owned(), error }
            }
            (error, _) => error.into(),
        }
    })?;
    graph.evaluator = Evaluator(ipuc_runtime::steps::evaluate);
    check_dimensions(&graph, options)?;
    let time = start.elapsed();
    observe(&Report { pass: "import", time, changes: Changes::default(), steps: graph.step_count() }, &graph);
    for (symbol, minimum, maximum) in &options.ranges {
        graph.ranges.set(symbol, *minimum, *maximum)?;
    }
    let left_out = |branch: &Branch| {
        let entry = branch.entry.clone();
        branch.left_out.clone().into_iter().map(move |port| (entry.clone(), port))
    };
    let passes = Options {
        dimensions: options.dimensions.clone(),
        states: options.states.clone(),
        joined: options.joined.clone(),
        left_out: options.branches.iter().flat_map(left_out).collect(),
        cache: options.cache,
        prefill: options.prefill.clone(),
        activations: options.activations,
        weights: options.weights.clone(),
        sparsity: options.sparsity,
        activation_sparsity: options.activation_sparsity,
        sparse_threshold: options.sparse_threshold,
        sizes_only,
        reserved_bytes,
        calibration: options.calibration.clone(),
        unfused: options.unfused,
        // Placements are for other machines.
        plain_channels: sizes_only || !options.placements.is_empty(),
        verify: options.verify,
    };
    run(&mut graph, &passes, observe)?;
    Ok(graph)
}

/// [`optimize`], with all weights within a size where one is asked for. Passes after the choice of precisions add small
/// constants: where they do not fit, the choice is made again with room for them.
pub(super) fn optimize_to_size(
    opened: &[Opened],
    options: &CompileOptions,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Graph, CompileError> {
    let Some(Budget::Size(size_bytes)) = options.weights.budget else {
        return optimize(opened, options, Attempt::default(), observe);
    };
    // The graph, bytes of its weights, and how many of them passes after the choice have added.
    let mut attempt = |options: &CompileOptions, attempt: Attempt| -> Result<(Graph, u64, u64), CompileError> {
        let mut chosen_bytes = 0;
        let graph = optimize(opened, options, attempt, &mut |report, graph| {
            if report.pass == "round_weights" {
                chosen_bytes = stored_bytes(graph);
            }
            observe(report, graph);
        })?;
        let bytes = weights_bytes(&records(&graph, &emit_options(options))?);
        Ok((graph, bytes, bytes.saturating_sub(chosen_bytes)))
    };
    match attempt(options, Attempt::default()) {
        Ok((graph, bytes, _)) if bytes <= size_bytes => Ok(graph),
        Ok((_, _, reserved_bytes)) => Ok(attempt(options, Attempt { reserved_bytes, ..Attempt::default() })?.0),
        Err(CompileError::Pipeline(PipelineError::Pass(PassError::Size { least_bytes, .. }))) => {
            let mut least = options.clone();
            least.weights.budget = Some(Budget::Size(least_bytes));
            let (graph, least_bytes, _) = attempt(&least, Attempt::default())?;
            // Passes after the choice leave constants out, too.
            if least_bytes <= size_bytes {
                return Ok(graph);
            }
            Err(PipelineError::from(PassError::Size { size_bytes, least_bytes }).into())
        }
        Err(error) => Err(error),
    }
}

/// Every dimension that the options name must be one of an input: a misspelt one would bind nothing.
fn check_dimensions(graph: &Graph, options: &CompileOptions) -> Result<(), CompileError> {
    let inputs = graph.entries.iter().flat_map(|entry| &graph.block(entry.block).parameters);
    let known: BTreeSet<Arc<str>> = inputs.flat_map(|&input| graph.value(input).fact.kind.symbols()).collect();
    let ranges = options.ranges.iter().map(|(name, _, _)| name.as_str());
    let mut named = ranges.chain(options.dimensions.iter().map(|(name, _)| &**name));
    match named.find(|name| !known.contains(*name)) {
        Some(name) => {
            let known = known.iter().map(ToString::to_string).collect();
            Err(CompileError::UnknownDimension { name: name.to_string(), known })
        }
        None => Ok(()),
    }
}
