//! Branches, loops, scans.

use crate::import::lowering::Row;

/// Branches, loops, scans.
pub const ROWS: &[Row] = &[];
