//! Real tensors as f64 in references: widened once, rounded where the specification rounds.
//!
//! References of normalization, recurrence and attention compute in f64. For 16-bit operands ONNX function bodies
//! round after each of their operators ([`rounded_step`]); for f32 and f64 only the result is rounded.

use crate::dtype::DType;
use crate::element::Number;
use crate::ops::{ReferenceError, TypeError};
use crate::tensor::Tensor;
use crate::with_number;
use half::{bf16, f16};

/// The floating-point types that compute: f16, bf16, f32, f64.
pub(crate) fn is_computing_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Refuse an operand that is none of f16, bf16, f32, f64.
pub(crate) fn require_computing_float(dtype: DType, operand: usize) -> Result<(), TypeError> {
    if is_computing_float(dtype) {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: "f16, bf16, f32 or f64".to_string(), found: dtype })
}

/// The elements of a number tensor as f64 (inexact for integers above 2^53).
pub(crate) fn widened(tensor: &Tensor) -> Result<Vec<f64>, ReferenceError> {
    with_number!(
        tensor.dtype(),
        T => Ok(tensor.elements::<T>()?.iter().map(|&element| element.to_f64_lossy()).collect()),
        otherwise Err(TypeError::Unsupported(format!("arithmetic on {}", tensor.dtype())).into())
    )
}

/// A number tensor of f64 values, each rounded once.
pub(crate) fn narrowed(dtype: DType, shape: &[usize], values: &[f64]) -> Result<Tensor, ReferenceError> {
    fn convert<T: Number>(shape: &[usize], values: &[f64]) -> Result<Tensor, ReferenceError> {
        let elements: Vec<T> = values.iter().map(|&value| T::from_f64_lossy(value)).collect();
        Ok(Tensor::from_elements(shape, &elements)?)
    }
    with_number!(
        dtype,
        T => convert::<T>(shape, values),
        otherwise Err(TypeError::Unsupported(format!("arithmetic on {dtype}")).into())
    )
}

/// The value rounded to f16 or bf16; unchanged for wider types, which are rounded in the result only.
pub(crate) fn rounded_step(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        _ => value,
    }
}

/// As [`rounded_step`], but keeps a sum that the narrow type cannot hold (f16 ends at 65504).
pub(crate) fn rounded_sum(dtype: DType, sum: f64) -> f64 {
    let rounded = rounded_step(dtype, sum);
    if rounded.is_finite() { rounded } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_narrow_types_round_between_steps() {
        assert_eq!(rounded_step(DType::BF16, 1.001), 1.0);
        assert_eq!(rounded_step(DType::F32, 1.001), 1.001);
        assert_eq!(rounded_step(DType::F16, 70000.0), f64::INFINITY);
        assert_eq!(rounded_sum(DType::F16, 70000.0), 70000.0);
    }

    #[test]
    fn widening_and_narrowing_are_inverse() {
        let tensor = narrowed(DType::F16, &[2], &[0.5, -3.0]).unwrap();
        assert_eq!(widened(&tensor).unwrap(), [0.5, -3.0]);
        assert_eq!(widened(&Tensor::scalar_bool(true)).unwrap_err().to_string(), "arithmetic on bool is not supported");
    }
}
