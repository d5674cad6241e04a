//! Convolutions and pools.

use crate::import::lowering::Row;

/// Convolutions and pools.
pub const ROWS: &[Row] = &[];
