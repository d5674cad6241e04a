//! Tensors of f32, f16 and bf16 as slices of f32, in both directions.

use crate::steps::{Context, KernelError};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use std::borrow::Cow;

/// Types that are computed in f32.
pub(in crate::steps) fn computes_in_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The elements as f32.
///
/// # Errors
/// [`KernelError`] for types other than f32, f16 and bf16.
pub(in crate::steps) fn widened(tensor: &Tensor) -> Result<Cow<'_, [f32]>, KernelError> {
    Ok(match tensor.dtype() {
        DType::F16 => Cow::Owned(tensor.elements::<f16>()?.to_f32_vec()),
        DType::BF16 => Cow::Owned(tensor.elements::<bf16>()?.to_f32_vec()),
        _ => Cow::Borrowed(tensor.elements::<f32>()?),
    })
}

/// Result 0 of this type and shape, filled by `fill` in f32 and rounded once. `fill` finds unspecified values.
///
/// # Errors
/// [`KernelError`] of `fill`, and where memory is short.
pub(in crate::steps) fn produce(
    context: &mut Context<'_>,
    dtype: DType,
    shape: &[usize],
    fill: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<Tensor, KernelError> {
    let mut result = context.allocate(0, dtype, shape)?;
    let mut wide = match dtype {
        DType::F32 => {
            fill(result.elements_mut::<f32>()?)?;
            return Ok(result);
        }
        _ => vec![0.0; result.count()],
    };
    fill(&mut wide)?;
    match dtype {
        DType::F16 => result.elements_mut::<f16>()?.convert_from_f32_slice(&wide),
        _ => result.elements_mut::<bf16>()?.convert_from_f32_slice(&wide),
    }
    Ok(result)
}
