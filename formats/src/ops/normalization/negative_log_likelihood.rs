//! Loss of class scores against labels: ONNX `NegativeLogLikelihoodLoss` (opsets 12, 13, 22), and the last part of
//! `SoftmaxCrossEntropyLoss` (opsets 12, 13).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::rotary_embedding::require_dims;
use crate::ops::floats::{narrowed, require_computing_float, widened};
use crate::ops::normalization::reduce::volume;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, optional, optional_tensor, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Minus the logarithm at each label: `log_probability: [n, c, ..]`, `label: [n, ..]` (i32 or i64), optional
    /// `weight: [c]`, to `[n, ..]`, or `[]` where it is reduced.
    pub struct NegativeLogLikelihood revision 1 {
        /// How the losses are combined.
        1 since 1 => reduction: LossReduction,
        /// Label whose loss is 0 and does not count.
        2 since 1 => ignored_label: Option<i64>,
    }
}

/// Reductions of [`NegativeLogLikelihood`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum LossReduction {
    /// Each loss.
    None,
    /// Their sum.
    Sum,
    /// Their sum divided by the sum of the weights.
    Mean,
}
impl Keyword for LossReduction {}

fn check_types(inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
    let (dtype, _) = tensor_operand(inputs, 0)?;
    require_computing_float(dtype, 0)?;
    let (labels, _) = tensor_operand(inputs, 1)?;
    if !matches!(labels, DType::I32 | DType::I64) {
        return Err(TypeError::ElementType { operand: 1, expected: "i32 or i64".to_string(), found: labels });
    }
    if optional(inputs, 2).is_some() {
        let (found, _) = tensor_operand(inputs, 2)?;
        if found != dtype {
            return Err(TypeError::ElementType { operand: 2, expected: dtype.to_string(), found });
        }
    }
    Ok(dtype)
}

impl Operator for NegativeLogLikelihood {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = check_types(inputs)?;
        let dims = |operand: usize| optional(inputs, operand).and_then(Fact::dims);
        let mut shape = dims(1).map_or(Shape::Unranked, |labels| Shape::Ranked(labels.to_vec()));
        if let Some(scores) = dims(0) {
            let [batch, classes, rest @ ..] = scores else {
                return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found: scores.len() });
            };
            let mut wanted = vec![batch.clone()];
            wanted.extend_from_slice(rest);
            if let Some(labels) = dims(1) {
                require_dims(1, labels, &wanted, context)?;
            }
            if let Some(weight) = dims(2) {
                require_dims(2, weight, std::slice::from_ref(classes), context)?;
            }
            shape = Shape::Ranked(wanted);
        }
        Ok(vec![match self.reduction {
            LossReduction::None => Fact::tensor(dtype, shape),
            LossReduction::Sum | LossReduction::Mean => Fact::tensor(dtype, Vec::<Dim>::new()),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        let dtype = check_types(&facts)?;
        let (scores, labels) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let misfit = |found: &[usize]| -> ReferenceError {
            TypeError::Unsupported(format!("a loss of scores {:?} with an operand {found:?}", scores.shape())).into()
        };
        let &[batch, classes, ref rest @ ..] = scores.shape() else { return Err(misfit(scores.shape())) };
        let mut wanted = vec![batch];
        wanted.extend_from_slice(rest);
        if labels.shape() != wanted {
            return Err(misfit(labels.shape()));
        }
        let weight = optional_tensor(inputs, 2)?;
        if let Some(found) = weight.filter(|weight| weight.shape() != [classes]) {
            return Err(misfit(found.shape()));
        }
        let weight = weight.map(widened).transpose()?;
        let values = widened(scores)?;
        let inner = volume(rest);
        let (mut losses, mut total_weight) = (Vec::new(), 0.0);
        for (index, label) in integers(inputs, 1)?.into_iter().enumerate() {
            if Some(label) == self.ignored_label {
                losses.push(0.0);
                continue;
            }
            let class = usize::try_from(label).ok().filter(|class| *class < classes);
            let class = class.ok_or_else(|| ReferenceError::OutOfRange {
                subject: "label".to_string(),
                found: label,
                range: format!("0 to {classes}"),
            })?;
            let weight = weight.as_ref().map_or(1.0, |weight| weight[class]);
            losses.push(-values[(index / inner * classes + class) * inner + index % inner] * weight);
            total_weight += weight;
        }
        let sum: f64 = losses.iter().sum();
        Ok(vec![
            match self.reduction {
                LossReduction::None => narrowed(dtype, labels.shape(), &losses)?,
                LossReduction::Sum => narrowed(dtype, &[], &[sum])?,
                LossReduction::Mean => narrowed(dtype, &[], &[sum / total_weight])?,
            }
            .into(),
        ])
    }
}

impl Computes for NegativeLogLikelihood {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::serial(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(1), &[(VectorClass::Arithmetic, 2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    /// The examples of the operator page.
    fn loss(reduction: LossReduction, ignored_label: Option<i64>, weighted: bool) -> Vec<f32> {
        let scores = [1.0f32, 2.0, 2.0, 2.0, 3.0, 2.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0];
        let mut inputs = vec![
            Tensor::from_elements(&[2, 3, 2], &scores).unwrap(),
            Tensor::from_elements(&[2, 2], &[2i64, 1, 0, 2]).unwrap(),
        ];
        if weighted {
            inputs.push(Tensor::from_elements(&[3], &[0.2f32, 0.3, 0.1]).unwrap());
        }
        let operator = NegativeLogLikelihood { reduction, ignored_label };
        run(&operator, &inputs).unwrap().elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn examples_of_the_operator_page() {
        assert_eq!(loss(LossReduction::None, None, false), [-3.0, -2.0, -0.0, -2.0]);
        assert!((loss(LossReduction::Sum, None, true)[0] + 1.1).abs() < 1e-6);
        assert!((loss(LossReduction::Mean, None, true)[0] + 1.1 / 0.7).abs() < 1e-6);
    }

    #[test]
    fn ignored_labels_do_not_count() {
        assert_eq!(loss(LossReduction::None, Some(2), false), [0.0, -2.0, 0.0, 0.0]);
        assert_eq!(loss(LossReduction::Mean, Some(2), false), [-1.0]);
        let labels = Tensor::from_elements(&[1], &[3i32]).unwrap();
        let scores = Tensor::from_elements(&[1, 3], &[1.0f32; 3]).unwrap();
        let operator = NegativeLogLikelihood { reduction: LossReduction::Sum, ignored_label: None };
        assert!(matches!(run(&operator, &[scores, labels]), Err(ReferenceError::OutOfRange { found: 3, .. })));
    }
}
