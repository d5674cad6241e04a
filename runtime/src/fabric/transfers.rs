//! Transfers between tiers and tiles: what each step needs, and when it arrives.

use ipuc_formats::machine::units::{Bytes, Seconds};
use ipuc_formats::machine::{BoundStep, Homes, Place, Program, Source, StepCost, Target};

/// Bytes that a step reads from and writes to each tier, in one run of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Needs {
    /// Weights and state: there before the run, so that they may be read ahead of it.
    pub(super) stored: Vec<Bytes>,
    /// Results of earlier steps.
    pub(super) computed: Vec<Bytes>,
    pub(super) written: Vec<Bytes>,
}

impl Needs {
    /// Everything that is read from a tier.
    pub(super) fn read(&self, tier: usize) -> Bytes {
        self.stored[tier] + self.computed[tier]
    }
}

/// What a step that costs so much moves, from where its operands and results live.
pub(super) fn needs(target: &Target, program: &Program, step: &BoundStep, homes: &Homes, cost: &StepCost) -> Needs {
    let none = || vec![Bytes(0.0); target.tiers.len()];
    let mut needs = Needs { stored: none(), computed: none(), written: none() };
    let add = |list: &mut [Bytes], place: Place, bytes: f64| match place {
        Place::Tiles => {}
        Place::Tier(tier) => list[tier] += Bytes(bytes),
    };
    if step.view {
        return needs;
    }
    add(&mut needs.stored, homes.weights, step.streamed_weight_bytes() + cost.beyond.0);
    // Contents that a step appends to stay where they are; only what is new is written.
    let mut appended = 0.0;
    for (operand, tensor) in step.operands.iter().enumerate() {
        let Some(tensor) = tensor else { continue };
        match tensor.source {
            Source::Weight(_) => {}
            // Inputs are there before the run.
            Source::Value(_) if homes.io != homes.activations && program.inputs.contains(&tensor.source) => {
                appended += tensor.bytes;
                add(&mut needs.stored, homes.io, tensor.bytes);
            }
            Source::Value(_) => {
                appended += tensor.bytes;
                let times = if operand == 0 { 1 + cost.read_again } else { 1 };
                add(&mut needs.computed, homes.activations, tensor.bytes * f64::from(times));
            }
            Source::State(_) if step.appends => {}
            Source::State(_) => add(&mut needs.stored, homes.state, tensor.bytes),
        }
    }
    for tensor in &step.results {
        let bytes = if step.appends { appended.min(tensor.bytes) } else { tensor.bytes };
        match tensor.source {
            Source::State(_) => add(&mut needs.written, homes.state, bytes),
            Source::Value(_) | Source::Weight(_) => add(&mut needs.written, homes.activations, bytes),
        }
        if homes.io != homes.activations && program.outputs.contains(&tensor.source) {
            add(&mut needs.written, homes.io, bytes);
        }
    }
    needs
}

/// One tier's way to the tiles: transfers one after another.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Channel {
    /// When the last transfer ends.
    pub(super) free: Seconds,
    pub(super) busy: Seconds,
}

/// When a transfer's first and last bytes are there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    pub(super) first: Seconds,
    pub(super) last: Seconds,
}

impl Channel {
    /// Move so many bytes, not before `from`; the first of them that are of use are a chunk.
    pub(super) fn transfer(
        &mut self,
        from: Seconds,
        (bytes, chunk): (Bytes, Bytes),
        time: Seconds,
        latency: Seconds,
    ) -> Arrival {
        if bytes.0 == 0.0 {
            return Arrival { first: Seconds(0.0), last: Seconds(0.0) };
        }
        let start = self.free.max(from);
        self.busy += time;
        self.free = start + time;
        let first = time * (chunk.min(bytes) / bytes);
        Arrival { first: start + latency + first, last: start + latency + time }
    }
}
