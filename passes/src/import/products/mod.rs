//! Sums of products over matrices and windows.

mod matrices;
mod windows;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[matrices::ROWS, windows::ROWS];
