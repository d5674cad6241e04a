//! Sums of products over matrices and windows.

mod matrices;
mod quantized;
mod windows;

pub(super) use quantized::is_single;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[matrices::ROWS, quantized::ROWS, windows::ROWS];
