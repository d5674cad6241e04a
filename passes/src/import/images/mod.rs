//! Images: pooling, resampling, regions.

mod microsoft;
mod resampling;
mod selection;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[microsoft::ROWS, resampling::ROWS, selection::ROWS];
