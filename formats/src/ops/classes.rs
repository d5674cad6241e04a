//! Classes of operators: what each must say besides its type rule and its meaning.
//!
//! The table in [`for_each_operator!`](crate::for_each_operator) gives each operator one class, and
//! [`Op::class`](crate::ops::Op::class) its facet: an operator that leaves something out does not compile. Methods of
//! [`Op`](crate::ops::Op) answer for every class.

use crate::dtype::DType;
use crate::ops::StepFacts;
use crate::ops::facets::{Computes, Control, Elementwise, Gathers, Moves, Serial};
use crate::ops::program::Program;
use crate::ops::{Arithmetic, WeightMatrix};

/// The facet of an operator's class.
#[derive(Clone, Copy)]
pub enum Class<'a> {
    /// Each element of a result from the elements of the operands that broadcast to its place.
    Elementwise(&'a dyn Elementwise),
    /// Elements change their places, or are the same for any operands.
    Moves(&'a dyn Moves),
    /// Indices pick parts of operand 0.
    Gathers(&'a dyn Gathers),
    /// Any other loops over elements.
    Computes(&'a dyn Computes),
    /// Sums of products.
    Product(&'a dyn Product),
    /// One walk that cannot be split.
    Serial(&'a dyn Serial),
    /// Runs blocks.
    Control(&'a dyn Control),
}

/// Sums of products: its spaces say how many.
pub trait Product: Computes {
    /// How the weight of this shape behind an operand is a matrix of inputs and outputs; such weights are stored in
    /// panels. `None` for operands that are not.
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix>;
    /// How it computes.
    fn arithmetic(&self) -> Arithmetic;
    /// The operand of which only matrices are read that another operand picks; `None` where all are read whole.
    fn picked(&self) -> Option<Picked>;
    /// What follows on each element of result 0, where the operator can have such.
    fn program(&self) -> Option<&Program>;
    /// The type of what its program begins with in a step of these facts; `None` without a program, or where it is not known.
    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType>;
}

/// Matrices that an index picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// The operand that they are along the first axis of.
    pub operand: usize,
    /// The operand whose elements are their numbers.
    pub index: usize,
}
