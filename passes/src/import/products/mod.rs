//! Sums of products over matrices and windows.

mod expert_routing;
mod experts;
mod fused_windows;
mod integer_floats;
mod matrices;
mod microsoft;
mod quantized;
mod windows;
mod word_windows;

pub(super) use fused_windows::{channels_first, channels_last};
pub(super) use integer_floats::with_scalars;
pub(super) use quantized::is_single;
pub(super) use windows::{pool, pool_of_runtime};

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[
    expert_routing::ROWS,
    experts::ROWS,
    fused_windows::ROWS,
    integer_floats::ROWS,
    matrices::ROWS,
    microsoft::ROWS,
    quantized::ROWS,
    windows::ROWS,
    word_windows::ROWS,
];
