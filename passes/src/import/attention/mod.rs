//! Attention and what belongs to it.

mod cache_codes;
mod microsoft;
mod multi_head;
mod multimodal;
mod recurrent;
mod standard;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] =
    &[standard::ROWS, microsoft::ROWS, multi_head::ROWS, multimodal::ROWS, recurrent::ROWS];
