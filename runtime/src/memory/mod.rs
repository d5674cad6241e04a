//! Where results live: one arena a block for what has a size before it runs, recycled buffers for the rest.
//!
//! `plan.rs` gives every sized result a place such that values which live at the same time do not overlap; `arena.rs` hands
//! places out and checks that nobody holds them, so that a wrong or optimistic plan costs memory, never a wrong result;
//! `pool.rs` keeps buffers of what is sized while running. `lines.rs` takes memory out of caches. The only unsafe code is in
//! `arena.rs` and `lines.rs`.

mod arena;
mod bound;
mod lines;
mod plan;
mod pool;

pub(crate) use arena::Arena;
pub(crate) use bound::BoundMemory;
pub use lines::flush_lines;
pub(crate) use plan::value_bytes;
pub(crate) use pool::Pool;
