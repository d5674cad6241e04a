//! What classifiers and regressors of `ai.onnx.ml` do with their scores: the attribute `post_transform`.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Transforms each row (last axis) of scores: `f32 [.., c]` to `[.., c]`.
    pub struct ScoreTransform revision 1 {
        /// The transform.
        1 since 1 => function: ScoreFunction,
    }
}

/// Transforms of [`ScoreTransform`], named as in ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ScoreFunction {
    /// Exponentials divided by their sum.
    Softmax,
    /// 1 / (1 + exp(-x)) of each score.
    Logistic,
    /// As softmax, but a score of 0 stays 0.
    SoftmaxZero,
    /// The inverse of the normal distribution of each score, by Winitzki's approximation.
    Probit,
}
impl Keyword for ScoreFunction {}

/// Scores nearer to 0 than this are 0 for [`ScoreFunction::SoftmaxZero`].
const NEARLY_ZERO: f64 = 1e-7;

/// The inverse error function by Winitzki's approximation with a = 0.147, which ONNX Runtime uses.
fn inverse_error_function(x: f64) -> f64 {
    let logarithm = ((1.0 - x) * (1.0 + x)).ln();
    let half = 2.0 / (std::f64::consts::PI * 0.147) + 0.5 * logarithm;
    let root = (half * half - logarithm / 0.147).sqrt();
    (root - half).sqrt().copysign(x)
}

fn softmax(row: &mut [f64], keep_zeros: bool) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_zero = |x: f64| keep_zeros && x.abs() <= NEARLY_ZERO;
    let transform = |x: f64| if is_zero(x) { x * (-largest).exp() } else { (x - largest).exp() };
    row.iter_mut().for_each(|x| *x = transform(*x));
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x = if sum == 0.0 { 0.5 } else { *x / sum });
}

impl ScoreFunction {
    fn apply(self, row: &mut [f64]) {
        match self {
            ScoreFunction::Softmax => softmax(row, false),
            ScoreFunction::SoftmaxZero => softmax(row, true),
            ScoreFunction::Logistic => row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            ScoreFunction::Probit => {
                row.iter_mut().for_each(|x| *x = std::f64::consts::SQRT_2 * inverse_error_function(2.0 * *x - 1.0));
            }
        }
    }
}

impl Operator for ScoreTransform {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (found, shape) = tensor_operand(inputs, 0)?;
        if found != DType::F32 {
            return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found });
        }
        if shape.rank() == Some(0) {
            return Err(TypeError::Rank { operand: 0, expected: "1 or more".to_string(), found: 0 });
        }
        Ok(vec![Fact::tensor(DType::F32, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let scores = tensor(inputs, 0)?;
        let mut row: Vec<f64> = Vec::new();
        let mut transformed = Vec::with_capacity(scores.count());
        let columns = scores.shape().last().copied().unwrap_or(1).max(1);
        for scores in scores.elements::<f32>()?.chunks_exact(columns) {
            row.clear();
            row.extend(scores.iter().map(|&score| f64::from(score)));
            self.function.apply(&mut row);
            transformed.extend(row.iter().map(|&score| score as f32));
        }
        Ok(vec![Tensor::from_elements(scores.shape(), &transformed)?.into()])
    }
}

impl Computes for ScoreTransform {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let last = facts.dims(0).and_then(|dims| dims.len().checked_sub(1));
        last.map_or_else(|| loops::serial(facts), |last| loops::along(facts, &[last], AxisKind::Serial, true))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(
            &facts.elements(0),
            &[(VectorClass::Arithmetic, 3), (VectorClass::Transcendental, 1), (VectorClass::Divide, 1)],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    fn transformed(function: ScoreFunction, scores: &[f32]) -> Vec<f32> {
        let input = Tensor::from_elements(&[1, scores.len()], scores).unwrap();
        run(&ScoreTransform { function }, &[input]).unwrap().elements::<f32>().unwrap().to_vec()
    }

    fn assert_near(found: &[f32], expected: &[f32]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3), "{found:?} {expected:?}");
    }

    #[test]
    fn scores_by_hand() {
        let logarithm = 3f32.ln();
        assert_near(&transformed(ScoreFunction::Softmax, &[0.0, logarithm]), &[0.25, 0.75]);
        assert_near(&transformed(ScoreFunction::SoftmaxZero, &[0.0, logarithm]), &[0.0, 1.0]);
        assert_near(&transformed(ScoreFunction::SoftmaxZero, &[0.0, 0.0]), &[0.5, 0.5]);
        assert_near(&transformed(ScoreFunction::Logistic, &[0.0, logarithm]), &[0.5, 0.75]);
        // The 97.5th percentile of the normal distribution is 1.96.
        assert_near(&transformed(ScoreFunction::Probit, &[0.5, 0.975, 0.025]), &[0.0, 1.96, -1.96]);
    }
}
