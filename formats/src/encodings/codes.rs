//! What coded elements and their planes must be.

use super::error::EncodingError;
use super::logical::Logical;
use super::plane::{Plane, PlaneRole};
use crate::dtype::DType;

/// Most planes of an encoding.
const MOST_PLANES: usize = 8;

/// Whether elements of this type can be codes.
pub(super) fn is_code(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2)
}

/// Check that codes with these planes stand for elements of a weight.
///
/// # Errors
/// [`EncodingError`] where they do not.
pub(super) fn check_codes(dtype: DType, planes: &[Plane], weight: Logical<'_>) -> Result<(), EncodingError> {
    if !is_code(dtype) || !matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(EncodingError::Conversion { logical: weight.dtype, stored: dtype });
    }
    if let Some(plane) = planes.iter().find(|plane| !plane.is_supported()) {
        return Err(EncodingError::Unsupported(format!("a plane `{plane}`")));
    }
    let count = |role| planes.iter().filter(|plane| plane.role == role).count();
    if count(PlaneRole::Scale) == 0 || count(PlaneRole::ZeroPoint) > 1 || count(PlaneRole::Sum) > 1 {
        return Err(EncodingError::Unsupported(
            "codes without scales, or with several zero points or sums".to_string(),
        ));
    }
    if planes.len() > MOST_PLANES {
        return Err(EncodingError::Unsupported(format!("{} planes", planes.len())));
    }
    let blocks: Vec<u64> =
        planes.iter().filter(|plane| plane.role == PlaneRole::Scale).map(|plane| plane.block).collect();
    if (1..blocks.len()).any(|index| blocks[..index].contains(&blocks[index])) {
        return Err(EncodingError::Unsupported("two planes of scales with the same block".to_string()));
    }
    Ok(())
}
