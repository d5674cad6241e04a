//! Weights within a memory budget: some stay, the rest is read ahead of use.
//!
//! The schedule (`schedule.rs`) says which parts of weights each step takes, and the lookahead (`lookahead.rs`) which steps a
//! run comes to. So the best set of chunks to pin is known (`residency.rs`); the others pass through the slots of a ring.
//! `loads.rs` is the bookkeeping, without threads or I/O: which chunk is read next, where to, who needs it, and when its
//! memory is free. `loader.rs` keeps reads in flight and checks what they bring. `boundary.rs` unpins chunks where working
//! memory grows. `streamed.rs` is what kernels read from; `report.rs` is what it tells about a pass. A part that is
//! asked for out of order is read directly: slower, counted, never wrong. Rows that are chosen by index (`rows.rs`) are read
//! when they are known, and their blocks are cached while there is room.
//!
//! Leaves alone: which file it is and how it is opened ([`WeightFile`](crate::file::WeightFile)), and what the bytes mean
//! (encodings).

mod boundary;
mod loader;
mod loads;
mod lookahead;
mod report;
mod residency;
mod rows;
mod schedule;
mod source;
mod streamed;

pub(crate) use boundary::Need;
pub use report::{PassReport, Residency, StepStall};
#[cfg(feature = "fabric")]
pub(crate) use residency::kept_shares;
pub(crate) use streamed::{Streamed, StreamedOptions};
