//! Float tensors as slices of f32: f32 as it is, f16 and bf16 widened before and rounded after.

use crate::steps::{Context, KernelError};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::TypeError;
use ipuc_formats::tensor::Tensor;
use std::borrow::Cow;

/// Whether kernels here compute a type: f32, f16, bf16.
pub(super) fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The elements as f32, exactly.
pub(super) fn widened(tensor: &Tensor) -> Result<Cow<'_, [f32]>, KernelError> {
    match tensor.dtype() {
        DType::F32 => Ok(Cow::Borrowed(tensor.elements::<f32>()?)),
        DType::F16 => Ok(Cow::Owned(tensor.elements::<f16>()?.to_f32_vec())),
        DType::BF16 => Ok(Cow::Owned(tensor.elements::<bf16>()?.to_f32_vec())),
        found => {
            let expected = "f32, f16 or bf16".to_string();
            Err(TypeError::ElementType { operand: 0, expected, found }.into())
        }
    }
}

/// Result `result`, computed in f32 by `fill`, which writes every element.
pub(super) fn computed(
    context: &mut Context<'_>,
    result: usize,
    dtype: DType,
    shape: &[usize],
    fill: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<Tensor, KernelError> {
    let mut tensor = context.allocate(result, dtype, shape)?;
    match dtype {
        DType::F32 => fill(tensor.elements_mut::<f32>()?)?,
        DType::F16 => {
            let mut values = vec![0.0; tensor.count()];
            fill(&mut values)?;
            tensor.elements_mut::<f16>()?.convert_from_f32_slice(&values);
        }
        DType::BF16 => {
            let mut values = vec![0.0; tensor.count()];
            fill(&mut values)?;
            tensor.elements_mut::<bf16>()?.convert_from_f32_slice(&values);
        }
        found => {
            let expected = "f32, f16 or bf16".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found }.into());
        }
    }
    Ok(tensor)
}

/// Result `result`, which begins as a copy of `input` and is changed in f32 by `change`; in place where nobody else reads
/// the input.
pub(super) fn changed(
    context: &mut Context<'_>,
    result: usize,
    mut input: Tensor,
    change: impl FnOnce(&mut [f32]),
) -> Result<Tensor, KernelError> {
    if input.dtype() == DType::F32 && input.is_exclusive() {
        change(input.elements_mut::<f32>()?);
        return Ok(input);
    }
    let values = widened(&input)?;
    computed(context, result, input.dtype(), input.shape(), |out| {
        out.copy_from_slice(&values);
        change(out);
        Ok(())
    })
}

/// Round f32 values to f16 or bf16 in place; f32 stays.
pub(super) fn rounded(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32()),
        DType::BF16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
        _ => {}
    }
}
