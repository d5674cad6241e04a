//! What a compilation may be told.

use ipuc_formats::dim::Bindings;

/// What a compilation may be told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Sizes at which memory is weighed where dimensions are open.
    pub dimensions: Bindings,
    /// Inputs and outputs that are state, as `IN=OUT` patterns.
    pub states: Vec<String>,
    /// Leave every step as it is, so that each value is computed and can be observed.
    pub unfused: bool,
    /// Verify after every pass in release builds too.
    pub verify: bool,
}
