//! Text.

use crate::import::lowering::Row;

/// Text.
pub const ROWS: &[Row] = &[];
