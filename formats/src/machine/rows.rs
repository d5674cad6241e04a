//! Rows that the loops of a step read one after another, as those of a softmax do, on machines that do not keep them.

use super::program::BoundStep;
use super::split::{Points, Split, bytes_of_tile};
use super::step_cost::StepCost;
use super::target::Target;
use crate::ops::AxisKind;

/// How often the loops of a step read operand 0 after the first time: once for each further loop, where its rows are longer
/// than what a tile keeps.
pub(super) fn read_again(target: &Target, step: &BoundStep) -> u32 {
    let (Some(kept), Some(row)) = (target.tiles.row, row_bytes(step)) else { return 0 };
    let loops = u32::try_from(step.spaces.len()).unwrap_or(u32::MAX);
    if row > kept.0 { loops - 1 } else { 0 }
}

/// Bytes of a row of operand 0 that several loops read; `None` where there is no such row.
fn row_bytes(step: &BoundStep) -> Option<f64> {
    let operand = step.operands.first()?.as_ref()?;
    let reads = |space: &crate::ops::Space| space.axes.iter().any(|axis| axis.at.first().is_some_and(Option::is_some));
    if !step.products.is_empty() || step.spaces.len() < 2 || !step.spaces.iter().all(reads) {
        return None;
    }
    let axes = step.spaces[0].axes.iter().zip(&step.extents[0]);
    let row: f64 = axes.filter(|(axis, _)| axis.kind == AxisKind::Reduced).map(|(_, &extent)| extent as f64).product();
    let all = operand.elements();
    (all > 0.0).then(|| operand.bytes * row / all)
}

/// Charge what is read again: from the memory that tiles share where it is still there, else from where the operand lives.
pub(super) fn charge(target: &Target, step: &BoundStep, split: &Split, cost: &mut StepCost) {
    let again = read_again(target, step);
    let (true, Some(row), Some(Some(operand))) = (again > 0, row_bytes(step), step.operands.first()) else { return };
    let part = bytes_of_tile(step, split, 0, Points::All) * f64::from(again);
    cost.received += part;
    cost.exchanged += part * f64::from(cost.tiles);
    let results: f64 = step.results.iter().map(|result| result.bytes).sum();
    let together = target.tiles.rows.map_or(0.0, |rows| f64::from(rows.get()) * row * (1.0 + results / operand.bytes));
    if together > (target.tiles.sram - target.tiles.reserved).0 {
        cost.read_again = again;
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::{BoundTensor, Source};
    use super::super::units::Bytes;
    use super::*;
    use crate::dim::Dim;
    use crate::machine::built_in;
    use crate::ops::{Axis, Index, Space};

    /// A step of so many rows in f16 whose loops find a statistic of each row `loops` times before the one that writes.
    fn step(rows: i64, row: i64, loops: usize) -> BoundStep {
        let at = |axis: u32| Some(Index { axis, stride: 1, offset: 0 });
        let axis = |extent: i64, kind: AxisKind, at: [Option<Index>; 2]| Axis {
            extent: Dim::known(extent),
            kind,
            at: at.to_vec(),
        };
        let statistic = Space {
            axes: vec![axis(rows, AxisKind::Parallel, [at(0), None]), axis(row, AxisKind::Reduced, [at(1), None])],
            macs: 0,
            numbers: 1,
        };
        let write = Space {
            axes: vec![axis(rows, AxisKind::Parallel, [at(0), at(0)]), axis(row, AxisKind::Parallel, [at(1), at(1)])],
            macs: 0,
            numbers: 1,
        };
        let tensor = |value: u32| BoundTensor {
            extents: vec![rows, row],
            bytes: (rows * row * 2) as f64,
            source: Source::Value(value),
        };
        let spaces: Vec<Space> = std::iter::repeat_n(statistic, loops).chain([write]).collect();
        BoundStep {
            extents: vec![vec![rows, row]; spaces.len()],
            spaces,
            operands: vec![Some(tensor(0))],
            results: vec![tensor(1)],
            ..BoundStep::default()
        }
    }

    #[test]
    fn long_rows_are_read_once_a_loop_and_from_memory_where_too_many_are_under_way() {
        let target = built_in("a100", &[]).unwrap().unwrap();
        let charged = |rows: i64, row: i64, loops: usize| {
            let step = step(rows, row, loops);
            let mut cost = StepCost { tiles: 1, ..StepCost::default() };
            charge(&target, &step, &Split::whole(&step), &mut cost);
            (cost.received, cost.read_again)
        };
        // 1,024 elements are kept; of longer rows each further loop reads all.
        assert_eq!(charged(8, 1024, 2), (Bytes(0.0), 0));
        assert_eq!(charged(8, 4096, 2), (Bytes(2.0 * 8.0 * 8192.0), 0));
        // Sixteen rows of 32 KiB and their results are more than a share of the cache.
        assert_eq!(charged(8, 16384, 1), (Bytes(8.0 * 32768.0), 1));
    }
}
