//! The fabric model: a program on a described machine, step by step in program order.
//!
//! A step runs when its engine is free, what it waits for is computed, and the first of its transfers has arrived; it ends
//! when its work is done and its last transfer has arrived. Where the machine prefetches, transfers from each tier are
//! issued ahead in program order, as the executor does, as far as the memory of the tiles has room; what arrives late is a
//! stall with its cause. For each resource, busy and idle time add up to the makespan, and the parts of the energy to the
//! total (see the tests).

mod chips;
mod power;
mod report;
mod resident;
mod stream_order;
mod timeline;
mod transfers;

pub use chips::join;
pub use power::bound;
pub use report::{Chip, EnergyParts, EngineReport, Heat, Limit, Report, StepReport, TierReport, TransferReport};
pub use resident::keep;
pub use stream_order::beyond;
pub use timeline::{room, simulate};
