//! Classical machine learning: ONNX domain `ai.onnx.ml`.

mod traditional;
mod trees;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[traditional::ROWS, trees::ROWS];
