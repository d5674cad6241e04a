//! Weights within a memory budget: some stay, the rest is read ahead of use.
//!
//! The schedule (`schedule.rs`) says which parts of weights each step takes, and the lookahead (`lookahead.rs`) which steps a
//! run comes to. So the best set of chunks to keep is known (`residency.rs`): it stays, the others pass through a ring
//! (`ring.rs`). `loads.rs` and `chunks.rs` are the bookkeeping, without threads or I/O: which chunk is read next, where to, who
//! holds it, when its place is free, and which chunks stay. `loader.rs` keeps reads in flight and checks what they bring. `boundary.rs` has chunks leave where
//! working memory grows. `streamed.rs` is what kernels read from; `report.rs` is what it tells about a pass. A part that is
//! asked for out of order is read directly: slower, counted, never wrong. Rows that are chosen by index (`rows.rs`) are read
//! when they are known, and kept while there is room.
//!
//! Leaves alone: which file it is and how it is opened ([`WeightFile`](crate::file::WeightFile)), and what the bytes mean
//! (encodings).

mod boundary;
mod chunks;
mod loader;
mod loads;
mod lookahead;
mod report;
mod residency;
mod ring;
mod rows;
mod schedule;
mod source;
mod streamed;

pub(crate) use boundary::Need;
pub use report::{PassReport, Residency, StepStall};
pub(crate) use streamed::{Streamed, StreamedOptions};
