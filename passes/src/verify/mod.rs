//! What must hold between passes, checked after each of them.
//!
//! Stages are cumulative; each has a file that opens with its list of invariants. A violation is a bug of a pass, never
//! of a model. All violations are collected, each with its place and the printed step.

mod imported;
mod ordered;
mod typed;

use crate::ir::Graph;
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

/// One invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Block and step.
    pub place: String,
    /// What does not hold.
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

/// Check the invariants of a stage and of those before it.
///
/// # Errors
/// [`VerifyError`] with every violation.
pub fn verify(graph: &Graph, stage: Stage) -> Result<(), VerifyError> {
    let mut violations = Vec::new();
    imported::check(graph, &mut violations);
    // Later checks index without asking; what they would index is unsound here.
    if violations.is_empty() && stage >= Stage::Typed {
        typed::check(graph, &mut violations);
    }
    if violations.is_empty() && stage >= Stage::Ordered {
        ordered::check(graph, &mut violations);
    }
    if violations.is_empty() { Ok(()) } else { Err(VerifyError(violations)) }
}
