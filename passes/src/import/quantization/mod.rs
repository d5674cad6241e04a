//! Between numbers and codes.

mod chains;
mod linear;
mod microsoft;
mod recurrence;
mod results;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[chains::ROWS, linear::ROWS, microsoft::ROWS, recurrence::ROWS, results::ROWS];
