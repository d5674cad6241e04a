//! Where the zeros of activations are, and what a step makes of them.

use std::ops::Range;
use std::sync::Arc;

/// The zeros among the activations that a step multiplies with weights.
#[derive(Debug, Clone, PartialEq)]
pub enum ActivationZeros {
    /// Each element is zero with this probability, whatever others are.
    Share(f64),
    /// Where they were in a run.
    Counted(Arc<ZeroMap>),
}

/// Which elements of a tensor are zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZeroMap {
    pub(super) extents: Vec<usize>,
    /// A bit an element, row-major: 1 where it is zero.
    bits: Vec<u64>,
}

impl ZeroMap {
    /// The map of a tensor of these extents; `zeros` says of each element, row-major, whether it is zero. What is missing
    /// is not zero. `None` where memory is short.
    pub fn new(extents: &[usize], zeros: impl IntoIterator<Item = bool>) -> Option<ZeroMap> {
        let count = extents.iter().fold(1usize, |count, &extent| count.saturating_mul(extent));
        let mut bits = Vec::new();
        bits.try_reserve_exact(count.div_ceil(64)).ok()?;
        bits.resize(count.div_ceil(64), 0u64);
        for (element, _) in zeros.into_iter().take(count).enumerate().filter(|(_, zero)| *zero) {
            bits[element / 64] |= 1 << (element % 64);
        }
        Some(ZeroMap { extents: extents.to_vec(), bits })
    }

    fn is_zero(&self, element: usize) -> bool {
        (self.bits[element / 64] >> (element % 64)) & 1 == 1
    }

    /// Share of the elements that are zero; 0 where there are none.
    pub fn share(&self) -> f64 {
        let count: usize = self.extents.iter().product();
        let zeros: u32 = self.bits.iter().map(|word| word.count_ones()).sum();
        if count == 0 { 0.0 } else { f64::from(zeros) / count as f64 }
    }

    /// Groups that are kept and all groups in a part of the tensor: groups of `inputs` neighbours along an axis in `rows`
    /// rows, which are positions along all other axes, row-major. A group is left out where all of it is zero.
    pub(super) fn groups(&self, part: &[Range<usize>], axis: usize, (rows, inputs): (usize, usize)) -> (f64, f64) {
        let Some(along) = part.get(axis) else { return (0.0, 0.0) };
        let mut strides = vec![1usize; self.extents.len()];
        for index in (1..self.extents.len()).rev() {
            strides[index - 1] = strides[index] * self.extents[index];
        }
        let others = part.iter().enumerate().filter(|(index, _)| *index != axis);
        let starts = others.fold(vec![0usize], |starts, (index, range)| {
            starts
                .iter()
                .flat_map(|start| range.clone().map(move |at| (start, at)))
                .map(|(start, at)| start + at * strides[index])
                .collect()
        });
        let (mut kept, mut all) = (0u64, 0u64);
        for block in starts.chunks(rows.max(1)) {
            for first in along.clone().step_by(inputs.max(1)) {
                let group = first..(first + inputs).min(along.end);
                let zero = block.iter().all(|start| group.clone().all(|at| self.is_zero(start + at * strides[axis])));
                all += 1;
                kept += u64::from(!zero);
            }
        }
        (kept as f64, all as f64)
    }
}

/// What a step has to do with the zeros among its activations, before it is spread.
#[derive(Debug, Clone, PartialEq)]
pub struct StepZeros {
    /// Where they are.
    pub of: ActivationZeros,
    /// Share of the groups of inputs that is multiplied.
    pub kept: f64,
    /// Share of the elements of weights that is read.
    pub read: f64,
    /// Groups that are left out together: rows and inputs.
    pub(super) group: (usize, usize),
    /// Index of the product whose inputs are left out: the first that multiplies with weights.
    pub(super) product: usize,
    /// Axis of operand 0 that inputs are along.
    pub(super) axis: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_left_out_where_all_of_them_are_zero() {
        // Two rows of six; the first has zeros at 0, 1, 2, the second at 0, 1, 5.
        let zeros = [1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1].map(|zero| zero == 1);
        let map = ZeroMap::new(&[2, 6], zeros).unwrap();
        assert_eq!(map.share(), 0.5);
        let whole = [0..2, 0..6];
        assert_eq!(map.groups(&whole, 1, (1, 1)), (6.0, 12.0));
        assert_eq!(map.groups(&whole, 1, (1, 2)), (4.0, 6.0));
        assert_eq!(map.groups(&whole, 1, (2, 1)), (4.0, 6.0));
        // The last group of a part is as short as the part is.
        assert_eq!(map.groups(&[0..1, 0..3], 1, (1, 2)), (0.0, 2.0));
        // Inputs along the first axis: both rows are one column's inputs.
        assert_eq!(map.groups(&whole, 0, (1, 2)), (4.0, 6.0));
        assert_eq!(ZeroMap::new(&[0, 6], []).unwrap().share(), 0.0);
    }
}
