//! Sequences and optionals.

use crate::import::lowering::Row;

/// Sequences and optionals.
pub const ROWS: &[Row] = &[];
