//! One function of one element: ONNX `Abs`, `Neg`, `Sqrt`, `Exp`, .. (all opsets).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dtype::DType;
use crate::element::Number;
use crate::fact::Fact;
use crate::ops::{InferContext, Operator, ReferenceContext, ReferenceError, TypeError, tensor, tensor_operand};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::with_number;

attributes! {
    /// Applies `function` to each element: `x: [..]` to `[..]` of the same element type.
    pub struct Unary revision 1 {
        /// The function.
        1 since 1 => function: UnaryFunction,
    }
}

/// Functions of [`Unary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnaryFunction {
    /// Absolute value.
    Abs,
    /// Negation.
    Neg,
    /// Square root.
    Sqrt,
    /// Natural exponential.
    Exp,
}
impl Keyword for UnaryFunction {}

impl UnaryFunction {
    fn takes(self, dtype: DType) -> bool {
        match self {
            UnaryFunction::Abs => dtype.is_float() || dtype.is_integer(),
            UnaryFunction::Neg => dtype.is_float() || dtype.is_signed_integer(),
            UnaryFunction::Sqrt | UnaryFunction::Exp => dtype.is_float(),
        }
    }

    fn apply(self, value: f64) -> f64 {
        match self {
            UnaryFunction::Abs => value.abs(),
            UnaryFunction::Neg => -value,
            UnaryFunction::Sqrt => value.sqrt(),
            UnaryFunction::Exp => value.exp(),
        }
    }
}

impl Operator for Unary {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !self.function.takes(dtype) {
            let expected = "a type of this function".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let result = with_number!(
            input.dtype(),
            T => map::<T>(input, self.function)?,
            otherwise return Err(TypeError::Unsupported(format!("{:?} of {}", self.function, input.dtype())).into())
        );
        Ok(vec![result.into()])
    }
}

fn map<T: Number>(input: &Tensor, function: UnaryFunction) -> Result<Tensor, ReferenceError> {
    let mapped: Vec<T> = input
        .elements::<T>()?
        .iter()
        .map(|&element| T::from_f64_lossy(function.apply(element.to_f64_lossy())))
        .collect();
    Ok(Tensor::from_elements(input.shape(), &mapped)?)
}
