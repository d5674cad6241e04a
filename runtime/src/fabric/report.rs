//! What a simulated run took.

use ipuc_formats::machine::units::{Bytes, Celsius, Cycles, Joules, Seconds};

/// What a step waited for or was busy with most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// Matrix units.
    Matrix,
    /// Vector units and copies.
    Vector,
    /// Exchange between tiles, and meetings.
    Exchange,
    /// Starting the step.
    Overhead,
    /// Transfers from a tier, by its index.
    Tier(usize),
    /// Nothing: a view.
    Nothing,
}

/// Energy by component.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EnergyParts {
    /// Multiply-accumulates.
    pub matrix: Joules,
    /// Operations on single elements.
    pub vector: Joules,
    /// Memories of tiles.
    pub sram: Joules,
    /// Wires between tiles.
    pub exchange: Joules,
    /// Each tier.
    pub tiers: Vec<Joules>,
    /// Links between chips.
    pub links: Joules,
    /// What is drawn whatever happens.
    pub static_energy: Joules,
}

impl EnergyParts {
    /// The sum of the parts.
    pub fn total(&self) -> Joules {
        let tiers: Joules = self.tiers.iter().copied().sum();
        self.matrix + self.vector + self.sram + self.exchange + tiers + self.links + self.static_energy
    }
}

/// One step of a simulated run; all runs of a step in a body together.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// When it began.
    pub start: Seconds,
    /// When it ended.
    pub end: Seconds,
    /// Time in which its engine was at work.
    pub busy: Seconds,
    /// Time in which its engine waited for it.
    pub stall: Seconds,
    /// Of that, for transfers from each tier; the rest is for other engines.
    pub tier_stalls: Vec<Seconds>,
    /// Bytes read from each tier.
    pub read: Vec<Bytes>,
    /// Bytes written to each tier.
    pub written: Vec<Bytes>,
    /// Energy without the static part.
    pub energy: EnergyParts,
    /// What it took longest for.
    pub limit: Limit,
}

/// What works off steps in order: all tiles together, or one of the engines of a machine with queues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineReport {
    /// What it is.
    pub name: &'static str,
    /// Time at work.
    pub busy: Seconds,
    /// Time that it waited for data or for another engine before a step of its own.
    pub stall: Seconds,
    /// Time after its last step.
    pub idle: Seconds,
}

/// One tier in a simulated run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TierReport {
    /// Bytes read.
    pub read: Bytes,
    /// Bytes written.
    pub written: Bytes,
    /// Time in which it moved data.
    pub busy: Seconds,
    /// Time in which the tiles waited for it.
    pub stall: Seconds,
}

/// A transfer between a tier and the tiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferReport {
    /// Index of the tier.
    pub tier: usize,
    /// Index in the program of the step that it is for.
    pub step: usize,
    /// When the tier begins to move it.
    pub start: Seconds,
    /// When the tier is free again.
    pub end: Seconds,
    /// Its bytes.
    pub bytes: Bytes,
    /// From the tiles to the tier.
    pub write: bool,
}

/// One of several machines that share the steps of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// Index in the program of its first step.
    pub first: usize,
    /// When its first step begins.
    pub start: Seconds,
    /// When its last step has ended.
    pub end: Seconds,
    /// What it receives from the one before.
    pub received: Bytes,
    /// How long that takes.
    pub link: Seconds,
}

/// The temperature of a machine on which the same run follows itself for ever.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heat {
    /// At the beginning of this run.
    pub start: Celsius,
    /// At its end.
    pub end: Celsius,
    /// After very many.
    pub steady: Celsius,
    /// Time of runs after which the limit is reached and runs are slowed down; `None` where it never is.
    pub limit_after: Option<Seconds>,
    /// What a run takes when the machine is as warm as it gets.
    pub sustained: Seconds,
}

/// A simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The steps in program order.
    pub steps: Vec<StepReport>,
    /// Time of the whole run.
    pub makespan: Seconds,
    /// The same in cycles of the tiles' clock.
    pub cycles: Cycles,
    /// The part of it that the limits on power and temperature add.
    pub throttled: Seconds,
    /// Time at work, summed over engines.
    pub busy: Seconds,
    /// Time in which engines waited for data or for one another while they had steps left.
    pub stall: Seconds,
    /// What worked off the steps; empty where several machines share them.
    pub engines: Vec<EngineReport>,
    /// The tiers.
    pub tiers: Vec<TierReport>,
    /// All transfers, in the order in which they were issued.
    pub transfers: Vec<TransferReport>,
    /// Energy.
    pub energy: EnergyParts,
    /// Multiply-accumulates that were computed.
    pub macs: f64,
    /// Those that were left out because an activation was zero.
    pub left_out_macs: f64,
    /// Share of the multiply-accumulates that the matrix units could have done in that time; `None` without products.
    pub utilization: Option<f64>,
    /// The machines, in the order of their steps.
    pub chips: Vec<Chip>,
    /// Time from one run to the next where as many are under way as there are machines.
    pub interval: Seconds,
    /// Temperatures, where the machine has a limit.
    pub heat: Option<Heat>,
}

impl Report {
    /// How much slower everything runs because of limits on power and temperature. Times of steps and transfers are without
    /// it.
    pub fn slowdown(&self) -> f64 {
        let free = (self.makespan - self.throttled).0;
        if free > 0.0 { self.makespan.0 / free } else { 1.0 }
    }
}
