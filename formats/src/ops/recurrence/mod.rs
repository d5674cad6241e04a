//! One step of a sequence after another.

pub(crate) mod causal_convolution;
pub(crate) mod gru;
pub(crate) mod layers;
pub(crate) mod lstm;
pub(crate) mod recurrent_activation;
pub(crate) mod rnn;

pub use causal_convolution::*;
pub use gru::*;
pub use layers::*;
pub use lstm::*;
pub use recurrent_activation::*;
pub use rnn::*;
