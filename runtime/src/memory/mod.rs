//! Where results live: one arena a block for what has a size before it runs, recycled buffers for the rest.
//!
//! `plan.rs` gives every sized result a place such that values which live at the same time do not overlap; `arena.rs` hands
//! places out and checks that nobody holds them, so that a wrong or optimistic plan costs memory, never a wrong result;
//! `pool.rs` keeps buffers of what is sized while running. The only unsafe code is in `arena.rs`.

mod arena;
mod bound;
mod plan;
mod pool;

pub(crate) use arena::Arena;
pub(crate) use bound::BoundMemory;
pub(crate) use plan::value_bytes;
pub(crate) use pool::Pool;
