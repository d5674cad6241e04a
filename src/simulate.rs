//! A program on a described machine: bound to its dimensions, spread over the tiles, and run on the timeline.

mod chips;
mod zeros;

use chips::Cuts;
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::units::{Bytes, Seconds};
use ipuc_formats::machine::{
    ActivationZeros, BoundStep, CostError, Homes, Links, Numerics, Place, Program, ProgramError, Split, StepCost,
    Style, Target, ZeroMap,
};
use ipuc_formats::model::{Manifest, OperandRecord};
use ipuc_passes::place::{PlaceError, Plan, place};
use ipuc_passes::round_weights::matches;
use ipuc_passes::tile::{Placed, tile};
use ipuc_runtime::fabric::{self, Report};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;
pub use zeros::ZeroMaps;

/// What a simulation may be told.
#[derive(Debug, Clone, Default)]
pub struct SimulateOptions {
    /// The entry; the only one where `None`.
    pub entry: Option<String>,
    /// Sizes of open dimensions.
    pub dimensions: Bindings,
    /// Wider floats are held and computed in this type.
    pub numerics: Option<DType>,
    /// Products take wider floats in this type, in which weights are stored, instead; values are converted for them.
    pub products: Option<DType>,
    /// Zeros of activations, which machines leave out that can.
    pub zeros: Zeros,
    /// How many machines share the steps: one where that is enough, else as few as are, where `None`.
    pub chips: Option<NonZeroU32>,
    /// For how long the machine has run the same before.
    pub warm: Seconds,
}

/// What is known of zeros among the activations that are multiplied with weights.
#[derive(Debug, Clone, Default)]
pub struct Zeros {
    /// Where values of a run were zero, by their numbers.
    pub counted: BTreeMap<u32, Arc<ZeroMap>>,
    /// Shares that are assumed, for steps whose names a pattern is; the last such counts, before what was counted.
    pub assumed: Vec<(String, f64)>,
}

/// Whether a pattern is the name of an ONNX node that a step computes.
fn is_of(pattern: &str, step: &BoundStep) -> bool {
    matches(pattern, &step.name) || step.name.split(" + ").any(|name| matches(pattern, name))
}

impl Zeros {
    /// The zeros of a step, by its operand 0.
    fn of(&self, manifest: &Manifest, step: &BoundStep) -> Option<ActivationZeros> {
        let assumed = self.assumed.iter().rfind(|(pattern, _)| is_of(pattern, step));
        if let Some((_, share)) = assumed {
            return Some(ActivationZeros::Share(*share));
        }
        let block = &manifest.blocks[step.block as usize];
        let Some(OperandRecord::Value(slot)) = block.steps[step.step as usize].operands.first() else { return None };
        self.counted.get(&block.values[*slot as usize].id).cloned().map(ActivationZeros::Counted)
    }
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
    /// Where everything lies in the memory of a tile; `None` on a machine whose tiles have caches. Of several machines, that
    /// of the one whose tiles hold most.
    pub plan: Option<Plan>,
    /// What it took.
    pub report: Report,
    /// The machine for which weights are stored in their order, where that is another one: what is read beyond what is needed
    /// is charged then.
    pub stored_for: Option<String>,
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
    /// It is to run on several machines that nothing joins.
    #[error("`{target}` has no table `links`: several of them cannot share a program")]
    Links {
        /// Name of the target.
        target: String,
    },
    /// A pattern for zeros is no name of a node.
    #[error("no node's name is `{pattern}`, for which zeros are assumed")]
    NoStep {
        /// The pattern.
        pattern: String,
    },
    /// More machines are asked for than may be joined.
    #[error("`{target}`: at most {most} of them may be joined, not {chips}")]
    TooMany {
        /// Name of the target.
        target: String,
        /// How many are asked for.
        chips: u32,
        /// As many as may be joined.
        most: u32,
    },
    /// It does not fit into as many machines as there may be.
    #[error("`{target}`: on {chips} of them, which is as many as may be joined, it does not fit: {reason}")]
    Chips {
        /// Name of the target.
        target: String,
        /// How many.
        chips: u32,
        /// What is too large.
        reason: String,
    },
}

/// Run a program on a machine.
///
/// # Errors
/// [`SimulateError`] where dimensions are open, or the machine cannot run the program.
pub fn simulate(manifest: &Manifest, target: &Target, options: &SimulateOptions) -> Result<Simulated, SimulateError> {
    let numerics = Numerics { held: options.numerics, products: options.products };
    let mut program = Program::bind(manifest, options.entry.as_deref(), &options.dimensions, numerics)?;
    let unused =
        options.zeros.assumed.iter().find(|(pattern, _)| !program.steps.iter().any(|step| is_of(pattern, step)));
    if let Some((pattern, _)) = unused {
        return Err(SimulateError::NoStep { pattern: pattern.clone() });
    }
    program.leave_out(target, |_, step| options.zeros.of(manifest, step));
    let mut simulated = match (options.chips.map(NonZeroU32::get), &target.links) {
        (Some(2..), None) => return Err(SimulateError::Links { target: target.name.clone() }),
        (Some(chips), Some(links)) if chips > links.most.get() => {
            return Err(SimulateError::TooMany { target: target.name.clone(), chips, most: links.most.get() });
        }
        (Some(chips @ 2..), Some(links)) => joined(manifest, program, target, links, chips..=chips)?,
        (Some(_), _) | (None, None) => alone(manifest, program, target, true)?,
        (None, Some(links)) => match alone(manifest, program.clone(), target, true) {
            Ok(simulated) if simulated.excess(target).is_none() => simulated,
            Ok(_) | Err(CostError::Capacity { .. }) => joined(manifest, program, target, links, 2..=links.most.get())?,
            Err(error @ (CostError::Type { .. } | CostError::Memory { .. })) => return Err(error.into()),
        },
    };
    fabric::bound(&mut simulated.report, target, &simulated.program, options.warm);
    Ok(simulated)
}

impl Simulated {
    /// Why it does not fit into the memories of the tiles, where it does not.
    pub fn excess(&self, target: &Target) -> Option<PlaceError> {
        self.plan.as_ref().and_then(|plan| plan.check(&self.program, target).err())
    }
}

/// On one machine: a whole program, or some of its steps.
fn alone(manifest: &Manifest, mut program: Program, target: &Target, whole: bool) -> Result<Simulated, CostError> {
    let homes = Homes::of(target, &program)?;
    program.settle(target, &homes);
    if whole {
        let room = homes.spare(target, &program);
        fabric::keep(&mut program, manifest, room);
    }
    let mut found = spread(manifest, &program, target, &homes)?;
    if program.resident_bytes > 0.0 && found.1.as_ref().is_some_and(|plan| plan.needed > plan.available) {
        // What stays leaves too little for the steps.
        fabric::keep(&mut program, manifest, Bytes(0.0));
        found = spread(manifest, &program, target, &homes)?;
    }
    let (mut placed, plan) = found;
    let stored_for = stored_for(manifest, target).map(str::to_string);
    if stored_for.is_some() && homes.weights != Place::Tiles {
        let splits: Vec<&Split> = placed.iter().map(|placed| &placed.split).collect();
        let beyond = fabric::beyond(manifest, &program, &splits, fabric::room(target, &program, &homes));
        placed.iter_mut().zip(beyond).for_each(|(placed, beyond)| placed.cost.beyond = beyond);
    }
    let costs: Vec<StepCost> = placed.iter().map(|placed| placed.cost.clone()).collect();
    let local: Vec<bool> = placed.iter().map(|placed| placed.local).collect();
    let report = fabric::simulate(target, &program, &homes, &costs, &local);
    Ok(Simulated { program, placed, homes, plan, report, stored_for })
}

/// The machine that the order of the stream is for, where it is another one: the first that the file has placements for. A
/// program that is in no file yet, or in one for no machine, has the order that is needed.
fn stored_for<'a>(manifest: &'a Manifest, target: &Target) -> Option<&'a str> {
    let first = manifest.placements.first()?;
    (target.hash().ok() != Some(first.target_hash)).then_some(first.target.as_str())
}

/// On several machines, as few of these numbers as are enough.
fn joined(
    manifest: &Manifest,
    program: Program,
    target: &Target,
    links: &Links,
    numbers: std::ops::RangeInclusive<u32>,
) -> Result<Simulated, SimulateError> {
    let cuts = Cuts::new(&program);
    let (first, mut most) = (*numbers.start(), *numbers.end());
    // Fewer than hold the weights and the state are not tried.
    let held = (program.weight_bytes + program.state_bytes) / target.sram().0;
    let least = if target.tiers.is_empty() { held.ceil() as u32 } else { 1 };
    let mut chips = first.max(least);
    let mut reason = format!("weights and state need {}", Bytes(program.weight_bytes + program.state_bytes));
    let mut too_few = chips.saturating_sub(1);
    let mut enough = None;
    // What is missing is known only after everything was placed: many are tried in steps of an eighth, then between these.
    while chips <= most {
        match try_joined(manifest, &cuts, target, links, chips)? {
            Ok(simulated) => (most, enough) = (chips, Some(simulated)),
            Err(excess) => (too_few, reason) = (chips, excess),
        }
        chips = match enough {
            Some(_) if most - too_few <= 1 => break,
            Some(_) => too_few + (most - too_few) / 2,
            None if chips == most => break,
            None => (chips + (chips / 8).max(1)).min(most),
        };
    }
    if let Some(simulated) = enough {
        return Ok(Simulated { program, ..simulated });
    }
    Err(SimulateError::Chips { target: target.name.clone(), chips: most, reason })
}

/// On at most so many machines; why it does not fit where it does not.
fn try_joined(
    manifest: &Manifest,
    cuts: &Cuts<'_>,
    target: &Target,
    links: &Links,
    chips: u32,
) -> Result<Result<Simulated, String>, CostError> {
    let parts: Vec<Range<usize>> = cuts.parts(chips as usize);
    let received: Vec<Bytes> = parts.iter().map(|part| cuts.crossing(part.start)).collect();
    let (mut placed, mut reports) = (Vec::new(), Vec::new());
    let mut fullest: Option<(Homes, Option<Plan>)> = None;
    for part in &parts {
        let own = match alone(manifest, cuts.part(part.clone()), target, false) {
            Ok(own) => own,
            Err(CostError::Capacity { what, needed, available, .. }) => {
                return Ok(Err(format!("the {what} of one need {needed}, and it holds {available}")));
            }
            Err(error @ (CostError::Type { .. } | CostError::Memory { .. })) => return Err(error),
        };
        if let Some(excess) = own.excess(target) {
            return Ok(Err(excess.shortage()));
        }
        placed.extend(own.placed);
        reports.push(own.report);
        let plan = own.plan.map(|plan| plan.after(part.start));
        let needed = |plan: &Option<Plan>| plan.as_ref().map_or(0.0, |plan| plan.needed.0);
        let homes = fullest.as_ref().map_or(own.homes, |(homes, _)| farther(*homes, own.homes));
        fullest = match fullest {
            Some((_, known)) if needed(&known) >= needed(&plan) => Some((homes, known)),
            Some(_) | None => Some((homes, plan)),
        };
    }
    let Some((homes, plan)) = fullest else { return Ok(Err("it has no steps".to_string())) };
    let report = fabric::join(target, links, reports, &received);
    let stored_for = stored_for(manifest, target).map(str::to_string);
    Ok(Ok(Simulated { program: Program::default(), placed, homes, plan, report, stored_for }))
}

/// Where roles live on any of two machines, farther from the tiles.
fn farther(one: Homes, other: Homes) -> Homes {
    let of = |role: fn(&Homes) -> Place| role(&one).max(role(&other));
    Homes {
        weights: of(|homes| homes.weights),
        activations: of(|homes| homes.activations),
        state: of(|homes| homes.state),
        io: of(|homes| homes.io),
    }
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
