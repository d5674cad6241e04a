//! Normalization, and the reductions that it is made of.

mod arg_reduction;
mod cumulative;
mod layers;
mod numbers;
pub(super) mod reduction;
