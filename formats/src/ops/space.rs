//! The points at which an operator computes, and which elements of its operands and results each of them touches.
//!
//! A [`Space`] is a nest of loops, free of hardware: its [`Axis`]es say how far they reach, whether their points may be
//! computed apart, and which position of each tensor a point is at. The tiles of operands that a part of the space needs
//! (halos of windows too), legal splits, and the multiply-accumulates of products all follow from it.
//!
//! An axis of a tensor that no axis of the space is at is needed whole. Positions outside of a tensor are padding.
//!
//! A step may have several spaces, one after another. One that writes no result gives what those after it need, such as
//! the sums of a normalization: tiles that share such a sum all get it. Axes of spaces that are [linked](Space::linked) are
//! split together.

use crate::dim::Dim;
use std::ops::Range;

/// Whether the points along an axis may be computed apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum AxisKind {
    /// Each point has results of its own: any split gives parts of the results.
    Parallel,
    /// All points contribute to the same results: a split gives partial results, which a reduction combines.
    Reduced,
    /// Points may be computed apart, but along the first serial axis each point needs what all of these gave at the one
    /// before: a split exchanges results once for each point of that axis.
    Recurrent,
    /// It is not split: points depend on one another.
    Serial,
}

/// Where a step along an axis of a space leads in a tensor: to `stride * point + offset` on one of the tensor's axes.
/// Several axes of a space may be at one axis of a tensor; their positions add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Index {
    /// Axis of the tensor.
    pub axis: u32,
    /// Distance between neighbouring points, in elements of that axis.
    pub stride: i64,
    /// Position of the first point; negative in the padding before the tensor.
    pub offset: i64,
}

/// One loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Number of points.
    pub extent: Dim,
    /// Whether they may be computed apart.
    pub kind: AxisKind,
    /// For each operand, then each result, where the axis is in it; `None` where it is not.
    pub at: Vec<Option<Index>>,
}

/// A nest of loops, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The loops.
    pub axes: Vec<Axis>,
    /// Multiply-accumulates at each point; 0 outside of products.
    pub macs: i64,
    /// Numbers that points along reduced axes give together: two where these are a mean and a variance.
    pub numbers: u32,
}

impl Space {
    /// Number of points.
    pub fn points(&self) -> Dim {
        Dim::product(self.axes.iter().map(|axis| &axis.extent))
    }

    /// The axis of another space of the step that is the same loop as an axis of this one: the one at the same place of the
    /// same tensor, or the one at the same position in the nest where the spaces have no tensor in common.
    pub fn linked(&self, axis: usize, other: &Space) -> Option<usize> {
        let own = &self.axes[axis];
        let same = |other: &Axis| other.extent == own.extent;
        let at = |other: &Axis| own.at.iter().zip(&other.at).any(|(own, other)| own.is_some() && own == other);
        if let Some(found) = other.axes.iter().position(|other| same(other) && at(other)) {
            return Some(found);
        }
        let touched = |space: &Space, tensor: usize| space.axes.iter().any(|axis| axis.at[tensor].is_some());
        let common = (0..own.at.len()).any(|tensor| touched(self, tensor) && touched(other, tensor));
        (!common && other.axes.get(axis).is_some_and(same)).then_some(axis)
    }

    /// Whether it writes a result of a step with so many operands.
    pub fn writes(&self, operands: usize) -> bool {
        self.axes.iter().any(|axis| axis.at.iter().skip(operands).any(Option::is_some))
    }

    /// Positions of a tensor (counted over operands, then results) that the points of a tile touch: one range for each of
    /// its `extents`, which reaches outside of the tensor where there is padding. `tile` has a range of points an axis.
    /// `None` where it has not, or where a position does not fit into 64 bits.
    pub fn footprint(&self, tile: &[Range<i64>], tensor: usize, extents: &[i64]) -> Option<Vec<Range<i64>>> {
        if tile.len() != self.axes.len() {
            return None;
        }
        let mut touched: Vec<Option<Range<i64>>> = vec![None; extents.len()];
        for (axis, points) in self.axes.iter().zip(tile) {
            let Some(index) = axis.at.get(tensor).copied().flatten() else { continue };
            let last = points.end.checked_sub(1)?;
            let ends = [points.start, last].map(|point| point.checked_mul(index.stride)?.checked_add(index.offset));
            let (first, last) = (ends[0]?.min(ends[1]?), ends[0]?.max(ends[1]?));
            let range = touched.get_mut(index.axis as usize)?.get_or_insert(0..1);
            *range = range.start.checked_add(first)?..range.end.checked_add(last)?;
        }
        Some(touched.into_iter().zip(extents).map(|(range, &extent)| range.unwrap_or(0..extent)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_linked_by_what_they_touch_or_where_they_are() {
        let index = |axis: u32| Some(Index { axis, stride: 1, offset: 0 });
        let axis = |extent: i64, at: [Option<Index>; 3]| Axis {
            extent: Dim::known(extent),
            kind: AxisKind::Parallel,
            at: at.to_vec(),
        };
        let rows_and_inputs = [axis(4, [index(0), None, None]), axis(8, [index(1), None, None])];
        let statistics = Space { axes: rows_and_inputs.to_vec(), macs: 0, numbers: 1 };
        // Rows, outputs, inputs: inputs are linked by their place in operand 0.
        let product = Space {
            axes: vec![
                axis(4, [index(0), None, index(0)]),
                axis(8, [None, index(1), index(1)]),
                axis(8, [index(1), index(0), None]),
            ],
            macs: 1,
            numbers: 1,
        };
        assert_eq!([0, 1].map(|axis| statistics.linked(axis, &product)), [Some(0), Some(2)]);
        // Nothing in common: the same position, with the same extent.
        let axes = vec![axis(4, [None, index(0), None]), axis(9, [None, index(1), None])];
        let other = Space { axes, macs: 0, numbers: 1 };
        assert_eq!([0, 1].map(|axis| statistics.linked(axis, &other)), [Some(0), None]);
        assert!(product.writes(2) && !statistics.writes(2));
    }

    #[test]
    fn a_tile_touches_its_window() {
        // Three taps at distance 2 over windows at distance 3, one element of padding.
        let at = |stride, offset| vec![Some(Index { axis: 1, stride, offset })];
        let axis = |extent, kind, at| Axis { extent: Dim::known(extent), kind, at };
        let space = Space {
            axes: vec![axis(4, AxisKind::Parallel, at(3, -1)), axis(3, AxisKind::Reduced, at(2, 0))],
            macs: 1,
            numbers: 1,
        };
        assert_eq!(space.points(), Dim::known(12));
        assert_eq!(space.footprint(&[0..1, 0..3], 0, &[7, 13]), Some(vec![0..7, -1..4]));
        assert_eq!(space.footprint(&[1..3, 1..3], 0, &[7, 13]), Some(vec![0..7, 4..10]));
        assert_eq!(space.footprint(&[0..1, 0..1, 0..1], 0, &[7, 13]), None);
        assert_eq!(space.footprint(&[0..1, 0..3], 0, &[7]), None);
        assert_eq!(space.footprint(&[0..i64::MAX, 0..3], 0, &[7, 13]), None);
    }
}
