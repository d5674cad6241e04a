//! Where weights, values and state live on a machine, from its policy and from what has room.

use super::cost::CostError;
use super::program::{Program, Source};
use super::target::{Home, Target};
use super::units::Bytes;
use std::collections::BTreeSet;

/// A memory that something lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The memories of the tiles.
    Tiles,
    /// A tier, by its index: 0 is tier 2.
    Tier(usize),
}

/// Where each role lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Homes {
    /// Weights.
    pub weights: Place,
    /// Results of steps.
    pub activations: Place,
    /// State.
    pub state: Place,
    /// Inputs and outputs of the program.
    pub io: Place,
}

impl Homes {
    /// Where the roles of a program live on a machine: activations first, then inputs and outputs, state, and weights take the
    /// nearest memory that has room, unless the policy names one.
    ///
    /// # Errors
    /// [`CostError::Capacity`] where something fits nowhere, or not into the memory that the policy names.
    pub fn of(target: &Target, program: &Program) -> Result<Homes, CostError> {
        let mut rooms: Vec<Bytes> = vec![target.sram()];
        rooms.extend(target.tiers.iter().map(|tier| tier.capacity));
        let live = Bytes(largest_step(program));
        let activations = take(target, &mut rooms, "values of a step", live, target.policy.activations, true)?;
        let io = match target.policy.io {
            Home::Auto => activations,
            home => {
                let bytes = Bytes(program.io_bytes());
                take(target, &mut rooms, "inputs and outputs", bytes, home, true)?
            }
        };
        let state = Bytes(program.state_bytes);
        let holds = target.tiles.holds_weights;
        let state = take(target, &mut rooms, "state", state, target.policy.state, holds)?;
        let weights = Bytes(program.weight_bytes);
        let weights = take(target, &mut rooms, "weights", weights, target.policy.weights, holds)?;
        Ok(Homes { weights, activations, state, io })
    }

    /// Room in the tiles for some of the weights where not all of them live there: half of what values and state leave, beside
    /// which the rest holds what runs and what comes. None where tiles hold no weights from run to run, or the policy has them
    /// elsewhere.
    pub fn spare(&self, target: &Target, program: &Program) -> Bytes {
        if self.weights == Place::Tiles || !target.tiles.holds_weights || target.policy.weights != Home::Auto {
            return Bytes(0.0);
        }
        let state = if self.state == Place::Tiles { program.state_bytes } else { 0.0 };
        let values = if self.activations == Place::Tiles { largest_step(program) } else { 0.0 };
        (target.sram() - Bytes(values + state)).max(Bytes(0.0)) * 0.5
    }
}

/// Part of the memories of tiles that weights and state may take: the rest is for values and copies.
const RESTING: f64 = 0.75;

impl Program {
    /// Note where weights rest. In the memories of tiles, each weight may take as many times an even share as there is room
    /// for all of them: it then lies where it is needed. What does not is received by the tiles that need it, run by run.
    pub fn settle(&mut self, target: &Target, homes: &Homes) {
        let rest = Bytes(self.weight_bytes + self.state_bytes).max(Bytes(1.0));
        let shares = (homes.weights == Place::Tiles).then(|| (target.sram() * RESTING / rest).max(1.0));
        self.steps.iter_mut().for_each(|step| step.weight_shares = shares);
    }
}

fn take(
    target: &Target,
    rooms: &mut [Bytes],
    what: &'static str,
    needed: Bytes,
    home: Home,
    tiles: bool,
) -> Result<Place, CostError> {
    let first = if tiles { 0 } else { 1 };
    let range = match home {
        Home::Auto => first.min(rooms.len() - 1)..rooms.len(),
        Home::Sram => 0..1,
        Home::Tier2 => 1..2,
        Home::Tier3 => 2..3,
    };
    let found = range.clone().find(|&index| rooms[index] >= needed);
    let Some(index) = found else {
        let available = range.map(|index| rooms[index]).fold(Bytes(0.0), Bytes::max);
        return Err(CostError::Capacity {
            target: target.name.clone(),
            what,
            needed: needed.to_string(),
            available: available.to_string(),
            chips: (needed / available.max(Bytes(1.0))).ceil() as u64,
        });
    };
    rooms[index] = rooms[index] - needed;
    Ok(match index.checked_sub(1) {
        None => Place::Tiles,
        Some(tier) => Place::Tier(tier),
    })
}

/// Bytes of values that the greatest step reads and writes.
fn largest_step(program: &Program) -> f64 {
    let bytes = program.steps.iter().map(|step| {
        let values = step.operands.iter().flatten().chain(&step.results);
        let mut seen = BTreeSet::new();
        let own = values.filter_map(|tensor| match tensor.source {
            Source::Value(value) => seen.insert(value).then_some(tensor.bytes),
            Source::State(_) | Source::Weight(_) => None,
        });
        own.sum::<f64>()
    });
    bytes.fold(0.0, f64::max)
}
