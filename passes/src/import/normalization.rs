//! Normalizations.

use crate::import::lowering::Row;

/// Normalizations.
pub const ROWS: &[Row] = &[];
