//! The page to read first: which passes run, in which order, and what holds after each.

use crate::annotate_sparsity::annotate_sparsity;
use crate::block_channels::block_channels;
use crate::dead_code::remove_dead_code;
use crate::error::PassError;
use crate::fold_constants::fold_constants;
use crate::fuse::fuse;
use crate::infer::infer;
use crate::integers::integers;
use crate::ir::{Changes, Graph};
use crate::join::join;
use crate::options::Options;
use crate::order::order;
use crate::prefill::prefill;
use crate::quantize::quantize;
use crate::round_weights::round_weights;
use crate::simplify::simplify;
use crate::states::states;
use crate::verify::{Stage, VerifyError, verify};
use std::time::{Duration, Instant};
use thiserror::Error;

/// One row of the pipeline.
#[derive(Debug)]
pub struct Pass {
    /// Name, as in file names of `--emit-ir` and in golden tests.
    pub name: &'static str,
    /// What holds after it.
    pub stage: Stage,
    /// The pass.
    pub run: fn(&mut Graph, &Options) -> Result<Changes, PassError>,
}

const fn pass(name: &'static str, stage: Stage, run: fn(&mut Graph, &Options) -> Result<Changes, PassError>) -> Pass {
    Pass { name, stage, run }
}

/// How often passes run.
#[derive(Debug)]
pub enum Phase {
    /// One after the other.
    Once(&'static [Pass]),
    /// One after the other, again until none of them changes a step.
    Settle(&'static [Pass]),
}

/// Passes that run again and again until a round changes no step.
const SETTLING: &[Pass] = &[
    pass("infer", Stage::Typed, infer),
    pass("fold_constants", Stage::Typed, fold_constants),
    pass("simplify", Stage::Typed, simplify),
    pass("remove_dead_code", Stage::Typed, remove_dead_code),
];

/// The passes in order. They settle: folding a condition chooses a branch, which has shapes that fold.
pub const PIPELINE: &[Phase] = &[
    Phase::Once(&[pass("join", Stage::Imported, join)]),
    Phase::Settle(SETTLING),
    Phase::Once(&[pass("states", Stage::Typed, states)]),
    Phase::Settle(SETTLING),
    Phase::Once(&[pass("round_weights", Stage::Typed, round_weights), pass("integers", Stage::Typed, integers)]),
    Phase::Settle(SETTLING),
    Phase::Once(&[
        pass("infer", Stage::Typed, infer),
        pass("quantize", Stage::Typed, quantize),
        pass("fuse", Stage::Typed, fuse),
        pass("block_channels", Stage::Typed, block_channels),
        pass("remove_dead_code", Stage::Typed, remove_dead_code),
        pass("prefill", Stage::Typed, prefill),
        pass("annotate_sparsity", Stage::Typed, annotate_sparsity),
        pass("order", Stage::Ordered, order),
    ]),
];

/// A graph settles within this many rounds; nested branches take one each.
const MAXIMUM_ROUNDS: usize = 64;

/// Every row of the pipeline, in order.
pub fn passes() -> impl Iterator<Item = &'static Pass> {
    PIPELINE.iter().flat_map(|phase| match phase {
        Phase::Once(passes) | Phase::Settle(passes) => passes.iter(),
    })
}

/// The pass of this name.
pub fn find(name: &str) -> Option<&'static Pass> {
    passes().find(|pass| pass.name == name)
}

/// What one run of a pass did.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the pass.
    pub pass: &'static str,
    /// Time taken.
    pub time: Duration,
    /// How much changed.
    pub changes: Changes,
    /// Steps afterwards.
    pub steps: usize,
}

/// Why a pipeline stops.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// A pass failed on the model.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A pass broke an invariant: a bug of the compiler.
    #[error("after pass `{pass}`, which is a bug of ipuc: {error}")]
    Invariant {
        /// Name of the pass.
        pass: &'static str,
        /// What does not hold.
        error: VerifyError,
    },
    /// Passes go on changing steps.
    #[error("the graph does not settle in {rounds} rounds: {} still change it", passes.join(", "))]
    Unsettled {
        /// How often each pass ran.
        rounds: usize,
        /// Names of the passes that changed steps in the last round.
        passes: Vec<&'static str>,
    },
}

/// Run all passes; `observe` sees the graph after each.
///
/// # Errors
/// [`PipelineError`] where a pass fails, breaks an invariant, or the graph does not settle.
pub fn run(
    graph: &mut Graph,
    options: &Options,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<(), PipelineError> {
    run_phases(PIPELINE, graph, options, observe)
}

fn run_phases(
    phases: &[Phase],
    graph: &mut Graph,
    options: &Options,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<(), PipelineError> {
    for phase in phases {
        match phase {
            Phase::Once(passes) => {
                run_once(passes, graph, options, observe)?;
            }
            Phase::Settle(passes) => settle(passes, graph, options, observe)?,
        }
    }
    Ok(())
}

fn settle(
    passes: &[Pass],
    graph: &mut Graph,
    options: &Options,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<(), PipelineError> {
    let mut changing = Vec::new();
    for _ in 0..MAXIMUM_ROUNDS {
        changing = run_once(passes, graph, options, observe)?;
        if changing.is_empty() {
            return Ok(());
        }
    }
    Err(PipelineError::Unsettled { rounds: MAXIMUM_ROUNDS, passes: changing })
}

/// Run passes in order; gives the names of those that changed steps.
fn run_once(
    passes: &[Pass],
    graph: &mut Graph,
    options: &Options,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Vec<&'static str>, PipelineError> {
    let mut changing = Vec::new();
    for pass in passes {
        let report = run_one(pass, graph, options)?;
        observe(&report, graph);
        if report.changes.steps > 0 {
            changing.push(pass.name);
        }
    }
    Ok(changing)
}

/// Run one pass, and the verifier after it in debug builds and where asked.
///
/// # Errors
/// [`PipelineError`] where the pass fails or breaks an invariant.
pub fn run_one(pass: &Pass, graph: &mut Graph, options: &Options) -> Result<Report, PipelineError> {
    let start = Instant::now();
    let changes = (pass.run)(graph, options)?;
    let time = start.elapsed();
    if cfg!(debug_assertions) || options.verify {
        verify(graph, pass.stage).map_err(|error| PipelineError::Invariant { pass: pass.name, error })?;
    }
    Ok(Report { pass: pass.name, time, changes, steps: graph.step_count() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_that_does_not_settle_names_the_passes_that_go_on() {
        const RESTLESS: &[Phase] = &[Phase::Settle(&[
            pass("idle", Stage::Imported, |_, _| Ok(Changes::default())),
            pass("restless", Stage::Imported, |_, _| Ok(Changes::of_steps(1))),
            pass("annotating", Stage::Imported, |_, _| Ok(Changes::of_annotations(1))),
        ])];
        let mut runs = 0;
        let result = run_phases(RESTLESS, &mut Graph::default(), &Options::default(), &mut |_, _| runs += 1);
        let Err(PipelineError::Unsettled { rounds, passes }) = result else { panic!("{result:?}") };
        assert_eq!((rounds, passes, runs), (MAXIMUM_ROUNDS, vec!["restless"], 3 * MAXIMUM_ROUNDS));
    }

    #[test]
    fn annotations_alone_call_for_no_further_round() {
        const ANNOTATING: &[Phase] =
            &[Phase::Settle(&[pass("annotating", Stage::Imported, |_, _| Ok(Changes::of_annotations(1)))])];
        let mut runs = 0;
        run_phases(ANNOTATING, &mut Graph::default(), &Options::default(), &mut |_, _| runs += 1).unwrap();
        assert_eq!(runs, 1);
    }
}
