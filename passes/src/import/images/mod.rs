//! Images: pooling, resampling, regions.

mod masked_pool;
mod microsoft;
mod resampling;
mod selection;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[masked_pool::ROWS, microsoft::ROWS, resampling::ROWS, selection::ROWS];
