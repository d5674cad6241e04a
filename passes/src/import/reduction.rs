//! Reductions, softmax, cumulative sums.

use crate::import::lowering::Row;

/// Reductions, softmax, cumulative sums.
pub const ROWS: &[Row] = &[];
