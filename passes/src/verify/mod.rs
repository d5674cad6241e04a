//! What must hold between passes, checked after each of them.
//!
//! [`Invariant`] is the list; stages are cumulative, each has a file. A violation is a bug of a pass, never of a model.
//! All violations are collected, each with its place and the printed step. Only where an index leads nowhere, or a block
//! runs itself, are later stages left out: they follow the indices.

mod imported;
mod ordered;
#[cfg(test)]
mod tests;
mod typed;

use crate::ir::{Graph, Step};
use ipuc_formats::attribute::BlockIndex;
use std::fmt;

/// How far a graph has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// Names and indices are sound.
    Imported,
    /// Every value has the type that its operator infers.
    Typed,
    /// Blocks are in the order in which they run, peaks are known.
    Ordered,
}

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::VariantArray)]
pub enum Invariant {
    /// Imported: every block that an entry, a step or a peak names exists.
    BlockExists,
    /// Imported: every value that a block defines or reads exists.
    ValueExists,
    /// Imported: every constant that a block or a recipe reads exists.
    ConstantExists,
    /// Imported: the source of every constant that is read exists.
    SourceExists,
    /// Imported: every value is defined once, by a parameter or a result, in one block.
    DefinedOnce,
    /// Imported: a step reads values of its own block that are defined before it.
    DefinedBeforeRead,
    /// Imported: a block is run by one step at most, or is the block of one entry.
    OneRunner,
    /// Imported: no block runs itself, through others neither.
    NoRecursion,
    /// Imported: an entry names each parameter and each result of its block.
    PortsNamed,
    /// Imported: a state that an entry uses exists, and so do the inputs and outputs by which it is used.
    StatesExist,
    /// Imported: every state is used by an entry, which gives it its type.
    StatesUsed,
    /// Typed: every operator takes the facts of its operands.
    OperandsFit,
    /// Typed: every step has one result for each fact that its operator infers.
    ResultCount,
    /// Typed: the element types and ranks of results are those that the operator infers from the facts of its operands.
    /// Dimensions are not compared: a pass may know one better than the operator can infer.
    ResultTypes,
    /// Ordered: every block that entries reach has a known peak.
    PeakKnown,
    /// Ordered: the peak of a block is at most that of the order it was given.
    PeakNotRaised,
}

impl Invariant {
    /// Whether checks of later stages follow what it is about.
    fn is_followed(self) -> bool {
        match self {
            Invariant::BlockExists | Invariant::ValueExists | Invariant::ConstantExists | Invariant::NoRecursion => {
                true
            }
            Invariant::SourceExists
            | Invariant::DefinedOnce
            | Invariant::DefinedBeforeRead
            | Invariant::OneRunner
            | Invariant::PortsNamed
            | Invariant::StatesExist
            | Invariant::StatesUsed
            | Invariant::OperandsFit
            | Invariant::ResultCount
            | Invariant::ResultTypes
            | Invariant::PeakKnown
            | Invariant::PeakNotRaised => false,
        }
    }
}

/// One invariant that does not hold in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What does not hold.
    pub invariant: Invariant,
    /// Block and step.
    pub place: String,
    /// In which way.
    pub message: String,
}

/// Everything that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyError(pub Vec<Violation>);

impl fmt::Display for VerifyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(formatter, "{separator}{}: {}", violation.place, violation.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyError {}

/// The violations that have been found.
#[derive(Default)]
struct Violations(Vec<Violation>);

impl Violations {
    fn report(&mut self, invariant: Invariant, place: impl Into<String>, message: impl Into<String>) {
        self.0.push(Violation { invariant, place: place.into(), message: message.into() });
    }
}

/// A step's place in messages.
fn place(index: BlockIndex, at: usize, step: &Step) -> String {
    format!("block {}, step {at} `{}` ({})", index.0, step.name, step.op)
}

/// Check the invariants of a stage and of those before it.
///
/// # Errors
/// [`VerifyError`] with every violation.
pub fn verify(graph: &Graph, stage: Stage) -> Result<(), VerifyError> {
    let mut violations = Violations::default();
    imported::check(graph, &mut violations);
    let followed = violations.0.iter().all(|violation| !violation.invariant.is_followed());
    if followed && stage >= Stage::Typed {
        typed::check(graph, &mut violations);
    }
    if followed && stage >= Stage::Ordered {
        ordered::check(graph, &mut violations);
    }
    if violations.0.is_empty() { Ok(()) } else { Err(VerifyError(violations.0)) }
}
