//! Classical machine learning: ONNX domain `ai.onnx.ml`.

mod classifiers;
mod features;
mod support_vectors;
mod traditional;
mod trees;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] =
    &[classifiers::ROWS, features::ROWS, support_vectors::ROWS, traditional::ROWS, trees::ROWS];
