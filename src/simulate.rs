//! A program on a described machine: bound to its dimensions, spread over the tiles, and run on the timeline.

use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{CostError, Homes, Program, ProgramError, StepCost, Style, Target};
use ipuc_formats::model::Manifest;
use ipuc_passes::place::{Plan, place};
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
    /// Where everything lies in the memory of a tile; `None` on a machine whose tiles have caches.
    pub plan: Option<Plan>,
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
    let (placed, plan) = spread(manifest, &program, target, &homes)?;
    let costs: Vec<StepCost> = placed.iter().map(|placed| placed.cost.clone()).collect();
    let local: Vec<bool> = placed.iter().map(|placed| placed.local).collect();
    let report = fabric::simulate(target, &program, &homes, &costs, &local);
    Ok(Simulated { program, placed, homes, plan, report })
}

/// Spread the steps and place what they need. Where what lives beside a step leaves it less memory than it takes, all are
/// spread again with less for each; where that does not help, the first way stays, and its plan says what it needs.
fn spread(
    manifest: &Manifest,
    program: &Program,
    target: &Target,
    homes: &Homes,
) -> Result<(Vec<Placed>, Option<Plan>), CostError> {
    const ROUNDS: usize = 4;
    let mut memory = target.tiles.sram - target.tiles.reserved;
    let first = tile(program, target, memory)?;
    if target.style == Style::Roofline {
        return Ok((first, None));
    }
    let plan = place(manifest, program, target, homes, &first);
    let mut excess = plan.needed - plan.available;
    for _ in 0..ROUNDS {
        memory = memory - excess;
        if excess <= Bytes(0.0) || memory <= Bytes(0.0) {
            break;
        }
        let placed = tile(program, target, memory)?;
        let plan = place(manifest, program, target, homes, &placed);
        excess = plan.needed - plan.available;
        if excess <= Bytes(0.0) {
            return Ok((placed, Some(plan)));
        }
    }
    Ok((first, Some(plan)))
}
