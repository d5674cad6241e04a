//! Recurrent networks.

use crate::import::lowering::Row;

/// Recurrent networks.
pub const ROWS: &[Row] = &[];
