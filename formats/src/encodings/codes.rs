//! What coded elements and their planes must be.

use super::error::EncodingError;
use super::logical::Logical;
use super::plane::{Plane, PlaneRole};
use crate::dtype::DType;

/// Most planes of an encoding.
const MOST_PLANES: usize = 8;

/// Whether elements of this type can be codes.
pub fn is_code(dtype: DType) -> bool {
    let integers = [DType::I8, DType::U8, DType::I4, DType::U4, DType::I2, DType::U2];
    integers.contains(&dtype) || matches!(dtype, DType::F8E4M3FN | DType::F8E5M2 | DType::F4E2M1)
}

/// Whether sums of codes are exact: those of integers, and of f4e2m1, whose values are integers when doubled.
pub fn sums_exactly(code: DType) -> bool {
    is_code(code) && (code.is_integer() || code == DType::F4E2M1)
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
    if dtype.is_float() && planes.iter().any(|plane| plane.role != PlaneRole::Scale) {
        return Err(EncodingError::Unsupported(format!("codes of {dtype} with zero points or sums")));
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
