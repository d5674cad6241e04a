//! Cycles of matrix units: whole blocks of weights, whole groups of rows.

use super::target::{Matrix, Target};
use super::units::Cycles;
use crate::dtype::DType;

/// The part of a product that one tile computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileProduct {
    /// Products that share nothing.
    pub batch: f64,
    /// Rows of activations.
    pub rows: f64,
    /// Inputs, summed over.
    pub inputs: f64,
    /// Outputs.
    pub outputs: f64,
}

/// The matrix unit of a tile that is fastest, and its cycles; `None` where none takes the types. Where there are units for
/// weights of this type, others do not count; where operand 0 is to stay, those that hold weights only do not.
pub fn fastest<'a>(
    target: &'a Target,
    (activation, weight): (DType, DType),
    tile: &TileProduct,
    turned: bool,
) -> Option<(&'a Matrix, Cycles)> {
    let takes = |unit: &&Matrix| unit.types.contains(&activation) && (unit.turns || !turned);
    let own = |unit: &&Matrix| unit.weights.contains(&weight);
    let special = target.matrix.iter().filter(takes).any(|unit| own(&unit));
    let units = target.matrix.iter().filter(takes);
    let units = units.filter(|unit| if special { own(unit) } else { unit.weights.is_empty() });
    let timed = units.map(|unit| (unit, unit.cycles(tile)));
    timed.min_by(|(_, left), (_, right)| left.0.total_cmp(&right.0))
}

impl Matrix {
    /// Cycles for the part of a product: each block of inputs x outputs is loaded, and all rows pass by it, in groups and
    /// by threads that are filled up.
    pub fn cycles(&self, tile: &TileProduct) -> Cycles {
        let whole = |count: f64, size: u32| (count / f64::from(size)).ceil();
        let blocks = tile.batch * whole(tile.inputs, self.inputs.get()) * whole(tile.outputs, self.outputs.get());
        let groups = whole(whole(tile.rows, self.rows.get()), self.threads.get()) * f64::from(self.threads.get());
        // Units take blocks; where there are fewer blocks, they share the rows of one.
        let units = f64::from(self.units.get());
        let rounds = (blocks / units).floor();
        let rest = blocks - rounds * units;
        let pass = self.group() * groups;
        let shared =
            if rest > 0.0 { self.group() * (groups / (units / rest).floor().max(1.0)).ceil() } else { Cycles(0.0) };
        let block = |pass: Cycles| if self.overlapped { pass.max(self.load) } else { pass + self.load };
        let last = if rest > 0.0 { block(shared) } else { Cycles(0.0) };
        block(pass) * rounds + last + if self.overlapped { self.load } else { Cycles(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::JoulesPerOperation;
    use super::*;
    use std::num::NonZeroU32;

    fn unit(units: u32, rows: u32, threads: u32, load: f64, overlapped: bool) -> Matrix {
        let number = |value: u32| NonZeroU32::new(value).unwrap();
        Matrix {
            types: vec![DType::F16],
            weights: Vec::new(),
            units: number(units),
            rows: number(rows),
            inputs: number(16),
            outputs: number(16),
            pass: Cycles(1.0),
            phase: Cycles(1.5),
            fidelity: number(2),
            load: Cycles(load),
            overlapped,
            threads: number(threads),
            turns: false,
            energy: JoulesPerOperation(0.0),
        }
    }

    #[test]
    fn blocks_and_rows_are_whole() {
        let tile = TileProduct { batch: 1.0, rows: 13.0, inputs: 17.0, outputs: 16.0 };
        // Two blocks; 13 rows become 18 with six threads.
        assert_eq!(unit(1, 1, 6, 10.0, false).cycles(&tile), Cycles(2.0 * (18.0 * 4.0 + 10.0)));
        // A vector takes as long as eight rows on a unit that passes eight together.
        let vector = TileProduct { rows: 1.0, ..tile };
        let eight = TileProduct { rows: 8.0, ..tile };
        assert_eq!(unit(1, 8, 1, 0.0, false).cycles(&vector), unit(1, 8, 1, 0.0, false).cycles(&eight));
        // Loads are hidden where passes are longer.
        assert_eq!(unit(1, 1, 1, 10.0, true).cycles(&tile), Cycles(2.0 * 52.0 + 10.0));
        // Four units: two blocks, each by two units that share its rows.
        assert_eq!(unit(4, 1, 1, 0.0, false).cycles(&tile), Cycles(7.0 * 4.0));
    }
}
