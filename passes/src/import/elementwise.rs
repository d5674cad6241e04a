//! Functions of elements.

use crate::import::lowering::Row;

/// Elementwise operators.
pub const ROWS: &[Row] = &[];
