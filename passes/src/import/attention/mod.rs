//! Attention and what belongs to it.

mod microsoft;
mod standard;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[standard::ROWS, microsoft::ROWS];
