//! Why a pass fails.

use crate::ir::ConstantError;
use crate::options::{Budget, Precision};
use ipuc_formats::ops::TypeError;
use ipuc_formats::size::{NeededSize, Size};
use thiserror::Error;

/// Why a pass fails.
#[derive(Debug, Error)]
pub enum PassError {
    /// A step whose operands do not fit its operator.
    #[error("node `{step}` ({operator}): {error}")]
    Type {
        /// Name of the step.
        step: String,
        /// Name of the operator.
        operator: &'static str,
        /// Why.
        error: TypeError,
    },
    /// A constant that cannot be read.
    #[error(transparent)]
    Constant(#[from] ConstantError),
    /// Rows of a cache are to be rounded, and there is none.
    #[error("no state of f32 grows, so that there are no rows of a cache to round")]
    Cache,
    /// A pattern of names that no weight has.
    #[error("`{pattern}` names no weight that products or gathers read, and no node that reads one")]
    NoWeight {
        /// The pattern.
        pattern: String,
    },
    /// A pattern that asks for what none of its weights can be.
    #[error("no weight that `{pattern}` names can be stored as {precision}: `{weight}` stays, as {reason}")]
    KeptWeight {
        /// The pattern.
        pattern: String,
        /// What it asks for.
        precision: Precision,
        /// The first weight.
        weight: String,
        /// Why it cannot.
        reason: String,
    },
    /// A value in blocks of channels from which its plain form cannot be made.
    #[error("node `{step}`: blocks of channels cannot be put into the order of ONNX")]
    PlainChannels {
        /// Name of the step that computes it.
        step: String,
    },
    /// What only runs on examples can show.
    #[error("{option} take calibration, which shows what products read")]
    Uncalibrated {
        /// What is asked for.
        option: &'static str,
    },
    /// A threshold that is none.
    #[error(
        "activations are taken as zero below a share of their root mean square between 0 and 1, and not below {share}"
    )]
    Threshold {
        /// What is asked for.
        share: f64,
    },
    /// A budget that cannot decide.
    #[error("{budget} cannot choose precisions: {reason}")]
    Budget {
        /// What is asked for.
        budget: Budget,
        /// Why not.
        reason: &'static str,
    },
    /// A size that weights cannot have.
    #[error("weights take at least {}, and the size is {}", NeededSize(*least_bytes), Size(*size_bytes))]
    Size {
        /// What is asked for.
        size_bytes: u64,
        /// With the fewest bits for each.
        least_bytes: u64,
    },
    /// An output whose last position cannot be computed alone.
    #[error("the last position of output `{output}` cannot be computed alone: {reason}")]
    Prefill {
        /// Name of the output.
        output: String,
        /// Why.
        reason: String,
    },
    /// An entry that cannot be a part of another.
    #[error("`{part}` cannot be a part of entry `{entry}`: {reason}")]
    Join {
        /// The other.
        entry: String,
        /// The part.
        part: String,
        /// Why not.
        reason: String,
    },
    /// An input or output that an entry cannot do without.
    #[error("entry `{entry}` cannot do without `{port}`: {reason}")]
    LeftOut {
        /// The entry.
        entry: String,
        /// Name of the input or output.
        port: String,
        /// Why not.
        reason: &'static str,
    },
    /// A state pair that the model cannot have.
    #[error("state `{input}={output}`: {reason}")]
    State {
        /// Pattern or name of the input.
        input: String,
        /// Pattern or name of the output.
        output: String,
        /// Why.
        reason: String,
    },
}
