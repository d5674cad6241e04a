//! Images: pooling, resampling, regions.

mod resampling;
mod selection;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[resampling::ROWS, selection::ROWS];
