//! Elements go elsewhere unchanged.

mod indexing;
mod shapes;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[indexing::ROWS, shapes::ROWS];
