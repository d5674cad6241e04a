//! Control flow over blocks; sequences and optional values; searches for texts.

mod blocks;
mod counted_loop;
mod search;
mod sequences;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[blocks::ROWS, search::ROWS, sequences::ROWS];
