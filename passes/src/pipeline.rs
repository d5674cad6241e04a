//! The page to read first: which passes run, in which order, and what holds after each.

use crate::dead_code::remove_dead_code;
use crate::error::PassError;
use crate::fold_constants::fold_constants;
use crate::infer::infer;
use crate::ir::{Changes, Graph};
use crate::options::Options;
use crate::order::order;
use crate::simplify::simplify;
use crate::state::mark_states;
use crate::verify::{Stage, VerifyError, verify};
use std::time::{Duration, Instant};
use thiserror::Error;

/// One row of the pipeline.
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

/// The passes that run once, right after import.
pub const FIRST: &[Pass] = &[pass("mark_states", Stage::Imported, mark_states)];

/// The passes that repeat until nothing changes: folding a condition chooses
/// a branch, which has shapes that fold.
pub const REPEATED: &[Pass] = &[
    pass("infer", Stage::Typed, infer),
    pass("fold_constants", Stage::Typed, fold_constants),
    pass("simplify", Stage::Typed, simplify),
    pass("remove_dead_code", Stage::Typed, remove_dead_code),
];

/// The passes after the graph has settled.
pub const FINAL: &[Pass] = &[pass("infer", Stage::Typed, infer), pass("order", Stage::Ordered, order)];

/// A graph settles within this many rounds; nested branches take one each.
const MAXIMUM_ROUNDS: usize = 64;

/// The pass of this name.
pub fn find(name: &str) -> Option<&'static Pass> {
    FIRST.iter().chain(REPEATED).chain(FINAL).find(|pass| pass.name == name)
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
}

/// Run all passes; `observe` sees the graph after each.
///
/// # Errors
/// [`PipelineError`] where a pass fails or breaks an invariant.
pub fn run(
    graph: &mut Graph,
    options: &Options,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<(), PipelineError> {
    for pass in FIRST {
        let report = run_one(pass, graph, options)?;
        observe(&report, graph);
    }
    for _ in 0..MAXIMUM_ROUNDS {
        let mut changes = 0;
        for pass in REPEATED {
            let report = run_one(pass, graph, options)?;
            observe(&report, graph);
            // Types follow from the steps; they alone do not call for another round.
            changes += if pass.name == "infer" { 0 } else { report.changes.0 };
        }
        if changes == 0 {
            break;
        }
    }
    for pass in FINAL {
        let report = run_one(pass, graph, options)?;
        observe(&report, graph);
    }
    Ok(())
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
