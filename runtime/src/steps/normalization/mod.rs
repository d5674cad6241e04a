//! Normalization, and the reductions that it is made of.

mod layers;
pub(super) mod reduction;
