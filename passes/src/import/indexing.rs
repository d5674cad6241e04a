//! Gathers, scatters and selects by index.

use crate::import::lowering::Row;

/// Gathers, scatters and selects by index.
pub const ROWS: &[Row] = &[];
