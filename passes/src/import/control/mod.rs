//! Control flow over blocks; sequences and optional values.

mod blocks;
mod sequences;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[blocks::ROWS, sequences::ROWS];
