//! A program on a described machine: bound to its dimensions, spread over the tiles, and run on the timeline.

use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{CostError, Homes, Program, ProgramError, StepCost, Target};
use ipuc_formats::model::Manifest;
use ipuc_passes::tile::{Placed, tile};
use ipuc_runtime::fabric::{self, Report};
use thiserror::Error;

/// What a simulation may be told.
#[derive(Debug, Clone, Default)]
pub struct SimulateOptions {
    /// The entry; the only one where `None`.
    pub entry: Option<String>,
    /// Sizes of open dimensions.
    pub dimensions: Bindings,
    /// Wider floats are held and computed in this type.
    pub numerics: Option<DType>,
}

/// A simulated run, and what it was made of.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// The program.
    pub program: Program,
    /// How each step is spread.
    pub placed: Vec<Placed>,
    /// Where weights, values and state live.
    pub homes: Homes,
    /// What it took.
    pub report: Report,
}

/// Why a program cannot be simulated.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// The program has no such entry, or dimensions are open.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The machine cannot run it.
    #[error(transparent)]
    Cost(#[from] CostError),
}

/// Run a program on a machine.
///
/// # Errors
/// [`SimulateError`] where dimensions are open, or the machine cannot run the program.
pub fn simulate(manifest: &Manifest, target: &Target, options: &SimulateOptions) -> Result<Simulated, SimulateError> {
    let program = Program::bind(manifest, options.entry.as_deref(), &options.dimensions, options.numerics)?;
    let homes = Homes::of(target, &program)?;
    let placed = tile(&program, target)?;
    let costs: Vec<StepCost> = placed.iter().map(|placed| placed.cost.clone()).collect();
    let local: Vec<bool> = placed.iter().map(|placed| placed.local).collect();
    let report = fabric::simulate(target, &program, &homes, &costs, &local);
    Ok(Simulated { program, placed, homes, report })
}
