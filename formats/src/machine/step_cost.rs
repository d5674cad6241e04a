//! What a step takes of the parts of a machine.

use super::target::{Style, Target};
use super::units::{Bytes, Cycles, Joules, Seconds};

/// Engines of a machine with queues: products; arithmetic and conversions; divisions and special functions; copies.
pub const ENGINES: [&str; 4] = ["tensor", "vector", "scalar", "moves"];

/// What a step costs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepCost {
    /// Tiles that take part.
    pub tiles: u32,
    /// Of the busiest tile in its matrix units.
    pub matrix: Cycles,
    /// Of the busiest tile in its vector unit.
    pub vector: Cycles,
    /// Of those, for divisions and special functions.
    pub special: Cycles,
    /// Of the busiest tile in copies within its own memory.
    pub copies: Cycles,
    /// Of all exchange phases.
    pub exchange: Cycles,
    /// Meetings of all tiles.
    pub sync: Cycles,
    /// Exchange phases.
    pub phases: u32,
    /// Parts in which the results are made, one after another.
    pub stages: u32,
    /// Bytes that the busiest tile receives.
    pub received: Bytes,
    /// Of those, bytes that its neighbour receives at the same time.
    pub shared: Bytes,
    /// Bytes that all tiles receive.
    pub exchanged: Bytes,
    /// Separate transfers that the busiest tile receives.
    pub transfers: f64,
    /// Bytes that the busiest of the tiles sends which hold operands.
    pub sent: Bytes,
    /// Separate transfers that it sends.
    pub transfers_sent: f64,
    /// Bytes that cross the middle of the machine.
    pub crossing: Bytes,
    /// Bytes over the busiest link between neighbours, where links are described.
    pub link: Bytes,
    /// Hops of all bytes between tiles.
    pub byte_hops: Bytes,
    /// The part of the exchange that brings values into other parts than those that they were computed in.
    pub relayout: Cycles,
    /// Bytes that all tiles receive for it.
    pub relayout_bytes: Bytes,
    /// Separate transfers that the busiest tile receives for it.
    pub relayout_transfers: f64,
    /// Memory of a tile that it needs at once.
    pub sram: Bytes,
    /// Bytes that all tiles read from and write to their own memories.
    pub sram_traffic: Bytes,
    /// How often operand 0 is read again from where it lives.
    pub read_again: u32,
    /// Bytes of weights that it reads beyond those that it needs, since they are stored in another order.
    pub beyond: Bytes,
    /// Multiply-accumulates, without those that are left out.
    pub macs: f64,
    /// The operand that stays in the matrix units while rows of the other pass by, in the last product.
    pub stationary: Option<usize>,
    /// Cycles in the matrix units where the other operand stays, where that may be.
    pub turned: Option<Cycles>,
    /// Energy of multiply-accumulates.
    pub matrix_energy: Joules,
    /// Energy of operations on single elements.
    pub vector_energy: Joules,
}

impl StepCost {
    /// How long it runs when all data is there.
    pub fn duration(&self, target: &Target) -> Seconds {
        let Cycles(matrix) = self.matrix;
        let Cycles(vector) = self.vector + self.copies;
        let (Cycles(exchange), Cycles(sync)) = (self.exchange, self.sync);
        let cycles = match target.style {
            Style::Bsp => matrix + vector + exchange + sync,
            Style::Static => matrix.max(vector).max(exchange + sync),
            Style::Queues => self.engines().into_iter().fold(0.0, |most: f64, cycles| most.max(cycles.0)),
            // Computing hides what is on the way, but nobody computes where all wait for all.
            Style::Packet | Style::Roofline => (matrix + vector).max(exchange) + sync,
        };
        // Packets arrive late by the way that they have come, which no computation hides.
        let latency = if target.style == Style::Packet { self.latency(target).0 } else { 0.0 };
        let device = Cycles(cycles + latency) / target.tiles.clock + target.overhead.step;
        match target.overhead.host_ahead {
            true => device.max(target.overhead.host),
            false => device + target.overhead.host,
        }
    }

    /// Cycles on each engine of a machine with queues, in the order of [`ENGINES`].
    pub fn engines(&self) -> [Cycles; ENGINES.len()] {
        [self.matrix, self.vector - self.special, self.special, self.copies + self.exchange + self.sync]
    }

    /// Of hops from one end to the other of the square of tiles that take part, once a phase.
    pub fn latency(&self, target: &Target) -> Cycles {
        let side = f64::from(self.tiles).sqrt();
        target.exchange.hop * (f64::from(self.phases) * 2.0 * side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::built_in;

    #[test]
    fn computing_hides_an_exchange_but_no_meeting() {
        let cost =
            |exchange, sync| StepCost { matrix: Cycles(100.0), exchange: Cycles(exchange), sync, ..Default::default() };
        for name in ["a100", "tenstorrent-n150"] {
            let target = built_in(name, &[]).unwrap().unwrap();
            let alone = cost(0.0, Cycles(0.0)).duration(&target);
            assert_eq!(cost(60.0, Cycles(0.0)).duration(&target), alone, "{name}");
            let met = cost(60.0, Cycles(7.0)).duration(&target);
            assert!(((met.0 - alone.0) * target.tiles.clock.0 - 7.0).abs() < 1e-6, "{name}: {met:?} and {alone:?}");
        }
    }
}
