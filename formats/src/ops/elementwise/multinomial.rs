//! Draws of classes by their logarithmic weights: ONNX `Multinomial` (opset 7, 22).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::elementwise::random::Generator;
use crate::ops::floats::require_computing_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// `logits: [batch, classes]` to indices of classes `[batch, sample_size]`.
    pub struct Multinomial revision 1 {
        /// Draws a row.
        1 since 1 => sample_size: i64,
        /// The element type of the result: i32 or i64.
        2 since 1 => to: DType,
        /// Seed; each run draws the same numbers with it.
        3 since 1 => seed: Option<f32>,
    }
}

impl Multinomial {
    fn check(&self, dtype: DType, rank: Option<usize>) -> Result<usize, TypeError> {
        require_computing_float(dtype, 0)?;
        if !matches!(self.to, DType::I32 | DType::I64) {
            return Err(TypeError::Unsupported(format!("drawn classes of type {}", self.to)));
        }
        if let Some(found) = rank.filter(|&rank| rank != 2) {
            return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found });
        }
        usize::try_from(self.sample_size).map_err(|_| TypeError::Value {
            subject: "sample_size".to_string(),
            found: self.sample_size.to_string(),
            expected: "0 or more".to_string(),
        })
    }
}

impl Operator for Multinomial {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let samples = self.check(dtype, shape.rank())?;
        let batch = match shape {
            Shape::Ranked(dims) => dims[0].clone(),
            Shape::Unranked => context.fresh("batch"),
        };
        Ok(vec![Fact::tensor(self.to, vec![batch, Dim::from(samples)])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let logits = tensor(inputs, 0)?;
        let samples = self.check(logits.dtype(), Some(logits.rank()))?;
        let (batch, classes) = (logits.shape()[0], logits.shape()[1]);
        let shape = [batch, samples];
        let mut drawn = room(Tensor::zeros(self.to, &shape)?.count())?;
        let mut generator = Generator::new(self.seed.map(|seed| seed.to_bits().into()), context);
        let logits: Vec<f64> = scalars(logits)?.into_iter().map(Scalar::to_f64).collect();
        for row in 0..batch {
            let sums = cumulative_weights(&logits[row * classes..(row + 1) * classes]);
            let total = sums.last().copied().unwrap_or(0.0);
            if samples > 0 && !(total > 0.0 && total.is_finite()) {
                return Err(TypeError::Value {
                    subject: format!("the sum of weights of row {row}"),
                    found: total.to_string(),
                    expected: "above 0 and finite".to_string(),
                }
                .into());
            }
            for _ in 0..samples {
                let mark = generator.uniform() * total;
                let class = sums.partition_point(|&sum| sum <= mark);
                drawn.push(Scalar::Integer(class as i128));
            }
        }
        Ok(vec![from_scalars(self.to, &shape, &drawn)?.into()])
    }
}

impl Serial for Multinomial {
    fn effect(&self) -> Effect {
        Effect::Random
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(
            &(facts.elements(0) + facts.result_elements(0)),
            &[(VectorClass::Arithmetic, 2), (VectorClass::Transcendental, 1)],
        )
    }
}

/// Running sums of the exponentials, relative to the largest.
fn cumulative_weights(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    logits
        .iter()
        .map(|logit| {
            sum += (logit - largest).exp();
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    #[test]
    fn classes_come_as_often_as_their_weights() {
        let operator = Multinomial { sample_size: 20_000, to: DType::I64, seed: Some(1.0) };
        let never = f32::NEG_INFINITY;
        let logits = [1.0f32.ln(), 3.0f32.ln(), never, never, 1000.0, 0.0];
        let drawn = run(&operator, &[Tensor::from_elements(&[2, 3], &logits).unwrap()]).unwrap();
        let drawn = drawn.elements::<i64>().unwrap();
        let often = drawn[..20_000].iter().filter(|&&class| class == 1).count();
        assert!((14_500..15_500).contains(&often), "{often}");
        assert!(drawn[..20_000].iter().all(|&class| class < 2));
        assert!(drawn[20_000..].iter().all(|&class| class == 1));
    }

    #[test]
    fn rows_without_weights_are_refused() {
        let operator = Multinomial { sample_size: 1, to: DType::I32, seed: None };
        assert_eq!(
            run(&operator, &[Tensor::from_elements(&[1, 1], &[f32::NAN]).unwrap()]).unwrap_err().to_string(),
            "the sum of weights of row 0 is NaN, expected above 0 and finite"
        );
        assert_eq!(
            run(&operator, &[Tensor::from_elements(&[1, 0], &[0f32; 0]).unwrap()]).unwrap_err().to_string(),
            "the sum of weights of row 0 is 0, expected above 0 and finite"
        );
        assert_eq!(
            run(&operator, &[Tensor::from_elements(&[1], &[0f32]).unwrap()]).unwrap_err().to_string(),
            "operand 0 must have rank 2, found 1"
        );
        let wrong = Multinomial { sample_size: -1, ..operator };
        assert_eq!(
            run(&wrong, &[Tensor::from_elements(&[1, 1], &[0f32]).unwrap()]).unwrap_err().to_string(),
            "sample_size is -1, expected 0 or more"
        );
    }
}
