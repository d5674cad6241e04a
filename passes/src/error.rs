//! Why a pass fails.

use crate::ir::ConstantError;
use ipuc_formats::ops::TypeError;
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
    /// An output whose last position cannot be computed alone.
    #[error("the last position of output `{output}` cannot be computed alone: {reason}")]
    Prefill {
        /// Name of the output.
        output: String,
        /// Why.
        reason: String,
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
