//! Attention and what belongs to it.

use crate::import::lowering::Row;

/// Attention and what belongs to it.
pub const ROWS: &[Row] = &[];
