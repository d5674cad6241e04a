//! Resampling of images.

use crate::import::lowering::Row;

/// Resampling of images.
pub const ROWS: &[Row] = &[];
