//! Attention and what belongs to it.

mod cache_codes;
mod cache_places;
mod group_query;
mod microsoft;
mod multi_head;
mod multimodal;
mod packed;
mod packed_state;
mod recurrent;
mod shared_buffer;
mod sparse;
mod standard;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[
    standard::ROWS,
    group_query::ROWS,
    microsoft::ROWS,
    multi_head::ROWS,
    multimodal::ROWS,
    packed::ROWS,
    packed_state::ROWS,
    recurrent::ROWS,
    sparse::ROWS,
];
