//! `CropAndResize` of `com.microsoft`.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::ops::{CropAndResize, CropMode};

/// Crops.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "CropAndResize", since: 1, lower: crop_and_resize }];

fn crop_and_resize(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let mode = node.keyword("mode")?.unwrap_or(CropMode::Bilinear);
    let outside = node.float("extrapolation_value")?.unwrap_or(0.0);
    let operands = vec![node.required(0)?, node.required(1)?, node.required(2)?];
    let size = node.required(3)?;
    let size = node.fact(&size).and_then(|fact| fact.elements_as_integers());
    let Some([height, width]) =
        size.as_deref().and_then(|size| size.first_chunk().copied().filter(|_| size.len() == 2))
    else {
        return Err(node.refuse("a `crop_size` that is no constant of two numbers"));
    };
    node.emit(CropAndResize { mode, outside, height, width }, operands)
}
