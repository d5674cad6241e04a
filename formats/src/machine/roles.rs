//! What the axes of a product are to a matrix unit, from where they are in its operands.

use crate::ops::{AxisKind, Space};

/// What an axis of a product is to a matrix unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AxisRole {
    /// Products that share nothing.
    Batch,
    /// Rows of activations, which pass by the same weights.
    Rows,
    /// Summed over.
    Inputs,
    /// Results side by side, each with weights of its own.
    Outputs,
}

/// The operand that stays in the matrix unit while rows of the other pass by, and the role of each axis.
///
/// The stationary operand is the one besides operand 0 that most axes are in, of those that an axis is in which is summed
/// over, where there are such: operands of the program that follows a product are read with its results only. Axes that
/// are summed are inputs; of the others, those that are not in the stationary operand are rows, and those that are in it
/// and not in operand 0 are outputs. Axes that are not split (keys of attention, steps of a recurrence) take the
/// roles that are left.
pub(super) fn roles(space: &Space, operands: usize) -> (usize, Vec<AxisRole>) {
    let touches =
        |operand: usize| space.axes.iter().filter(|axis| axis.at.get(operand).is_some_and(Option::is_some)).count();
    let is_in = |axis: usize, operand: usize| space.axes[axis].at.get(operand).is_some_and(Option::is_some);
    let axes = 0..space.axes.len();
    let summed =
        |operand: usize| axes.clone().any(|axis| space.axes[axis].kind == AxisKind::Reduced && is_in(axis, operand));
    let stationary = (1..operands).rev().max_by_key(|&operand| (summed(operand), touches(operand))).unwrap_or(0);
    let own =
        |axis: &usize| space.axes[*axis].kind == AxisKind::Parallel && is_in(*axis, stationary) && !is_in(*axis, 0);
    let outputs: Vec<usize> = axes.clone().filter(own).collect();
    let serial: Vec<usize> = axes.clone().filter(|&axis| space.axes[axis].kind == AxisKind::Serial).collect();
    let role = |axis: usize| match space.axes[axis].kind {
        AxisKind::Reduced => AxisRole::Inputs,
        AxisKind::Parallel if outputs.contains(&axis) => AxisRole::Outputs,
        AxisKind::Parallel if is_in(axis, stationary) => AxisRole::Batch,
        AxisKind::Parallel => AxisRole::Rows,
        AxisKind::Recurrent => AxisRole::Outputs,
        AxisKind::Serial => match (serial.as_slice(), outputs.is_empty()) {
            ([_], true) => AxisRole::Outputs,
            ([_], false) => AxisRole::Inputs,
            ([first, ..], _) if *first == axis => AxisRole::Batch,
            ([.., last], _) if *last == axis => AxisRole::Inputs,
            (_, _) => AxisRole::Outputs,
        },
    };
    (stationary, axes.map(role).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Dim;
    use crate::ops::{Axis, Index};

    /// An axis that is along these axes of operands and the result.
    fn axis(kind: AxisKind, at: [Option<u32>; 4]) -> Axis {
        let index = |axis: Option<u32>| axis.map(|axis| Index { axis, stride: 1, offset: 0 });
        Axis { extent: Dim::known(16), kind, at: at.map(index).to_vec() }
    }

    #[test]
    fn blocks_of_outputs_fill_a_matrix_unit_together() {
        // Windows by blocks of 8 filters: both axes of the filters are outputs.
        let axes = vec![
            axis(AxisKind::Parallel, [Some(0), None, None, Some(1)]),
            axis(AxisKind::Parallel, [None, Some(0), None, Some(0)]),
            axis(AxisKind::Parallel, [None, Some(0), None, Some(2)]),
            axis(AxisKind::Reduced, [Some(1), Some(1), None, None]),
        ];
        let space = Space { axes, macs: 1, numbers: 1 };
        let outputs = AxisRole::Outputs;
        assert_eq!(roles(&space, 2), (1, vec![AxisRole::Rows, outputs, outputs, AxisRole::Inputs]));
    }

    #[test]
    fn an_operand_that_is_added_to_a_product_does_not_stay_in_the_matrix_unit() {
        // Operand 0 by the weight 1; operand 2 is added to each element of the result.
        let axes = vec![
            axis(AxisKind::Parallel, [Some(0), None, Some(0), Some(0)]),
            axis(AxisKind::Parallel, [None, Some(1), Some(1), Some(1)]),
            axis(AxisKind::Reduced, [Some(1), Some(0), None, None]),
        ];
        let space = Space { axes, macs: 1, numbers: 1 };
        assert_eq!(roles(&space, 3), (1, vec![AxisRole::Rows, AxisRole::Outputs, AxisRole::Inputs]));
        assert_eq!(roles(&space, 2), roles(&space, 3));
    }
}
