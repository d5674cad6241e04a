//! Running sums and products: ONNX `CumSum` (opsets 11, 14) and `CumProd` (opset 26).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::element::Number;
use crate::fact::Fact;
use crate::ops::normalization::reduce::{Wrapping, sets};
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, integers, loops, normalize_axis, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::with_number;

attributes! {
    /// Each element combined with those before it along an axis: `x: [..]`, `axis: []` (i32 or i64) to `[..]`.
    pub struct Cumulative revision 1 {
        /// How elements are combined.
        1 since 1 => function: CumulativeFunction,
        /// An element is not part of its own result: the first is the neutral element.
        2 since 1 => exclusive: bool,
        /// From the last element to the first.
        3 since 1 => reverse: bool,
    }
}

/// Functions of [`Cumulative`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CumulativeFunction {
    /// Sum.
    Sum,
    /// Product.
    Product,
}
impl Keyword for CumulativeFunction {}

impl Cumulative {
    /// The axis of these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where there is not one, or it is outside of the rank.
    pub fn axis(&self, inputs: &[Option<Value>]) -> Result<usize, ReferenceError> {
        let axis = integers(inputs, 1)?;
        let [axis] = axis[..] else { return Err(one_axis(axis.len() as i64).into()) };
        Ok(normalize_axis(axis, tensor(inputs, 0)?.rank())?)
    }

    /// Results for the elements of one line, in the order of the line.
    fn line<V: Clone>(&self, mut values: Vec<V>, neutral: V, combine: impl Fn(&V, &V) -> V) -> Vec<V> {
        if self.reverse {
            values.reverse();
        }
        let mut so_far = neutral;
        for value in &mut values {
            let next = combine(&so_far, value);
            *value = if self.exclusive { so_far } else { next.clone() };
            so_far = next;
        }
        if self.reverse {
            values.reverse();
        }
        values
    }

    fn contents(&self, data: &Fact) -> Option<Vec<Dim>> {
        if data.rank() != Some(1) || data.dtype() != Some(DType::I64) {
            return None;
        }
        let elements = data.elements_as_dims()?;
        Some(match self.function {
            CumulativeFunction::Sum => self.line(elements, Dim::ZERO, |left, right| left + right),
            CumulativeFunction::Product => self.line(elements, Dim::ONE, |left, right| left * right),
        })
    }

    fn numbers<T: Number + Wrapping>(&self, data: &Tensor, axis: usize) -> Result<Tensor, ReferenceError> {
        let elements = data.elements::<T>()?;
        let mut results = elements.to_vec();
        let sets = sets(data.shape(), &[axis])?;
        for start in &sets.starts {
            let line = sets.offsets.iter().map(|offset| elements[start + offset]);
            let computed = if T::INTEGER { self.integers(line.collect()) } else { self.floats(line.collect()) };
            for (offset, result) in sets.offsets.iter().zip(computed) {
                results[start + offset] = result;
            }
        }
        Ok(Tensor::from_elements(data.shape(), &results)?)
    }

    fn integers<T: Wrapping>(&self, line: Vec<T>) -> Vec<T> {
        let widened = line.into_iter().map(Wrapping::widen).collect();
        let results = match self.function {
            CumulativeFunction::Sum => self.line(widened, 0i128, |left, right| left.wrapping_add(*right)),
            CumulativeFunction::Product => self.line(widened, 1i128, |left, right| left.wrapping_mul(*right)),
        };
        results.into_iter().map(T::wrap).collect()
    }

    fn floats<T: Number>(&self, line: Vec<T>) -> Vec<T> {
        let widened = line.into_iter().map(Number::to_f64_lossy).collect();
        let results = match self.function {
            CumulativeFunction::Sum => self.line(widened, 0f64, |left, right| left + right),
            CumulativeFunction::Product => self.line(widened, 1f64, |left, right| left * right),
        };
        results.into_iter().map(T::from_f64_lossy).collect()
    }
}

impl Operator for Cumulative {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if dtype.bits() < 8 || dtype.is_narrow_float() || !(dtype.is_integer() || dtype.is_float()) {
            let expected = "a number type of at least 8 bits".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        let (axis_type, axis_shape) = tensor_operand(inputs, 1)?;
        if !axis_type.is_integer() {
            return Err(TypeError::ElementType { operand: 1, expected: "integers".to_string(), found: axis_type });
        }
        if let Some(count) = axis_shape.dims().and_then(|dims| Dim::product(dims).as_known())
            && count != 1
        {
            return Err(one_axis(count));
        }
        let axis = required(inputs, 1)?.elements_as_integers();
        if let (Some(axis), Some(rank)) = (axis.as_deref().and_then(<[i64]>::first), shape.rank()) {
            normalize_axis(*axis, rank)?;
        }
        let contents = self.contents(required(inputs, 0)?);
        Ok(vec![match contents {
            Some(contents) => Fact::of_dims(dtype, shape.clone(), contents),
            None => Fact::tensor(dtype, shape.clone()),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (data, axis) = (tensor(inputs, 0)?, self.axis(inputs)?);
        let result = with_number!(
            data.dtype(),
            T => self.numbers::<T>(data, axis)?,
            otherwise return Err(TypeError::Unsupported(format!("cumulative of {}", data.dtype())).into())
        );
        Ok(vec![result.into()])
    }
}

impl Computes for Cumulative {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let axis = facts.integers(1).and_then(|axis| axis.first().copied());
        let axis = axis.zip(facts.dims(0)).and_then(|(axis, dims)| normalize_axis(axis, dims.len()).ok());
        axis.map_or_else(|| loops::serial(facts), |axis| loops::along(facts, &[axis], AxisKind::Serial, true))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

fn one_axis(found: i64) -> TypeError {
    TypeError::Value {
        subject: "number of axes".to_string(),
        found: found.to_string(),
        expected: "one axis".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn run(operator: &Cumulative, data: Tensor, axis: i64) -> Tensor {
        let mut blocks = NoBlocks;
        let inputs = [Some(data.into()), Some(Tensor::scalar(axis).into())];
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        results[0].as_tensor().unwrap().clone()
    }

    #[test]
    fn examples_of_the_operator_pages() {
        let cases = [
            (CumulativeFunction::Sum, false, false, [1, 3, 6]),
            (CumulativeFunction::Sum, true, false, [0, 1, 3]),
            (CumulativeFunction::Sum, false, true, [6, 5, 3]),
            (CumulativeFunction::Sum, true, true, [5, 3, 0]),
            (CumulativeFunction::Product, false, false, [1, 2, 6]),
            (CumulativeFunction::Product, true, false, [1, 1, 2]),
            (CumulativeFunction::Product, false, true, [6, 6, 3]),
            (CumulativeFunction::Product, true, true, [6, 3, 1]),
        ];
        for (function, exclusive, reverse, expected) in cases {
            let operator = Cumulative { function, exclusive, reverse };
            let result = run(&operator, Tensor::vector_i64(&[1, 2, 3]), 0);
            assert_eq!(result.elements::<i64>().unwrap(), expected, "{operator:?}");
        }
    }

    #[test]
    fn lines_run_along_the_axis() {
        let operator = Cumulative { function: CumulativeFunction::Sum, exclusive: false, reverse: false };
        let data = || Tensor::from_elements(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(run(&operator, data(), 0).elements::<f32>().unwrap(), [1.0, 2.0, 4.0, 6.0]);
        assert_eq!(run(&operator, data(), -1).elements::<f32>().unwrap(), [1.0, 3.0, 3.0, 7.0]);
    }

    #[test]
    fn axes_are_checked_and_contents_followed() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("c", &ranges, &mut blocks);
        let operator = Cumulative { function: CumulativeFunction::Sum, exclusive: false, reverse: false };
        let data = Some(Fact::of_dims(DType::I64, vec![Dim::known(2)], vec![Dim::symbol("n"), Dim::known(4)]));
        let axis = |axis| Some(Fact::constant(Tensor::scalar::<i64>(axis)));
        let facts = operator.infer(&[data.clone(), axis(0)], &mut context).unwrap();
        assert_eq!(facts[0].elements_as_dims().unwrap(), [Dim::symbol("n"), Dim::symbol("n") + 4]);
        assert_eq!(
            operator.infer(&[data, axis(1)], &mut context).unwrap_err().to_string(),
            "axis 1 is outside a tensor of rank 1"
        );
    }
}
