//! The work of a step, free of hardware: how much it computes, and how many bytes it takes and gives.

use crate::attribute::BlockIndex;
use crate::dim::Dim;
use crate::dtype::DType;
use std::fmt;

/// The element types of a multiply-accumulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Precision {
    /// Of the left operand, as it enters multiplications.
    pub activation: DType,
    /// Of the right operand: of a weight, as it is stored.
    pub weight: DType,
    /// Of the sum.
    pub accumulator: DType,
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} x {} + {}", self.activation, self.weight, self.accumulator)
    }
}

/// What operations on single elements cost about the same on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum VectorClass {
    /// Additions, multiplications, comparisons, selections, bits.
    Arithmetic,
    /// Conversions between element types.
    Convert,
    /// Divisions, remainders, square roots.
    Divide,
    /// Exponentials, logarithms, powers, trigonometric functions.
    Transcendental,
}

/// Operations of a class on each element.
pub type Cost = (VectorClass, i64);

/// Parts of a tensor that an index picks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// How many.
    pub parts: Dim,
    /// Bytes of each.
    pub part_bytes: Dim,
}

/// What one run of a step takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Multiply-accumulates.
    pub macs: Vec<(Precision, Dim)>,
    /// Operations on single elements.
    pub vector: Vec<(VectorClass, Dim)>,
    /// Bytes of weights that it reads as they are stored, without those that are picked.
    pub stored: Dim,
    /// Bytes of other operands that it reads, and of results that it writes; 0 for a view.
    pub moved: Dim,
    /// Parts of a stored operand that an index picks.
    pub gathered: Option<Gathered>,
    /// Blocks that it runs, and how often.
    pub runs: Vec<(BlockIndex, Dim)>,
}

impl Work {
    /// Multiply-accumulates of all precisions.
    pub fn total_macs(&self) -> Dim {
        Dim::sum(self.macs.iter().map(|(_, count)| count))
    }
}

/// The same operations on this many elements.
pub fn each(elements: &Dim, per_element: &[Cost]) -> Vec<(VectorClass, Dim)> {
    per_element.iter().map(|&(class, count)| (class, elements * count)).collect()
}

/// Add counts to a list with one entry a key, in order of the keys; nothing is left out where it is 0.
pub fn add_counts<K: Ord + Copy>(list: &mut Vec<(K, Dim)>, counts: impl IntoIterator<Item = (K, Dim)>) {
    for (key, count) in counts {
        match list.binary_search_by_key(&key, |(known, _)| *known) {
            Ok(place) => list[place].1 = &list[place].1 + count,
            Err(place) => list.insert(place, (key, count)),
        }
    }
}
