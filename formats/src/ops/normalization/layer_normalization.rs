//! Normalization over the last axes: ONNX `LayerNormalization` (opset 17), `RMSNormalization` (opset 23).
//!
//! Stage one (statistics, standardization) is computed in the stash type or in the type of the data, whichever is
//! wider, and at least in f32; its result is rounded to the type of the data. Stage two (scale, bias) rounds after
//! each operation.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_strides, strided_indices};
use crate::ops::floats::{narrowed, require_computing_float, rounded_step, widened};
use crate::ops::normalization::reduce::{sets, volume};
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts,
    TypeError, VectorClass, each, loops, normalize_axis, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Standardizes the axes from `axis` on: `x: [.., ..]`, optional `scale` and `bias` that broadcast to `x`.
    ///
    /// Results: `y: [.., ..]` (the type of `scale`, where there is one), and where `center` is set also the mean and
    /// the inverse standard deviation, `[.., 1]` each, in the stash type.
    pub struct LayerNormalization revision 1 {
        /// First of the normalized axes; counted from the back where negative.
        1 since 1 => axis: i64,
        /// Added to the variance, or to the mean square.
        2 since 1 => epsilon: f32,
        /// Subtract the mean (layer normalization); without it: divide by the root mean square.
        3 since 1 => center: bool,
        /// Type of the mean and of the inverse standard deviation.
        4 since 1 => stash: DType,
    }
}

/// Statistics of one set of elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moments {
    /// Mean; 0 where nothing is centered.
    pub(crate) mean: f64,
    /// Mean square of the distance from `mean`.
    pub(crate) variance: f64,
}

impl Moments {
    /// Of these values, in two passes.
    pub(crate) fn of(values: &[f64], center: bool) -> Moments {
        let count = values.len() as f64;
        let mean = if center { values.iter().sum::<f64>() / count } else { 0.0 };
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
        Moments { mean, variance }
    }

    /// 1 / sqrt(variance + epsilon).
    pub(crate) fn inverse_deviation(self, epsilon: f32) -> f64 {
        1.0 / (self.variance + f64::from(epsilon)).sqrt()
    }
}

/// Require operand `operand` to broadcast to `target` without changing it.
pub(crate) fn require_broadcast_into(
    inputs: &[Option<Fact>],
    operand: usize,
    target: &[Dim],
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    let Some(dims) = optional(inputs, operand).and_then(Fact::dims) else { return Ok(()) };
    if dims.len() > target.len() {
        return Err(TypeError::Rank { operand, expected: format!("at most {}", target.len()), found: dims.len() });
    }
    for (dim, wanted) in dims.iter().rev().zip(target.iter().rev()) {
        match (dim.as_known(), wanted.as_known()) {
            (Some(1), _) => {}
            (Some(_), Some(_)) => drop(context.require_equal(dim, wanted, "broadcast to the normalized data")?),
            _ if dim == wanted => {}
            _ => context.oblige(Relation::Broadcastable, dim, wanted, "broadcast to the normalized data"),
        }
    }
    Ok(())
}

/// The elements of an optional operand, repeated to `target`.
pub(crate) fn broadcast_values(operand: Option<&Tensor>, target: &[usize]) -> Result<Option<Vec<f64>>, ReferenceError> {
    let Some(operand) = operand else { return Ok(None) };
    let fits = operand.rank() <= target.len()
        && operand.shape().iter().rev().zip(target.iter().rev()).all(|(own, wanted)| *own == 1 || own == wanted);
    if !fits {
        let (left, right) = (format!("{:?}", operand.shape()), format!("{target:?}"));
        return Err(
            TypeError::Dimension { subject: "broadcast to the normalized data".to_string(), left, right }.into()
        );
    }
    let values = widened(operand)?;
    let strides = broadcast_strides(operand.shape(), target);
    Ok(Some(strided_indices(target, &strides).map(|index| values[index]).collect()))
}

impl LayerNormalization {
    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        let mut result = dtype;
        for operand in [1, 2] {
            if optional(inputs, operand).is_none() {
                continue;
            }
            let (found, _) = tensor_operand(inputs, operand)?;
            require_computing_float(found, operand)?;
            if operand == 1 {
                result = found;
            }
            let expected = if operand == 1 && !self.center { found } else { result };
            if found != expected || (self.center && found != dtype) {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
        }
        require_stash(self.stash)?;
        Ok(result)
    }
}

/// Refuse a stash type in which nothing can be computed.
pub(crate) fn require_stash(stash: DType) -> Result<(), TypeError> {
    if crate::ops::floats::is_computing_float(stash) {
        return Ok(());
    }
    Err(TypeError::Value {
        subject: "stash type".to_string(),
        found: stash.to_string(),
        expected: "f16, bf16, f32 or f64".to_string(),
    })
}

impl Operator for LayerNormalization {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let result = self.check_types(inputs)?;
        let (_, shape) = tensor_operand(inputs, 0)?;
        let statistics = match shape {
            Shape::Unranked => Shape::Unranked,
            Shape::Ranked(dims) => {
                let axis = normalize_axis(self.axis, dims.len())?;
                require_broadcast_into(inputs, 1, dims, context)?;
                require_broadcast_into(inputs, 2, dims, context)?;
                let dim_of = |(index, dim): (usize, &Dim)| if index < axis { dim.clone() } else { Dim::ONE };
                Shape::Ranked(dims.iter().enumerate().map(dim_of).collect())
            }
        };
        let mut facts = vec![Fact::tensor(result, shape.clone())];
        if self.center {
            facts.push(Fact::tensor(self.stash, statistics.clone()));
            facts.push(Fact::tensor(self.stash, statistics));
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
        let result = self.check_types(&facts)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        let scale = broadcast_values(optional_tensor(inputs, 1)?, data.shape())?;
        let bias = broadcast_values(optional_tensor(inputs, 2)?, data.shape())?;
        let mut values = widened(data)?;
        let row = volume(&data.shape()[axis..]);
        let rows = volume(&data.shape()[..axis]);
        let (mut means, mut inverses) = (Vec::new(), Vec::new());
        let statistics: Vec<usize> = (0..data.rank()).map(|at| if at < axis { data.shape()[at] } else { 1 }).collect();
        if row == 0 && rows > 0 {
            // Statistics of nothing; the check bounds what a tensor without elements may ask for.
            means = filled(f64::NAN, sets(data.shape(), &(axis..data.rank()).collect::<Vec<usize>>())?.starts.len())?;
            inverses.clone_from(&means);
        }
        for index in 0..if row > 0 { rows } else { 0 } {
            let range = index * row..(index + 1) * row;
            let moments = Moments::of(&values[range.clone()], self.center);
            let inverse = moments.inverse_deviation(self.epsilon);
            means.push(moments.mean);
            inverses.push(inverse);
            for position in range {
                let mut value = rounded_step(data.dtype(), (values[position] - moments.mean) * inverse);
                if let Some(scale) = &scale {
                    value = rounded_step(result, value * scale[position]);
                }
                values[position] = value + bias.as_ref().map_or(0.0, |bias| bias[position]);
            }
        }
        let mut results: Vec<Value> = vec![narrowed(result, data.shape(), &values)?.into()];
        if self.center {
            results.push(narrowed(self.stash, &statistics, &means)?.into());
            results.push(narrowed(self.stash, &statistics, &inverses)?.into());
        }
        Ok(results)
    }
}

impl Computes for LayerNormalization {
    /// Sums of rows and of their squares first; then each element.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        let Ok(first) = normalize_axis(self.axis, dims.len()) else { return loops::serial(facts) };
        // A mean and a variance, or a square alone.
        let numbers = if self.center { 2 } else { 1 };
        let statistics = loops::statistics(facts, |axis| axis >= first);
        let mut spaces: Vec<Space> = statistics.map(|space| Space { numbers, ..space }).into_iter().collect();
        spaces.extend(loops::broadcast(facts, 3, |_| AxisKind::Parallel));
        spaces
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let affine = [1, 2].iter().filter(|&&operand| facts.operand(operand).is_some()).count() as i64;
        let statistics = if self.center { 4 } else { 2 };
        each(&facts.elements(0), &[(VectorClass::Arithmetic, statistics + 1 + affine)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn operator(axis: i64, center: bool) -> LayerNormalization {
        LayerNormalization { axis, epsilon: 0.0, center, stash: DType::F32 }
    }

    fn run(operator: &LayerNormalization, inputs: &[Option<Tensor>]) -> Vec<Vec<f64>> {
        let mut blocks = NoBlocks;
        let inputs: Vec<Option<Value>> = inputs.iter().map(|input| input.clone().map(Value::from)).collect();
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        results.iter().map(|result| widened(result.as_tensor().unwrap()).unwrap()).collect()
    }

    fn tensor_of(shape: &[usize], values: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, values).unwrap())
    }

    #[test]
    fn rows_have_zero_mean_and_unit_variance() {
        let data = tensor_of(&[2, 2], &[1.0, 3.0, -4.0, 4.0]);
        let results = run(&operator(-1, true), &[data, tensor_of(&[2], &[2.0, 1.0]), tensor_of(&[1], &[0.5])]);
        assert_eq!(results[0], [-1.5, 1.5, -1.5, 1.5]);
        assert_eq!(results[1], [2.0, 0.0]);
        assert_eq!(results[2], [1.0, 0.25]);
    }

    #[test]
    fn several_axes_and_root_mean_square() {
        let data = tensor_of(&[1, 2, 2], &[1.0, 7.0, 5.0, 5.0]);
        let results = run(&operator(1, false), &[data.clone(), tensor_of(&[2, 1], &[1.0, 10.0])]);
        assert_eq!(results, [[0.2, 1.4, 10.0, 10.0].map(|value: f64| f64::from(value as f32)).to_vec()]);
        let centered = run(&operator(0, true), &[data]);
        assert_eq!(centered[1], [4.5]);
    }

    #[test]
    fn halves_are_rounded_between_the_stages() {
        let data = Tensor::from_elements(&[2], &[1.0f32, 2.0].map(half::bf16::from_f32)).unwrap();
        let scale = Tensor::from_elements(&[1], &[half::bf16::from_f32(3.0)]).unwrap();
        let results = run(&operator(0, false), &[Some(data), Some(scale)]);
        let normalized = half::bf16::from_f64(2.0 / 2.5f64.sqrt()).to_f64();
        assert_eq!(results[0][1], half::bf16::from_f64(normalized * 3.0).to_f64());
    }

    #[test]
    fn shapes_and_types_are_checked() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("n", &ranges, &mut blocks);
        let fact =
            |dtype, dims: &[i64]| Some(Fact::tensor(dtype, dims.iter().map(|&d| Dim::known(d)).collect::<Vec<_>>()));
        let data = Some(Fact::tensor(DType::F16, vec![Dim::symbol("n"), Dim::known(4)]));
        let facts = operator(1, true).infer(&[data.clone(), fact(DType::F16, &[4])], &mut context).unwrap();
        let printed: Vec<String> = facts.iter().map(|fact| fact.kind.to_string()).collect();
        assert_eq!(printed, ["f16[n, 4]", "f32[n, 1]", "f32[n, 1]"]);
        assert_eq!(
            operator(1, true).infer(&[data.clone(), fact(DType::F16, &[3])], &mut context).unwrap_err().to_string(),
            "broadcast to the normalized data: 3 does not fit 4"
        );
        assert_eq!(
            operator(1, true).infer(&[data.clone(), fact(DType::F32, &[4])], &mut context).unwrap_err().to_string(),
            "operand 1 must be f16, found f32"
        );
        let mixed = operator(1, false).infer(&[data, fact(DType::F32, &[4])], &mut context).unwrap();
        assert_eq!(mixed[0].kind.to_string(), "f32[n, 4]");
    }
}
