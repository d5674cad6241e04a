//! Limits to an interval: ONNX `Clip` (opset 6 to 13; the attributes of opset 6 become operands).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::elementwise::binary::{FollowedOperand, dims_fit};
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::{
    BinaryFunction, Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError,
    VectorClass, optional, optional_tensor, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `min(maximum, max(minimum, x))`: `x: [..], minimum: [] or absent, maximum: [] or absent` to `[..]`.
    ///
    /// An absent bound is the least or greatest finite value of the type, as ONNX states. NaN stays.
    pub struct Clamp revision 1 {}
}

const BOUNDS: [usize; 2] = [1, 2];

fn check_bound(dtype: DType, operand: usize, found: DType) -> Result<(), TypeError> {
    if found == dtype {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: dtype.to_string(), found })
}

fn check_input(dtype: DType) -> Result<(), TypeError> {
    if is_number(dtype) {
        return Ok(());
    }
    Err(TypeError::ElementType { operand: 0, expected: "a real number type".to_string(), found: dtype })
}

/// A bound has one element.
fn check_single(operand: usize, shape: &Shape, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    match shape {
        Shape::Ranked(dims) if dims.len() > 1 => {
            Err(TypeError::Rank { operand, expected: "0".to_string(), found: dims.len() })
        }
        Shape::Ranked(dims) => {
            for dim in dims {
                context.require_equal(dim, &Dim::ONE, "elements of a bound")?;
            }
            Ok(())
        }
        Shape::Unranked => Ok(()),
    }
}

/// Elements known as dimensions, where those of the operand and of the bounds are.
fn followed(inputs: &[Option<Fact>], dtype: DType, context: &InferContext<'_>) -> Option<Vec<Dim>> {
    let mut dims: Vec<Dim> = {
        let operand = FollowedOperand::new(optional(inputs, 0)?)?;
        operand.elements(&operand.extents).cloned().collect()
    };
    for operand in BOUNDS {
        let Some(bound) = optional(inputs, operand) else { continue };
        let bound = bound.elements_as_dims()?;
        let [bound] = bound.as_slice() else { return None };
        for dim in &mut dims {
            let limited = if operand == 1 { Dim::max(dim, bound) } else { Dim::min(dim, bound) };
            *dim = limited.simplify(context.ranges);
        }
    }
    (dims_fit(dtype, &dims) && !dims.iter().any(Dim::is_refused)).then_some(dims)
}

impl Operator for Clamp {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        check_input(dtype)?;
        for operand in BOUNDS {
            if optional(inputs, operand).is_some() {
                let (found, bound) = tensor_operand(inputs, operand)?;
                check_bound(dtype, operand, found)?;
                check_single(operand, bound, context)?;
            }
        }
        let shape = shape.clone();
        Ok(vec![match followed(inputs, dtype, context) {
            Some(dims) => Fact::of_dims(dtype, shape, dims),
            None => Fact::of(required(inputs, 0)?.kind.clone()),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let dtype = input.dtype();
        check_input(dtype)?;
        let mut values = scalars(input)?;
        let functions = [BinaryFunction::Max, BinaryFunction::Min];
        for ((operand, function), absent) in BOUNDS.into_iter().zip(functions).zip(Clamp::absent_bounds(dtype)) {
            let bound = match optional_tensor(inputs, operand)? {
                Some(bound) => single(bound, dtype, operand)?,
                None => absent,
            };
            for value in &mut values {
                *value = match (*value, bound) {
                    (Scalar::Integer(x), Scalar::Integer(bound)) if function == BinaryFunction::Max => {
                        Scalar::Integer(x.max(bound))
                    }
                    (Scalar::Integer(x), Scalar::Integer(bound)) => Scalar::Integer(x.min(bound)),
                    (x, bound) => Scalar::Float(function.apply(x.to_f64(), bound.to_f64())),
                };
            }
        }
        Ok(vec![from_scalars(dtype, input.shape(), &values)?.into()])
    }
}

impl Elementwise for Clamp {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Arithmetic, 2)]
    }
}

fn single(bound: &Tensor, dtype: DType, operand: usize) -> Result<Scalar, ReferenceError> {
    check_bound(dtype, operand, bound.dtype())?;
    match scalars(bound)?.as_slice() {
        [bound_value] if bound.rank() <= 1 => Ok(*bound_value),
        elements => Err(TypeError::Value {
            subject: format!("the number of elements of operand {operand}"),
            found: elements.len().to_string(),
            expected: "1".to_string(),
        }
        .into()),
    }
}

impl Clamp {
    /// The bounds that are meant where none are given: the least and the greatest value of a type, finite where it has
    /// infinities.
    #[must_use]
    pub fn absent_bounds(dtype: DType) -> [Scalar; 2] {
        let bits = dtype.bits() as u32;
        let greatest = match dtype {
            _ if dtype.is_signed_integer() => Scalar::Integer((1 << (bits - 1)) - 1),
            _ if dtype.is_integer() => Scalar::Integer((1 << bits) - 1),
            DType::F16 => Scalar::Float(half::f16::MAX.to_f64()),
            DType::BF16 => Scalar::Float(half::bf16::MAX.to_f64()),
            DType::F32 => Scalar::Float(f32::MAX.into()),
            DType::F64 => Scalar::Float(f64::MAX),
            _ => Scalar::Float(crate::ops::scalar::round_to(dtype, f64::INFINITY)),
        };
        let least = match greatest {
            Scalar::Float(greatest) => Scalar::Float(-greatest),
            Scalar::Integer(_) if dtype.is_unsigned_integer() => Scalar::Integer(0),
            Scalar::Integer(greatest) => Scalar::Integer(-greatest - 1),
        };
        [least, greatest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run_optional;

    fn clamp<T: crate::element::Element>(elements: &[T], minimum: Option<T>, maximum: Option<T>) -> Tensor {
        let x = Tensor::from_elements(&[elements.len()], elements).unwrap();
        run_optional(&Clamp {}, &[Some(x), minimum.map(Tensor::scalar), maximum.map(Tensor::scalar)]).unwrap()
    }

    #[test]
    fn bounds_limit_and_the_upper_one_wins() {
        let limited = clamp(&[-2.0f32, 0.5, 7.0, f32::NAN], Some(0.0), Some(6.0));
        assert_eq!(limited.elements::<f32>().unwrap()[..3], [0.0, 0.5, 6.0]);
        assert!(limited.elements::<f32>().unwrap()[3].is_nan());
        assert_eq!(clamp(&[-2.0f32, 7.0], Some(2.0), Some(1.0)).elements::<f32>().unwrap(), [1.0, 1.0]);
        assert_eq!(
            clamp(&[i64::MAX, i64::MIN], Some(i64::MIN + 1), None).elements::<i64>().unwrap(),
            [i64::MAX, i64::MIN + 1]
        );
        assert_eq!(clamp(&[u64::MAX, 3], None, Some(u64::MAX - 1)).elements::<u64>().unwrap(), [u64::MAX - 1, 3]);
    }

    #[test]
    fn absent_bounds_are_the_finite_extremes() {
        let limited = clamp(&[f32::INFINITY, f32::NEG_INFINITY], None, None);
        assert_eq!(limited.elements::<f32>().unwrap(), [f32::MAX, f32::MIN]);
        let x = Tensor::from_elements(&[1], &[1i32]).unwrap();
        let pair = Tensor::from_elements(&[2], &[1i32, 2]).unwrap();
        assert_eq!(
            run_optional(&Clamp {}, &[Some(x.clone()), Some(pair)]).unwrap_err().to_string(),
            "the number of elements of operand 1 is 2, expected 1"
        );
        assert_eq!(
            run_optional(&Clamp {}, &[Some(x), Some(Tensor::scalar(1i64))]).unwrap_err().to_string(),
            "operand 1 must be i32, found i64"
        );
    }

    #[test]
    fn dimensions_are_followed() {
        let mut ranges = Ranges::new();
        ranges.set("n", 1, 8).unwrap();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("clamp", &ranges, &mut blocks);
        let n = Dim::symbol("n");
        let x = Fact::of_dims(DType::I64, vec![Dim::known(2)], vec![n.clone(), n.clone() * 4]);
        let inputs = [Some(x), Some(Fact::constant(Tensor::scalar(1i64))), Some(Fact::constant(Tensor::scalar(8i64)))];
        let fact = Clamp {}.infer(&inputs, &mut context).unwrap();
        assert_eq!(fact[0].elements_as_dims(), Some(vec![n.clone(), Dim::min(&(n * 4), &Dim::known(8))]));
    }
}
