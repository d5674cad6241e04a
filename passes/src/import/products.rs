//! Matrix products and their relatives.

use crate::import::lowering::Row;

/// Matrix products and their relatives.
pub const ROWS: &[Row] = &[];
