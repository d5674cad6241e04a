//! Between numbers and codes.

mod linear;
mod microsoft;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[linear::ROWS, microsoft::ROWS];
