//! Control flow over blocks; sequences and optional values.

pub(crate) mod if_;
pub mod join;
pub(crate) mod loop_;
pub(crate) mod optional;
pub(crate) mod scan;
pub(crate) mod sequence;
pub(crate) mod sequence_map;
pub(crate) mod sequence_parts;
#[cfg(test)]
mod tests;

pub use if_::If;
pub use loop_::Loop;
pub use optional::{OptionalConstruct, OptionalGet, OptionalHas};
pub use scan::Scan;
pub use sequence::{SequenceAt, SequenceConstruct, SequenceErase, SequenceInsert, SequenceLength};
pub use sequence_map::SequenceMap;
pub use sequence_parts::{SequenceConcat, SequenceSplit};
