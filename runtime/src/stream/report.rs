//! What streaming tells about itself.

use std::time::Duration;

/// How weights are kept under a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// Bytes of the stream: all weights.
    pub weights_bytes: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// What of the budget is for activations, state, inputs and outputs: the most that runs have needed so far.
    pub working_bytes: u64,
    /// Chunks that stay.
    pub pinned_bytes: u64,
    /// Room for the chunks that pass through.
    pub ring_bytes: u64,
    /// Room for rows that were chosen by index and used last.
    pub kept_rows_bytes: u64,
    /// For each chunk of the file, whether it stays.
    pub pinned: Vec<bool>,
    /// Bytes that a pass of each entry reads, by entry; each body once where there is control flow, rows not included.
    pub bytes_per_pass: Vec<u64>,
}

/// What one pass read and where it waited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PassReport {
    /// Duration of the pass.
    pub duration: Duration,
    /// Bytes of chunks that were read for this pass.
    pub stream_bytes: u64,
    /// What of these bytes had been read ahead and was dropped, so that it is read again.
    pub dropped_bytes: u64,
    /// How many reads that took.
    pub reads: u64,
    /// Bytes of rows that were chosen by index, in whole blocks.
    pub row_bytes: u64,
    /// Bytes of the rows that steps chose: lines of embeddings, matrices of experts.
    pub chosen_bytes: u64,
    /// What of these was in memory already.
    pub found_bytes: u64,
    /// Bytes that were read again, since they were asked for out of order.
    pub unplanned_bytes: u64,
    /// Bytes whose checksums were verified.
    pub checked_bytes: u64,
    /// Where the pass waited for bytes; steps that did not wait are left out.
    pub stalls: Vec<StepStall>,
}

/// How long one step waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepStall {
    /// The block.
    pub block: u32,
    /// The step in it; the number of its steps stands for its results.
    pub step: u32,
    /// How long, checks of what had come included.
    pub duration: Duration,
}

impl PassReport {
    /// All bytes that were read from the file for this pass.
    pub fn bytes_read(&self) -> u64 {
        self.stream_bytes + self.row_bytes + self.unplanned_bytes
    }

    /// How long the pass waited in all.
    pub fn stalled(&self) -> Duration {
        self.stalls.iter().map(|stall| stall.duration).sum()
    }
}
