//! Normalization of each channel by given or by current statistics: ONNX `BatchNormalization` (opsets 7 to 15).
//!
//! Computed in f64 and rounded once; the operator has no function body.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::floats::{narrowed, require_computing_float, widened};
use crate::ops::normalization::layer_normalization::Moments;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, required, tensor, tensor_operand,
};
use crate::tensor::{element_count, strides};
use crate::value::Value;

attributes! {
    /// `x: [n, c, ..]` (or `[n]`, one channel); `scale`, `bias`, `mean`, `variance: [c]` to `[n, c, ..]`.
    ///
    /// In training the statistics are those of `x`, and two more results are the running mean and variance `[c]`.
    pub struct BatchNormalization revision 1 {
        /// Added to the variance.
        1 since 1 => epsilon: f32,
        /// Weight of the old running statistics against the current ones.
        2 since 1 => momentum: f32,
        /// Normalize by the statistics of `x`, and update the running ones.
        3 since 1 => training: bool,
        /// Every element of an instance has its own statistics: the four operands are `[c, ..]` (opset 7 only).
        4 since 1 => per_element: bool,
    }
}

/// How the operands' extents follow from those of the data, `[1]` for data of one axis.
fn parameter_axes(rank: usize, per_element: bool) -> std::ops::Range<usize> {
    match (rank, per_element) {
        (0 | 1, _) => 0..0,
        (_, false) => 1..2,
        (_, true) => 1..rank,
    }
}

impl BatchNormalization {
    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<(DType, DType), TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        for operand in 1..5 {
            let (found, _) = tensor_operand(inputs, operand)?;
            require_computing_float(found, operand)?;
        }
        let (statistics, _) = tensor_operand(inputs, 3)?;
        let (variance, _) = tensor_operand(inputs, 4)?;
        if variance != statistics {
            let expected = statistics.to_string();
            return Err(TypeError::ElementType { operand: 4, expected, found: variance });
        }
        Ok((dtype, statistics))
    }
}

impl Operator for BatchNormalization {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, statistics) = self.check_types(inputs)?;
        let (_, shape) = tensor_operand(inputs, 0)?;
        let mut parameters = Shape::Unranked;
        if let Shape::Ranked(dims) = shape {
            if dims.is_empty() {
                return Err(TypeError::Rank { operand: 0, expected: "at least 1".to_string(), found: 0 });
            }
            let wanted = match dims.len() {
                1 => vec![Dim::ONE],
                rank => dims[parameter_axes(rank, self.per_element)].to_vec(),
            };
            for operand in 1..5 {
                let Some(found) = required(inputs, operand)?.dims() else { continue };
                if found.len() != wanted.len() {
                    return Err(TypeError::Rank { operand, expected: wanted.len().to_string(), found: found.len() });
                }
                for (left, right) in found.iter().zip(&wanted) {
                    context.require_equal(left, right, "channels of the batch normalization")?;
                }
            }
            parameters = Shape::Ranked(wanted);
        }
        let mut facts = vec![Fact::tensor(dtype, shape.clone())];
        if self.training {
            facts.push(Fact::tensor(statistics, parameters.clone()));
            facts.push(Fact::tensor(statistics, parameters));
        }
        Ok(facts)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        let (dtype, statistics) = self.check_types(&facts)?;
        let axes = parameter_axes(data.rank(), self.per_element);
        let extents = if axes.is_empty() { vec![1] } else { data.shape()[axes.clone()].to_vec() };
        let channels = element_count(&extents).unwrap_or(usize::MAX);
        let mut parameters = Vec::with_capacity(4);
        for operand in 1..5 {
            let parameter = tensor(inputs, operand)?;
            if parameter.shape() != extents {
                return Err(TypeError::Dimension {
                    subject: format!("channels of operand {operand}"),
                    left: format!("{:?}", parameter.shape()),
                    right: format!("{extents:?}"),
                }
                .into());
            }
            parameters.push(widened(parameter)?);
        }
        // The channel of an element: its index, cut to the parameter axes.
        let own = strides(data.shape());
        let inner = axes.end.checked_sub(1).and_then(|last| own.get(last)).copied().unwrap_or(usize::MAX).max(1);
        let channel_of = |index: usize| if axes.is_empty() { 0 } else { index / inner % channels };
        let mut values = widened(data)?;
        let (mut means, mut variances) = (parameters[2].clone(), parameters[3].clone());
        if self.training {
            let mut sets = vec![Vec::new(); channels];
            values.iter().enumerate().for_each(|(index, value)| sets[channel_of(index)].push(*value));
            let moments: Vec<Moments> = sets.iter().map(|set| Moments::of(set, true)).collect();
            means = moments.iter().map(|moments| moments.mean).collect();
            variances = moments.iter().map(|moments| moments.variance).collect();
        }
        for (index, value) in values.iter_mut().enumerate() {
            let channel = channel_of(index);
            let inverse = 1.0 / (variances[channel] + f64::from(self.epsilon)).sqrt();
            *value = (*value - means[channel]) * inverse * parameters[0][channel] + parameters[1][channel];
        }
        let mut results: Vec<Value> = vec![narrowed(dtype, data.shape(), &values)?.into()];
        if self.training {
            let momentum = f64::from(self.momentum);
            let running = |old: &[f64], current: &[f64]| -> Vec<f64> {
                old.iter().zip(current).map(|(old, current)| old * momentum + current * (1.0 - momentum)).collect()
            };
            results.push(narrowed(statistics, &extents, &running(&parameters[2], &means))?.into());
            results.push(narrowed(statistics, &extents, &running(&parameters[3], &variances))?.into());
        }
        Ok(results)
    }
}

impl Computes for BatchNormalization {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        if self.per_element {
            return loops::serial(facts);
        }
        let mut nest = loops::Loops::new(facts);
        for (axis, extent) in dims.iter().enumerate() {
            let mut places = vec![loops::operand(0, axis), loops::result(0, axis)];
            if axis == 1 {
                places.extend((1..5).map(|operand| loops::operand(operand, 0)));
                places.extend((1..3).map(|result| loops::result(result, 0)));
            }
            // In training the statistics of a channel are over all other axes.
            nest = if self.training && axis != 1 { nest.serial(extent) } else { nest.parallel(extent, places) };
        }
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let statistics = if self.training { 3 } else { 0 };
        let per_channel = facts.elements(1);
        [
            each(&facts.elements(0), &[(VectorClass::Arithmetic, 2 + statistics)]),
            each(&per_channel, &[(VectorClass::Divide, 2)]),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::tensor::Tensor;

    fn run(operator: &BatchNormalization, inputs: &[(&[usize], &[f32])]) -> Vec<Vec<f32>> {
        let mut blocks = NoBlocks;
        let inputs: Vec<Option<Value>> =
            inputs.iter().map(|(shape, values)| Some(Tensor::from_elements(shape, values).unwrap().into())).collect();
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        results.iter().map(|result| result.as_tensor().unwrap().elements::<f32>().unwrap().to_vec()).collect()
    }

    fn operator(training: bool, per_element: bool) -> BatchNormalization {
        BatchNormalization { epsilon: 0.0, momentum: 0.75, training, per_element }
    }

    #[test]
    fn given_statistics_normalize_each_channel() {
        let data: (&[usize], &[f32]) = (&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let c: &[usize] = &[2];
        let results = run(
            &operator(false, false),
            &[data, (c, &[1.0, 10.0]), (c, &[0.0, 1.0]), (c, &[1.0, 3.0]), (c, &[4.0, 1.0])],
        );
        assert_eq!(results, [[0.0, 0.5, 1.0, 11.0]]);
    }

    #[test]
    fn training_uses_and_updates_statistics() {
        let data: (&[usize], &[f32]) = (&[2, 1], &[1.0, 3.0]);
        let c: &[usize] = &[1];
        let results = run(&operator(true, false), &[data, (c, &[1.0]), (c, &[0.0]), (c, &[4.0]), (c, &[5.0])]);
        assert_eq!(results, [vec![-1.0, 1.0], vec![3.5], vec![4.0]]);
    }

    #[test]
    fn statistics_per_element_and_one_axis() {
        let data: (&[usize], &[f32]) = (&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
        let c: &[usize] = &[1, 2];
        let results =
            run(&operator(false, true), &[data, (c, &[1.0, 2.0]), (c, &[0.0; 2]), (c, &[1.0, 2.0]), (c, &[1.0; 2])]);
        assert_eq!(results, [[0.0, 0.0, 2.0, 4.0]]);
        let one: &[usize] = &[1];
        let flat = run(
            &operator(false, false),
            &[(&[2], &[1.0, 2.0]), (one, &[2.0]), (one, &[0.0]), (one, &[1.0]), (one, &[1.0])],
        );
        assert_eq!(flat, [[0.0, 2.0]]);
    }

    #[test]
    fn channels_must_agree() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("b", &ranges, &mut blocks);
        let fact = |dims: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(dims)));
        let c = || fact(&[3]);
        let good = [fact(&[1, 3, 4]), c(), c(), c(), c()];
        assert_eq!(operator(true, false).infer(&good, &mut context).unwrap().len(), 3);
        let bad = [fact(&[1, 4, 4]), c(), c(), c(), c()];
        assert_eq!(
            operator(false, false).infer(&bad, &mut context).unwrap_err().to_string(),
            "channels of the batch normalization: 3 does not fit 4"
        );
    }
}
