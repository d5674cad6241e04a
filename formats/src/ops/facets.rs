//! What operators of each class say; `classes.rs` has the classes, and the facet of products.

use crate::attribute::BlockIndex;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::space::Space;
use crate::ops::step_facts::StepFacts;
use crate::ops::work::{Cost, VectorClass};
use crate::ops::{Effect, Op, Read};

/// Each element of a result from the elements of the operands that broadcast to its place.
pub trait Elementwise {
    /// Operations on each element.
    fn per_element(&self, facts: &StepFacts<'_>) -> Vec<Cost>;
}

/// Elements change their places.
pub trait Moves {
    /// The loops.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space>;
    /// Bytes that are read and written; 0 for a view.
    fn moved(&self, facts: &StepFacts<'_>) -> Dim;
    /// Operand whose bytes result 0 has unchanged (a reshape): no copy is needed.
    fn view_of(&self) -> Option<usize>;
    /// With these operands and this result, result 0 is operand 0 unchanged (a transpose that moves nothing). The
    /// caller checks that their types are equal.
    fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool;
}

/// Indices pick parts of operand 0.
pub trait Gathers {
    /// The loops.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space>;
    /// How the weight behind an operand is read.
    fn read(&self, operand: usize) -> Read;
    /// How many parts are picked.
    fn parts(&self, facts: &StepFacts<'_>) -> Dim;
}

/// Loops over elements.
pub trait Computes {
    /// The loops.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space>;
    /// Operations on single elements, without those of a program.
    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)>;
}

/// One walk that cannot be split: a sort, a search, text, random numbers.
pub trait Serial {
    /// What it does besides computing.
    fn effect(&self) -> Effect;
    /// Operations on single elements.
    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)>;
}

/// Runs blocks.
pub trait Control {
    /// The blocks, in stream order.
    fn bodies(&self) -> Vec<Body>;
    /// The same operator over other blocks, in the order of [`Control::bodies`]; `None` for another number of them.
    fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op>;
    /// How the weight behind an operand is read.
    fn read(&self, operand: usize) -> Read;
    /// How often a repeated body runs, or the first of two branches (the other one runs where it does not); a symbol where
    /// that depends on data.
    fn iterations(&self, facts: &StepFacts<'_>) -> Dim;
}

/// A block that a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body {
    /// The block.
    pub block: BlockIndex,
    /// How often.
    pub runs: Runs,
}

/// How often a step runs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runs {
    /// Once or not at all: a branch.
    AtMostOnce,
    /// Any number of times.
    Repeated,
}
