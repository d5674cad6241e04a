//! Weights within a memory budget: some stay, the rest arrives ahead of use.
//!
//! The order in which a run asks for weights is known (`order.rs`), so what to keep is known too (`residency.rs`): a fixed
//! set of chunks is pinned, the others pass through a ring (`ring.rs`). `state.rs` is the bookkeeping, without threads or
//! I/O: which chunk is read next, where to, who holds it, when its place is free. `engine.rs` waits for it. `lanes.rs` has
//! the reads that are under way: a run that waits looks after them itself, and a thread does while it computes
//! (`readers.rs`), which the system is asked to run as soon as it wakes (`promptness.rs`). How many they are, and whether
//! used bytes stay in caches, is what the device delivers more with (`pace.rs`). `streamed.rs` is what kernels read from;
//! `report.rs` is what it tells about a pass. A chunk that is asked for out of order is read directly: slower, counted,
//! never wrong. Rows that are chosen by index (`rows.rs`) are read when they are known, and kept while there is room.
//!
//! Leaves alone: which file it is and how it is opened (`ReadAt`), and what the bytes mean (encodings).

mod engine;
mod lanes;
mod order;
mod pace;
mod promptness;
mod readers;
mod report;
mod residency;
mod ring;
mod rows;
mod source;
mod state;
mod streamed;

pub use report::{PassReport, Residency, StepStall};
pub(crate) use streamed::{Streamed, StreamedOptions};
