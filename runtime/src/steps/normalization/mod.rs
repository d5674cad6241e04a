//! Normalization, and the reductions that it is made of.

mod cumulative;
mod layers;
pub(super) mod reduction;
