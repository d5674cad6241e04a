//! Which units of a weight, and which inputs of them, lie together.

/// A run of units; of a single unit also a run of its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartRange {
    /// First unit.
    pub start: u64,
    /// Unit after the last.
    pub end: u64,
    /// First input of units that have inputs, else 0.
    pub inputs_start: u64,
    /// Input after the last of units that have inputs, else 0.
    pub inputs_end: u64,
}
