//! Normalization, and the reductions that it is made of.

mod branches;
mod fused;
mod layers;
mod microsoft;
mod reduction;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[branches::ROWS, fused::ROWS, layers::ROWS, microsoft::ROWS, reduction::ROWS];
