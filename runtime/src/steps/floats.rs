//! Float tensors as slices of f32: f32 as it is, f16 and bf16 widened before and rounded after.

use crate::steps::{Context, KernelError};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::TypeError;
use ipuc_formats::tensor::Tensor;
use ipuc_kernels::elements::map;
use ipuc_kernels::narrow::{Narrow, narrow, round_in_place, widen};
use std::borrow::Cow;

/// Whether kernels here compute a type: f32, f16, bf16.
pub(super) fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The elements as f32, exactly.
pub(super) fn widened(tensor: &Tensor) -> Result<Cow<'_, [f32]>, KernelError> {
    match tensor.dtype() {
        DType::F32 => Ok(Cow::Borrowed(tensor.elements::<f32>()?)),
        DType::F16 => Ok(Cow::Owned(wide(tensor.elements::<f16>()?))),
        DType::BF16 => Ok(Cow::Owned(wide(tensor.elements::<bf16>()?))),
        found => {
            let expected = "f32, f16 or bf16".to_string();
            Err(TypeError::ElementType { operand: 0, expected, found }.into())
        }
    }
}

fn wide<T: Narrow>(x: &[T]) -> Vec<f32> {
    let mut values = vec![0.0; x.len()];
    map(&mut values, x, 1, &|out: &mut [f32], x: &[T]| widen(x, out));
    values
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
            map(tensor.elements_mut::<f16>()?, &values, 1, &|out, x| narrow(x, out));
        }
        DType::BF16 => {
            let mut values = vec![0.0; tensor.count()];
            fill(&mut values)?;
            map(tensor.elements_mut::<bf16>()?, &values, 1, &|out, x| narrow(x, out));
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
        map(out, &values, 1, &|out: &mut [f32], x: &[f32]| out.copy_from_slice(x));
        change(out);
        Ok(())
    })
}

/// Round f32 values to f16 or bf16 in place; f32 stays.
pub(super) fn rounded(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F16 => round_in_place::<f16>(values),
        DType::BF16 => round_in_place::<bf16>(values),
        _ => {}
    }
}
