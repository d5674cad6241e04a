//! Normalization, and the reductions that it is made of.

pub(crate) mod arg_reduce;
pub(crate) mod batch_normalization;
pub(crate) mod cumulative;
pub(crate) mod group_normalization;
pub(crate) mod layer_normalization;
pub(crate) mod local_response_normalization;
pub(crate) mod negative_log_likelihood;
pub(crate) mod reduce;
pub(crate) mod softmax;

pub use arg_reduce::*;
pub use batch_normalization::*;
pub use cumulative::*;
pub use group_normalization::*;
pub use layer_normalization::*;
pub use local_response_normalization::*;
pub use negative_log_likelihood::*;
pub use reduce::*;
pub use softmax::*;
