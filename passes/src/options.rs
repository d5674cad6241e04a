//! What a compilation may be told.

use ipuc_formats::dim::Bindings;

/// How activations that meet quantized weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// As the model says: codes of activations and weights as integers, floats as floats, and `MatMulNBits` as its
    /// `accuracy_level` asks.
    #[default]
    Model,
    /// As floats, wherever the model itself has no sums of integers.
    Keep,
    /// Those of matrix products with quantized weights are rounded to i8 as they are computed, with a scale a row.
    I8,
}

/// What a compilation may be told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Sizes at which memory is weighed where dimensions are open.
    pub dimensions: Bindings,
    /// Inputs and outputs that are state, as `IN=OUT` patterns.
    pub states: Vec<String>,
    /// The output `[batch, positions, vocabulary]` of a language model for which an entry `prefill` is added, which computes
    /// it for the last position only.
    pub prefill: Option<String>,
    /// How activations that meet quantized weights are computed.
    pub activations: Activations,
    /// Leave every step as it is, so that each value is computed and can be observed.
    pub unfused: bool,
    /// Verify after every pass in release builds too.
    pub verify: bool,
}
