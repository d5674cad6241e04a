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
/// The stationary operand is the one besides operand 0 that most axes are in. Axes that are summed are inputs; of the
/// others, those that are not in the stationary operand are rows, and the last one that is in it and not in operand 0
/// are outputs. Axes that are not split (keys of attention, steps of a recurrence) take the roles that are left.
pub(super) fn roles(space: &Space, operands: usize) -> (usize, Vec<AxisRole>) {
    let touches =
        |operand: usize| space.axes.iter().filter(|axis| axis.at.get(operand).is_some_and(Option::is_some)).count();
    let stationary = (1..operands).rev().max_by_key(|&operand| touches(operand)).unwrap_or(0);
    let is_in = |axis: usize, operand: usize| space.axes[axis].at.get(operand).is_some_and(Option::is_some);
    let axes = 0..space.axes.len();
    let own =
        |axis: &usize| space.axes[*axis].kind == AxisKind::Parallel && is_in(*axis, stationary) && !is_in(*axis, 0);
    let outputs = axes.clone().rev().find(own);
    let serial: Vec<usize> = axes.clone().filter(|&axis| space.axes[axis].kind == AxisKind::Serial).collect();
    let role = |axis: usize| match space.axes[axis].kind {
        AxisKind::Reduced => AxisRole::Inputs,
        AxisKind::Parallel if Some(axis) == outputs => AxisRole::Outputs,
        AxisKind::Parallel if is_in(axis, stationary) => AxisRole::Batch,
        AxisKind::Parallel => AxisRole::Rows,
        AxisKind::Serial => match (serial.as_slice(), outputs) {
            ([_], None) => AxisRole::Outputs,
            ([_], Some(_)) => AxisRole::Inputs,
            ([first, ..], _) if *first == axis => AxisRole::Batch,
            ([.., last], _) if *last == axis => AxisRole::Inputs,
            (_, _) => AxisRole::Outputs,
        },
    };
    (stationary, axes.map(role).collect())
}
