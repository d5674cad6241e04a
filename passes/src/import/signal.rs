//! Signals.

use crate::import::lowering::Row;

/// Signals.
pub const ROWS: &[Row] = &[];
