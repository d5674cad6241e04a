//! Softmax, its logarithm, and its limit: ONNX `Softmax`, `LogSoftmax`, `Hardmax` (opsets 1, 11, 13).
//!
//! Before opset 13 all axes from `axis` on are one (`trailing`). f16 and bf16 are rounded after each operator of
//! the function body.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::floats::{narrowed, require_computing_float, rounded_step, rounded_sum, widened};
use crate::ops::normalization::reduce::sets;
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, loops, normalize_axis, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Makes a distribution of the elements along `axis`: `x: [..]` to `[..]`.
    pub struct Softmax revision 1 {
        /// What is computed.
        1 since 1 => function: SoftmaxFunction,
        /// Counted from the back where negative.
        2 since 1 => axis: i64,
        /// All axes from `axis` on are normalized together.
        3 since 1 => trailing: bool,
    }
}

/// Functions of [`Softmax`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SoftmaxFunction {
    /// Exponentials divided by their sum.
    Softmax,
    /// Logarithm of the softmax.
    LogSoftmax,
    /// 1 at the first largest element, 0 elsewhere.
    Hardmax,
}
impl Keyword for SoftmaxFunction {}

impl SoftmaxFunction {
    /// The function of one row; `round` is applied after each step, `round_sum` to the sum.
    pub(crate) fn row(self, values: &[f64], round: impl Fn(f64) -> f64, round_sum: impl Fn(f64) -> f64) -> Vec<f64> {
        // `f64::max` would skip NaN, which must reach the result.
        let largest = values.iter().copied().fold(f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
        match self {
            SoftmaxFunction::Softmax => {
                let exponentials: Vec<f64> = values.iter().map(|value| round(round(value - largest).exp())).collect();
                let sum = round_sum(exponentials.iter().sum());
                exponentials.iter().map(|exponential| exponential / sum).collect()
            }
            SoftmaxFunction::LogSoftmax => {
                let differences: Vec<f64> = values.iter().map(|value| round(value - largest)).collect();
                let sum = round_sum(differences.iter().map(|difference| round(difference.exp())).sum());
                differences.iter().map(|difference| difference - round(sum.ln())).collect()
            }
            SoftmaxFunction::Hardmax => {
                let first = values.iter().position(|value| *value == largest || value.is_nan());
                (0..values.len()).map(|index| if Some(index) == first { 1.0 } else { 0.0 }).collect()
            }
        }
    }
}

impl Operator for Softmax {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        if let Shape::Ranked(dims) = shape {
            normalize_axis(self.axis, dims.len())?;
        }
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let dtype = input.dtype();
        require_computing_float(dtype, 0)?;
        let axis = normalize_axis(self.axis, input.rank())?;
        let axes: Vec<usize> = if self.trailing { (axis..input.rank()).collect() } else { vec![axis] };
        let values = widened(input)?;
        let mut results = values.clone();
        let sets = sets(input.shape(), &axes)?;
        for start in &sets.starts {
            let row: Vec<f64> = sets.offsets.iter().map(|offset| values[start + offset]).collect();
            let computed = self.function.row(&row, |step| rounded_step(dtype, step), |sum| rounded_sum(dtype, sum));
            for (offset, result) in sets.offsets.iter().zip(computed) {
                results[start + offset] = result;
            }
        }
        Ok(vec![narrowed(dtype, input.shape(), &results)?.into()])
    }
}

impl Computes for Softmax {
    /// Maxima first, then sums of exponentials, then each element.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        let Ok(axis) = normalize_axis(self.axis, dims.len()) else { return loops::serial(facts) };
        let end = if self.trailing { dims.len() } else { axis + 1 };
        let along = loops::statistics(facts, |own| (axis..end).contains(&own));
        let mut spaces: Vec<Space> = along.iter().chain(&along).cloned().collect();
        spaces.extend(loops::broadcast(facts, 1, |_| AxisKind::Parallel));
        spaces
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let costs: &[(VectorClass, i64)] = match self.function {
            SoftmaxFunction::Softmax => {
                &[(VectorClass::Arithmetic, 3), (VectorClass::Divide, 1), (VectorClass::Transcendental, 1)]
            }
            SoftmaxFunction::LogSoftmax => &[(VectorClass::Arithmetic, 4), (VectorClass::Transcendental, 1)],
            SoftmaxFunction::Hardmax => &[(VectorClass::Arithmetic, 2)],
        };
        each(&facts.elements(0), costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;
    use crate::tensor::Tensor;

    fn run(function: SoftmaxFunction, axis: i64, trailing: bool, shape: &[usize], values: &[f32]) -> Vec<f32> {
        let mut blocks = NoBlocks;
        let input = Tensor::from_elements(shape, values).unwrap();
        let operator = Softmax { function, axis, trailing };
        let results = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        results[0].as_tensor().unwrap().elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn rows_sum_to_one_however_large() {
        let values = [1000.0, 1001.0, 1002.0, -1.0, 0.0, 1.0];
        let results = run(SoftmaxFunction::Softmax, -1, false, &[2, 3], &values);
        assert!((results[0] - 0.090_030_57).abs() < 1e-7 && (results[2] - 0.665_240_97).abs() < 1e-7);
        assert_eq!(results[..3], results[3..]);
        let logarithms = run(SoftmaxFunction::LogSoftmax, -1, false, &[2, 3], &values);
        assert!((logarithms[1] - results[1].ln()).abs() < 1e-6);
    }

    #[test]
    fn trailing_axes_are_one() {
        let ones = [1.0f32; 8];
        assert_eq!(run(SoftmaxFunction::Softmax, 1, true, &[2, 2, 2], &ones), [0.25; 8]);
        assert_eq!(run(SoftmaxFunction::Softmax, 1, false, &[2, 2, 2], &ones), [0.5; 8]);
    }

    #[test]
    fn hardmax_marks_the_first() {
        assert_eq!(run(SoftmaxFunction::Hardmax, 1, false, &[1, 4], &[1.0, 3.0, 3.0, 0.0]), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(run(SoftmaxFunction::Hardmax, 0, false, &[2, 2], &[1.0, 3.0, 3.0, 0.0]), [0.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn nan_and_all_minus_infinity_are_seen() {
        assert!(run(SoftmaxFunction::Softmax, 0, false, &[2], &[1.0, f32::NAN])[0].is_nan());
        assert!(run(SoftmaxFunction::Softmax, 0, false, &[1], &[f32::NEG_INFINITY])[0].is_nan());
        assert!(run(SoftmaxFunction::Softmax, 1, false, &[2, 0], &[]).is_empty());
    }
}
