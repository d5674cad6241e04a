//! Coordinates of what is not zero: ONNX `NonZero` (opsets 9, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::scalar::scalars;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use num_complex::Complex;

attributes! {
    /// The coordinates of the elements of `x: [..]` that are not zero (not empty, for text), in row-major order, as i64:
    /// `[rank, count]`. Of a scalar `[0, count]`.
    pub struct NonZero revision 1 {}
}

/// Which elements are not zero, in row-major order. NaN is not zero.
///
/// # Errors
/// None for a tensor that exists.
pub fn nonzero_mask(tensor: &Tensor) -> Result<Vec<bool>, ReferenceError> {
    fn complex<T: num_traits::Zero>(elements: &[Complex<T>]) -> Vec<bool> {
        elements.iter().map(|element| !element.re.is_zero() || !element.im.is_zero()).collect()
    }
    Ok(match tensor.dtype() {
        DType::String => tensor.strings()?.iter().map(|text| !text.is_empty()).collect(),
        DType::C64 => complex(tensor.elements::<Complex<f32>>()?),
        DType::C128 => complex(tensor.elements::<Complex<f64>>()?),
        _ => scalars(tensor)?.into_iter().map(|scalar| scalar.is_true()).collect(),
    })
}

impl Operator for NonZero {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (_, shape) = tensor_operand(inputs, 0)?;
        let Some(rank) = shape.rank() else {
            let dims = vec![context.fresh("rank"), context.fresh("count")];
            return Ok(vec![Fact::tensor(DType::I64, Shape::Ranked(dims))]);
        };
        let known = required(inputs, 0)?.elements_as_integers();
        let count = known.map(|elements| elements.iter().filter(|&&element| element != 0).count());
        let count = count.map_or_else(|| context.fresh("count"), Dim::from);
        Ok(vec![Fact::tensor(DType::I64, vec![Dim::from(rank), count])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let mask = nonzero_mask(data)?;
        let found: Vec<usize> = (0..mask.len()).filter(|&at| mask[at]).collect();
        let mut coordinates = Vec::new();
        let mut inner = mask.len();
        for &extent in data.shape() {
            // Without elements there is nothing to divide.
            inner = inner.checked_div(extent).unwrap_or(0);
            coordinates.extend(found.iter().map(|&at| (at / inner % extent) as i64));
        }
        Ok(vec![Tensor::from_elements(&[data.rank(), found.len()], &coordinates)?.into()])
    }
}

impl Serial for NonZero {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{first, floats, inferred, vector};

    #[test]
    fn coordinates_are_listed_by_axis() {
        let data = Tensor::from_elements(&[2, 2], &[1f32, 0.0, f32::NAN, -0.0]).unwrap();
        let result = first(&NonZero {}, &[&data]);
        assert_eq!((result.shape(), result.elements::<i64>().unwrap()), (&[2, 2][..], &[0, 1, 0, 0][..]));
        assert_eq!(first(&NonZero {}, &[&Tensor::scalar_bool(true)]).shape(), [0, 1]);
        assert_eq!(first(&NonZero {}, &[&Tensor::from_elements::<f32>(&[3, 0], &[]).unwrap()]).shape(), [2, 0]);
        let words = Tensor::from_strings(&[2], vec![String::new(), "a".into()]).unwrap();
        assert_eq!(first(&NonZero {}, &[&words]).elements::<i64>().unwrap(), [1]);
    }

    #[test]
    fn counts_are_known_for_known_contents() {
        assert_eq!(inferred(&NonZero {}, &[floats("a, b")]), "i64[2, step.count]");
        assert_eq!(inferred(&NonZero {}, &[vector(&[1, 0, 2])]), "i64[1, 2]");
    }
}
