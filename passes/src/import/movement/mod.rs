//! Elements go elsewhere unchanged.

mod indexing;
mod microsoft;
mod shapes;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[indexing::ROWS, microsoft::ROWS, shapes::ROWS];
