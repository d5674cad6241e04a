//! Memory within a budget: one arena a block for results that have a size before they run, recycled buffers for the rest.
//!
//! `budget.rs` counts what is in use. `plan.rs` gives every sized result a place such that values which live at the same time
//! do not overlap, with what `ends.rs` says of their lifetimes, and `joins.rs` of those that lie within others; `arena.rs` hands places out and checks that nobody holds them, so that a wrong plan costs memory, never a
//! wrong result; `pool.rs` keeps buffers of state, of outputs and of what is sized while running. The only unsafe code is in
//! `arena.rs`.

mod arena;
mod bound;
mod budget;
mod ends;
mod extents;
mod joins;
mod plan;
mod pool;

pub(crate) use arena::{Arena, ArenaBytes};
pub(crate) use bound::BoundMemory;
pub(crate) use budget::{Budget, Charge};
pub(crate) use extents::value_bytes;
pub(crate) use pool::{Pool, PoolPages};
