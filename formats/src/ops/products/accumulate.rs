//! Sums of products in references: floats in f64, integers modulo 2^128 and so exactly modulo their own width.

use crate::dtype::DType;
use crate::ops::scalar::{Scalar, scalars};
use crate::ops::{Arithmetic, ReferenceError, TypeError};
use crate::tensor::Tensor;

/// Types that products take: those of ONNX `MatMul` (opset 13).
pub(crate) fn require_product_type(dtype: DType, operand: usize) -> Result<(), TypeError> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64 => {
            Ok(())
        }
        found => {
            let expected = "f16, bf16, f32, f64, i32, i64, u32 or u64".to_string();
            Err(TypeError::ElementType { operand, expected, found })
        }
    }
}

/// Require one element type of all product operands.
pub(crate) fn require_same_type(operand: usize, found: DType, expected: DType) -> Result<(), TypeError> {
    if found == expected {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: expected.to_string(), found })
}

/// What a sum of products is kept in.
pub(crate) trait Accumulator: Copy {
    /// The empty sum.
    const ZERO: Self;
    /// An operand's element, rounded as it enters multiplications.
    fn of(scalar: Scalar, arithmetic: &Arithmetic) -> Self;
    /// This sum and another term, rounded as partial sums are.
    fn plus(self, term: Self, arithmetic: &Arithmetic) -> Self;
    /// The product of two elements.
    fn times(self, other: Self) -> Self;
    /// The sum as an element.
    fn scalar(self) -> Scalar;
}

impl Accumulator for f64 {
    const ZERO: f64 = 0.0;
    fn of(scalar: Scalar, arithmetic: &Arithmetic) -> f64 {
        arithmetic.activation(scalar.to_f64())
    }
    fn plus(self, term: f64, arithmetic: &Arithmetic) -> f64 {
        arithmetic.accumulator(self + term)
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
    fn scalar(self) -> Scalar {
        Scalar::Float(self)
    }
}

impl Accumulator for i128 {
    const ZERO: i128 = 0;
    fn of(scalar: Scalar, _arithmetic: &Arithmetic) -> i128 {
        match scalar {
            Scalar::Integer(integer) => integer,
            Scalar::Float(float) => float as i128,
        }
    }
    fn plus(self, term: i128, _arithmetic: &Arithmetic) -> i128 {
        self.wrapping_add(term)
    }
    fn times(self, other: i128) -> i128 {
        self.wrapping_mul(other)
    }
    fn scalar(self) -> Scalar {
        Scalar::Integer(self)
    }
}

/// All elements as accumulators.
pub(crate) fn accumulators<T: Accumulator>(tensor: &Tensor, arithmetic: &Arithmetic) -> Result<Vec<T>, ReferenceError> {
    Ok(scalars(tensor)?.into_iter().map(|scalar| T::of(scalar, arithmetic)).collect())
}
